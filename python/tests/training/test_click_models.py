"""The click models of `embedrock train`: what they compute, and that storage changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import embedrock
from embedrock import initializers
from embedrock.data import Batch, Feature, Position
from embedrock.errors import MisuseError
from embedrock.models.base import Shape
from embedrock.models.dien import SequenceRows
from embedrock.models.registry import MODELS, Kind, kind_of
from embedrock.training.embeddings import (
    MemoryEmbeddings,
    MemorySequences,
    SequenceEmbeddings,
    StoreEmbeddings,
)
from embedrock.training.models import model_over, over_store
from embedrock.training.options import Recipe
from embedrock.training.trainer import Trainer

torch.set_num_threads(1)

DENSE, FIELDS, DIM, BATCH = 3, 4, 5, 6
SMALL: dict[str, dict[str, Any]] = {
    "dlrm": {},
    "dcn_v2": {"cross_layers": 2, "hidden": "8-4"},
    "deepfm": {"hidden": "8"},
    "pnn": {"product": "both", "hidden": "8"},
    "wide_deep": {"hidden": "8"},
    "mmoe": {"experts": 3, "expert": "8", "tower": "4"},
    "dien": {"max_history": 4, "hidden": "8"},
}


def model_of(name: str, targets: int = 1, fields: int = FIELDS, **options: Any) -> Any:
    """A small model without embeddings, its biases zero or not as they were drawn."""
    torch.manual_seed(0)
    kind = kind_of(name)
    checked = kind.checked({**SMALL[name], **options})
    return kind.make(Shape(DENSE, fields, DIM, targets), torch.nn.Identity(), checked)


def given(extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense features and rows."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(BATCH, DENSE, generator=generator),
        torch.randn(BATCH, FIELDS, DIM + extra, generator=generator),
    )


def layers(module: torch.nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """An MLP, written down: rectified sums."""
    linears = [one for one in module if isinstance(one, torch.nn.Linear)]
    for place, linear in enumerate(linears):
        x = linear.weight @ x + linear.bias
        if place < len(linears) - 1 or isinstance(module[-1], torch.nn.ReLU):
            x = x.clamp(min=0)
    return x


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
@pytest.mark.parametrize("low_rank", [0, 2])
def test_dcn_v2_crosses_as_its_paper_does(structure: str, low_rank: int) -> None:
    model = model_of("dcn_v2", structure=structure, low_rank=low_rank)
    dense, rows = given()
    expected = []
    for x, e in zip(dense, rows, strict=True):
        first = torch.cat([x, *e])
        crossed = first
        for layer in model.cross.layers:
            if low_rank:
                u, v = layer[1].weight, layer[0].weight.T
                assert u.shape == v.shape == (DENSE + FIELDS * DIM, low_rank)
                weight, bias = u @ v.T, layer[1].bias
            else:
                weight, bias = layer.weight, layer.bias
            crossed = first * (weight @ crossed + bias) + crossed
        if structure == "stacked":
            expected.append(layers(model.logit, layers(model.deep, crossed)))
        else:
            both = torch.cat([crossed, layers(model.deep, first)])
            expected.append(layers(model.logit, both))
    torch.testing.assert_close(model.head(dense, rows), torch.cat(expected))


def test_deepfm_is_a_factorization_machine_and_a_deep_part() -> None:
    model = model_of("deepfm")
    dense, rows = given(extra=1)
    expected = []
    for x, e in zip(dense, rows, strict=True):
        vectors = [*e[:, :-1], *(a * v for a, v in zip(x, model.fields.weight, strict=True))]
        logit = e[:, -1].sum() + model.linear.weight[0] @ x + model.linear.bias[0]
        logit = logit + sum(vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i))
        expected.append(logit + layers(model.deep, torch.cat(vectors)))
    torch.testing.assert_close(model.head(dense, rows), torch.cat(expected))


@pytest.mark.parametrize("product", ["inner", "outer", "both"])
def test_pnn_has_the_products_of_its_paper(product: str) -> None:
    model = model_of("pnn", product=product)
    dense, rows = given()
    expected = []
    for x, e in zip(dense, rows, strict=True):
        signals = [x, *e]
        if product != "outer":
            signals.append(torch.stack([e[i] @ e[j] for i in range(FIELDS) for j in range(i)]))
        if product != "inner":
            signals.append(torch.outer(e.sum(0), e.sum(0)).reshape(-1))
        expected.append(layers(model.layers, torch.cat(signals)))
    torch.testing.assert_close(model.head(dense, rows), torch.cat(expected))


def test_wide_and_deep_adds_a_linear_model_to_a_deep_one() -> None:
    model = model_of("wide_deep")
    dense, rows = given(extra=1)
    expected = [
        e[:, -1].sum()
        + model.wide.weight[0] @ x
        + model.wide.bias
        + layers(model.deep, torch.cat([x, *e[:, :-1]]))
        for x, e in zip(dense, rows, strict=True)
    ]
    torch.testing.assert_close(model.head(dense, rows), torch.cat(expected))


def test_mmoe_mixes_experts_by_a_gate_for_each_target() -> None:
    model = model_of("mmoe", targets=2)
    dense, rows = given()
    expected = torch.empty(BATCH, 2)
    for b, (x, e) in enumerate(zip(dense, rows, strict=True)):
        inputs = torch.cat([x, *e])
        found = [layers(expert, inputs) for expert in model.experts]
        for t in range(2):
            odds = torch.exp(model.gates[t].weight @ inputs)
            mixed = sum(o * f for o, f in zip(odds / odds.sum(), found, strict=True))
            expected[b, t] = layers(model.towers[t], mixed)
    torch.testing.assert_close(model.head(dense, rows), expected)
    labels = torch.randint(0, 2, (BATCH, 2)).float()
    odds = torch.sigmoid(expected)
    entropy = -(labels * odds.log() + (1 - labels) * (1 - odds).log()).mean()
    torch.testing.assert_close(model.loss(dense, rows, labels), entropy)


def gru(cell: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Equations (2) to (5) of DIEN, in the order of torch's gates: reset, update, new."""
    state, found = torch.zeros(DIM), []
    for x in inputs:
        r, z, n = (cell.weight_ih_l0 @ x + cell.bias_ih_l0).chunk(3)
        sr, sz, sn = (cell.weight_hh_l0 @ state + cell.bias_hh_l0).chunk(3)
        r, z = torch.sigmoid(r + sr), torch.sigmoid(z + sz)
        state = (1 - z) * torch.tanh(n + r * sn) + z * state
        found.append(state)
    return found


@pytest.mark.parametrize("lengths", [[3, 0, 1], [0, 0, 0]])
def test_dien_follows_an_interest_as_its_paper_does(lengths: list[int]) -> None:
    model = model_of("dien", fields=2)
    count = len(lengths)
    dense, pooled = torch.randn(count, DENSE), torch.randn(count, 2, DIM)
    history, negatives = torch.randn(sum(lengths), DIM), torch.randn(sum(lengths), DIM)
    rows = SequenceRows(pooled, pooled[:, 1], history, negatives, torch.tensor(lengths))
    logits, auxiliary = [], []
    ends = np.cumsum([0, *lengths])
    for b in range(count):
        items = list(history[ends[b] : ends[b + 1]])
        drawn = list(negatives[ends[b] : ends[b + 1]])
        interests = gru(model.extractor, items)
        for step, h in enumerate(interests[:-1]):
            click = torch.sigmoid(h @ items[step + 1]).log()
            no_click = (1 - torch.sigmoid(h @ drawn[step + 1])).log()
            auxiliary.append(-click - no_click)
        scores = [h @ model.attention.weight @ pooled[b, 1] for h in interests]
        weights = torch.softmax(torch.stack(scores), 0) if scores else []
        state, evolution = torch.zeros(DIM), model.evolution
        for h, a in zip(interests, weights, strict=True):
            r, z, n = (evolution.of_input.weight @ h + evolution.of_input.bias).chunk(3)
            sr, sz, sn = (evolution.of_state.weight @ state + evolution.of_state.bias).chunk(3)
            r, z = torch.sigmoid(r + sr), torch.sigmoid(z + sz) * a
            state = (1 - z) * state + z * torch.tanh(n + r * sn)
        logits.append(layers(model.top, torch.cat([dense[b], *pooled[b], state])))
    expected = torch.cat(logits)
    torch.testing.assert_close(model.head(dense, rows), expected)
    labels = torch.tensor([1.0, 0.0, 1.0])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(expected, labels)
    loss = loss + (torch.stack(auxiliary).mean() if auxiliary else 0)
    torch.testing.assert_close(model.loss(dense, rows, labels), loss)


ROWS, TWIN_DIM, TWIN_BATCH, STEPS = 12_000, 32, 256, 50
HISTORY_MAX = 4


class Samples:
    """A data set of made batches: Zipf-like ids, bags in one feature, a planted click."""

    num_dense = DENSE

    def __init__(self, kind: Kind) -> None:
        self.targets = ("a", "b") if kind.several_targets else ("a",)
        names = ("item", "user", "tags")
        self.features = [Feature(name, ROWS) for name in names]
        self.sequences = kind.sequences
        if kind.sequences:
            self.features += [
                Feature(name, ROWS, table="item", is_sequence=True)
                for name in ("history", "negatives")
            ]

    def __iter__(self) -> Iterator[Batch]:
        random = np.random.default_rng(0)
        for _ in range(STEPS):
            sizes = [np.ones(TWIN_BATCH, np.int64)] * 2 + [random.integers(0, 3, TWIN_BATCH)]
            if self.sequences:
                sizes += [random.integers(0, HISTORY_MAX + 1, TWIN_BATCH)] * 2
            offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
            keys = (ROWS * random.random(offsets[-1]) ** 2).astype(np.int64)
            dense = random.standard_normal((TWIN_BATCH, DENSE)).astype(np.float32)
            odds = dense[:, 0] + keys[:TWIN_BATCH] % 3 - 1
            labels = (odds > 0).astype(np.float32)
            if len(self.targets) > 1:
                labels = np.stack([labels, (dense[:, 1] > 0).astype(np.float32)], axis=1)
            yield Batch(dense, keys, offsets, labels, Position())


# One with several targets; contests have those with an extra value in each row, and sequences, too.
SOON = {"mmoe"}


@pytest.mark.parametrize(
    "name",
    [name if name in SOON else pytest.param(name, marks=pytest.mark.long) for name in MODELS],
)
def test_a_model_at_a_tenth_of_the_memory_follows_its_twin_in_memory(
    name: str, tmp_path: Any
) -> None:
    kind = kind_of(name)
    data = Samples(kind)
    layers = {"bottom": (8,), "top": (8,)} if name == "dlrm" else {}
    wanted = {"model": name, "model_options": SMALL[name], "embedding_dim": TWIN_DIM, **layers}
    recipe = Recipe.of_format("csv", {**wanted, "eps": 1e-2})
    losses = []
    # Per cent are of rows with their optimizer state, of which this is a tenth.
    with embedrock.open(tmp_path / "store", "10%", io="pread") as store:
        initializer = initializers.uniform(-0.1, 0.1)
        ours = over_store(recipe, store, data, initializer=initializer, seed=3)
        weights = {
            table.name: torch.from_numpy(table.get(np.arange(ROWS)))
            for table in store.tables.values()
        }
        in_memory = (
            MemorySequences(data.features, weights)
            if kind.sequences
            else MemoryEmbeddings([weights[one.name] for one in data.features])
        )
        torch.manual_seed(3)
        twin = model_over(recipe, data, in_memory)
        for model, tables in (
            (ours, embedrock.optim.Adagrad(ours, lr=0.05, eps=recipe.eps)),
            (twin, torch.optim.Adagrad(in_memory.parameters(), lr=0.05, eps=recipe.eps)),
        ):
            dense = torch.optim.Adagrad(model.dense_modules().parameters(), lr=0.01)
            trainer = Trainer(model, [tables, dense])
            losses.append([trainer.step(batch) for batch in data])
            scored = trainer.evaluate(data)
            assert len(scored.by_target) == len(data.targets)
        np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-5)
        assert np.mean(losses[0][-5:]) < np.mean(losses[0][:5]) - 0.02
        assert store.stats()["budget_bytes"] < 0.11 * sum(
            ROWS * table.row_bytes for table in store.tables.values()
        )
        trained = [one.weight for one in in_memory.modules() if hasattr(one, "weight")]
        for weight, table in zip(trained, store.tables.values(), strict=True):
            found = torch.from_numpy(table.get(np.arange(ROWS)))
            torch.testing.assert_close(found, weight.detach(), rtol=0, atol=1e-5)
        store.commit(1)


def test_unknown_models_and_options_are_told_what_there_is() -> None:
    with pytest.raises(MisuseError, match="model is 'fm', expected one of dlrm, dcn_v2, deepfm"):
        kind_of("fm")
    with pytest.raises(MisuseError, match="no option 'layers'; it has cross_layers=3, low_rank=0"):
        kind_of("dcn_v2").checked({"layers": "3"})
    with pytest.raises(MisuseError, match=r"bottom is given, but model is deepfm, .*: hidden"):
        Recipe.of_format("csv", {"model": "deepfm", "bottom": (8,)})


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("dcn_v2", "cross_layers", "0", "a whole number from 1"),
        ("dcn_v2", "cross_layers", "2.5", "a whole number from 1"),
        ("dcn_v2", "structure", "beside", "one of stacked, parallel"),
        ("deepfm", "hidden", "8-x", "sizes of layers"),
        ("deepfm", "hidden", (), "sizes of layers"),
        ("deepfm", "hidden", "0", "sizes of layers"),
        ("dien", "auxiliary", "nan", "a finite number, 0 or more"),
        ("dien", "auxiliary", -1.0, "a finite number, 0 or more"),
    ],
)
def test_options_out_of_range_are_refused(
    name: str, option: str, value: Any, expected: str
) -> None:
    with pytest.raises(MisuseError, match=f"{option} of model {name} is .*, expected {expected}"):
        kind_of(name).checked({option: value})


def test_options_are_the_same_from_texts_from_json_and_as_they_are() -> None:
    kind = kind_of("dcn_v2")
    texts = kind.checked({"hidden": "8-4", "low_rank": "2"})
    assert texts == kind.checked({"hidden": [8, 4], "low_rank": 2}) == kind.checked(texts)
    assert texts["hidden"] == (8, 4) and texts["structure"] == "stacked"


def test_prediction_with_histories_leaves_no_rows_behind(tmp_path: Any) -> None:
    data = Samples(kind_of("dien"))
    with embedrock.open(tmp_path / "store", "16MiB") as store:
        embeddings = SequenceEmbeddings(store, data.features, TWIN_DIM)
        assert len(store.tables) == 3  # histories have no table of their own
        recipe = Recipe.of_format("sessions", {"model": "dien", "embedding_dim": TWIN_DIM})
        model = model_over(recipe, data, embeddings)
        batch = next(iter(data))
        keys = model.keys_of(batch)
        assert sorted(len(one) for one in keys.values()) == sorted(
            [TWIN_BATCH, len(batch.feature_keys(2)), TWIN_BATCH + 2 * len(batch.feature_keys(3))]
        )
        Trainer(model, []).evaluate([batch])
        assert sum(len(table) for table in store.tables.values()) == 0
        assert store.uncommitted == (0, 0)


def test_embeddings_without_order_give_one_row_a_feature(tmp_path: Any) -> None:
    data = Samples(kind_of("deepfm"))
    with embedrock.open(tmp_path / "store", "16MiB") as store:
        batch = next(iter(data))
        rows = StoreEmbeddings(store, data.features, 6)(
            torch.from_numpy(batch.keys), torch.from_numpy(batch.offsets)
        )
        assert rows.shape == (TWIN_BATCH, 3, 6)
