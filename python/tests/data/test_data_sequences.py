"""Samples with histories: of MovieLens, and of a text of sessions."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import embedrock
from clicklogs import movielens_folder
from embedrock.data import DataError, Position, movielens, sequences
from embedrock.data.hashing import combine
from embedrock.data.sequences import SequenceDataset


def histories(data: SequenceDataset, name: str = "history") -> list[list[int]]:
    """Of each sample, held-out ones last, in the order of time."""
    place = [feature.name for feature in data.features].index(name)
    found = []
    data.shuffle_seed = None  # type: ignore[assignment]
    for batch in [*data.train_batches(7, Position()), *data.test_batches(7)]:
        size = len(batch)
        for b in range(size):
            begin, end = batch.offsets[place * size + b : place * size + b + 2]
            found.append(batch.keys[begin:end].tolist())
    return found


def test_a_rating_has_the_films_that_its_user_clicked_before(tmp_path: Path) -> None:
    ratings = movielens.read(movielens_folder(tmp_path / "ml", ratings=300))
    data = sequences.rated_dataset(ratings, max_history=3, holdout=0.2)
    assert (data.num_train(), data.num_test) == (240, 60)
    keys = combine(ratings.item)
    clicked: dict[int, list[int]] = {}
    expected = []
    for user, key, rating in zip(ratings.user, keys, ratings.rating, strict=True):
        expected.append(clicked.get(int(user), [])[-3:])
        if rating >= 4:
            clicked.setdefault(int(user), []).append(int(key))
    assert histories(data) == expected
    assert {len(one) for one in expected} == {0, 1, 2, 3}
    assert data.labels.tolist() == [float(rating >= 4) for rating in ratings.rating]
    drawn = histories(data, "negatives")
    assert [len(one) for one in drawn] == [len(one) for one in expected]
    pairs = {
        (a, b)
        for one, other in zip(expected, drawn, strict=True)
        for a, b in zip(one, other, strict=True)
    }
    assert all(a != b for a, b in pairs)
    assert {b for _, b in pairs} <= {int(k) for k in keys[:240][ratings.rating[:240] >= 4]}


def test_expected_rows_are_those_of_a_table_whatever_features_share_it(tmp_path: Path) -> None:
    ratings = movielens.read(movielens_folder(tmp_path / "ml", ratings=300))
    data = sequences.rated_dataset(ratings, max_history=50, holdout=0.2)
    rows = {feature.name: feature.expected_rows for feature in data.features}
    items = set(combine(ratings.item)[:240].tolist())
    assert rows["item"] == rows["history"] == rows["negatives"] == len(items)
    assert [feature.table for feature in data.features if feature.is_sequence] == ["item"] * 2


def test_what_was_drawn_depends_on_the_seed_alone(tmp_path: Path) -> None:
    ratings = movielens.read(movielens_folder(tmp_path / "ml", ratings=300))
    one, same, other = (
        sequences.rated_dataset(ratings, max_history=9, seed=seed) for seed in (1, 1, 2)
    )
    for first, second in zip(
        one.train_batches(64, Position(1)), same.train_batches(64, Position(1)), strict=True
    ):
        np.testing.assert_array_equal(first.keys, second.keys)
    assert (one.histories.negatives != other.histories.negatives).any()
    whole = list(one.train_batches(64, Position()))
    rest = list(one.train_batches(64, whole[1].next))
    np.testing.assert_array_equal(rest[0].keys, whole[2].keys)


SESSIONS = "a\t1 2 3\nb\t7\nc\tx x\nd\t5 6 1 2 9\r\n"


def test_a_session_gives_its_last_item_and_one_that_was_not_there(tmp_path: Path) -> None:
    path = tmp_path / "sessions.txt.gz"
    with gzip.open(path, "wt", newline="") as file:
        file.write(SESSIONS)
    found = sequences.read_sessions(path)
    assert found.too_short == 1
    data = sequences.session_dataset(found, max_history=3, holdout=0.4)
    assert (data.num_train(), data.num_test) == (4, 2)
    keys = {token: int(embedrock.hash_keys([token])[0]) for token in "12356x9"}
    expected = [["1", "2"], ["x"], ["6", "1", "2"]]
    assert histories(data) == [[keys[t] for t in one] for one in expected for _ in range(2)]
    items = data.columns["item"].keys
    assert items[::2].tolist() == [keys["3"], keys["x"], keys["9"]]
    assert data.labels.tolist() == [1, 0] * 3
    assert (items[1::2] != items[::2]).all()
    assert set(items[1::2].tolist()) <= {keys[t] for t in "123x"}  # of the training part


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a 1 2", "1 tab-separated fields, expected 2"),
        ("a\t1\t2", "3 tab-separated fields, expected 2"),
        ("a\t ", "session has no items"),
        ("", "line is empty, expected session, tab, its items"),
    ],
)
def test_a_line_that_is_no_session_is_told_or_counted(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "sessions.txt"
    path.write_text(f"a\t1 2\n{line}\nb\t2 3\n")
    with pytest.raises(DataError, match=rf"sessions\.txt, line 2: {problem}"):
        sequences.read_sessions(path)
    found = sequences.read_sessions(path, skip_bad_lines=True)
    assert (found.bad_lines.count, len(found.offsets)) == (1, 3)
    path.write_text(f"a\t1\n{line}\nb\t1\n")
    with pytest.raises(DataError, match=r"holds no session of two items .1 malformed"):
        sequences.read_sessions(path, skip_bad_lines=True)
