"""Rows ranked and sampled: what torch does with the whole matrix, done in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn  # noqa: E402
from embedrock.errors import KeyRangeError, MisuseError, UnsupportedError  # noqa: E402
from embedrock.nn import ranking  # noqa: E402

ROWS, DIM, QUERIES = 1_000, 4, 7


def queries(count: int = QUERIES) -> Any:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(1))


def module_of(store: embedrock.Store, size: int | None = ROWS, **more: Any) -> nn.Embedding:
    """A table of which a third is written; half of that is on the disk alone."""
    module = nn.Embedding(size, DIM, store=store, name="items", **more)
    random = np.random.default_rng(0)
    for part in range(2):
        ids = random.permutation(ROWS)[: ROWS // 6]
        module.table.put(ids, random.standard_normal((len(ids), DIM)).astype(np.float32))
        store.commit(part)
    return module


def matrix(module: nn.Embedding) -> Any:
    return torch.from_numpy(module.table.get(np.arange(ROWS)))


def ranked(scores: Any, ids: Any, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """By score and then by id, one by one."""
    best = [
        sorted(zip(row, ids, strict=True), key=lambda one: (-one[0], one[1]))[:k]
        for row in scores.tolist()
    ]
    return [[one[0] for one in row] for row in best], [[one[1] for one in row] for row in best]


@pytest.mark.parametrize("block", [64, ranking.BLOCK])
@pytest.mark.parametrize("storage", ["log", "lsm"])
def test_topk_is_that_of_the_whole_matrix(store: embedrock.Store, storage: Any, block: int) -> None:
    module = module_of(store, storage=storage)
    assert 0 < len(module.table) < ROWS // 2  # most rows were never trained
    vectors = queries()
    full = vectors @ matrix(module).T
    expected = full.topk(20)
    found = module.topk(vectors, 20, block=block)
    torch.testing.assert_close(found.scores, expected.values)
    assert torch.equal(found.ids, expected.indices)
    torch.testing.assert_close(module.scores(vectors), full)
    wanted = [5, 999, 5, 0]
    torch.testing.assert_close(module.scores(vectors, ids=wanted), full[:, wanted])
    assert not found.scores.requires_grad and not module._pending["rows"]._keys.size


def test_items_with_unwritten_rows_are_the_ranked_ones(store: embedrock.Store) -> None:
    module = module_of(store)
    table = module.table
    for most in (7, 64, ROWS, 10_000):
        found = list(table.items(most, unwritten=True))
        keys = np.concatenate([keys for keys, _ in found])
        assert sorted(keys) == list(range(ROWS))
        assert max(len(keys) for keys, _ in found) <= most
        np.testing.assert_array_equal(np.concatenate([rows for _, rows in found]), table.get(keys))
    assert len(np.concatenate([keys for keys, _ in table.items()])) == len(table)
    state = {
        int(k): s
        for keys, _, state in table.items(64, state=True, unwritten=True)
        for k, s in zip(keys, state, strict=True)
    }
    np.testing.assert_array_equal(
        np.stack([state[k] for k in range(ROWS)]), table.get(np.arange(ROWS), state=True)[1]
    )
    table.delete([int(keys[0])])
    assert sorted(np.concatenate([k for k, _ in table.items(unwritten=True)])) == list(range(ROWS))
    with pytest.raises(MisuseError, match="table 'more' grows"):
        store.table("more", 4).items(unwritten=True)


def test_equal_scores_are_in_the_order_of_ids_whatever_the_blocks(store: embedrock.Store) -> None:
    module = nn.Embedding(ROWS, DIM, store=store, name="items", initializer=0.0)
    random = np.random.default_rng(2)
    ids = random.permutation(ROWS)[:500]
    module.table.put(ids, random.integers(-1, 2, (500, DIM)).astype(np.float32))
    vectors = torch.randint(-2, 3, (QUERIES, DIM), generator=torch.Generator().manual_seed(3))
    vectors = vectors.float()
    expected = ranked(vectors @ matrix(module).T, range(ROWS), 40)
    for block in (16, 39, 41, 333, 5000):
        found = module.topk(vectors, 40, block=block)
        assert (found.scores.tolist(), found.ids.tolist()) == expected


@pytest.mark.parametrize("form", ["list", "jagged", "padded"])
def test_each_query_leaves_out_its_own_ids(store: embedrock.Store, form: str) -> None:
    module = module_of(store)
    vectors, full = queries(), queries() @ matrix(module).T
    best = full.topk(30).indices
    out = [best[q, : 3 * q].tolist() for q in range(QUERIES)]
    exclude: Any = [ids or None for ids in out]
    if form == "jagged":
        offsets = torch.tensor([0, *np.cumsum([len(ids) for ids in out])])
        exclude = (torch.tensor([one for ids in out for one in ids]), offsets)
    if form == "padded":  # ids that the table has not change nothing
        exclude = torch.full((QUERIES, 18), ROWS + 5)
        for q, ids in enumerate(out):
            exclude[q, : len(ids)] = torch.tensor(ids)
    for q, ids in enumerate(out):
        full[q, ids] = -torch.inf
    found = module.topk(vectors, 10, exclude=exclude, block=100)
    expected = full.topk(10)
    torch.testing.assert_close(found.scores, expected.values)
    assert torch.equal(found.ids, expected.indices)


def test_where_too_few_are_left_the_rest_says_so(store: embedrock.Store) -> None:
    module = nn.Embedding(5, DIM, store=store, name="items")
    found = module.topk(queries(2), 7, exclude=[[0, 1, 2], None])
    assert found.ids[0, 2:].tolist() == [-1] * 5 and found.ids[1, 5:].tolist() == [-1] * 2
    assert found.scores[0, 2:].tolist() == [-np.inf] * 5
    assert sorted(found.ids[0, :2].tolist()) == [3, 4]
    assert torch.isfinite(found.scores[1, :5]).all()


def test_of_a_growing_table_written_rows_are_ranked_or_those_that_are_named(
    store: embedrock.Store,
) -> None:
    module = module_of(store, None)
    far = np.array([-1, -5, 2**62])
    module.table.put(far, 9 * np.ones((3, DIM), np.float32))
    written = np.sort(np.concatenate(list(module.table.keys())))
    vectors = queries()
    rows = torch.from_numpy(module.table.get(written))
    expected = ranked(vectors @ rows.T, written.tolist(), 6)
    for block in (50, 5000):
        found = module.topk(vectors, 6, block=block)
        torch.testing.assert_close(found.scores, torch.tensor(expected[0]))
        assert found.ids.tolist() == expected[1]
    new = 10**9  # never written: named, it counts as it reads
    found = module.topk(vectors, 3, ids=[new, 5, new, -5])
    expected = ranked(vectors @ torch.from_numpy(module.table.get([new, 5, -5])).T, [new, 5, -5], 3)
    torch.testing.assert_close(found.scores, torch.tensor(expected[0]))
    assert found.ids.tolist() == expected[1]
    with pytest.raises(MisuseError, match=r"'items', which grows, .* topk ranks all"):
        module.scores(vectors)


def test_the_padding_row_is_not_ranked(store: embedrock.Store) -> None:
    bag = nn.EmbeddingBag(ROWS, DIM, padding_idx=3, store=store, name="items")
    found = bag.topk(queries(), ROWS)
    assert 3 not in found.ids
    assert (found.ids == -1).sum(1).tolist() == [1] * QUERIES
    assert bag.scores(queries())[:, 3].abs().max() == 0


def test_queries_are_taken_in_parts(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(store)
    vectors = queries(23)
    exclude = [[q] for q in range(23)]
    whole = module.topk(vectors, 10, exclude=exclude, block=128)
    monkeypatch.setattr(ranking, "_SCORES_MAX", 5 * 128)
    parts = module.topk(vectors, 10, exclude=exclude, block=128)
    assert torch.equal(parts.ids, whole.ids)
    torch.testing.assert_close(parts.scores, whole.scores)
    assert module.topk(vectors[:0], 10).ids.shape == (0, 10)


def test_the_disk_is_read_once_for_all_queries(tmp_path: Path) -> None:
    rows, dim, random = 20_000, 32, np.random.default_rng(0)
    with embedrock.open(tmp_path / "store", "1MiB", io="pread", page_bytes=4096) as store:
        module = nn.Embedding(rows, dim, store=store, name="items", optimizer="sgd")
        for ids in random.permutation(rows).reshape(20, -1):
            module.table.put(ids, random.standard_normal((len(ids), dim)).astype(np.float32))
            store.commit((store.step or 0) + 1)
        before = store.stats()["pages_read"]
        found = module.topk(torch.randn(3000, dim), 5, block=500)
        read = store.stats()["pages_read"] - before
        assert 0.5 < read / (rows * module.table.row_bytes / 4096) < 1.3
        assert found.ids.shape == (3000, 5)


def test_a_table_at_a_server_is_ranked_where_its_ids_are_known(store: embedrock.Store) -> None:
    from embedrock import _core

    module, grown = module_of(store), store.table("grown", DIM)
    grown.put([7], np.ones((1, DIM), np.float32))
    store.commit(3)
    server = _core.Server(store._core, "127.0.0.1:0", threads=1, commit_every=0)
    with embedrock.connect(f"redis://{server.address()}") as remote:
        there = nn.Embedding(ROWS, DIM, store=remote, name="items")
        found, expected = there.topk(queries(), 10, block=99), module.topk(queries(), 10)
        assert torch.equal(found.ids, expected.ids)
        growing = nn.Embedding(None, DIM, store=remote, name="grown")
        assert growing.topk(queries(), 1, ids=[7]).ids.tolist() == [[7]] * QUERIES
        with pytest.raises(UnsupportedError, match="which grows"):
            growing.topk(queries(), 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"queries": torch.zeros(3, 5)}, r"queries has shape \(3, 5\), expected \(Q, 4\)"),
        ({"queries": torch.zeros(4)}, r"queries has shape \(4,\), expected \(Q, 4\)"),
        ({"queries": torch.zeros(3, 4, dtype=torch.int64)}, "expected a tensor .* of floats"),
        ({"queries": torch.full((3, 4), torch.nan)}, "queries hold NaN"),
        ({"k": 0}, "k is 0, expected 1 or more"),
        ({"k": 2**63}, "k is .*, expected 1 to 1048576"),
        ({"block": 0}, "block is 0, expected 1 or more"),
        ({"exclude": [[1]]}, "exclude has 1 entries, expected 3"),
        ({"exclude": 7}, "exclude is 7, expected ids for each query"),
        ({"exclude": torch.zeros(2, 2).long()}, r"shape \(2, 2\), expected \(3, N\)"),
        (
            {"exclude": (torch.tensor([1]), torch.tensor([0, 1, 1, 2]))},
            "exclude has 4 offsets for 1 ids, expected 4 that rise from 0 to 1",
        ),
        ({"exclude": [["a"], None, None]}, r"exclude\[0\] are .*, expected int64"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    store: embedrock.Store, arguments: dict[str, Any], expected: str
) -> None:
    module = nn.Embedding(ROWS, DIM, store=store, name="items")
    with pytest.raises(MisuseError, match=expected):
        module.topk(**{"queries": torch.zeros(3, DIM), "k": 2, **arguments})
    with pytest.raises(KeyRangeError):
        module.topk(torch.zeros(3, DIM), 2, ids=[ROWS])


class Session(torch.nn.Module):
    """A session model with one table for inputs, targets and negatives."""

    def __init__(self, items: Any, dim: int) -> None:
        super().__init__()
        self.items = items
        self.gru = torch.nn.GRU(dim, dim, batch_first=True)

    def loss(self, session: Any, negatives: Any, in_one: bool) -> Any:
        inputs, targets = session[:, :-1], session[:, 1:]
        if in_one:
            rows, logits = nn.tied(self.items, inputs, targets, negatives)
            found = logits(self.gru(rows)[0])
        else:
            hidden = self.gru(self.items(inputs))[0]
            found = nn.sampled_logits(self.items, hidden, targets, negatives)
        right = torch.zeros(targets.numel(), dtype=torch.int64)
        return torch.nn.functional.cross_entropy(found.flatten(0, 1), right)


def test_tied_weights_with_sampled_softmax_follow_their_twin_in_memory(
    tmp_path: Path,
) -> None:
    rows, dim, losses = 40_000, 32, []
    with embedrock.open(tmp_path / "store", "10%", io="pread") as store:
        ours = nn.Embedding(
            rows,
            dim,
            store=store,
            name="items",
            optimizer="adagrad",
            initializer=embedrock.initializers.normal(std=0.1),
        )
        twin = torch.nn.Embedding.from_pretrained(
            torch.from_numpy(ours.table.get(np.arange(rows))), freeze=False, sparse=True
        )
        for items in (ours, twin):
            torch.manual_seed(0)
            model = Session(items, dim)
            optimizers = [torch.optim.Adam(model.gru.parameters(), lr=0.01)]
            optimizers.append(
                embedrock.optim.Adagrad(ours, lr=0.1, eps=1e-2)
                if items is ours
                else torch.optim.Adagrad(twin.parameters(), lr=0.1, eps=1e-2)
            )
            draw = torch.Generator().manual_seed(1)
            seen = []
            for step in range(50):
                first = torch.randint(rows, (64, 1), generator=draw)
                session = (first + torch.arange(5) * 7) % rows
                negatives = torch.randint(rows, (100,), generator=draw)
                loss = model.loss(session, negatives, step % 2 == 0)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                seen.append(loss.item())
            losses.append(seen)
        np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-5)
        found = torch.from_numpy(ours.table.get(np.arange(rows)))
        torch.testing.assert_close(found, twin.weight.detach(), rtol=0, atol=1e-5)
        assert len(ours.table) > 10_000
        assert store.stats()["budget_bytes"] < 0.11 * rows * ours.table.row_bytes
        store.commit(1)


def test_sampled_logits_are_those_of_the_matrix(store: embedrock.Store) -> None:
    module = module_of(store)
    weight = matrix(module)
    hidden, targets = queries(), torch.arange(QUERIES)
    negatives = torch.tensor([3, 500, 501])
    found = nn.sampled_logits(module, hidden, targets, negatives)
    full = hidden @ weight.T
    expected = torch.cat([full[torch.arange(QUERIES), targets, None], full[:, negatives]], 1)
    expected[3, 1] = -torch.inf  # the negative that is the target
    torch.testing.assert_close(found, expected)
    each = negatives + torch.arange(QUERIES)[:, None]
    log_expected = (torch.rand(QUERIES), torch.rand(QUERIES, 3))
    found = nn.sampled_logits(
        module, hidden, targets, each, log_expected=log_expected, mask_hits=False
    )
    expected = torch.cat([full[torch.arange(QUERIES), targets, None], full.gather(1, each)], 1)
    torch.testing.assert_close(
        found, expected - torch.cat([log_expected[0][:, None], log_expected[1]], 1)
    )
    bag = nn.EmbeddingBag(ROWS, DIM, store=store, name="items")
    torch.testing.assert_close(
        nn.sampled_logits(bag, hidden, targets, each, mask_hits=False), expected
    )


def test_one_lookup_reads_inputs_targets_and_negatives(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = module_of(store), []
    get = store.get

    def counted(*given: Any, **more: Any) -> Any:
        calls.append(1)
        return get(*given, **more)

    monkeypatch.setattr(store, "get", counted)
    ids = torch.arange(12).view(3, 4)
    rows, logits = nn.tied(module, ids, ids, torch.arange(50, 60))
    assert logits(rows).shape == (3, 4, 11) and len(calls) == 1
    nn.sampled_logits(module, rows, ids, torch.arange(50, 60))
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden": torch.zeros(3, DIM)}, r"hidden has shape \(3, 4\), expected \(2, 4\)"),
        ({"negatives": torch.zeros(3, 5).long()}, r"negatives has shape \(3, 5\), expected \(S,\)"),
        ({"targets": [1, 2]}, "targets is a list, expected a tensor"),
        ({"log_expected": 1}, "log_expected is 1, expected a pair"),
        (
            {"log_expected": (torch.zeros(2), torch.zeros(4))},
            r"log_expected\[1\] has shape \(4,\), expected \(5,\)",
        ),
    ],
)
def test_logits_of_other_shapes_are_refused(
    store: embedrock.Store, change: dict[str, Any], expected: str
) -> None:
    given: dict[str, Any] = {
        "module": nn.Embedding(ROWS, DIM, store=store, name="items"),
        "hidden": torch.zeros(2, DIM),
        "targets": torch.tensor([1, 2]),
        "negatives": torch.arange(5),
    }
    with pytest.raises(MisuseError, match=expected):
        nn.sampled_logits(**{**given, **change})
