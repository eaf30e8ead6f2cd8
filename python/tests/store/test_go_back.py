"""Going back in place, and the bond between a state dict and the rows it was saved beside."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedrock
from embedrock import Pipeline, nn
from embedrock.errors import (
    ClosedError,
    LockedError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)

IDS = torch.arange(12).reshape(4, 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embedrock.Store]:
    with embedrock.open(tmp_path / "s", memory="16MiB", keep=8, check_disk=False) as store:
        yield store
        if not store.closed:
            store.commit(1_000_000)


def model_of(store: embedrock.Store) -> torch.nn.Sequential:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(50, 4, store=store, name="words", optimizer="adam")
    return torch.nn.Sequential(bag, torch.nn.Linear(4, 1))


def optimizer_of(model: torch.nn.Module) -> embedrock.optim.Together:
    return embedrock.optim.Together(
        torch.optim.SGD(nn.dense_parameters(model), lr=0.1), embedrock.optim.Adam(model, lr=0.1)
    )


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(IDS).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rows_of(store: embedrock.Store) -> np.ndarray:
    values, state = store.table("words").get(np.arange(50), state=True)
    return np.concatenate([values, state], axis=1)


def test_a_trainer_that_restores_the_best_has_its_rows_too(store: embedrock.Store) -> None:
    model = model_of(store)
    optimizer = optimizer_of(model)
    train(model, optimizer, 3)
    embedrock.save(store, model, optimizer, step=3)
    best, best_rows = copy.deepcopy(model.state_dict()), rows_of(store)
    expected = train(model, optimizer, 4)
    embedrock.save(store, model, optimizer, step=7)
    train(model, optimizer, 2)

    with pytest.raises(MismatchError, match=r"store\.go_back\(3\)") as caught:
        model.load_state_dict(best)
    assert "step 7 and 2 batches" in str(caught.value)
    with pytest.raises(MismatchError):
        model.load_state_dict(best, strict=False)

    assert store.go_back(3).step == 3 == store.step
    model.load_state_dict(best)
    assert embedrock.resume(store, model, optimizer) == 3
    np.testing.assert_array_equal(rows_of(store), best_rows)
    # Counts of steps went back, too: Adam's bias correction is that of the first time.
    assert train(model, optimizer, 4) == expected
    embedrock.save(store, model, optimizer, step=7)
    assert [commit.step for commit in store.commits()] == [3, 7]


def test_a_state_dict_fits_before_and_after_the_commit_of_its_rows(store: embedrock.Store) -> None:
    model = model_of(store)
    optimizer = optimizer_of(model)
    train(model, optimizer)
    before = model.state_dict()
    store.commit(1)
    model.load_state_dict(before)
    after = model.state_dict()
    store.close()
    with embedrock.open(store.path, memory="16MiB", read_only=True) as reader:
        read = model_of(reader)
        read.load_state_dict(before)
        read.load_state_dict(after)


def test_rows_that_came_the_other_way_to_as_many_updates_are_told_apart(
    store: embedrock.Store,
) -> None:
    model = model_of(store)
    optimizer = optimizer_of(model)
    store.commit(0)
    train(model, optimizer)
    store.commit(1)
    train(model, optimizer)
    store.commit(2)
    saved = model.state_dict()
    store.go_back(1)
    with pytest.raises(MismatchError, match="its commit is not kept"):
        model.load_state_dict(saved)
    train(model, optimizer)
    with pytest.raises(MismatchError):  # as many updates, and no commit yet
        model.load_state_dict(saved)
    store.commit(9)  # as many updates as the one that went, under its number
    with pytest.raises(MismatchError):
        model.load_state_dict(saved)


def test_a_state_dict_of_another_store_is_refused_unless_dense_only(
    store: embedrock.Store, tmp_path: Path
) -> None:
    model = model_of(store)
    train(model, optimizer_of(model))
    saved = model.state_dict()
    saved["1.bias"] = torch.tensor([7.0])
    with embedrock.open(tmp_path / "other", memory="16MiB", check_disk=False) as other:
        read = model_of(other)
        with pytest.raises(MismatchError, match=store.id):
            read.load_state_dict(saved)
        with nn.loading_dense_only():
            read.load_state_dict(saved)
            assert read[1].bias.item() == 7.0
        with pytest.raises(MismatchError):  # the context has ended
            read.load_state_dict(saved)
        other.commit(1)


def test_what_is_no_such_tensor_is_refused_and_one_that_is_missing_is_not(
    store: embedrock.Store,
) -> None:
    model = model_of(store)
    saved = model.state_dict()
    assert saved["0._extra_state"].dtype == torch.int64  # safetensors takes tensors alone
    for wrong in (None, {}, torch.zeros(3), torch.zeros(9), saved["0._extra_state"][:-1]):
        with pytest.raises(MismatchError, match="expected an int64 tensor"):
            model.load_state_dict({**saved, "0._extra_state": wrong})
    newer = saved["0._extra_state"].clone()
    newer[0] = 2
    with pytest.raises(MismatchError, match="expected an int64 tensor"):
        model.load_state_dict({**saved, "0._extra_state": newer})
    del saved["0._extra_state"]  # dense parameters that came from elsewhere
    model.load_state_dict(saved)


def test_a_collection_tells_each_of_its_tables(store: embedrock.Store) -> None:
    configs = [nn.EmbeddingBagConfig(name, 4, [name], 9, optimizer="sgd") for name in ("a", "b")]
    bags = nn.EmbeddingBagCollection(configs, store=store)
    saved = bags.state_dict()
    assert saved["_extra_state"].shape == (12,)
    bags.load_state_dict(saved)
    store.table("b").update([1], np.ones((1, 4), np.float32), lr=1.0)
    with pytest.raises(MismatchError, match=r"\(0, 1 updates\)"):
        bags.load_state_dict(saved)


def test_gradients_of_before_are_forgotten_or_refused(store: embedrock.Store) -> None:
    model = model_of(store)
    optimizer = optimizer_of(model)
    store.commit(1)
    before = rows_of(store)
    model(IDS).sum().backward()
    late = model(IDS).sum()
    store.go_back(1)
    with pytest.raises(MisuseError, match="run the forward again"):
        late.backward()
    optimizer.step()  # nothing waits
    np.testing.assert_array_equal(rows_of(store), before)
    optimizer.zero_grad()
    train(model, optimizer)
    assert not np.array_equal(rows_of(store), before)


def test_a_table_that_came_later_is_there_without_rows(store: embedrock.Store) -> None:
    store.table("first", 4, optimizer="sgd", initializer=0.5)
    store.commit(1)
    later = store.table("later", 3, num_embeddings=10, optimizer="adagrad", initializer=0.25)
    later.put([1], np.ones((1, 3), np.float32))
    other = store.table("other", 2, optimizer="sgd")
    del other  # nobody has it: it goes
    store.commit(2)
    store.go_back(1)
    assert sorted(store.tables) == ["first", "later"]
    assert len(later) == 0 and later.get([1]).tolist() == [[0.25] * 3]
    later.update([1], np.ones((1, 3), np.float32), lr=0.1)
    store.commit(2)
    assert len(store.table("later")) == 1


def test_what_is_uncommitted_goes_and_later_commits_stay_until_a_change(
    store: embedrock.Store,
) -> None:
    table = store.table("words", 2, optimizer="none", initializer=0.0)
    for step in (1, 2, 3):
        table.put([5], np.full((1, 2), step, np.float32))
        store.commit(step)
    table.put([5], np.full((1, 2), 9, np.float32))
    assert store.go_back(2).step == 2
    assert store.uncommitted == (0, 0) and table.get([5])[0, 0] == 2
    assert store.go_back(3).step == 3 and table.get([5])[0, 0] == 3  # nothing has changed since
    store.go_back(1)
    table.put([5], np.full((1, 2), 4, np.float32))
    store.commit(4)
    assert [commit.step for commit in store.commits()] == [1, 4]
    with pytest.raises(NotFoundError, match=r"step 3 .* kept are the steps: 1, 4"):
        store.go_back(3)
    assert table.get([5])[0, 0] == 4  # refused, and nothing has changed


def test_it_is_refused_where_rows_are_newer_than_any_commit(store: embedrock.Store) -> None:
    log = store.table("words", 2, optimizer="none")
    store.commit(1)
    direct = store.table("direct", 2, 10, optimizer="none", storage="pmem")
    direct.put([5], np.ones((1, 2), np.float32))
    store.commit(2)
    with pytest.raises(UnsupportedError, match=r"table 'direct'.*newer than any commit"):
        store.go_back(1)
    assert direct.get([5])[0, 0] == 1 and len(log) == 0 and not store.closed
    assert store.go_back(2).step == 2 and direct.get([5])[0, 0] == 1


def test_commits_under_way_are_waited_for_and_later_ones_go_with_a_new_table(
    store: embedrock.Store,
) -> None:
    table = store.table("words", 2, optimizer="none", initializer=0.0)
    for step in (1, 2):
        table.put([5], np.full((1, 2), step, np.float32))
        store.commit(step)
    table.put([5], np.full((1, 2), 3, np.float32))
    store.commit(3, wait=False)
    assert store.go_back(3).step == 3 and table.get([5])[0, 0] == 3
    assert store.go_back(1).step == 1
    store.table("new", 2, optimizer="none")
    with pytest.raises(NotFoundError, match="kept are the steps: 1;"):
        store.go_back(3)
    assert not store.closed and table.get([5])[0, 0] == 1


def test_beside_a_reader_of_a_later_commit_it_is_refused_and_nothing_is_lost(
    store: embedrock.Store,
) -> None:
    table = store.table("words", 2, optimizer="none", initializer=0.0)
    for step in (1, 2):
        table.put([5], np.full((1, 2), step, np.float32))
        store.commit(step)
    table.put([5], np.full((1, 2), 9, np.float32))
    with embedrock.open(store.path, memory="4MiB", read_only=True) as reader:
        with pytest.raises(LockedError, match=r"a reader of .* holds commit 2"):
            store.go_back(1)
        assert table.get([5])[0, 0] == 9 and store.uncommitted[0] == 1
        reader.go_back(1)
        assert store.go_back(1).step == 1 and table.get([5])[0, 0] == 1


def test_a_reader_stays_where_a_table_that_it_has_is_not_there_yet(
    store: embedrock.Store,
) -> None:
    store.table("words", 2, optimizer="none")
    store.commit(1)
    store.table("later", 2, optimizer="none").put([1], np.ones((1, 2), np.float32))
    store.commit(2)
    with embedrock.open(store.path, memory="4MiB", read_only=True) as reader:
        later = reader.table("later")
        with pytest.raises(NotFoundError, match="table 'later' is not in the commit of step 1"):
            reader.go_back(1)
        assert reader.step == 2 and later.get([1])[0, 0] == 1
        del later
        assert reader.go_back(1).step == 1


def test_a_follower_is_refused_once_its_store_has_gone_back(
    store: embedrock.Store, tmp_path: Path
) -> None:
    store.table("words", 2, optimizer="none")
    store.commit(1)
    with embedrock.follow.LogWriter(tmp_path / "log") as log:
        log.put("words", [7], np.ones((1, 2), np.float32))
    with embedrock.follow.LogReader(tmp_path / "log") as source:
        follower = embedrock.follow.Follower(store, source, start="begin")
        assert store.step is not None
        store.go_back(store.step)
        with pytest.raises(MisuseError, match="has gone back"):
            follower.run(once=True)


def test_a_reader_moves_to_an_earlier_commit_and_on_again(store: embedrock.Store) -> None:
    table = store.table("words", 2, optimizer="none", initializer=0.0)
    for step in (1, 2):
        table.put([5], np.full((1, 2), step, np.float32))
        store.commit(step)
    with embedrock.open(store.path, memory="4MiB", read_only=True) as reader:
        words = reader.table("words")
        assert words.get([5])[0, 0] == 2
        assert reader.go_back(1).step == 1 and words.get([5])[0, 0] == 1 and reader.held
        moved = reader.refresh()
        assert moved is not None and moved.step == 2 and words.get([5])[0, 0] == 2
        with pytest.raises(NotFoundError, match="7"):
            reader.go_back(7)
        assert words.get([5])[0, 0] == 2  # unchanged


def test_it_is_refused_while_a_pipeline_or_a_recording_would_be_of_other_rows(
    store: embedrock.Store,
) -> None:
    model = model_of(store)
    optimizer = embedrock.optim.Adam(model, lr=0.1)
    store.commit(1)
    batches = [{"words": IDS}] * 4
    for i, batch in enumerate(Pipeline(model, batches, keys_of=dict, overlap=True)):
        model(batch["words"]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if i == 1:
            with pytest.raises(MisuseError, match="pipeline is under way"):
                store.go_back(1)
    store.go_back(1)
    with store.record(), pytest.raises(MisuseError, match="recording is under way"):
        store.go_back(1)
    store.go_back(1)


def test_look_ahead_and_background_reads_go_on_after_it(store: embedrock.Store) -> None:
    table = store.table("words", 2, 100, optimizer="none", initializer=0.0)
    table.put(np.arange(100), np.ones((100, 2), np.float32))
    store.commit(1)
    out = np.zeros((3, 2), np.float32)
    table.lookahead([1, 2, 3], out=out).wait()
    table.put(np.arange(100), np.zeros((100, 2), np.float32))
    store.go_back(1)
    out[:] = 0
    table.lookahead([1, 2, 3], out=out).wait()
    assert (out == 1).all()
    number = store.window.announce({table: [4, 5]})
    store.window.begin(number)
    assert (table.get([4, 5]) == 1).all()
    store.window.finish(number)


def test_where_it_cannot_open_again_the_store_is_closed_and_says_so(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.table("words", 2, optimizer="none")
    store.commit(1)
    opener = store._opener

    def taken(step: int | None, **given: Any) -> object:
        other = embedrock._core.Store(store.path, "4MiB", create=False)
        try:
            return opener(step, **given)
        finally:
            other.close()

    monkeypatch.setattr(store, "_opener", taken)
    with pytest.raises(LockedError):
        store.go_back(1)
    assert store.closed
    with pytest.raises(ClosedError):
        table.get([1])
    with embedrock.open(store.path, memory="4MiB") as again:
        assert again.step == 1


@pytest.mark.alone
@pytest.mark.parametrize("announce", [True, False, None])
@pytest.mark.parametrize("depth", [4, 512])
def test_a_pass_of_look_ahead_goes_on_after_it(
    store: embedrock.Store, announce: bool | None, depth: int
) -> None:
    # With announced batches the next one ended the loop: "batch 31 was not announced".
    batches = [torch.arange(i, i + 12).reshape(4, 3) % 50 for i in range(24)]

    def trained(wrapped: bool) -> tuple[list[float], np.ndarray]:
        model = model_of(store)
        optimizer = optimizer_of(model)
        bag = model[0]
        given: Any = batches
        if wrapped:
            found = lambda batch: {bag: batch}  # noqa: E731
            given = embedrock.LookaheadLoader(
                batches, model, depth, keys_of=found, announce=announce
            )
        losses = []
        for i, batch in enumerate(given):
            if i == 5:
                embedrock.save(store, model, optimizer, 5)
            if i in (9, 12):
                store.go_back(5)
                embedrock.resume(store, model, optimizer)
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if wrapped:
            stats = given.stats()
            assert stats["handed_out"] == len(batches) and stats["skipped"] >= 0
            assert announce is not True or stats["announced"] == len(batches)
        return losses, rows_of(store)

    table = store.table("words", 4, 50, optimizer="adam")
    table.put(np.arange(50), np.ones((50, 4), np.float32))
    store.commit(0)
    plain = trained(wrapped=False)
    store.go_back(0)
    ahead = trained(wrapped=True)
    assert plain[0] == ahead[0]
    np.testing.assert_array_equal(plain[1], ahead[1])


def test_tables_that_came_after_the_commit_stay_apart(store: embedrock.Store) -> None:
    store.table("a", 4)
    store.commit(1)
    tables = {name: store.table(name, 4, num_embeddings=10) for name in "bcdefghijk"}
    for number, table in enumerate(tables.values()):
        table.put([1], np.full((1, 4), number, np.float32))
    store.commit(2)
    store.go_back(1)
    assert list(store.tables) == ["a", *tables]  # in the order of their creation
    for number, (name, table) in enumerate(tables.items()):
        assert table.name == name and len(table) == 0
        table.put([1], np.full((1, 4), number, np.float32))
    for number, name in enumerate(tables):
        assert store.table(name).get(1).tolist() == [number] * 4


def test_a_table_with_the_name_of_another_is_gone_instead_of_that_one(
    store: embedrock.Store,
) -> None:
    first = store.table("a", 4)
    first.put([1], np.ones((1, 4), np.float32))
    store.commit(1)
    store.rename("a", "b")
    second = store.table("a", 4)
    store.go_back(1)
    assert first.name == "a" and 1 in first
    with pytest.raises(NotFoundError, match=r"'a' is gone.*Store\.table"):
        second.get([1])
    assert "NotFoundError" in repr(second)


def test_a_table_that_was_made_again_has_the_rows_of_its_name(store: embedrock.Store) -> None:
    old = store.table("a", 4)
    old.put([1], np.ones((1, 4), np.float32))
    store.commit(1)
    store.drop("a")
    new = store.table("a", 4)
    store.go_back(1)
    assert 1 in new
    with pytest.raises(NotFoundError):
        len(old)


def test_a_dropped_table_is_no_table_that_comes_after_going_back(store: embedrock.Store) -> None:
    store.table("a", 4)
    store.commit(1)
    dropped = store.table("b", 4)
    store.drop("b")
    store.go_back(1)
    store.table("c", 4).put([1], np.ones((1, 4), np.float32))
    with pytest.raises(NotFoundError):
        dropped.get([1])
    store.go_back(1)
