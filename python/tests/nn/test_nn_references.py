"""Modules that pickle as the store and the table where their rows are."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
import withtorch  # noqa: E402
from embedrock import nn  # noqa: E402
from embedrock.errors import (  # noqa: E402
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from places import TESTS  # noqa: E402
from servers import serving  # noqa: E402

DIM = 4
IDS = torch.tensor([[1, 2], [3, 0]])


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.one = nn.Embedding(50, DIM, padding_idx=0, store=store, name="one", optimizer="sgd")
        self.again = self.one
        self.bag = nn.EmbeddingBag(50, DIM, mode="max", store=store, name="bag", optimizer="sgd")
        configs = [nn.EmbeddingBagConfig("c", DIM, ["x", "y"], mode="mean")]
        self.bags = nn.EmbeddingBagCollection(configs, store=store, concatenate=True)
        self.head = torch.nn.Linear(DIM, 1)

    def forward(self, ids: Any) -> Any:
        bags = self.bags({"x": ids, "y": ids}).view(len(ids), 2, DIM).sum(1)
        return self.head(self.one(ids).sum(1) + self.again(ids).sum(1) + self.bag(ids) + bags)


@pytest.fixture
def model(store: embedrock.Store) -> Any:
    made = Model(store)
    rows = np.random.default_rng(1).normal(size=(50, DIM)).astype(np.float32)
    made.one.table.put(np.arange(50), rows)
    return made


def pickled(model: Any) -> bytes:
    with nn.by_reference():
        return pickle.dumps(model)


def test_a_model_comes_back_over_the_store_that_is_open(model: Any) -> None:
    model.bag.requires_grad_(False)
    model.one.note = "kept"
    model.eval()
    again = pickle.loads(pickled(model))
    assert again.one is again.again and again.one is not model.one
    assert again.one.store is model.one.store
    assert (again.one.note, again.one.padding_idx, again.bag.mode) == ("kept", 0, "max")
    assert not again.training
    assert torch.equal(again(IDS), model(IDS))
    again.train()
    again(IDS).sum().backward()
    assert again.bag.training and len(list(again.bag.parameters())) == 0
    assert len(list(again.one.parameters())) == 1


def test_torch_saves_and_loads_it(model: Any) -> None:
    file = io.BytesIO()
    with nn.by_reference():
        torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(IDS), model(IDS))


def test_without_the_block_pickling_is_refused_with_the_way(model: Any) -> None:
    pickled(model)
    with pytest.raises(MisuseError, match=r"embedrock\.nn\.by_reference"):
        pickle.dumps(model)


def test_another_process_opens_the_store_to_read(model: Any, tmp_path: Path) -> None:
    store = model.one.store
    store.commit(1)
    (tmp_path / "model").write_bytes(pickled(model))
    script = (
        "import pickle, sys, torch, embedrock, test_nn_references as t\n"
        "model = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "print(model.one.store.read_only, model.one.store is model.bag.store)\n"
        "print(model(t.IDS).tolist())\n"
    )
    done = withtorch.run(
        ["-c", script, str(tmp_path / "model")],
        env={
            "PYTHONPATH": f"{Path(embedrock.__file__).parents[1]}:{Path(__file__).parent}:{TESTS}",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"True True\n{model(IDS).tolist()}\n"


def test_rows_of_another_step_are_refused(model: Any) -> None:
    store = model.one.store
    store.commit(1)
    saved = pickled(model)
    model.one.table.update([1], np.ones((1, DIM), np.float32), lr=0.1)
    with pytest.raises(MismatchError, match=r"at the commit of step 1.*go_back\(1\)"):
        pickle.loads(saved)
    with nn.loading_dense_only():
        pickle.loads(saved)
    store.go_back(1)
    pickle.loads(saved)


def test_a_store_that_is_gone_or_another_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with embedrock.open(path, "1MiB") as store:
        saved = pickled(nn.Embedding(50, DIM, store=store, name="one"))
        store_id = store.id
        store.commit(1)
    path.rename(tmp_path / "moved")
    with pytest.raises(NotFoundError, match=f"'one' of store {store_id}, and there is none"):
        pickle.loads(saved)
    with embedrock.open(path, "1MiB") as other:
        other.table("one", DIM, 50)
        other.commit(1)
    with pytest.raises(MismatchError, match=r"open the one that is meant"):
        pickle.loads(saved)
    with embedrock.open(tmp_path / "moved", "1MiB"):
        pickle.loads(saved)


def test_a_table_that_no_commit_has_is_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "1MiB") as store:
        store.commit(1)
        saved = pickled(nn.Embedding(50, DIM, store=store, name="one"))
    with pytest.raises(NotFoundError, match=r"'one' .*last commit does not have; commit before"):
        pickle.loads(saved)


def test_tables_at_a_server_are_refused(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        nn.Embedding(50, DIM, store=store, name="one")
        store.commit(1)
    with serving(tmp_path / "s") as served, embedrock.connect(served.url) as remote:
        module = nn.Embedding(50, DIM, store=remote, name="one")
        with pytest.raises(UnsupportedError, match=r"pickling .* by reference works on a store"):
            pickled(module)
        served.stop()
