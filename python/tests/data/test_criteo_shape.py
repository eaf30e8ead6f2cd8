from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clicklogs import shared
from embedrock.data import Position
from embedrock.data.criteo import CRITEO
from embedrock.data.criteo_shape import FIELDS, ROWS, ROWS_MIN, scaled
from embedrock.data.criteo_shaped import CriteoShaped
from embedrock.data.streamed import StreamedDataset
from embedrock.errors import MisuseError
from embedrock.training.auc import auc


def stream(**given: int) -> CriteoShaped:
    chosen = {"rows": 200_000, "seed": 1, "samples": 5000, "test_samples": 20_000, **given}
    return CriteoShaped(chosen.pop("rows"), **chosen)


def test_the_tables_have_the_published_sizes():
    assert len(FIELDS) == 26
    assert ROWS == 33_762_577
    assert scaled(ROWS) == FIELDS


@pytest.mark.parametrize("rows", [ROWS_MIN, 120_001, 4_000_000, 20_000_000])
def test_scaled_tables_have_as_many_rows_as_asked_and_keep_their_proportions(rows: int):
    fields = scaled(rows)
    assert sum(field.rows for field in fields) == rows
    for field, whole in zip(fields, FIELDS, strict=True):
        assert min(whole.rows, 1000) <= field.rows <= whole.rows
        assert replace(field, rows=whole.rows) == whole
    shrunk = [(f.rows, w.rows) for f, w in zip(fields, FIELDS, strict=True) if f.rows > 1000]
    large = [few / many for few, many in shrunk if many > 1_000_000]
    assert max(large, default=1) / min(large, default=1) < 1.02


@pytest.mark.parametrize("rows", [0, ROWS_MIN - 1, ROWS + 1])
def test_rows_that_cannot_be_are_refused_with_what_can(rows: int):
    with pytest.raises(MisuseError, match=f"rows is {rows}, expected {ROWS_MIN} to {ROWS}"):
        scaled(rows)


@pytest.mark.parametrize("place", range(26))
def test_ranks_follow_the_shares_and_ids_are_a_permutation(place: int):
    field = scaled(200_000)[place]
    draws = 400_000
    ranks = field.ranks((np.arange(draws) + 0.5) / draws)
    assert ranks.min() == 0
    assert ranks.max() < field.rows
    counts = np.bincount(ranks, minlength=field.rows)
    assert counts[0] == pytest.approx(field.top * draws, abs=2)
    edges = np.array([1.5, 2.5, 3.5, field.rows + 0.5]) + field.shift
    powers = edges ** (1 - field.exponent)
    second, third = (1 - field.top) * np.diff(powers)[:2] / (powers[-1] - powers[0])
    assert counts[1] == pytest.approx(second * draws, abs=2)
    if field.rows > 2:
        assert counts[2] == pytest.approx(third * draws, abs=2)
    ids = field.ids(np.arange(field.rows))
    np.testing.assert_array_equal(np.sort(ids), np.arange(field.rows))


def test_the_same_seed_gives_the_same_stream_from_any_position_and_another_seed_another():
    batches = list(stream().train_batches(512, Position()))
    assert [len(batch) for batch in batches] == [512] * 9 + [392]
    (later, *_) = stream().train_batches(512, batches[4].next)
    np.testing.assert_array_equal(later.keys, batches[5].keys)
    np.testing.assert_array_equal(later.labels, batches[5].labels)
    np.testing.assert_array_equal(later.dense, batches[5].dense)
    (other, *_) = stream(seed=2).train_batches(512, Position())
    assert (other.keys != batches[0].keys).any()
    (second_epoch, *_) = stream().train_batches(512, Position(1))
    assert (second_epoch.keys != batches[0].keys).any()


def test_keys_lie_in_their_tables_and_dense_features_look_like_the_data():
    data = stream()
    batch = next(data.test_batches(20_000))
    for place, field in enumerate(data.fields):
        keys = batch.feature_keys(place)
        assert keys.min() >= 0
        assert keys.max() < field.rows
    assert batch.dense.shape == (20_000, 13)
    assert batch.dense.min() == 0
    assert 1.9 < batch.dense[:, 1].mean() < 2.7  # 2.14 in the data, before what is cut off


def test_no_scores_are_better_than_those_of_the_planted_model():
    data = stream()
    batch = next(data.test_batches(20_000))
    keys = batch.keys.reshape(26, -1)
    logits = data.planted_logits(keys, batch.dense)
    planted = auc(batch.labels, logits)
    assert 0.75 < planted < 0.85
    assert 0.1 < batch.labels.mean() < 0.4
    # Clicks are as frequent as the logits say, in every tenth of them.
    for part in np.array_split(np.argsort(logits), 10):
        expected = (1 / (1 + np.exp(-logits[part]))).mean()
        assert batch.labels[part].mean() == pytest.approx(expected, abs=0.045)
    shuffled = data.planted_logits(np.roll(keys, 1, axis=1), batch.dense)
    assert auc(batch.labels, shuffled) < planted - 0.1


def test_distinct_tokens_grow_as_in_the_real_sample():
    path = shared("criteo-kaggle/train_80k_hashed.tsv.gz")
    real = next(StreamedDataset(path, CRITEO).train_batches(30_000, Position()))
    made = next(
        CriteoShaped(ROWS, seed=0, samples=30_000, test_samples=0).train_batches(30_000, Position())
    )
    for place, field in enumerate(FIELDS):
        for samples in (3000, 30_000):
            counts = [len(np.unique(b.feature_keys(place)[:samples])) for b in (real, made)]
            allowed = 0.13 if field.rows > 1_000_000 else 0.45
            assert counts[1] == pytest.approx(counts[0], rel=allowed, abs=6), f"C{place + 1}"
