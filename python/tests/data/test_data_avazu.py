from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clicklogs import AVAZU_HEADER, avazu_file, shared
from embedrock.data import DataError, Position, streamed
from embedrock.data.avazu import AVAZU
from embedrock.data.avazu_lines import COLUMNS, FEATURES, parse
from embedrock.data.streamed import StreamedDataset, scan


def good_line(click: str = "1", hour: str = "14102100", token: str = "1fbe01fe") -> str:
    return ",".join(["1000009418151094273", click, hour, *[token] * 21])


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([AVAZU_HEADER, *lines]) + "\n")
    return path


def test_a_line_becomes_label_one_key_per_column_and_the_time():
    block = parse(good_line().encode())
    assert block.labels.tolist() == [1.0]
    assert block.keys.shape == (1, len(FEATURES)) == (1, 23)
    assert len(set(block.keys[0].tolist())) == 23, "the same token of two columns must differ"
    assert block.dense.shape == (1, 4)
    assert block.bad == []


def test_tokens_differ_by_every_character_and_by_length():
    tokens = ["a", "A", "aa", "0", "00", "-1", "1", "", "1fbe01fe", "1fbe01ff", "abcdefgh12345678"]
    tokens += ["abcdefgh12345679", "bcdefgha12345678"]
    keys = [int(parse(good_line(token=token).encode()).keys[0, 0]) for token in tokens]
    assert len(set(keys)) == len(tokens)


def test_hour_gives_hour_of_day_and_weekday_and_their_angles():
    # 21 October 2014 was a Tuesday.
    hours = ["14102100", "14102106", "14102206", "14102806", "14102023"]
    blocks = [parse(good_line(hour=hour).encode()) for hour in hours]
    of_day = [int(block.keys[0, FEATURES.index("hour_of_day")]) for block in blocks]
    weekday = [int(block.keys[0, FEATURES.index("weekday")]) for block in blocks]
    assert of_day[1] == of_day[2] == of_day[3]
    assert len({of_day[0], of_day[1], of_day[4]}) == 3
    assert weekday[0] == weekday[1] == weekday[3]
    assert len({weekday[0], weekday[2], weekday[4]}) == 3
    np.testing.assert_allclose(blocks[0].dense[0, :2], [0, 1], atol=1e-6)
    np.testing.assert_allclose(blocks[1].dense[0, :2], [1, 0], atol=1e-6)
    week = 2 * np.pi * 24 / 168
    np.testing.assert_allclose(blocks[0].dense[0, 2:], [np.sin(week), np.cos(week)], rtol=1e-5)


def test_windows_line_ends_change_nothing():
    lines = [good_line(token="ab"), good_line(click="0", token="cd")]
    unix = parse(("\n".join(lines) + "\n").encode())
    windows = parse(("\r\n".join(lines) + "\r\n").encode())
    np.testing.assert_array_equal(unix.keys, windows.keys)
    assert windows.bad == []


MALFORMED = [
    ("0,1,2", None, "3 comma-separated fields, expected 24"),
    ("", None, "line is empty"),
    (good_line(click="2"), "click", "'2' is not 0 or 1"),
    (good_line(click=""), "click", "'' is not 0 or 1"),
    (good_line(hour="1410210"), "hour", "'1410210' is not a time as YYMMDDHH"),
    (good_line(hour="1410210x"), "hour", "is not a time as YYMMDDHH"),
    (good_line(hour="14102124"), "hour", "is not a time as YYMMDDHH"),
    (good_line(hour="14130100"), "hour", "is not a time as YYMMDDHH"),
    (good_line(hour="14022900"), "hour", "is not a time as YYMMDDHH"),
    (good_line(hour="14100000"), "hour", "is not a time as YYMMDDHH"),
    (good_line(token="x" * 17), "C1", "is longer than 16 characters"),
]


@pytest.mark.parametrize(("line", "column", "problem"), MALFORMED)
def test_a_malformed_line_is_reported_with_file_line_column_and_problem(
    tmp_path: Path, line: str, column: str | None, problem: str
):
    path = written(tmp_path / "train.csv", good_line(), line, good_line())
    with pytest.raises(DataError) as caught:
        scan(path, AVAZU)
    assert (caught.value.path, caught.value.line, caught.value.column) == (path, 3, column)
    assert problem in str(caught.value)


def test_bad_lines_are_skipped_and_counted_when_asked(tmp_path: Path):
    bad = [line for line, _, _ in MALFORMED]
    path = written(tmp_path / "train.csv", good_line(), *bad, good_line(click="0"))
    found = scan(path, AVAZU, skip_bad_lines=True)
    assert (found.samples, found.bad_lines) == (2, len(bad))


def test_the_test_set_is_refused_because_it_has_no_clicks(tmp_path: Path):
    path = tmp_path / "test.csv"
    path.write_text(AVAZU_HEADER.replace("click,", "") + "\n" + good_line() + "\n")
    with pytest.raises(DataError, match=r"line 1: has no column click: this is the test set"):
        scan(path, AVAZU)


@pytest.mark.parametrize("first", [good_line(), "id,clicked", AVAZU_HEADER.replace("C1,", "c1,")])
def test_another_header_is_refused_with_the_one_expected(tmp_path: Path, first: str):
    path = tmp_path / "train.csv"
    path.write_text(first + "\n" + good_line() + "\n")
    with pytest.raises(DataError, match=r"line 1: header is '.*', expected id,click,hour,C1"):
        scan(path, AVAZU)


@pytest.mark.parametrize("text", ["", AVAZU_HEADER, AVAZU_HEADER + "\n"])
def test_a_file_without_samples_says_so(tmp_path: Path, text: str):
    path = tmp_path / "train.csv"
    path.write_text(text)
    with pytest.raises(DataError, match="holds no samples"):
        scan(path, AVAZU)


@pytest.mark.parametrize("block_bytes", [700, 1 << 20])
def test_batches_hold_every_sample_once_and_go_on_at_a_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
):
    monkeypatch.setattr(streamed, "_BLOCK_BYTES", block_bytes)
    path = avazu_file(tmp_path / "train.csv", 203)
    whole = parse("\n".join(path.read_text().splitlines()[1:]).encode())
    dataset = StreamedDataset(path, AVAZU, scan=scan(path, AVAZU), holdout=0.1)
    assert [feature.name for feature in dataset.features] == list(FEATURES)
    train = list(dataset.train_batches(32, Position()))
    test = list(dataset.test_batches(7))
    assert (sum(map(len, train)), sum(map(len, test))) == (183, 20)
    for place in range(len(FEATURES)):
        keys = np.concatenate([batch.feature_keys(place) for batch in [*train, *test]])
        np.testing.assert_array_equal(keys, whole.keys[:, place])
    rest = list(dataset.train_batches(32, train[2].next))
    np.testing.assert_array_equal(rest[0].keys, train[3].keys)


def test_the_real_sample_is_read_whole_with_the_published_number_of_tokens():
    path = shared("avazu/train_10k.csv.gz")
    found = scan(path, AVAZU)
    assert (found.samples, found.bad_lines) == (9999, 0)
    published = [6, 4, 381, 317, 14, 313, 31, 14, 1075, 7302, 1168, 4, 4, 271, 4, 5, 111, 4, 32]
    published += [108, 29]
    for name, estimate, exact in zip(FEATURES, found.distinct, published, strict=False):
        assert abs(estimate - exact) <= max(1, 0.03 * exact), name
    batch = next(StreamedDataset(path, AVAZU).train_batches(9999, Position()))
    assert 0.1 < batch.labels.mean() < 0.25


def test_the_real_test_set_is_refused():
    with pytest.raises(DataError, match="has no column click"):
        scan(shared("avazu/test_10k_nolabel.csv.gz"), AVAZU)


def test_columns_are_those_of_the_header():
    assert ",".join(COLUMNS) == AVAZU_HEADER
