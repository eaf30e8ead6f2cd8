"""Knowledge graphs: files, batches, interactions, and training beside the model in memory."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import kge  # noqa: E402
from embedrock.data import DataError  # noqa: E402
from embedrock.errors import KeyRangeError, MisuseError  # noqa: E402
from graphs import (  # noqa: E402
    DIM,
    ENTITIES,
    RELATIONS,
    model_of,
    optimizers_of,
    triples_of,
    twin_of,
    write_graph,
)

MODELS = sorted(kge.INTERACTIONS)


def test_names_get_ids_in_the_order_of_the_text_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triples = triples_of()
    write_graph(tmp_path / "plain", triples)
    whole = kge.read(tmp_path / "plain", unknown="add")
    text = (tmp_path / "plain" / "train.tsv").read_bytes()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "train.txt.gz").write_bytes(
        gzip.compress(text.rstrip(b"\n").replace(b"\n", b"\r\n"))
    )
    monkeypatch.setattr("embedrock.data.text._BLOCK_BYTES", 37)
    packed = kge.read(tmp_path / "packed")
    assert np.array_equal(packed.train, whole.train)
    for (head, relation, tail), ids in zip(triples, whole.train, strict=False):
        names = (whole.entities[ids[0]], whole.relations[ids[1]], whole.entities[ids[2]])
        assert names == (f"e{head}", f"r{relation}", f"e{tail}")
    assert whole.entities.id_of(f"e{triples[0, 0]}") == 0
    assert [len(part) for part in whole.known()] == [320, 40, 40]


def test_an_unknown_name_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    (tmp_path / "valid.tsv").write_text("a\tr\tc\nd\tr\tb\na\tq\tb\n")
    with pytest.raises(DataError, match=r"valid\.tsv, line 2: entity 'd' is not in train\.tsv"):
        kge.read(tmp_path)
    skipped = kge.read(tmp_path, unknown="skip")
    assert (skipped.valid.tolist(), skipped.skipped) == ([[0, 0, 2]], {"valid": 2})
    assert len(skipped.entities) == 3
    assert "line 2" in str(skipped.first_skipped)
    added = kge.read(tmp_path, unknown="add")
    assert added.valid.tolist() == [[0, 0, 2], [3, 0, 1], [0, 1, 1]]
    (tmp_path / "valid.tsv").write_text("a\tq\tb\n")
    with pytest.raises(DataError, match=r"line 1: relation 'q' is not in train\.tsv"):
        kge.read(tmp_path)


def test_malformed_lines_are_errors_or_counted(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    for line, problem in (
        ("a\tb", "has 2 fields, expected 3"),
        ("a\tr\tb\tc", "has 4 fields, expected 3"),
        ("a\t\tb", "a name is empty"),
        ("", "has 1 fields, expected 3"),
    ):
        file.write_text(f"a\tr\tb\n{line}\nb\tr\tc\n")
        with pytest.raises(DataError, match=f"train.tsv, line 2: {problem}"):
            kge.read(file)
        graph = kge.read(file, skip_bad_lines=True)
        assert (len(graph.train), graph.skipped) == (2, {"lines": 1})
    with pytest.raises(DataError, match=r"has no train\.tsv"):
        kge.read(_empty(tmp_path))
    file.write_text("")
    with pytest.raises(DataError, match="has no triples"):
        kge.read(file)
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    with pytest.raises(DataError, match=r"has train\.tsv and train\.txt; keep one"):
        kge.read(tmp_path)


def _empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir(exist_ok=True)
    return folder


def batches(**given: Any) -> kge.TripleBatches:
    settings: dict[str, Any] = {"batch_size": 64, "negatives": 20, "epochs": 3, "seed": 5}
    return kge.TripleBatches(triples_of(), ENTITIES, **{**settings, **given})


def same(left: Any, right: Any) -> bool:
    names = ("heads", "relations", "tails", "negatives")
    return left.step == right.step and all(
        torch.equal(getattr(left, name), getattr(right, name)) for name in names
    )


def test_batches_are_functions_of_seed_and_step() -> None:
    whole = list(batches())
    assert len(whole) == len(batches()) == 21
    for epoch in range(3):
        of_epoch = whole[7 * epoch : 7 * epoch + 7]
        assert {one.epoch for one in of_epoch} == {epoch}
        seen = torch.cat([torch.stack([b.heads, b.relations, b.tails], 1) for b in of_epoch])
        assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, triples_of().tolist()))
    assert not torch.equal(whole[0].heads, whole[7].heads)
    assert len({tuple(one.negatives.tolist()) for one in whole}) == len(whole)
    for step in (0, 3, 7, 20):
        rest = batches()
        rest.load_state_dict({**rest.state_dict(), "step": step})
        assert all(same(*pair) for pair in zip(rest, whole[step:], strict=True))
    with pytest.raises(MisuseError, match=r"seed is 6, but the position is one among .* with 5"):
        batches(seed=6).load_state_dict(batches().state_dict())


def test_a_position_is_right_whatever_was_drawn_ahead(store: embedrock.Store) -> None:
    model = model_of("distmult", store)
    loader = embedrock.LookaheadLoader(
        batches(), store, keys_of=model.keys_of, depth=8, announce=True
    )
    given = []
    for batch in loader:
        given.append(batch)
        model.entities(batch.entities())
        if len(given) == 9:
            break
    state = loader.state_dict()
    assert loader.stats()["announced"] > 0
    rest = batches()
    rest.load_state_dict(state)
    assert next(iter(rest)).step == 9


def test_triples_beyond_the_entities_are_refused() -> None:
    with pytest.raises(KeyRangeError, match="head of triple 1 is 300"):
        kge.TripleBatches([[0, 0, 1], [300, 0, 1]], 300, batch_size=1, negatives=1)
    with pytest.raises(KeyRangeError, match="tail of triple 0 is -1"):
        kge.TripleBatches([[0, 0, -1]], 300, batch_size=1, negatives=1)
    with pytest.raises(MisuseError, match="expected at least one"):
        kge.TripleBatches(np.zeros((0, 3), np.int64), 300, batch_size=1, negatives=1)


def complex_score(name: str, head: Any, relation: Any, tail: Any) -> float:
    """Scores by the papers' formulas, in complex numbers where they are."""
    half = DIM // 2
    if name == "transe":
        return -float(np.abs(head + relation - tail).sum())
    if name == "distmult":
        return float((head * relation * tail).sum())
    head, tail = head[:half] + 1j * head[half:], tail[:half] + 1j * tail[half:]
    if name == "complex":
        relation = relation[:half] + 1j * relation[half:]
        return float((head * relation * np.conj(tail)).sum().real)
    return -float(np.abs(head * np.exp(1j * relation) - tail).sum())


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_papers(name: str, store: embedrock.Store) -> None:
    model = model_of(name, store)
    triples = torch.from_numpy(triples_of(30))
    rows = model.entities.table.get(np.arange(ENTITIES)).astype(np.float64)
    relations = model.relations.weight.detach().double().numpy()
    wanted = [complex_score(name, rows[h], relations[r], rows[t]) for h, r, t in triples.tolist()]
    with torch.no_grad():
        assert np.allclose(model(*triples.T), wanted, atol=1e-5)
        batch = next(iter(batches()))
        positive, negative = model.score(batch)
    size, some = len(batch), batch.negatives.tolist()
    assert (positive.shape, negative.shape) == ((2 * size,), (2 * size, 20))
    assert torch.equal(positive[:size], positive[size:])
    for i in (0, 9):
        h, r, t = int(batch.heads[i]), int(batch.relations[i]), int(batch.tails[i])
        tails = [complex_score(name, rows[h], relations[r], rows[n]) for n in some]
        heads = [complex_score(name, rows[n], relations[r], rows[t]) for n in some]
        assert np.allclose(negative[i], tails, atol=1e-5)
        assert np.allclose(negative[size + i], heads, atol=1e-5)


def test_the_gradient_of_distances_in_blocks_is_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedrock.kge.interactions._BLOCK_VALUES", 50)
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, DIM), (17, DIM))
    ends = [torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes]
    queries, entities = (one.requires_grad_() for one in ends)
    assert torch.autograd.gradcheck(kge.RotatE().crossed, (queries, entities))
    with torch.no_grad():
        pairs = kge.RotatE().paired(queries[:, None], entities[None])
        assert torch.allclose(kge.RotatE().crossed(queries, entities), pairs)


def test_losses_are_those_of_the_papers() -> None:
    positive, negative = torch.tensor([1.0, -2.0]), torch.tensor([[0.5, -1.0], [3.0, 0.0]])

    def log_sigmoid(x: float) -> float:
        return float(-np.log1p(np.exp(-x)))

    terms = []
    for score, others in zip(positive.tolist(), negative.tolist(), strict=True):
        weights = np.exp(0.7 * np.array(others))
        weights /= weights.sum()
        against = sum(w * log_sigmoid(-(o + 2)) for w, o in zip(weights, others, strict=True))
        terms.append(-(log_sigmoid(score + 2) + against) / 2)
    found = kge.nssa(positive, negative, margin=2.0, temperature=0.7)
    assert float(found) == pytest.approx(np.mean(terms), rel=1e-5)
    evenly = kge.nssa(positive, negative, temperature=0.0)
    assert float(evenly) == pytest.approx(float(kge.logistic(positive, negative)), rel=1e-6)
    together = torch.cat([positive[:, None], negative], 1)
    entropy = torch.nn.functional.cross_entropy(together, torch.zeros(2, dtype=torch.int64))
    assert float(kge.softmax(positive, negative)) == pytest.approx(float(entropy), rel=1e-6)
    with pytest.raises(MisuseError, match="expected one of nssa, logistic, softmax"):
        kge.losses.loss_of("hinge")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(name, optimizer, marks=[pytest.mark.long] if (at + turn) % 2 else [])
        for at, name in enumerate(MODELS)
        for turn, optimizer in enumerate(["sgd", "adagrad"])
    ],
)
def test_training_beside_the_model_in_memory(name: str, optimizer: str, tmp_path: Path) -> None:
    entities, steps = 20_000, 50
    random = np.random.default_rng(2)
    triples = random.integers(0, entities, (3000, 3)) % [entities, RELATIONS, entities]
    row_bytes = 4 * DIM * (2 if optimizer == "adagrad" else 1)
    with embedrock.open(tmp_path / "s", entities * row_bytes // 10 + (1 << 20)) as store:
        model = model_of(name, store, optimizer=optimizer, entities=entities)
        twin = twin_of(model)
        loops = [(one, optimizers_of(one, optimizer, 0.05)) for one in (model, twin)]
        given = kge.TripleBatches(triples, entities, batch_size=256, negatives=64, seed=1)
        loader = embedrock.LookaheadLoader(given, store, keys_of=model.keys_of, announce=True)
        for batch in loader:
            losses = []
            for one, optimizers in loops:
                loss = one.loss(batch, "logistic" if batch.step % 2 else "nssa")
                loss.backward()
                losses.append(float(loss))
                for each in optimizers:
                    each.step()
                    each.zero_grad()
            assert losses[0] == pytest.approx(losses[1], abs=1e-5)
            if batch.step == steps - 1:
                break
        rows = model.entities.table.get(np.arange(entities))
        assert np.abs(rows - twin.entities.weight.detach().numpy()).max() < 1e-5
        relations = (model.relations.weight - twin.relations.weight).detach().abs().max()
        assert float(relations) < 1e-5
        assert loader.stats()["announced"] > 0
        store.commit(1)


def test_unit_rows_are_those_of_a_table_that_is_normalised_whole(store: embedrock.Store) -> None:
    model = model_of("transe", store)
    twin = twin_of(model)
    constraint = kge.RowConstraint(model.entities)

    def normalise() -> None:
        with torch.no_grad():
            weight = twin.entities.weight
            weight.copy_(torch.nn.functional.normalize(weight))

    normalise()
    loops = [(one, optimizers_of(one, "sgd", 0.1)) for one in (model, twin)]
    for batch in batches(epochs=2):
        constraint.before(batch.entities())
        losses = []
        for one, optimizers in loops:
            loss = one.loss(batch, margin=1.0)
            loss.backward()
            losses.append(float(loss))
            for each in optimizers:
                each.step()
                each.zero_grad()
        constraint.after(batch.entities())
        normalise()
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    table: Any = model.entities.table
    assert 0 < len(table) <= ENTITIES
    rows = kge.unit(table.get(np.arange(ENTITIES)))
    assert np.abs(rows - twin.entities.weight.detach().numpy()).max() < 1e-5
    written = next(table.items())[1]
    assert np.abs(np.linalg.norm(written, axis=1) - 1).max() < 1e-6
    ours = kge.rank(model, triples_of()[:40], fresh=kge.unit)
    twins = kge.rank(twin, triples_of()[:40])
    assert np.abs(ours.ranks() - twins.ranks()).max() <= 1


def test_widths_that_do_not_fit_are_refused(store: embedrock.Store) -> None:
    entities = embedrock.nn.Embedding(10, 7, store=store, name="odd")
    with pytest.raises(MisuseError, match=r"entity_dim is 7, .* expected an even number"):
        kge.KnowledgeGraphModel("rotate", entities, torch.nn.Embedding(3, 7))
    with pytest.raises(MisuseError, match=r"relations have 6 values, but distmult .* takes 7"):
        kge.KnowledgeGraphModel("distmult", entities, torch.nn.Embedding(3, 6))
    with pytest.raises(MisuseError, match="expected one of transe, distmult, complex, rotate"):
        kge.KnowledgeGraphModel("conve", entities, torch.nn.Embedding(3, 7))


def test_relations_may_be_a_table_too(store: embedrock.Store) -> None:
    def rows(name: str, count: int) -> embedrock.nn.Embedding:
        return embedrock.nn.Embedding(count, DIM, store=store, name=name, optimizer="sgd")

    model = kge.KnowledgeGraphModel("complex", rows("entities", ENTITIES), rows("kinds", RELATIONS))
    twin = twin_of(model)
    tables = embedrock.optim.SGD(model, lr=0.1)
    twins = torch.optim.SGD(twin.parameters(), lr=0.1)
    loader = embedrock.LookaheadLoader(batches(), model, keys_of=model.keys_of, announce=True)
    for batch in loader:
        losses = [one.loss(batch, "softmax", regularization=0.01) for one in (model, twin)]
        for loss, optimizer in zip(losses, (tables, twins), strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), abs=1e-5)
    for name, module in (("entities", twin.entities), ("kinds", twin.relations)):
        table = store.table(name)
        found = table.get(np.arange(table.num_embeddings or 0))
        assert np.abs(found - module.weight.detach().numpy()).max() < 1e-5
