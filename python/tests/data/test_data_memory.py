from __future__ import annotations

import numpy as np

from embedrock.data import Feature, Position
from embedrock.data.memory import Column, MemoryDataset


def dataset(seed: int = 3, samples: int = 500, test: int = 60) -> MemoryDataset:
    """Two features: one id per sample, and bags of 0 to 3 ids."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, samples)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return MemoryDataset(
        "made",
        [Feature("id"), Feature("bag")],
        [
            Column(rng.integers(-5, 300, samples)),
            Column(rng.integers(0, 90, int(offsets[-1])), offsets),
        ],
        rng.random((samples, 2), np.float32),
        rng.integers(0, 2, samples).astype(np.float32),
        num_test=test,
    )


def bags(data: MemoryDataset, feature: int, sample: int) -> list[int]:
    column = data.columns[feature]
    if column.offsets is None:
        return [int(column.keys[sample])]
    return column.keys[column.offsets[sample] : column.offsets[sample + 1]].tolist()


def test_batches_are_feature_major_bags_of_the_samples():
    data = dataset()
    order = np.random.default_rng([0, 0]).permutation(np.arange(data.num_train()))
    place = 0
    for batch in data.train_batches(64, Position()):
        for row in range(len(batch)):
            sample = int(order[place])
            place += 1
            np.testing.assert_array_equal(batch.dense[row], data.dense[sample])
            assert batch.labels[row] == data.labels[sample]
            for feature in range(2):
                start, end = batch.offsets[feature * len(batch) + row :][:2]
                assert batch.keys[start:end].tolist() == bags(data, feature, sample)
    assert place == data.num_train()


def test_epochs_are_shuffled_differently_and_repeatably():
    data = dataset()
    first, again, second = (
        np.concatenate([b.labels for b in data.train_batches(64, Position(epoch))])
        for epoch in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert first.sum() == second.sum()


def test_an_epoch_goes_on_at_any_batch():
    data = dataset()
    whole = list(data.train_batches(64, Position(2)))
    for done, batch in enumerate(whole, start=1):
        rest = list(data.train_batches(64, batch.next))
        assert len(rest) == len(whole) - done
        for one, other in zip(rest, whole[done:], strict=True):
            np.testing.assert_array_equal(one.keys, other.keys)


def test_held_out_samples_are_the_last_ones_in_order():
    data = dataset()
    labels = np.concatenate([b.labels for b in data.test_batches(7)])
    np.testing.assert_array_equal(labels, data.labels[-60:])


def test_keys_are_counted_in_the_training_part_only():
    data = dataset()
    train = data.num_train()
    keys = [k for s in range(train) for k in bags(data, 1, s)]
    values, counts = np.unique(keys, return_counts=True)
    assert data.features[1].expected_rows == len(values)
    ids = np.unique(data.columns[0].keys[:train], return_counts=True)
    assert data.written_keys() == len(values) + len(ids[0])
    assert data.keys_seen_once() == int((counts == 1).sum() + (ids[1] == 1).sum())


def test_without_fillers_no_key_occurs_once_and_every_sample_stays():
    data = dataset()
    filtered = data.without_fillers()
    assert filtered.keys_seen_once() == 0
    assert filtered.written_keys() == data.written_keys() - data.keys_seen_once()
    assert len(filtered.labels) == len(data.labels)
    frequent = [set(k[c > 1].tolist()) for k, c in data.train_counts]
    for sample in range(len(data.labels)):
        for feature in range(2):
            wanted = [k for k in bags(data, feature, sample) if k in frequent[feature]]
            assert bags(filtered, feature, sample) == wanted


def test_a_feature_of_fillers_alone_is_left_out():
    data = dataset()
    samples = len(data.labels)
    columns = [*data.columns, Column(np.arange(samples))]
    more = [*data.features, Feature("all different")]
    wider = MemoryDataset("made", more, columns, data.dense, data.labels, num_test=60)
    assert [f.name for f in wider.without_fillers().features] == ["id", "bag"]


def test_dense_ids_are_given_by_first_occurrence_and_lead_back_to_keys():
    data = dataset()
    dense, tables = data.densified()
    for feature, keys in enumerate(tables):
        ids = dense.columns[feature].keys
        np.testing.assert_array_equal(keys[ids], data.columns[feature].keys)
        _, first = np.unique(ids, return_index=True)
        assert (np.diff(first) > 0).all(), "ids must rise in order of first occurrence"
        assert dense.features[feature].num_embeddings == len(keys)
