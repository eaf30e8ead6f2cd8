"""`embedrock train` on the nodes and the links of a graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import embedrock  # noqa: E402
from embedrock import cli  # noqa: E402
from embedrock.adapters import pyg  # noqa: E402
from embedrock.data import DataError, graphs  # noqa: E402
from embedrock.errors import MismatchError, MisuseError  # noqa: E402
from embedrock.report.progress import Lines  # noqa: E402
from embedrock.training import epoch_run, nodes  # noqa: E402
from embedrock.training.node_batches import (  # noqa: E402
    LinkBatches,
    NodeBatches,
    negatives_of,
    sampler_of,
)
from embedrock.training.node_options import NodeOptions  # noqa: E402
from embedrock.training.node_recipes import NodeRecipe  # noqa: E402
from nodegraphs import NODES, write_graph  # noqa: E402
from trainings import _After, digests  # noqa: E402

SMALL = {"epochs": 2, "batch_size": 32, "embedding_dim": 8}


def options_of(tmp_path: Path, store: str, model: str = "graphsage", **given: Any) -> NodeOptions:
    """Six steps an epoch for nodes, two epochs."""
    recipe = {**SMALL, **{n: v for n, v in given.items() if hasattr(NodeRecipe(), n)}}
    rest = {name: value for name, value in given.items() if name not in recipe}
    chosen = {"memory": "64MiB", "threads": 1, "commit_every": 4}
    return NodeOptions(
        data=rest.pop("data", None) or write_graph(tmp_path / "graph"),
        model=model,
        store=tmp_path / store,
        recipe=NodeRecipe.of_model(model, recipe),
        **{"given": frozenset(recipe), **chosen, **rest},
    )


def train(options: NodeOptions) -> dict[str, Any]:
    return nodes.train(options, Lines())


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("graphsage", {"rows": "both"}),
        ("gat", {"rows": "features"}),
        ("graphsage", {"task": "links", "rows": "embeddings", "batch_size": 256}),
        ("gat", {"rows": "embeddings", "pipeline": True, "optimizer": "rowwise_adam"}),
    ],
)
def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, given: dict[str, Any]
) -> None:
    whole = train(options_of(tmp_path, "whole", model, **given))
    assert whole["step"] > 8
    for stop in (1, 7):
        options = options_of(tmp_path, f"stopped-{stop}", model, **given, schedule=True)
        with monkeypatch.context() as patched:
            patched.setattr(epoch_run, "Interrupt", lambda steps=stop: _After(steps))
            first = train(options)
        assert (first["interrupted"], first["step"], first["measured"]) == (True, stop, {})
        assert first["lookahead"]["scheduled"] >= stop, "batches are those of the schedule"
        # Without look-ahead: how many batches are drawn ahead changes nothing.
        more = {} if "pipeline" in given else {"lookahead_depth": 0, "schedule": False}
        second = train(replace(options, resume=True, given=frozenset(), **more))
        assert (second["step"], second["measured"]) == (whole["step"], whole["measured"])
        assert digests(options.store) == digests(tmp_path / "whole")


def test_features_tell_kinds_and_their_table_is_a_feature_store(
    tmp_path: Path, capsys: Any
) -> None:
    folder = write_graph(tmp_path / "graph")
    common = ["train", "--model", "graphsage", "--data", str(folder), "--store"]
    common += [str(tmp_path / "s"), "--memory", "64MiB", "--threads", "1"]
    more = ["--epochs", "10", "--batch-size", "32", "--json", "--report", str(tmp_path / "r.json")]
    assert cli.main([*common, *more, "--model-option", "hidden=16"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["measured"]["test"]["accuracy"] > 0.8  # by chance it is 0.33
    assert (result["rows"], result["parts"]["train"]) == (["features.x"], 180)
    figures = json.loads((tmp_path / "r.json").read_text())["figures"]
    assert figures["test_accuracy"] == result["measured"]["test"]["accuracy"]
    assert cli.main([*common, "--resume"]) == 0
    assert "test: accuracy 0." in capsys.readouterr().out
    with embedrock.open(tmp_path / "s", "64MiB", create=False) as store:
        known = pyg.FeatureStore(store)
        known.attach(store.table("features.x"), "x")
        found = known.get_tensor(attr_name="x", group_name=None, index=None)
    assert np.array_equal(found.numpy(), np.load(folder / "features.npy"))


def test_embeddings_tell_links(tmp_path: Path, capsys: Any) -> None:
    common = ["train", "--model", "graphsage", "--task", "links", "--rows", "embeddings"]
    common += ["--data", str(write_graph(tmp_path / "graph")), "--store", str(tmp_path / "s")]
    more = ["--epochs", "20", "--batch-size", "64"]
    assert cli.main([*common, "--memory", "64MiB", "--threads", "1", *more]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("test: AUC"))
    assert float(line.split()[2].rstrip(",")) > 0.6  # by chance it is 0.5


def test_batches_are_functions_of_the_step(tmp_path: Path) -> None:
    graph = graphs.read(write_graph(tmp_path / "graph"))
    edges = graph.undirected()
    sampler = sampler_of(edges, NODES, (3, 2), directed=False)
    how = {"batch_size": 40, "epochs": 2, "seed": 3}
    for make in (
        lambda step: NodeBatches(sampler, np.arange(100), graph.labels, **how, step=step),
        lambda step: LinkBatches(sampler, edges[:, :100], NODES, **how, step=step),
    ):
        torch.manual_seed(0)
        before = torch.rand(1)
        torch.manual_seed(0)
        all_of_them = list(make(0))
        assert torch.rand(1) == before  # the model's generator is as it was
        assert [batch.step for batch in all_of_them] == [0, 1, 2, 3, 4, 5]
        assert [len(batch) for batch in all_of_them] == [40, 40, 20] * 2
        first, second = all_of_them[4], next(iter(make(4)))
        assert torch.equal(first.sample.nodes, second.sample.nodes)
        assert torch.equal(first.sample.edges, second.sample.edges)
        assert torch.equal(first.targets, second.targets)
        assert not torch.equal(all_of_them[0].sample.nodes, all_of_them[3].sample.nodes)


def test_a_layer_reads_only_what_later_ones_need(tmp_path: Path) -> None:
    # Without this, leaving neighbours of the last hop out could change what is predicted.
    options = options_of(tmp_path, "s", model_options={"dropout": 0.0, "neighbors": (3, 3)})
    graph = graphs.read(options.data)
    sampler = sampler_of(graph.undirected(), NODES, (3, 3), directed=False)
    batches = NodeBatches(sampler, np.arange(9), graph.labels, batch_size=9, epochs=1, seed=0)
    (batch,) = batches
    rows = torch.nn.Embedding(NODES, 8)
    model = nodes.model_over(options, nodes.NodeRows(None, rows), 8, 3).eval()
    sample = batch.sample
    found = model(model.rows(sample.nodes), sample)
    first, second = model.layers.convolutions
    values = first(rows(sample.nodes), sample.edges).relu()
    own = sample.edges[:, : sample.edges_within[1]]
    torch.testing.assert_close(found, second(values, own)[:9])
    assert sample.nodes_within[-1] == len(sample.nodes) > sample.nodes_within[1] > 9
    assert sample.edges_within[-1] == sample.edges.shape[1]


def test_edges_that_are_asked_for_are_not_in_the_sample(tmp_path: Path) -> None:
    edges = graphs.read(write_graph(tmp_path / "graph")).undirected()
    sampler = sampler_of(edges, NODES, (0,), directed=False)
    how = {"batch_size": 50, "epochs": 1, "seed": 0}
    batch = next(iter(LinkBatches(sampler, edges[:, :50], NODES, **how)))
    ids = batch.sample.nodes
    there = {tuple(pair) for pair in ids[batch.sample.edges].T.tolist()}
    asked = {tuple(pair) for pair in ids[batch.pairs[:, :50]].T.tolist()}
    assert len(asked) == 50 and len(there) > 50
    assert not there & (asked | {(second, first) for first, second in asked})
    known = {tuple(pair) for pair in edges.T.tolist()}
    drawn = negatives_of(edges, NODES, 500, 0)
    assert drawn.shape == (2, 500)
    assert not known & {tuple(sorted(pair)) for pair in drawn.T.tolist()}


def test_what_does_not_fit_the_stored_run_is_refused(tmp_path: Path) -> None:
    options = options_of(tmp_path, "s", rows="embeddings")
    step = train(options)["step"]
    with pytest.raises(MisuseError, match=f"holds a run at step {step}; add --resume"):
        train(options)
    again = replace(options, resume=True)
    with pytest.raises(MismatchError, match=r"model is gat, but the run in .* has graphsage"):
        train(replace(options_of(tmp_path, "s", "gat"), resume=True))
    for name, value in {"task": "links", "directed": True, "weight_decay": 0.1}.items():
        with pytest.raises(MismatchError, match=rf"{name} is {value}, but the run in .* has"):
            given = {"rows": "embeddings", name: value}
            train(replace(options_of(tmp_path, "s", **given), resume=True))
    longer = replace(options.recipe, epochs=3)
    assert train(replace(again, recipe=longer))["step"] == 1.5 * step
    labels = np.load(options.data / "labels.npy")
    np.save(options.data / "labels.npy", labels[::-1])
    with pytest.raises(MisuseError, match=r"labels\.npy is not what the run in .* has read"):
        train(again)


@pytest.mark.parametrize(
    ("change", "given", "problem"),
    [
        (
            {"features": np.ones((10, 2)), "labels": np.zeros(10, int)},
            {},
            r"edges\.csv, line \d+: node \d+, expected 0 to 9",
        ),
        ({"labels": np.zeros(7, int)}, {}, r"labels\.npy: has 7 labels, but features\.npy has 300"),
        (
            {"features": np.full((NODES, 2), np.nan)},
            {},
            r"features\.npy: row 0, column 0 is nan, expected finite numbers",
        ),
        ({"features": None}, {"rows": "both"}, "has no features.npy, .* --rows embeddings"),
        ({"labels": None}, {}, "has no labels.tsv, .* --task links"),
        (
            {"labels": np.full(NODES, -1)},
            {},
            r"labels\.npy: has no labelled node to train with",
        ),
    ],
)
def test_data_that_do_not_fit_leave_no_run(
    tmp_path: Path, change: dict[str, Any], given: dict[str, Any], problem: str
) -> None:
    options = options_of(tmp_path, "s", **given)
    for name, array in change.items():
        path = options.data / f"{name}.npy"
        path.unlink() if array is None else np.save(path, array)
    with pytest.raises(DataError, match=problem):
        train(options)
    if options.store.exists():
        with embedrock.open(options.store, "64MiB", create=False) as store:
            assert store.step is None


def test_a_folder_is_expected(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(MisuseError, match=r"data is .*edges\.csv, expected the folder"):
        train(options_of(tmp_path, "s", data=tmp_path / "edges.csv"))


# Ids of a platform, and words as labels, were refused, or named other nodes.
def test_names_of_nodes_and_labels_are_numbered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = options_of(tmp_path, "s", map_ids=True, rows="embeddings")
    folder = tmp_path / "named"
    folder.mkdir()
    graph = graphs.read(options.data)
    assert graph.labels is not None
    names = [f"{10**10 + 7 * node}" for node in range(graph.num_nodes)]
    lines = [f"{names[a]}\t{names[b]}\n" for a, b in graph.edges.T]
    (folder / "edges.tsv").write_text("".join(lines))
    words = [f"{names[n]} kind-{label}\n" for n, label in enumerate(graph.labels) if label >= 0]
    (folder / "labels.txt").write_text("".join(words))
    found = train(replace(options, data=folder))
    assert found["keys"] == "names"
    assert sorted(found["class_names"]) == sorted({line.split()[1] for line in words})
    assert found["nodes"] == len(
        {name for line in lines + words for name in line.split()[:2]}
        - {line.split()[1] for line in words}
    )
    again = train(replace(options, data=folder, resume=True, map_ids=False))
    assert again["step"] == found["step"]
    command = [
        "train",
        "--model",
        "graphsage",
        "--data",
        str(folder),
        "--store",
        str(tmp_path / "t"),
    ]
    assert cli.main(command) == 2
    assert "numbers names and words" in capsys.readouterr().err
