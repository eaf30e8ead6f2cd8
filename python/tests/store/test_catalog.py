"""Tables that grow, go and get other names, through the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import embedrock
from embedrock import nn
from embedrock.cli import main
from embedrock.errors import MismatchError, MisuseError, NotFoundError

MEMORY = "16MiB"
ONES = np.ones((2, 4), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embedrock.Store]:
    with embedrock.open(tmp_path / "s", memory=MEMORY, keep=4, check_disk=False) as store:
        yield store
        if not store.closed:
            store.commit(1_000_000)


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: list[int]) -> None:
    module(torch.tensor(ids)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_grown_table_keeps_rows_and_state_and_every_handle_follows(
    store: embedrock.Store,
) -> None:
    module = nn.Embedding(100, 4, store=store, name="items", optimizer="adam")
    other = nn.Embedding(100, 4, store=store, name="items", optimizer="adam")
    table = store.table("items")
    optimizer = embedrock.optim.Adam(module, lr=0.1)
    train(module, optimizer, [1, 2])
    before = table.get([1, 2], state=True)
    module.grow(150)
    assert (module.num_embeddings, other.num_embeddings, table.num_embeddings) == (150, 150, 150)
    assert "150" in repr(module)
    for had, has in zip(before, table.get([1, 2], state=True), strict=True):
        np.testing.assert_array_equal(had, has)
    train(module, optimizer, [1, 149])
    assert 149 in table
    store.commit(1)
    store.close()
    with embedrock.open(store.path, memory=MEMORY) as again:
        assert again.table("items").num_embeddings == 150
        assert 149 in again.table("items")


def test_more_rows_than_stored_are_refused_with_the_way_to_grow(store: embedrock.Store) -> None:
    nn.Embedding(100, 4, store=store, name="items")
    with pytest.raises(MismatchError, match=r"num_embeddings is 100, asked 200; .* grow\(200\)"):
        nn.Embedding(200, 4, store=store, name="items")
    with pytest.raises(MismatchError, match="open it as stored"):
        nn.Embedding(50, 4, store=store, name="items")


def test_a_dropped_table_is_gone_and_its_name_free(store: embedrock.Store) -> None:
    table = store.table("old", 4, num_embeddings=10)
    table.put([1, 2], ONES)
    store.commit(1)
    store.drop("old")
    assert store.tables == {}
    with pytest.raises(NotFoundError, match="'old' was dropped"):
        table.get([1])
    assert "NotFoundError" in repr(table)
    new = store.table("old", 8)
    assert len(new) == 0
    store.commit(2)
    assert new.get([1]).shape == (1, 8)


def test_a_renamed_table_is_the_same_for_all_who_have_it(store: embedrock.Store) -> None:
    module = nn.Embedding(100, 4, store=store, name="shops")
    table = store.table("shops")
    unwritten = table.get([7])
    store.rename("shops", "stores")
    assert (module.table.name, list(store.tables)) == ("stores", ["stores"])
    np.testing.assert_array_equal(table.get([7]), unwritten)
    np.testing.assert_array_equal(store.table("stores").get([7]), unwritten)
    store.table("shops", 2)
    with pytest.raises(MisuseError, match="another table's name"):
        store.rename("shops", "stores")


def test_names_that_are_not_there_are_told_with_the_nearest(store: embedrock.Store) -> None:
    for name in ("items", "users"):
        store.table(name, 4)
    for call in (
        lambda: store.table("itmes"),
        lambda: store.drop("itmes"),
        lambda: store.rename("itmes", "x"),
        lambda: store.changes(None, tables=["itmes"]),
    ):
        with pytest.raises(NotFoundError, match="it has 'items', 'users'; did you mean 'items'"):
            call()
    store.commit(1)
    with embedrock.open(store.path, memory=MEMORY, read_only=True) as reader:
        with pytest.raises(NotFoundError, match="did you mean 'items'") as error:
            reader.table("itmes")
        assert "create" not in str(error.value).replace("creates tables", "")


def test_going_back_finds_each_table_as_it_was(store: embedrock.Store) -> None:
    a = store.table("a", 4, num_embeddings=10, optimizer="none")
    b = store.table("b", 4, num_embeddings=10, optimizer="none")
    a.put([1, 2], ONES)
    b.put([1, 2], 2 * ONES)
    store.commit(1)
    a.grow(20)
    store.drop("b")
    store.rename("a", "b")
    c = store.table("c", 4, num_embeddings=10, optimizer="none")
    store.commit(2)
    store.go_back(1)
    assert (a.name, a.num_embeddings, b.name) == ("a", 10, "b")
    np.testing.assert_array_equal(a.get([1]), ONES[:1])
    np.testing.assert_array_equal(b.get([1]), 2 * ONES[:1])
    assert (c.name, len(c)) == ("c", 0)
    assert list(store.tables) == ["a", "b", "c"]


def test_a_reader_sees_the_tables_of_its_commit(store: embedrock.Store) -> None:
    a = store.table("a", 4, num_embeddings=10, optimizer="none")
    a.put([1, 2], ONES)
    store.commit(1)
    with embedrock.open(store.path, memory=MEMORY, read_only=True) as reader:
        seen = reader.table("a")
        a.grow(20)
        store.rename("a", "b")
        store.table("a", 2, optimizer="none")
        store.commit(2)
        assert (seen.name, seen.num_embeddings) == ("a", 10)
        reader.refresh()
        assert (seen.name, seen.num_embeddings) == ("b", 20)
        np.testing.assert_array_equal(seen.get([1, 15])[0], ONES[0])
        assert reader.table("a").embedding_dim == 2
        store.drop("b")
        store.commit(3)
        reader.refresh()
        with pytest.raises(NotFoundError, match="dropped"):
            seen.get([1])
        assert list(reader.tables) == ["a"]


def test_a_copy_that_follows_has_what_its_source_has(tmp_path: Path) -> None:
    source = embedrock.open(tmp_path / "source", memory=MEMORY, keep=4)
    a = source.table("a", 4, num_embeddings=10, optimizer="none")
    b = source.table("b", 4, optimizer="none")
    a.put([1, 2], ONES)
    b.put([5, 6], ONES)
    source.commit(1)
    embedrock.copy(source.path, tmp_path / "copy")
    copy = embedrock.open(tmp_path / "copy", memory=MEMORY)
    with embedrock.follow.StoreFollower(copy, source.path) as follower:
        follower.run(once=True)
        source.drop("b")
        source.rename("a", "b")
        a.grow(20)
        a.put([15, 2], 3 * ONES)
        new = source.table("a", 4, optimizer="none")
        new.put([5, 7], 2 * ONES)
        source.commit(2)
        follower.run(once=True)
    assert list(copy.tables) == ["b", "a"]
    for name in ("a", "b"):
        ours, theirs = copy.table(name), source.table(name)
        assert (len(ours), ours.num_embeddings) == (len(theirs), theirs.num_embeddings)
        assert ours.digest() == theirs.digest()
        np.testing.assert_array_equal(ours.get([3, 9]), theirs.get([3, 9]))
    source.close()
    copy.close()


def test_changes_tell_what_became_of_tables(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", memory=MEMORY, keep=4) as store:
        a = store.table("a", 4, num_embeddings=10, optimizer="none")
        a.put([1, 2], ONES)
        store.commit(1, pin="first")
        a.grow(20)
        store.rename("a", "b")
        store.table("c", 4).put([1, 2], ONES)
        store.drop("c")
        a.put([19, 3], ONES)
        store.commit(2)
        with store.changes(since=1) as changes:
            assert changes.table_events == [
                ("grown", "a", 20),
                ("renamed", "a", "b"),
                ("made", "c"),
                ("dropped", "c"),
            ]
            (batch,) = changes
        assert (batch.table, sorted(batch.keys)) == ("b", [3, 19])
    with embedrock.open(tmp_path / "other", memory=MEMORY) as other:
        other.table("a", 4, num_embeddings=10, optimizer="none")
        reader = embedrock.open(tmp_path / "s", memory=MEMORY, read_only=True)
        with pytest.raises(MismatchError, match=r"call table\('a'\)\.grow\(20\) of that store"):
            embedrock.follow.apply_changes(other, reader.changes(since=1))
        reader.close()
        other.commit(1)


def test_copies_pushes_and_exports_have_the_tables_as_they_are(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", memory=MEMORY) as store:
        store.table("gone", 4).put([1, 2], ONES)
        a = store.table("a", 4, num_embeddings=10)
        a.put([1, 2], ONES)
        store.commit(1)
        unwritten = a.get([7])
        store.drop("gone")
        store.rename("a", "b")
        a.grow(20)
        store.commit(2)
        digest = a.digest()
    embedrock.copy(tmp_path / "s", tmp_path / "copy")
    target = (tmp_path / "objects").as_uri()
    embedrock.objects.push(tmp_path / "s", target)
    embedrock.objects.pull(target, tmp_path / "pulled")
    for place in ("copy", "pulled", "s"):
        assert embedrock.check(tmp_path / place)["problems"] == []
        with embedrock.open(tmp_path / place, memory=MEMORY, read_only=True) as store:
            assert list(store.tables) == ["b"], place
            table = store.table("b")
            assert (table.num_embeddings, table.digest()) == (20, digest), place
            np.testing.assert_array_equal(table.get([7]), unwritten)


def test_commands_change_tables_in_commits_that_keep_all_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    with embedrock.open(path, memory=MEMORY) as store:
        store.table("items", 4, num_embeddings=10).put([1, 2], ONES)
        store.table("old", 4).put([1, 2], ONES)
        store.commit(7, meta={"loss": 1}, state={"dense": b"bytes"})
    for command, said in (
        (["grow", str(path), "items", "1500"], "items: 10 ids before, 1,500 now"),
        (["rename", str(path), "items", "products"], "items: its name is products now"),
        (["drop", str(path), "old"], "old: dropped with 2 rows; tables left: products"),
    ):
        assert main([*command, "--memory", MEMORY]) == 0
        assert said in capsys.readouterr().out
    assert main(["grow", str(path), "products", "2000", "--json", "--memory", MEMORY]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"table": "products", "before": 1500, "now": 2000, "step": 7}
    assert main(["drop", str(path), "prodcuts", "--memory", MEMORY]) == 2
    assert "did you mean 'products'" in capsys.readouterr().err
    with embedrock.open(path, memory=MEMORY) as store:
        assert (store.step, store.meta, store.state()) == (7, {"loss": 1}, {"dense": b"bytes"})
        assert store.table("products").num_embeddings == 2000
        np.testing.assert_array_equal(store.table("products").get([1, 2]), ONES)


def test_the_first_row_optimizer_decides_for_a_new_table(store: embedrock.Store) -> None:
    module = nn.Embedding(50, 4, store=store, name="items", padding_idx=0)
    table = store.table("items")
    values = np.arange(200, dtype=np.float32).reshape(50, 4) / 100
    table.put(np.arange(1, 20), values[1:20])
    unwritten = table.get([30])
    optimizer = embedrock.optim.Adagrad(module, lr=0.1, initial_accumulator_value=0.5)
    assert table.optimizer["kind"] == "adagrad"
    assert list(store.tables) == ["items"]
    np.testing.assert_array_equal(table.get(np.arange(1, 20)), values[1:20])
    np.testing.assert_array_equal(table.get([0, 30]), np.vstack([0 * ONES[:1], unwritten]))
    plain = torch.nn.Embedding.from_pretrained(
        torch.from_numpy(table.get(np.arange(50)).copy()), freeze=False, padding_idx=0
    )
    of_torch = torch.optim.Adagrad(plain.parameters(), lr=0.1, initial_accumulator_value=0.5)
    for ids in ([1, 2, 30], [2, 40, 0], [1, 1, 49]):
        train(module, optimizer, ids)
        train(plain, of_torch, ids)
    np.testing.assert_allclose(
        table.get(np.arange(50)), plain.weight.detach().numpy(), rtol=1e-6, atol=1e-7
    )
    store.commit(1)
    with pytest.raises(MismatchError, match="rows that are committed"):
        embedrock.optim.Adam(module, lr=0.1)


def test_a_named_optimizer_and_committed_rows_keep_theirs(store: embedrock.Store) -> None:
    named = nn.Embedding(50, 4, store=store, name="named", optimizer="rowwise_adagrad")
    with pytest.raises(MismatchError, match="needs 'adam'"):
        embedrock.optim.Adam(named, lr=0.1)
    first = nn.Embedding(50, 4, store=store, name="first")
    embedrock.optim.RowWiseAdagrad(first, lr=0.1)
    with pytest.raises(MismatchError, match="needs 'adam'"):
        embedrock.optim.Adam(first, lr=0.1)
    committed = nn.Embedding(50, 4, store=store, name="committed")
    committed.table.put([1, 2], ONES)
    store.commit(1)
    with pytest.raises(MismatchError, match=r"argument of Embedding, convert and Store\.table"):
        embedrock.optim.Adam(committed, lr=0.1)
    empty = nn.Embedding(50, 4, store=store, name="empty")
    store.commit(2)
    embedrock.optim.Adam(empty, lr=0.1)
    assert empty.table.optimizer["kind"] == "adam"


def test_a_converted_model_trains_with_any_optimizer(store: embedrock.Store) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(30, 4), torch.nn.Linear(4, 1))
    weight = model[0].weight.detach().numpy().copy()
    nn.convert(model, store)
    embedrock.optim.Adam(model, lr=0.1)
    (table,) = store.tables.values()
    np.testing.assert_array_equal(table.get(np.arange(30)), weight)
    assert table.optimizer["kind"] == "adam"


def test_state_that_was_written_names_the_optimizer(store: embedrock.Store) -> None:
    def put(table: embedrock.Table) -> None:
        table.put([1], ONES[:1], state=np.full((1, 1), 7, np.float32))

    def modify(table: embedrock.Table) -> None:
        table.put([1], ONES[:1])
        table.modify([1], lambda _, state: state.fill(7))

    for number, write in enumerate([put, modify]):
        module = nn.Embedding(10, 4, store=store, name=f"items {number}")
        write(module.table)
        with pytest.raises(MismatchError, match="initial_accumulator=0"):
            embedrock.optim.RowWiseAdagrad(module, lr=0.1, initial_accumulator_value=0.1)
        assert module.table.get([1], state=True)[1].tolist() == [[7]]


def test_a_refresh_goes_on_while_other_threads_ask_for_tables(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.table("items", 4)
    store.commit(1)
    with embedrock.open(store.path, memory="1MiB", read_only=True) as reader:
        held = [reader.table("items") for _ in range(2)]
        look = embedrock.Table._look

        def look_while_another_asks(table: embedrock.Table) -> None:
            look(table)
            if table in held[:2]:
                held.append(reader.table("items"))

        monkeypatch.setattr(embedrock.Table, "_look", look_while_another_asks)
        store.table("items").put([1], ONES[:1])
        store.commit(2)
        assert reader.refresh() is not None
        assert len(held) == 4


def test_a_module_of_a_name_that_is_free_again_is_over_another_table(
    store: embedrock.Store,
) -> None:
    first = nn.Embedding(10, 4, store=store, name="a", optimizer="sgd")
    store.rename("a", "b")
    second = nn.Embedding(10, 4, store=store, name="a", optimizer="sgd")
    again = nn.Embedding(10, 4, store=store, name="b", optimizer="sgd")
    assert (first.table.name, second.table.name, again.table.name) == ("b", "a", "b")
    before = first.table.get([1])
    train(second, embedrock.optim.SGD(second, lr=0.1), [1])
    np.testing.assert_array_equal(first.table.get([1]), before)
    (first(torch.tensor([1])) + again(torch.tensor([1]))).sum().backward()
    assert next(first.parameters()) is next(again.parameters())
    embedrock.optim.SGD(first, lr=0.5).step()
    np.testing.assert_allclose(first.table.get([1]), before - 1, rtol=1e-5)
    store.drop("a")
    third = nn.Embedding(10, 4, store=store, name="a", optimizer="sgd")
    train(third, embedrock.optim.SGD(third, lr=0.1), [1])
    assert 1 in third.table and len(third.table) == 1


@pytest.mark.parametrize("by_command", [False, True])
def test_training_is_resumed_after_a_table_was_renamed(
    store: embedrock.Store, by_command: bool
) -> None:
    module = nn.Embedding(10, 4, store=store, name="a", optimizer="adam")
    optimizer = embedrock.optim.Adam(module, lr=0.1)
    train(module, optimizer, [1, 2])
    embedrock.save(store, module, optimizer, step=1)
    if by_command:
        store.close()
        assert main(["rename", str(store.path), "a", "b"]) == 0
    else:
        store.rename("a", "b")
        assert optimizer.state_dict()["param_groups"][0]["tables"] == ["b"]
        store._commit_again()
        store.close()
    with embedrock.open(store.path, memory=MEMORY) as again:
        renamed = nn.Embedding(10, 4, store=again, name="b", optimizer="adam")
        other = embedrock.optim.Adam(renamed, lr=0.5)
        assert embedrock.resume(again, renamed, other) == 1
        assert other.param_groups[0]["lr"] == 0.1
        assert other.state_dict()["param_groups"][0]["tables"] == ["b"]
        again.rename("b", "c")
        other.load_state_dict(optimizer.state_dict())
        new = nn.Embedding(10, 4, store=again, name="d", optimizer="adam")
        with pytest.raises(MismatchError, match="saved state is of tables"):
            embedrock.optim.Adam(new, lr=0.1).load_state_dict(other.state_dict())
        embedrock.save(again, renamed, other, step=2)
