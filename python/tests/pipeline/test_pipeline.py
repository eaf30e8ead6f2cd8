"""``Pipeline``: the same bits as a plain loop, whole commits, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windows import RecordingWindow

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
import withtorch  # noqa: E402
from embedrock import LookaheadLoader, Pipeline, nn, optim  # noqa: E402
from embedrock.errors import ClosedError, KeyRangeError, MisuseError, NonFiniteError  # noqa: E402
from embedrock.pipeline.announcing import Announcing  # noqa: E402

DIM = 32
USERS, ITEMS = 40_000, 60_000
STEPS = 30
TIGHT = "2500KiB"
"""A budget for 10 % of the rows with element-wise Adagrad."""
OPTIMIZERS = {
    "rowwise_adagrad": optim.RowWiseAdagrad,
    "adagrad": optim.Adagrad,
    "adam": optim.Adam,
    "sgd": optim.SGD,
}


def opened(path: Path, memory: str = TIGHT) -> embedrock.Store:
    """A store whose pages are given, which saves measuring the device."""
    return embedrock.open(path, memory=memory, seed=7, page_bytes=4096)


class Clicks(torch.nn.Module):  # type: ignore[misc]
    """A small DLRM: two tables of bags, one of them with two features, one of ids, an MLP."""

    def __init__(self, store: embedrock.Store, kind: str = "adam", **table: Any) -> None:
        super().__init__()
        options = {"optimizer": kind, **table}
        self.bags = nn.EmbeddingBagCollection(
            [
                nn.EmbeddingBagConfig("users", DIM, num_embeddings=USERS, **options),
                nn.EmbeddingBagConfig(
                    "items", DIM, ["seen", "bought"], expected_rows=ITEMS, **options
                ),
            ],
            store=store,
            concatenate=True,
        )
        self.place = nn.Embedding(50, DIM, store=store, name="places", optimizer=kind)
        if not len(self.bags.tables[0]):
            random = np.random.default_rng(2)
            for table, keys in zip(self.bags.tables, (USERS, ITEMS), strict=True):
                rows = random.random((keys, DIM), np.float32) - np.float32(0.5)
                table.put(np.arange(keys) << (0 if keys == USERS else 33), rows)
        self.dense = torch.nn.Sequential(
            torch.nn.Linear(4 * DIM + 3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, batch: dict[str, Any]) -> Any:
        features = {name: batch[name] for name in ("users", "seen", "bought")}
        parts = [batch["dense"], self.bags(features), self.place(batch["places"])]
        return self.dense(torch.cat(parts, dim=1)).squeeze(1)


def clicks(steps: int = STEPS, seed: int = 5, size: int = 96) -> list[dict[str, Any]]:
    """Batches in which popular ids come back in each and most others once."""
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        items = (random.zipf(1.3, 3 * size) % ITEMS) << 33
        offsets = np.arange(0, 3 * size, 3)
        batches.append(
            {
                "users": torch.from_numpy(random.integers(0, USERS, (size, 2))),
                "seen": (torch.from_numpy(items), torch.from_numpy(offsets)),
                "bought": torch.from_numpy(items[:size, None]),
                "places": torch.from_numpy(random.integers(0, 50, size)),
                "dense": torch.from_numpy(random.random((size, 3), np.float32)),
                "label": torch.from_numpy(random.integers(0, 2, size).astype(np.float32)),
            }
        )
    return batches


class Trained:
    """A model with its optimizers, and a plain loop's body."""

    def __init__(self, store: embedrock.Store, kind: str = "adam", **table: Any) -> None:
        torch.manual_seed(3)
        self.store = store
        self.model = Clicks(store, kind, **table)
        self.tables = OPTIMIZERS[kind](self.model, lr=0.05)
        self.dense = torch.optim.Adam(nn.dense_parameters(self.model), lr=0.01)
        self.losses: list[float] = []

    @property
    def optimizers(self) -> list[Any]:
        return [self.tables, self.dense]

    def step(self, batch: Any) -> None:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            self.model(batch), batch["label"]
        )
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(loss.item())

    def state(self) -> tuple[list[float], list[int], list[Any]]:
        """Everything that training leaves."""
        digests = [table.digest() for table in self.store.tables.values()]
        dense = [parameter.tolist() for parameter in nn.dense_parameters(self.model)]
        return self.losses, digests, dense


class Changing:
    """A choice between overlapping and not that falls otherwise every few batches."""

    measures, measured = False, False

    def __init__(self, _: bool | None) -> None:
        self.overlap = True
        self._steps = 0

    def step(self, seconds: float, overlapped: bool) -> None:
        assert seconds > 0
        self._steps += 1
        self.overlap = self._steps % 14 < 5


OVERLAPS = ["overlapped", "alone", "changing"]
SOON = [("adam", "changing"), ("sgd", "alone")]
"""Optimizers with what overlaps that `make test` tries."""


def one_soon(soon: str) -> pytest.MarkDecorator:
    """Tries this by day, the others in contests."""
    marks = {one: [] if one == soon else [pytest.mark.long] for one in OVERLAPS}
    each = [pytest.param(one, marks=marks[one]) for one in OVERLAPS]
    return pytest.mark.parametrize("overlap", each, indirect=True)


@pytest.fixture(params=OVERLAPS)
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    """Argument of ``Pipeline(overlap=)``."""
    if request.param == "changing":
        monkeypatch.setattr("embedrock.pipeline.training.Pace", Changing)
        return None
    return bool(request.param == "overlapped")


def plainly(path: Path, memory: str, batches: Any, kind: str, **table: Any) -> Any:
    with opened(path, memory) as store:
        trained = Trained(store, kind, **table)
        for batch in batches:
            trained.step(batch)
        state = trained.state()
        store.commit(1)
    return state


@pytest.mark.parametrize(
    ("kind", "overlap"),
    [
        pytest.param(*both, marks=[] if both in SOON else pytest.mark.long)
        for both in itertools.product(OPTIMIZERS, OVERLAPS)
    ],
    indirect=["overlap"],
)
def test_at_bound_0_results_have_the_bits_of_a_plain_loop(
    tmp_path: Path, kind: str, overlap: bool | None
) -> None:
    batches = clicks()
    expected = plainly(tmp_path / "plain", "128MiB", batches, kind)
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, kind)
        trainer = Pipeline(trained.model, batches, staleness_bound=0, read_ahead=3, overlap=overlap)
        for batch in trainer:
            trained.step(batch)
        assert trained.state() == expected
        stats = trainer.stats()
        assert store.stats()["misses"] > 1000
        store.commit(1)
    assert stats["batches"] == STEPS
    assert stats["forwards_ahead"] == 3 * stats["overlapped"]
    assert stats["forwards_ahead"] + stats["forwards_direct"] == 3 * STEPS
    if overlap is None:
        assert 0 < stats["overlapped"] < STEPS
    else:
        assert stats["overlapped"] == (STEPS if overlap else 0)
    if stats["overlapped"]:
        assert 0 < stats["rows_late"] < stats["rows_ahead"]
    assert stats["rows_again"] == 0
    assert stats["permits"]["staleness_max"] == 0 and stats["permits"]["in_flight"] == 0


@one_soon("overlapped")
def test_lookahead_beside_it_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: bool | None
) -> None:
    window = RecordingWindow(room=9)
    monkeypatch.setattr(embedrock.Store, "window", window, raising=False)
    batches = clicks()
    expected = plainly(tmp_path / "plain", "128MiB", batches, "rowwise_adagrad")
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "rowwise_adagrad")
        loader = LookaheadLoader(batches, trained.model, depth=20, announce=True)
        for batch in Pipeline(trained.model, loader, overlap=overlap):
            trained.step(batch)
        assert trained.state() == expected
        store.commit(1)
    assert loader.stats()["handed_out"] == STEPS
    assert [n for kind, n in window.calls if kind == "begin"] == list(range(1, STEPS + 1))
    assert [n for kind, n in window.calls if kind == "finish"] == list(range(1, STEPS + 1))
    assert window.open_numbers == []


def test_a_batch_that_the_loop_changes_reads_what_it_has_become(tmp_path: Path) -> None:
    def loop(trained: Trained, batches: Any) -> None:
        for batch in batches:
            batch["users"].masked_fill_(batch["users"] % 3 == 0, 1)  # word dropout
            trained.step(batch)

    with opened(tmp_path / "plain", "128MiB") as store:
        trained = Trained(store, "adagrad")
        loop(trained, clicks(12))
        expected = trained.state()
        store.commit(1)
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "adagrad")
        loop(trained, Pipeline(trained.model, clicks(12), overlap=True))
        assert trained.state() == expected
        store.commit(1)


def test_stochastic_rounding_has_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    batches = clicks(15)
    half = {"dtype": torch.bfloat16}
    expected = plainly(tmp_path / "plain", "128MiB", batches, "adagrad", **half)
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "adagrad", **half)
        for batch in Pipeline(trained.model, batches):
            trained.step(batch)
        assert trained.state() == expected
        store.commit(1)


def test_what_no_batch_announced_is_read_when_it_is_needed(tmp_path: Path) -> None:
    # Keys of one table are not named at all, those of another only by half.
    def keys_of(batch: Any) -> Any:
        return {"users": batch["users"][:40], "places": batch["places"]}

    batches = clicks(20)
    expected = plainly(tmp_path / "plain", "128MiB", batches, "adagrad")
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "adagrad")
        trainer = Pipeline(trained.model, batches, keys_of=keys_of, read_ahead=4, overlap=True)
        for batch in trainer:
            trained.step(batch)
        assert trained.state() == expected
        store.commit(1)
    stats = trainer.stats()
    assert (stats["forwards_ahead"], stats["forwards_direct"]) == (20, 40)
    assert stats["rows_again"] > 0  # users of a step that a later batch had read already


@one_soon("changing")
def test_accumulated_gradients_and_clipping_have_the_bits_of_a_plain_loop(
    tmp_path: Path, overlap: bool | None
) -> None:
    def loop(trained: Trained, batches: Any) -> None:
        tables = optim.Adam(trained.model, lr=0.05, clip=embedrock.Clip(norm=0.05))
        for i, batch in enumerate(batches, 1):
            loss = trained.model(batch).square().mean()
            loss.backward()
            if i % 3 == 0:
                torch.nn.utils.clip_grad_norm_(trained.model.parameters(), 0.1)
                tables.step()
                norms.append(tables.norm)
                trained.dense.step()
                trained.dense.zero_grad()
            trained.losses.append(loss.item())
            if i % 10 == 0:  # validation in the middle, of rows that a later batch has read
                trained.model.eval()
                with torch.no_grad():
                    trained.losses.append(trained.model(ahead[i]).sum().item())
                trained.model.train()

    ahead = clicks(31)
    norms: list[Any] = []
    found = []
    for name in ("plain", "ahead"):
        with opened(tmp_path / name) as store:
            trained = Trained(store)
            batches: Any = ahead[:30]
            if name == "ahead":
                batches = Pipeline(trained.model, batches, overlap=overlap)
            loop(trained, batches)
            found.append(trained.state())
            store.commit(1)
    assert found[0] == found[1]
    assert norms[:10] == norms[10:] and None not in norms


def wait_for_next(trainer: Pipeline, is_so: Callable[[Any], bool]) -> None:
    """Waits until this is so of the batch behind the one at hand, if there is one."""
    run, until = trainer._run, time.monotonic() + 60
    assert run is not None
    while run._waiting and not is_so(run._waiting[0]):
        assert time.monotonic() < until, "it is not read ahead"
        time.sleep(0.0005)


def test_rows_that_the_caller_changes_are_seen(store: embedrock.Store) -> None:
    embedding = nn.Embedding(None, 2, store=store, name="ids", optimizer="sgd", initializer=0.0)
    table = embedding.table
    batches = [torch.tensor([1, 2]) for _ in range(6)]
    with Pipeline(embedding, batches, read_ahead=3) as trainer:
        for turn, batch in enumerate(trainer):
            # It is under way, with the rows that it shares with this one still to come.
            wait_for_next(trainer, lambda ahead: ahead.permit is not None)
            assert embedding(batch)[0].tolist() == [turn] * 2
            table.put([1], np.full((1, 2), turn + 1.0, np.float32))
        table.delete([1])
    assert trainer.stats()["rows_again"] > 0


def test_a_second_forward_sees_the_step_between(
    store: embedrock.Store, overlap: bool | None
) -> None:
    embedding = nn.Embedding(None, 2, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    seen = []
    for batch in Pipeline(embedding, [torch.tensor([1, 2])] * 12, overlap=overlap):
        for _ in range(2):
            output = embedding(batch)
            seen.append(output[0, 0].item())
            output.sum().backward()
            optimizer.step()
    assert seen == [-float(i) for i in range(24)]


@pytest.mark.parametrize("bound", [1, 3, math.inf])
def test_a_row_is_never_staler_than_the_bound(store: embedrock.Store, bound: float) -> None:
    # The value of the one row is minus the number of steps that its reader has seen.
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    batches = [torch.tensor([5])] * 30
    trainer = Pipeline(embedding, batches, staleness_bound=bound, read_ahead=8, overlap=True)
    staleness = []
    for step, batch in enumerate(trainer):
        output = embedding(batch)
        staleness.append(step + output.item())
        output.sum().backward()
        wait_for_next(trainer, lambda ahead: ahead.ready.is_set())
        optimizer.step()
    assert max(staleness) <= min(bound, 8 + 1 + 8)  # read ahead, at hand, waiting to be applied
    assert max(staleness) >= 1  # reading is ahead of computing
    assert trainer.stats()["permits"]["staleness_max"] <= bound
    assert embedding.table.get(5).item() == -30.0


@one_soon("overlapped")
def test_a_commit_has_the_batches_up_to_its_step_and_resume_goes_on(
    tmp_path: Path, overlap: bool | None
) -> None:
    batches = clicks(24)
    expected = plainly(tmp_path / "plain", "128MiB", batches, "adam")
    path = tmp_path / "ahead"
    with pytest.warns(embedrock.UncommittedWarning), opened(path) as store:
        trained = Trained(store)
        trainer = Pipeline(trained.model, batches, read_ahead=5, overlap=overlap)
        for step, batch in enumerate(trainer, 1):
            trained.step(batch)
            if step == 10:
                embedrock.save(store, trained.model, trained.optimizers, step)
            if step == 13:
                break
    with opened(path) as store:
        trained = Trained(store)
        first = embedrock.resume(store, trained.model, trained.optimizers)
        assert first == 10
        for batch in Pipeline(trained.model, batches[first:], overlap=overlap):
            trained.step(batch)
        losses, digests, dense = trained.state()
        assert (expected[0][10:], *expected[1:]) == (losses, digests, dense)
        store.commit(24)


class Counting:
    """A loader that tells its position."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.at = batches, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_the_loaders_position_in_a_commit_is_that_of_the_batch_at_hand(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedrock.Store, "window", RecordingWindow(), raising=False)
    trained = Trained(store)
    loader = LookaheadLoader(Counting(clicks(9)), trained.model, depth=3, announce=True)
    for step, batch in enumerate(Pipeline(trained.model, loader), 1):
        trained.step(batch)
        if step == 4:
            embedrock.save(store, trained.model, trained.optimizers, step, loader=loader)
            break
    embedrock.resume(store, trained.model, trained.optimizers, loader=loader)
    assert loader.loader.at == 4  # type: ignore[attr-defined]
    assert len(list(Pipeline(trained.model, loader))) == 5


@pytest.mark.alone
@pytest.mark.parametrize(
    ("rows", "memory", "size", "left"),
    [
        (20_000, "600KiB", 1500, True),
        (20_000, "600KiB", 150, False),  # rows leave memory, which holds many batches
        (2_000, "16MiB", 1500, False),  # less than three batches, which are all there is
    ],
)
def test_batches_that_a_cache_cannot_hold_together_are_left_to_the_loop(
    tmp_path: Path, rows: int, memory: str, size: int, left: bool
) -> None:
    random = np.random.default_rng(6)
    batches = [torch.from_numpy(random.permutation(rows)[:size]) for _ in range(40)]
    with opened(tmp_path / "store", memory) as store:
        embedding = nn.Embedding(rows, 16, store=store, name="ids", optimizer="sgd")
        embedding.table.put(np.arange(rows), np.zeros((rows, 16), np.float32))
        optimizer = optim.SGD(embedding, lr=0.1)
        trainer = Pipeline(embedding, batches)
        for batch in trainer:
            embedding(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        facts = store.stats()
        store.commit(1)
    capacity = facts["classes"][0]["cache_capacity"]
    assert (facts["evicted"] > 0) == (rows == 20_000) and (capacity < 3 * size) == (size == 1500)
    # Some were drawn before the first look at the cache.
    overlapped = trainer.stats()["overlapped"]
    assert 3 <= overlapped <= 8 if left else overlapped >= 16


@pytest.mark.parametrize("overlap", [True, False])
def test_a_loop_that_stops_short_leaves_the_loaders_position_at_its_last_batch(
    store: embedrock.Store, overlap: bool
) -> None:
    trained = Trained(store)
    inner = Counting(clicks(9))
    loader = LookaheadLoader(inner, trained.model, depth=3, announce=True)
    for step, batch in enumerate(Pipeline(trained.model, loader, overlap=overlap), 1):
        trained.step(batch)
        if step == 8:
            break
    assert inner.at == 9
    assert loader.state_dict() == {"at": 8}
    loader.close()
    assert loader.state_dict() == {"at": 8}
    loader.load_state_dict({"at": 5})
    assert len(list(Pipeline(trained.model, loader, overlap=overlap))) == 4
    inner.at = 2  # after a whole pass the position is the loader's own
    assert loader.state_dict() == {"at": 2}
    store.commit(1)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("embedrock")]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("last", [20, 7])
def test_a_loop_that_goes_on_after_its_store_was_closed_ends_or_hears_of_it(
    store: embedrock.Store, overlap: bool, last: int
) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd")
    optimizer = optim.SGD(embedding, lr=1.0)
    made = 0

    def loop() -> None:
        nonlocal made
        for batch in Pipeline(embedding, [torch.tensor([5])] * 20, overlap=overlap):
            embedding(batch).sum().backward()
            optimizer.step()
            made += 1
            if made == last:
                store.commit(1)
                store.close()

    if last == 7 and overlap:
        with pytest.raises(ClosedError):  # batches that were drawn ahead are left
            loop()
    else:
        loop()
    assert made == last
    assert threads() == []


@pytest.mark.parametrize("how", ["end", "break", "raise", "close", "store"])
def test_threads_end_with_the_loop_and_steps_that_were_made_are_applied(
    store: embedrock.Store, how: str
) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    made = 0
    trainer = Pipeline(embedding, [torch.tensor([5])] * 20)

    def loop() -> None:
        nonlocal made
        for batch in trainer:
            embedding(batch).sum().backward()
            optimizer.step()
            made += 1
            if made == 7 and how != "end":
                if how == "break":
                    break
                if how == "close":
                    trainer.close()
                    break
                if how == "store":
                    store.commit(1)
                    store.close()
                    break
                raise ZeroDivisionError

    if how == "raise":
        with pytest.raises(ZeroDivisionError):
            loop()
        trainer.close()
    else:
        loop()
    assert threads() == []
    if how != "store":
        assert embedding.table.get(5).item() == -float(made)
        assert not store._listeners
        assert trainer.stats()["permits"]["in_flight"] <= 3
        assert made == (20 if how == "end" else 7)


@pytest.mark.parametrize("caught", [False, True])
def test_what_a_step_raises_is_raised_and_nothing_after_it_is_applied(
    store: embedrock.Store, overlap: bool | None, caught: bool
) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    made = 0
    with pytest.raises(NonFiniteError):
        for batch in Pipeline(embedding, [torch.tensor([5])] * 20, overlap=overlap):
            loss = embedding(batch).sum() * (float("nan") if made == 4 else 1.0)
            loss.backward()
            with contextlib.suppress(*([NonFiniteError] if caught else [])):
                optimizer.step()
            made += 1
    assert made in ((5, 6) if caught or overlap is not False else (4,))
    store._listeners.closing()
    assert embedding.table.get(5).item() == -4.0
    assert threads() == []


def test_a_commit_after_a_failed_step_is_refused(store: embedrock.Store) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    with pytest.raises(NonFiniteError), Pipeline(embedding, [torch.tensor([5])] * 3) as trainer:
        for batch in trainer:
            (embedding(batch).sum() * float("nan")).backward()
            optimizer.step()
            store.commit(1)
    assert store.step is None


def test_what_the_loader_raises_comes_in_its_batchs_place(
    store: embedrock.Store, overlap: bool | None
) -> None:
    def source() -> Iterator[Any]:
        yield from clicks(5)
        raise RuntimeError("DataLoader worker (pid 7) exited unexpectedly")

    trained = Trained(store)
    with pytest.raises(RuntimeError, match="worker"):
        for batch in Pipeline(trained.model, source(), overlap=overlap):
            trained.step(batch)
    assert len(trained.losses) == 5
    assert threads() == []


def test_wrong_ids_are_an_error_of_their_batch(store: embedrock.Store) -> None:
    embedding = nn.Embedding(10, 1, store=store, name="ids", optimizer="sgd")
    optimizer = optim.SGD(embedding, lr=1.0)
    seen = 0
    with pytest.raises(KeyRangeError, match=r"keys\[1\] is 10"):
        for batch in Pipeline(embedding, [torch.tensor([i, i + 1]) for i in range(7, 15)]):
            embedding(batch).sum().backward()
            optimizer.step()
            seen += 1
    assert seen == 2
    assert threads() == []


def test_several_passes_and_workers(store: embedrock.Store) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids", optimizer="sgd", initializer=0.0)
    optimizer = optim.SGD(embedding, lr=1.0)
    loader = torch.utils.data.DataLoader(torch.arange(40), batch_size=4, num_workers=2)
    trainer = Pipeline(embedding, loader)
    for _ in range(2):
        for batch in trainer:
            embedding(batch).sum().backward()
            optimizer.step()
    assert len(trainer) == 10
    assert embedding.table.get(np.arange(40)).ravel().tolist() == [-2.0] * 40


def test_bad_arguments_are_refused(store: embedrock.Store, tmp_path: Path) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids")
    for bad in (-1, 0.5, None):
        with pytest.raises(MisuseError, match="staleness_bound is"):
            Pipeline(embedding, [], staleness_bound=bad)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="read_ahead is 0"):
        Pipeline(embedding, [], read_ahead=0)
    with pytest.raises(MisuseError, match="model is a Store"):
        Pipeline(store, [])
    with embedrock.open(tmp_path / "other", memory="64MiB") as other:
        both = torch.nn.ModuleList([embedding, nn.Embedding(None, 1, store=other, name="ids")])
        with pytest.raises(MisuseError, match="in 2 stores"):
            Pipeline(both, [])
        loader = LookaheadLoader([], nn.Embedding(None, 1, store=other, name="others"))
        with pytest.raises(MisuseError, match=r"announces to .*other, and the model's tables are"):
            Pipeline(embedding, loader)
    first = iter(Pipeline(embedding, [torch.tensor([1])] * 3))
    next(first)
    with pytest.raises(MisuseError, match="another pipeline works"):
        iter(Pipeline(embedding, [torch.tensor([1])]))
    del first
    assert threads() == []
    store.close()
    with pytest.raises(ClosedError):
        Pipeline(embedding, [])


# A plain loop passed through a loader whose batches had no names, until announcing was tried.
@pytest.mark.parametrize("overlap", [None, False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_missing_keys_of_is_an_error_of_the_first_batch(
    store: embedrock.Store, overlap: bool | None, ahead: bool
) -> None:
    model = torch.nn.Sequential(nn.Embedding(None, 1, store=store, name="ids"))
    batches: Any = [torch.tensor([1])] * 3
    trainer = Pipeline(
        model, LookaheadLoader(batches, model) if ahead else batches, overlap=overlap
    )
    with pytest.raises(MisuseError, match=r"the batch has no 'ids' .*; pass keys_of=, a function"):
        next(iter(trainer))
    assert threads() == []


def test_its_repr_says_what_it_wraps_and_whether_it_overlaps(store: embedrock.Store) -> None:
    embedding = nn.Embedding(None, 1, store=store, name="ids")
    one = "<embedrock.Pipeline of list, read_ahead=2, staleness_bound=0, overlapping>"
    assert repr(Pipeline(embedding, [], overlap=True)) == one
    loader = LookaheadLoader([], embedding, depth=7)
    other = Pipeline(embedding, loader, staleness_bound=math.inf, overlap=False)
    assert repr(other) == (
        f"<embedrock.Pipeline of {loader!r}, read_ahead=16, staleness_bound=inf, resting>"
    )
    assert repr(loader) == "<embedrock.LookaheadLoader of list, depth=7, resting>"


SCRIPT = """
import signal, sys, time
import torch, embedrock
signal.signal(signal.SIGINT, signal.default_int_handler)
with embedrock.open(sys.argv[1], memory="64MiB", max_disk_bytes=100 << 20) as store:
    embedding = embedrock.nn.Embedding(None, 1, store=store, name="ids", initializer=0.0)
    optimizer = embedrock.optim.RowWiseAdagrad(embedding, lr=1.0)
    trainer = embedrock.Pipeline(embedding, [torch.tensor([5])] * 1_000_000)
    for step, batch in enumerate(trainer, 1):
        embedding(batch).sum().backward()
        optimizer.step()
        if step == 50:
            store.commit(step)
            print("ready", flush=True)
"""


def test_ctrl_c_ends_a_program_with_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "ahead"
    with (
        (tmp_path / "errors").open("w") as file,
        withtorch.Process(["-c", SCRIPT, str(path)], errors=file) as child,
    ):
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        child.wait(60)
    errors = (tmp_path / "errors").read_text()
    assert "KeyboardInterrupt" in errors
    assert "Traceback" in errors and child.returncode != 0
    with embedrock.open(path, memory="64MiB") as store:
        assert store.step == 50


def test_a_program_that_fails_within_the_loop_ends(tmp_path: Path) -> None:
    script = (
        SCRIPT.replace('print("ready", flush=True)', "raise ZeroDivisionError")
        .replace("with embedrock.open(", "store = embedrock.open(")
        .replace(") as store:\n", ")\nif True:\n")
    )
    done = withtorch.run(["-c", script, str(tmp_path / "ahead")])
    assert "ZeroDivisionError" in done.stderr and done.returncode == 1


@pytest.mark.alone
@pytest.mark.parametrize("how", ["look-ahead", "pipeline", "both"])
def test_the_engines_window_changes_no_bit(tmp_path: Path, how: str) -> None:
    batches = clicks()
    expected = plainly(tmp_path / "plain", "128MiB", batches, "adagrad")
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "adagrad")
        loader: Any = batches
        if how != "pipeline":
            loader = LookaheadLoader(batches, trained.model, depth=12, announce=True)
        if how != "look-ahead":
            loader = Pipeline(trained.model, loader)
        for batch in loader:
            trained.step(batch)
        assert trained.state() == expected
        window = store.window.stats()
        store.commit(1)
    assert window["batches"] >= STEPS
    assert window["finished"] == window["announced"] == window["batches"]
    assert window["rows_loaded"] > 1000 or window["starved"], window


@pytest.mark.alone
@pytest.mark.parametrize("how", ["look-ahead", "pipeline"])
def test_beginning_and_ending_to_announce_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def changes(self: Announcing, seconds: float, reads: Any, filled: bool) -> None:
        self.announce ^= next(steps) % 6 == 0

    steps = itertools.count()
    monkeypatch.setattr(Announcing, "step", changes)
    batches = clicks()
    expected = plainly(tmp_path / "plain", "128MiB", batches, "adagrad")
    with opened(tmp_path / "ahead") as store:
        trained = Trained(store, "adagrad")
        loader = LookaheadLoader(Counting(batches), trained.model, depth=3)
        for at, batch in enumerate(
            Pipeline(trained.model, loader) if how == "pipeline" else loader
        ):
            trained.step(batch)
            assert loader.state_dict() == {"at": at + 1}
        assert trained.state() == expected
        assert store.window.stats()["rows_loaded"] > 200
        store.commit(1)
    counts = loader.stats()
    assert counts["handed_out"] == counts["announced"] + counts["resident"] == STEPS
    assert STEPS / 4 < counts["announced"] < STEPS * 3 / 4


@pytest.mark.parametrize("way", ["pipeline", "lookahead"])
def test_a_pass_behind_an_epochs_last_batch_says_that_it_has_none(
    store: embedrock.Store, way: str
) -> None:
    # As torchdata's loaders do: the position behind the last batch is the end of that pass.
    class Epochs:
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Iterator[Any]:
            while self.place < 3:
                self.place += 1
                yield torch.tensor([self.place])
            self.place = 0

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

    module = nn.Embedding(None, 2, store=store, name="ids", optimizer="sgd")
    loader, options = Epochs(), {"keys_of": lambda batch: {module: batch}}
    wrapped: Any = embedrock.LookaheadLoader(loader, module, **options)
    if way == "pipeline":
        wrapped = Pipeline(module, loader, **options)
    states = [loader.state_dict() for _ in wrapped]
    loader.load_state_dict(states[-1] if states[-1]["place"] == 3 else {"place": 3})
    with pytest.warns(UserWarning, match="pass over Epochs has no batch.*the next epoch"):
        assert [*wrapped] == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len([*wrapped]) == 3
        assert [*embedrock.LookaheadLoader([], module, **options)] == []
