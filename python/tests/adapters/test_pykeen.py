"""The adapter of PyKEEN, by PyKEEN's own loop and evaluator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pykeen")

import torch
from pykeen.datasets import Nations
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import ERModel
from pykeen.nn import Embedding
from pykeen.stoppers import EarlyStopper
from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop, TrainingCallback
from pykeen.triples import CoreTriplesFactory

import embedrock
from clicklogs import shared
from embedrock import kge
from embedrock.adapters.pykeen import (
    LookaheadTrainingLoop,
    Rows,
    RowsCallback,
    RowsEvaluator,
    rank,
)
from embedrock.errors import MismatchError, MisuseError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = {"transe": None, "distmult": None, "complex": torch.cfloat, "rotate": torch.cfloat}
GRAPH = Nations()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with embedrock.open(tmp_path / "s", "16MiB", max_disk_bytes=200 << 20, keep=10) as opened:
        yield opened
        if opened.uncommitted[0]:
            opened.commit(1_000_000)


def settings(name: str, dim: int = 8) -> dict[str, Any]:
    complex_or_not = {"shape": dim, "dtype": MODELS[name]}
    return {
        "interaction": name,
        "interaction_kwargs": {"p": 1} if name == "transe" else None,
        "relation_representations_kwargs": complex_or_not,
        "random_seed": 3,
    }


def ours(name: str, store: Any, graph: Any = GRAPH.training, dim: int = 8, **given: Any) -> Any:
    rows = {"shape": dim, "dtype": MODELS[name], "store": store, "name": name, "optimizer": "sgd"}
    return ERModel(
        triples_factory=graph,
        entity_representations=Rows,
        entity_representations_kwargs={**rows, **given},
        **settings(name, dim),
    )


def twin(name: str, model: Any, graph: Any = GRAPH.training, dim: int = 8, **given: Any) -> Any:
    """The same model with PyKEEN's own representation, which trains from the same rows on."""
    beside = ERModel(
        triples_factory=graph,
        entity_representations=Embedding,
        entity_representations_kwargs={"shape": dim, "dtype": MODELS[name], **given},
        **settings(name, dim),
    )
    rows = all_rows(model)
    model.train()
    beside.first_rows = torch.view_as_real(rows) if rows.is_complex() else rows
    return beside


class Losses(TrainingCallback):
    def __init__(self) -> None:
        super().__init__()
        self.of_batches: list[float] = []

    def on_batch(self, epoch: int, batch: Any, batch_loss: float, **kwargs: Any) -> None:
        self.of_batches.append(batch_loss)


class Seeded(SLCWATrainingLoop):
    """Begins with given numbers, whatever making models anew has taken from generators."""

    def _create_training_data_loader(self, *arguments: Any, **given: Any) -> Any:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for representation in self.model.relation_representations:
                weight = representation._embeddings.weight
                weight.copy_(torch.rand(weight.shape, generator=generator) - 0.5)
            if hasattr(self.model, "first_rows"):
                weight = self.model.entity_representations[0]._embeddings.weight
                weight.copy_(self.model.first_rows.reshape(weight.shape))
        torch.manual_seed(9)
        return super()._create_training_data_loader(*arguments, **given)


def train(model: Any, loop: type = Seeded, epochs: int = 4, **given: Any) -> list[float]:
    rows = [one for one in model.entity_representations if isinstance(one, Rows)]
    losses = Losses()
    callbacks: list[Any] = [losses]
    if rows:
        callbacks.append(RowsCallback(embedrock.optim.SGD(model, lr=0.1)))
    dense = embedrock.nn.dense_parameters(model)
    stopper = {name: given.pop(name) for name in ("stopper",) if name in given}
    made = loop(
        model=model,
        triples_factory=GRAPH.training,
        optimizer=torch.optim.SGD(dense, lr=0.1),
        **given,
    )
    how: dict[str, Any] = {"num_epochs": epochs, "batch_size": 128, "use_tqdm": False, **stopper}
    made.train(GRAPH.training, callbacks=callbacks, **how)
    return losses.of_batches


def all_rows(model: Any) -> Any:
    with torch.no_grad():
        return model.eval().entity_representations[0](None)


@pytest.mark.parametrize("shape", [13, (3, 7)])
@pytest.mark.parametrize("dtype", [None, torch.cfloat])
def test_a_representation_gives_rows_in_the_shape_of_indices(
    store: Any, shape: Any, dtype: Any
) -> None:
    rows = Rows(max_id=7, shape=shape, store=store, name="r", dtype=dtype)
    full = (shape,) if isinstance(shape, int) else shape
    everyone = rows(None)
    assert everyone.shape == (7, *full)
    assert everyone.dtype == (dtype or torch.float32)
    for indices in (torch.tensor([6, 0]), torch.tensor([[1, 1, 2], [6, 5, 0]])):
        found = rows(indices)
        assert torch.equal(found, everyone[indices])
        assert found.requires_grad
    assert "Rows" in str(rows)
    dropped = Rows(max_id=7, shape=13, store=store, name="d", dropout=0.5)
    assert (dropped(torch.arange(7)) == 0).any()


@pytest.mark.parametrize("name", MODELS)
def test_training_and_ranks_are_those_of_pykeens_own_representation(name: str, store: Any) -> None:
    model = ours(name, store)
    beside = twin(name, model)
    losses, wanted = train(model), train(beside)
    assert len(losses) == 52
    assert np.abs(np.array(losses) - wanted).max() < 1e-5
    assert (all_rows(model) - all_rows(beside)).abs().max() < 1e-5
    known = {"additional_filter_triples": [GRAPH.training.mapped_triples], "use_tqdm": False}
    asked = GRAPH.testing.mapped_triples[:60]
    theirs = RankBasedEvaluator().evaluate(model, asked, slice_size=5, **known).to_flat_dict()
    found = RowsEvaluator().evaluate(model, asked, **known).to_flat_dict()
    assert found.keys() == theirs.keys()
    differ = {k for k in found if found[k] != theirs[k] and not np.isnan(theirs[k])}
    assert differ == set()
    assert store.step == 52


def test_rows_are_constrained_as_the_whole_table_would_be(store: Any) -> None:
    constraint = {"constrainer": "normalize"}
    model = ours("transe", store, **constraint)
    beside = twin("transe", model, **constraint)
    losses, wanted = train(model), train(beside)
    assert np.abs(np.array(losses) - wanted).max() < 1e-5
    assert (all_rows(model) - all_rows(beside)).abs().max() < 1e-5
    assert (all_rows(model).norm(dim=-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("constrainer", [None, "normalize"])
def test_gradients_decide_whether_rows_train_and_not_the_mode(
    store: Any, constrainer: str | None
) -> None:
    """In eval mode a constrained representation gave rows without gradients."""
    rows = Rows(
        max_id=7, shape=4, store=store, name="r", constrainer=constrainer, optimizer="sgd"
    ).eval()
    optimizer = embedrock.optim.SGD(rows, lr=0.5)
    ids, weights = torch.tensor([[1, 2], [2, 5]]), torch.tensor([3.0, -1.0, 2.0, 5.0])
    for enabled in (False, True):
        before = rows(None).detach()
        with torch.set_grad_enabled(enabled):
            found = rows(ids)
        assert found.requires_grad == enabled and torch.equal(found, before[ids])
        if enabled:
            (found * weights).sum().backward()
        optimizer.step()
        rows.post_parameter_update()
        after = rows(None).detach()
        changed = (after != before).any(dim=1).nonzero().flatten().tolist()
        assert changed == ([1, 2, 5] if enabled else [])
    if constrainer:
        assert (after.norm(dim=-1) - 1).abs().max() < 1e-6
    with pytest.raises(UnsupportedError, match="train with the sLCWA loop"):
        rows(None).sum().backward()


def test_rows_that_nothing_trains_leave_nothing_behind_and_need_no_writer(tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_id": 7, "shape": 4, "name": "r", "constrainer": "normalize"}
    with embedrock.open(tmp_path / "s", "4MiB", max_disk_bytes=100 << 20) as store:
        rows = Rows(store=store, **given)
        for _ in range(3):
            rows(torch.arange(3))
        assert rows._received == []
        wanted = rows(None).detach()
        store.commit(1)
    with embedrock.open(tmp_path / "s", "4MiB", read_only=True) as store:
        assert torch.equal(Rows(store=store, **given)(torch.arange(7)), wanted)


def test_rows_frozen_by_hand_are_given_with_a_constrainer(store: Any) -> None:
    """A hook was registered on rows that require no gradient, which torch refuses."""
    rows = Rows(max_id=7, shape=4, store=store, name="r", constrainer="normalize", optimizer="sgd")
    waits = rows(torch.tensor([1]))
    for parameter in rows.parameters():
        parameter.requires_grad = False
    found = rows(torch.tensor([1, 2]))
    assert waits.requires_grad and not found.requires_grad
    assert (found.norm(dim=-1) - 1).abs().max() < 1e-6


def test_rows_with_a_constrainer_have_no_gradient_in_a_reader(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        given: dict[str, Any] = {"max_id": 7, "shape": 4, "name": "r", "constrainer": "normalize"}
        Rows(store=store, **given)
        store.commit(1)
    with embedrock.open(tmp_path / "s", "4MiB", read_only=True) as store:
        assert not Rows(store=store, **given)(torch.arange(7)).requires_grad


def test_ids_of_backwards_without_an_update_stay_few_and_are_constrained(store: Any) -> None:
    """Each backward left its ids until post_parameter_update, which a loop may never call."""
    rows = Rows(max_id=7, shape=4, store=store, name="r", constrainer="normalize", optimizer="sgd")
    optimizer = embedrock.optim.SGD(rows, lr=0.5)
    for number in range(300):
        rows(torch.tensor([number % 3] * 10)).square().sum().backward()
        assert sum(map(len, rows._received)) <= 64 * 10
        optimizer.zero_grad()
    rows(torch.tensor([1, 4])).sum().backward()
    optimizer.step()
    rows.post_parameter_update()
    assert rows._received == []
    assert (rows(torch.arange(7)).norm(dim=-1) - 1).abs().max() < 1e-6


def test_ranks_of_a_larger_graph_with_rows_never_written(store: Any) -> None:
    random = np.random.default_rng(0)
    triples = torch.from_numpy(random.integers(0, 3000, (900, 3)) % [3000, 7, 3000])
    graph = CoreTriplesFactory.create(triples, num_entities=3000, num_relations=7)
    for name in ("transe", "distmult", "complex"):
        given = {"constrainer": "normalize"} if name == "transe" else {}
        model = ours(name, store, graph, initializer=0.25 if name == "complex" else None, **given)
        table: Any = model.entity_representations[0].rows.table
        numbers = random.integers(-4, 5, (1500, table.embedding_dim)).astype(np.float32) / 4
        table.put(random.permutation(3000)[:1500], numbers)
        known = {"additional_filter_triples": [triples], "use_tqdm": False}
        theirs = RankBasedEvaluator().evaluate(model, triples[:64], slice_size=700, **known)
        found = RowsEvaluator().evaluate(model, triples[:64], **known)
        for kind in ("optimistic", "realistic", "pessimistic"):
            for metric in ("mean_reciprocal_rank", "hits@1", "hits@10", "mean_rank"):
                key = f"both.{kind}.{metric}"
                assert found.get_metric(key) == theirs.get_metric(key)
        assert rank(model, triples[:64], known=[triples]).scans == 1


@pytest.mark.parametrize("name", MODELS)
def test_ranks_on_codex_m_are_pykeens(name: str, store: Any) -> None:
    graph = kge.read(shared("codex-m/train.tsv.gz").parent)
    mapped = [torch.from_numpy(part.astype(np.int64)) for part in graph.known()]
    factory = CoreTriplesFactory.create(
        mapped[0], num_entities=len(graph.entities), num_relations=len(graph.relations)
    )
    model = ours(name, store, factory, dim=4)
    asked = mapped[2][torch.randperm(len(mapped[2]), generator=torch.Generator().manual_seed(0))]
    asked = asked[:200]
    known = {"additional_filter_triples": mapped, "use_tqdm": False, "batch_size": 40}
    theirs = RankBasedEvaluator().evaluate(model, asked, slice_size=4000, **known).to_flat_dict()
    found = RowsEvaluator().evaluate(model, asked, **known).to_flat_dict()
    differ = {k for k in found if found[k] != theirs[k] and not np.isnan(theirs[k])}
    assert differ == set()


def test_the_best_epoch_of_an_early_stopper_brings_its_rows_back(store: Any) -> None:
    model = ours("distmult", store)
    seen: dict[int, Any] = {}

    class Worsening(RowsEvaluator):
        """Ranks less well from the third look on, and notes the rows at each."""

        def evaluate(self, *arguments: Any, **given: Any) -> Any:
            result = super().evaluate(*arguments, **given)
            seen[len(seen) + 1] = all_rows(model)
            if len(seen) > 2:
                result.data = {key: value / 1000 for key, value in result.data.items()}
            model.train()
            return result

    stopper = EarlyStopper(
        model=model,
        evaluator=Worsening(),
        training_triples_factory=GRAPH.training,
        evaluation_triples_factory=GRAPH.validation,
        frequency=1,
        patience=3,
        metric="mrr",
    )
    train(model, epochs=9, stopper=stopper)
    best = stopper.best_epoch
    assert best in (1, 2) and len(seen) == best + 3
    assert torch.equal(all_rows(model), seen[best])
    assert not torch.equal(seen[best], seen[len(seen)])
    assert store.step == 13 * best


def test_a_checkpoint_whose_commit_is_gone_is_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "16MiB", max_disk_bytes=100 << 20, keep=1) as store:
        model = ours("distmult", store)
        callback = RowsCallback(embedrock.optim.SGD(model, lr=0.1))
        dense = torch.optim.Adagrad(embedrock.nn.dense_parameters(model), lr=0.1)
        loop = SLCWATrainingLoop(model=model, triples_factory=GRAPH.training, optimizer=dense)
        how: dict[str, Any] = {"use_tqdm": False, "batch_size": 128, "callbacks": callback}
        loop.train(GRAPH.training, num_epochs=1, **how)
        saved = model.state_dict()
        model.load_state_dict(saved)
        loop.train(GRAPH.training, num_epochs=2, continue_training=True, **how)
        with pytest.raises(MismatchError, match="its commit is not kept"):
            model.load_state_dict(saved)
        with pytest.raises(MisuseError, match=r"training begins anew, but the rows of table .* 26"):
            loop.train(GRAPH.training, num_epochs=1, **how)


def test_training_that_scores_all_entities_is_refused(store: Any) -> None:
    model = ours("distmult", store)
    dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1)
    loop = LCWATrainingLoop(model=model, triples_factory=GRAPH.training, optimizer=dense)
    with pytest.raises(UnsupportedError, match="train with the sLCWA loop"):
        loop.train(GRAPH.training, num_epochs=1, batch_size=64, use_tqdm=False)
    large = Rows(max_id=400_000, shape=16, store=store, name="large")
    with pytest.raises(UnsupportedError, match=r"sLCWA .* bytes of table 'large'"):
        large(None)


def test_the_loop_announces_positives_and_negatives(store: Any) -> None:
    model = ours("transe", store)
    loops: list[Any] = []

    class Loop(LookaheadTrainingLoop):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            loops.append(self)

    losses = train(model, Loop, lookahead={"announce": True, "depth": 4})
    counts = loops[0].loader.stats()
    assert counts["handed_out"] == 13
    assert counts["announced"] > 0
    # A window whose thread has no core meanwhile has no room.
    assert counts["announced"] + counts["refused"] >= 8
    assert np.mean(losses[-13:]) < np.mean(losses[:13])


def test_what_cannot_be_ranked_in_one_scan_is_refused(store: Any) -> None:
    model = ours("distmult", store)
    triples = GRAPH.testing.mapped_triples
    with pytest.raises(UnsupportedError, match="restrict_entities_to"):
        RowsEvaluator().evaluate(model, triples, restrict_entities_to=torch.arange(3))
    with pytest.raises(UnsupportedError, match="filtered=False"):
        RowsEvaluator(filtered=False).evaluate(model, triples)
    with pytest.raises(MisuseError, match="expected an ERModel"):
        rank(torch.nn.Linear(1, 1), triples)


def test_pykeen_can_be_imported_behind_our_optimizers() -> None:
    # Its registry takes each class below torch's Optimizer, and refused a second Adam.
    package = str(Path(embedrock.__file__).parents[1])
    code = "import embedrock; embedrock.optim.Adam; import pykeen.losses"
    environment = {**os.environ, "PYTHONPATH": package}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment)
    assert done.returncode == 0
