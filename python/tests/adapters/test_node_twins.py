"""Models of `embedrock train` for graphs at a tenth of their memory, beside them in memory."""

from __future__ import annotations

import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import embedrock  # noqa: E402
from clicklogs import shared  # noqa: E402
from embedrock.data import graphs  # noqa: E402
from embedrock.report.progress import Lines  # noqa: E402
from embedrock.training import nodes  # noqa: E402
from embedrock.training.epoch_run import EpochRun  # noqa: E402
from embedrock.training.node_options import NodeOptions  # noqa: E402
from embedrock.training.node_recipes import NodeRecipe  # noqa: E402

NODES, DIM, STEPS, BATCH = 20_000, 48, 50, 32
SPLIT = f"{100 * STEPS * BATCH / NODES:g}-0-{100 - 100 * STEPS * BATCH / NODES:g}"


def write_graph(folder: Path) -> Path:
    """A graph whose rows are 7 MiB, those of features and of embeddings together."""
    folder.mkdir()
    random = np.random.default_rng(0)
    np.save(folder / "edges.npy", random.integers(0, NODES, (2, 6 * NODES)))
    np.save(folder / "labels.npy", random.integers(0, 5, NODES))
    np.save(folder / "features.npy", random.standard_normal((NODES, DIM)).astype(np.float32))
    return folder


def in_memory(run: Any, options: NodeOptions) -> nodes.NodeTrainer:
    """The run's model as it is, with its rows in memory."""
    recipe, graph, mine = options.recipe, run.graph, run.trainer.model
    features = embeddings = None
    if mine.rows.features is not None:
        given = torch.from_numpy(np.array(graph.features))
        features = torch.nn.Embedding.from_pretrained(given, freeze=True)
    if mine.rows.embeddings is not None:
        rows = mine.rows.embeddings.table.get(np.arange(NODES))
        embeddings = torch.nn.Embedding.from_pretrained(torch.from_numpy(rows), freeze=False)
    width = nodes._width(recipe, graph, (features is not None, embeddings is not None))
    model = nodes.model_over(options, nodes.NodeRows(features, embeddings), width, 5)
    model.layers.load_state_dict(mine.layers.state_dict())
    optimizers = [torch.optim.Adam(model.layers.parameters(), lr=recipe.dense_lr)]
    rates = [recipe.dense_lr]
    if embeddings is not None:
        optimizers.append(torch.optim.SGD(embeddings.parameters(), lr=recipe.lr))
        rates.append(recipe.lr)
    return nodes.NodeTrainer(model, optimizers, rates, recipe.lr_decay)


@pytest.mark.parametrize("model", ["graphsage", "gat"])
@pytest.mark.parametrize(
    "given",
    [{"rows": "both"}, {"task": "links", "rows": "embeddings", "embedding_dim": 2 * DIM}],
    ids=["nodes", "links"],
)
def test_losses_and_rows_are_those_of_the_model_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, given: dict[str, Any]
) -> None:
    recipe = {"embedding_dim": DIM, "batch_size": BATCH, "epochs": 1, "split": SPLIT}
    recipe |= {"optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}
    # Drawn by torch's generator, dropout is the same in both where both begin alike.
    recipe |= {"model_options": {"dropout": 0.2, "neighbors": (4, 4)}, **given}
    options = NodeOptions(
        data=write_graph(tmp_path / "graph"),
        store=tmp_path / "store",
        model=model,
        recipe=NodeRecipe.of_model(model, recipe),
        threads=1,
    )
    twin: dict[str, Any] = {}

    def beside(run: Any, sink: Any, interrupt: Any) -> None:
        theirs = in_memory(run, options)
        run.store.commit(0)  # rows that are not in memory are on the disk
        theirs.begin_epoch(0)
        first = theirs.model.rows.embeddings.weight.detach().clone()
        batches = list(islice(run.batches, STEPS))
        run.batches._step = 0
        torch.manual_seed(7)
        twin["expected"] = [theirs.step(batch) for batch in batches]
        torch.manual_seed(7)
        run.batches = Steps(batches)
        real(run, sink, interrupt)
        twin["losses"] = list(run.losses)
        table, rows = run.trainer.model.rows.embeddings.table, theirs.model.rows.embeddings
        found = torch.from_numpy(table.get(np.arange(NODES)))
        twin["rows"] = float((found - rows.weight.detach()).abs().max())
        twin["moved"] = float((rows.weight.detach() - first).abs().max())

    real = EpochRun.train
    monkeypatch.setattr(EpochRun, "train", beside)
    monkeypatch.setattr(nodes._Run, "measure", lambda run, sink: {})
    with warnings.catch_warnings():
        warnings.simplefilter("error", embedrock.BudgetWarning)  # it is a tenth
        result = nodes.train(options, Lines())
    assert result["stats"]["misses"] > 10_000
    assert len(twin["losses"]) == STEPS == result["step"]
    assert twin["losses"] == pytest.approx(twin["expected"], abs=1e-5)
    assert twin["rows"] <= 1e-5 < 1e-3 < twin["moved"]


class Steps(list[Any]):
    """Batches that were drawn, as a run has them."""

    def epoch_of(self, step: int) -> int:
        return step // STEPS


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "email-enron"])
def test_public_graphs_are_read_and_trained_on(tmp_path: Path, name: str) -> None:
    folder = shared(f"graph-{name}/edges.tsv.gz").parent
    graph = graphs.read(folder)
    sizes = {"cora": (2708, 5278), "citeseer": (3327, 4552), "pubmed": (19717, 44324)}
    sizes["email-enron"] = (36692, 183831)
    assert (graph.num_nodes, graph.undirected().shape[1]) == sizes[name]
    task = "links" if graph.labels is None else "nodes"
    split = "1-98-1" if task == "links" else "planetoid"
    recipe = {"task": task, "split": split, "epochs": 1, "embedding_dim": 8}
    options = NodeOptions(
        data=folder,
        store=tmp_path / "store",
        model="graphsage",
        recipe=NodeRecipe.of_model("graphsage", recipe),
        memory="64MiB",
        threads=1,
    )
    result = nodes.train(options, Lines())
    assert 0 < result["measured"]["test"]["auc" if task == "links" else "accuracy"] <= 1
