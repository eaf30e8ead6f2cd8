"""Ranks with entities outside, against ranks from the whole matrix of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import kge  # noqa: E402
from embedrock.errors import KeyRangeError, MisuseError, NonFiniteError  # noqa: E402
from embedrock.kge.known import Known  # noqa: E402
from embedrock.kge.rows import EntityRows  # noqa: E402
from graphs import DIM, ENTITIES, RELATIONS, model_of, triples_of, twin_of  # noqa: E402

MODELS = sorted(kge.INTERACTIONS)
TRIPLES = triples_of()


def naive(
    model: kge.KnowledgeGraphModel, asked: Any, known: Any
) -> dict[str, npt.NDArray[np.float64]]:
    """Greater, equal and candidates per query, by the definition."""
    everyone = torch.arange(ENTITIES)
    true = {tuple(map(int, one)) for one in known}
    found = []
    with torch.no_grad():
        rows = model.entities(everyone)
        for side in ("head", "tail"):
            for head, relation, tail in asked.tolist():
                end, answer = (tail, head) if side == "head" else (head, tail)
                of = model.interaction.of_heads if side == "head" else model.interaction.of_tails
                query = of(rows[[end]], model.relations(torch.tensor([relation])))
                scores = model.interaction.crossed(query, rows)[0]
                own = scores[answer].clone()
                for other in range(ENTITIES):
                    triple = (other, relation, tail) if side == "head" else (head, relation, other)
                    if other == answer or triple in true:
                        scores[other] = torch.nan
                greater, equal = int((scores > own).sum()), int((scores == own).sum())
                found.append((greater, equal, int((~scores.isnan()).sum()) + 1))
    values = np.array(found, np.float64)
    return {
        "optimistic": values[:, 0] + 1,
        "pessimistic": values[:, 0] + values[:, 1] + 1,
        "realistic": values[:, 0] + values[:, 1] / 2 + 1,
        "candidates": values[:, 2],
    }


def in_quarters(model: kge.KnowledgeGraphModel, seed: int = 3) -> None:
    """Rows and relations of few different values, which every order of sums adds up exactly; so
    there are ties, between rows that are equal and between others."""
    random = np.random.default_rng(seed)
    rows = random.integers(-2, 3, (ENTITIES, DIM)).astype(np.float32) / 4
    rows[100:110] = rows[90:100]
    written = random.permutation(ENTITIES)[: ENTITIES // 2]
    table: Any = model.entities.table
    table.put(np.arange(ENTITIES), rows)
    table.delete(written)  # these read as initial rows again, which are all 0.25
    with torch.no_grad():
        if model.interaction.name == "rotate":
            model.relations.weight.zero_()
        else:
            shape = tuple(model.relations.weight.shape)
            numbers = random.integers(-2, 3, shape).astype(np.float32) / 4
            model.relations.weight.copy_(torch.from_numpy(numbers))


@pytest.fixture
def small(tmp_path: Any) -> Any:
    with embedrock.open(tmp_path / "s", "16MiB", max_disk_bytes=100 << 20) as store:
        yield store
        store.commit(1)


@pytest.mark.parametrize(
    ("name", "storage"), [*((name, "log") for name in MODELS), ("distmult", "lsm")]
)
def test_ranks_are_those_of_the_whole_matrix_with_ties(name: str, storage: Any, small: Any) -> None:
    small.table("entities", DIM, ENTITIES, optimizer="sgd", initializer=0.25, storage=storage)
    entities = embedrock.nn.Embedding(ENTITIES, DIM, store=small, name="entities")
    relations = kge.dense_relations(name, RELATIONS, DIM)
    model = kge.KnowledgeGraphModel(name, entities, relations)
    in_quarters(model)
    asked, known = TRIPLES[:60], TRIPLES[30:]
    wanted = naive(model, asked, known)
    assert (wanted["optimistic"] < wanted["pessimistic"]).sum() > 20
    # Blocks that end amid groups and tiles; both smaller and larger than there is.
    for block, chunk, query_bytes in ((256, 4096, 1 << 30), (7, 32, 1 << 30), (16, 11, 1)):
        found = kge.rank(
            model, asked, known=[known], block=block, chunk=chunk, query_bytes=query_bytes
        )
        for kind in ("optimistic", "pessimistic", "realistic"):
            parts = [found.ranks(kind, side) for side in ("head", "tail")]
            assert np.array_equal(np.concatenate(parts), wanted[kind])
        counted = np.concatenate([found.candidates[side] for side in ("head", "tail")])
        assert np.array_equal(counted, wanted["candidates"])
        assert found.inexact == 0
        assert found.scans == (1 if query_bytes > 1 else -(-len(asked) // block))
    assert found.mrr() == np.mean(1 / wanted["realistic"])
    assert found.hits(10) == np.mean(wanted["realistic"] <= 10)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_of_trained_rows_are_those_of_the_model_in_memory(name: str, small: Any) -> None:
    model = model_of(name, small)
    model.entities.table.put(
        np.arange(0, ENTITIES, 2), model.entities.table.get(np.arange(1, ENTITIES, 2))
    )
    ours = kge.rank(model, TRIPLES[:50], known=[TRIPLES], chunk=64)
    twins = kge.rank(twin_of(model), TRIPLES[:50], known=[TRIPLES], chunk=64)
    assert ours.inexact == twins.inexact == 0
    assert np.array_equal(ours.ranks("optimistic"), twins.ranks("optimistic"))
    # Every second entity has a twin of its own: the scores are equal to the bit.
    raw = kge.rank(model, TRIPLES[:50], chunk=64)
    assert (raw.ranks("pessimistic") > raw.ranks("optimistic")).all()


@pytest.mark.parametrize("storage", ["log", pytest.param("lsm", marks=pytest.mark.long)])
def test_the_table_is_read_once_whatever_is_asked(tmp_path: Any, storage: Any) -> None:
    count, dim = 60_000, 32
    with embedrock.open(tmp_path / "s", "4MiB", page_bytes=4096) as store:
        entities = embedrock.nn.Embedding(
            count, dim, store=store, name="entities", optimizer="sgd", storage=storage
        )
        model = kge.KnowledgeGraphModel(
            "distmult", entities, kge.dense_relations("distmult", 2, dim)
        )
        ids = np.random.default_rng(0).permutation(count)
        entities.table.put(ids, np.random.default_rng(1).random((count, dim), np.float32))
        store.commit(1)
        asked = np.stack([ids[:600], np.arange(600) % 2, ids[600:1200]], 1)

        def read(triples: Any, **given: Any) -> int:
            before = store.stats()["bytes_read"]
            found = kge.rank(model, triples, known=[asked], **given)
            assert found.scans == (1 if not given else 5)
            return int(store.stats()["bytes_read"] - before)

        table = 4 * count * dim
        few, many = read(asked[:60]), read(asked)
        assert 0.2 * table < few < 1.5 * table
        # Beside the scan, the rows of the triples are read, a page each at worst: 1,200 twice.
        assert many < few + 2 * 1200 * 4096
        assert read(asked, query_bytes=4 * 2 * dim * 120, block=120) > 2 * table


@pytest.mark.parametrize("fresh", [None, kge.unit])
def test_entities_come_in_the_order_of_storage_and_new_ones_behind_them(
    tmp_path: Any, fresh: Any
) -> None:
    """A dense table was read by ids, in whose order each page is read again and again."""
    count, written = 3000, np.random.default_rng(0).permutation(2000)
    with embedrock.open(tmp_path / "s", "1MiB", page_bytes=4096) as store:
        entities = embedrock.nn.Embedding(
            count, 32, store=store, name="entities", optimizer="sgd", initializer=0.5
        )
        entities.table.put(written, np.ones((2000, 32), np.float32))
        store.commit(1)
        found = list(EntityRows(entities, count, fresh).scan(700))
        ids = np.concatenate([one for one, _ in found])
        rows = torch.cat([one for _, one in found])
        assert np.array_equal(np.sort(ids[:2000]), np.arange(2000))
        assert (np.diff(ids[:2000]) < 0).any()
        assert np.array_equal(ids[2000:], np.arange(2000, count))
        assert (rows[:2000] == 1).all() and max(len(one) for one, _ in found) <= 700
        new = 0.5 if fresh is None else 32**-0.5
        assert torch.allclose(rows[2000:], torch.tensor(new))
        less = [one for one, _ in EntityRows(entities, 1500, fresh).scan(700)]
        assert np.array_equal(np.sort(np.concatenate(less)), np.arange(1500))


def test_queries_take_no_more_than_they_may(small: Any) -> None:
    """They were twice as large: as they were made, and in the order in which they are asked."""
    model, asked = model_of("distmult", small), TRIPLES[:60]
    least = 2 * 4 * DIM * 2 * len(asked)
    scans = [kge.rank(model, asked, block=7, query_bytes=least - less).scans for less in (0, 1)]
    assert scans == [1, 2]


def test_ids_go_to_where_a_module_looks_them_up() -> None:
    """They stayed on the CPU, and rows of relations on a GPU were not found."""
    seen: list[str] = []
    modules = [torch.nn.Embedding(9, DIM, device="meta") for _ in range(2)]
    for module in modules:
        module.register_forward_pre_hook(lambda _, ids: seen.append(ids[0].device.type))
    model = kge.KnowledgeGraphModel("distmult", *modules)
    ids = torch.tensor([1, 2])
    assert model(ids, ids, ids).is_meta
    batches = kge.TripleBatches(np.ones((4, 3), np.int64), 9, batch_size=4, negatives=2)
    assert model.loss(next(iter(batches))).is_meta
    with pytest.raises(RuntimeError, match="meta"):  # there is no score to compare
        kge.rank(model, [[1, 2, 3]])
    assert len(seen) > 6 and {*seen} == {"meta"}


def test_sides_and_raw_ranks(small: Any) -> None:
    model = model_of("distmult", small)
    both = kge.rank(model, TRIPLES[:20], known=[TRIPLES])
    tails = kge.rank(model, TRIPLES[:20], known=[TRIPLES], sides=["tail"])
    raw = kge.rank(model, TRIPLES[:20])
    assert np.array_equal(both.ranks(side="tail"), tails.ranks())
    assert (raw.candidates["tail"] == ENTITIES).all()
    assert (both.candidates["tail"] < ENTITIES).any()
    assert (raw.ranks() >= both.ranks()).all()
    assert both.summary()["queries"] == 40
    assert np.isnan(kge.rank(model, TRIPLES[:0]).mrr())
    assert -1 < both.adjusted_mean_rank_index() < 1


def test_what_cannot_be_ranked_is_refused(small: Any) -> None:
    model = model_of("transe", small)
    with pytest.raises(KeyRangeError, match="tail of triple 0 is 300, but there are 300 entities"):
        kge.rank(model, [[0, 0, 300]])
    with pytest.raises(MisuseError, match="sides"):
        kge.rank(model, TRIPLES[:1], sides=["tails"])
    with pytest.raises(MisuseError, match=r"expected whole numbers \(N, 3\)"):
        kge.rank(model, np.zeros((2, 2), np.int64))
    answers = {*TRIPLES[:1, [0, 2]].ravel().tolist()}
    other = min({*range(300)} - answers)
    table = model.entities.table
    kept = table.get([other])
    table.put([other], np.full_like(kept, np.nan), non_finite="apply")
    # It would be beaten by the answers: NaN is not greater.
    with pytest.raises(NonFiniteError, match=f"row of entity {other} has NaN"):
        kge.rank(model, TRIPLES[:1])
    table.put([other], kept)
    with torch.no_grad():
        model.relations.weight[:] = torch.nan
    with pytest.raises(NonFiniteError, match="score of query"):
        kge.rank(model, TRIPLES[:5])


# Pairs of an entity and a relation were numbered in 64 bits, which such ids overflow.
@pytest.mark.parametrize("factor", [1, 2**40 + 1])
def test_true_answers_are_known_whatever_the_ids_are(factor: int) -> None:
    random = np.random.default_rng(0)
    triples = random.integers(0, 12, (300, 3))
    asked, known = triples[:80] * factor, [triples[20:] * factor]
    for side, (given, answer) in {"tail": (0, 2), "head": (2, 0)}.items():
        found = Known.of(side, asked, known)
        true = {tuple(map(int, one)) for one in known[0]}
        expected = [
            sum(
                1
                for one in true
                if one[given] == triple[given]
                and one[1] == triple[1]
                and one[answer] != triple[answer]
            )
            for triple in asked.tolist()
        ]
        assert found.others(asked[:, answer]).tolist() == expected
