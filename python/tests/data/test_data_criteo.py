from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clicklogs import criteo_file, criteo_line, shared
from embedrock.data import DataError, Position, streamed
from embedrock.data.criteo import CRITEO
from embedrock.data.criteo_lines import parse
from embedrock.data.streamed import Scan, StreamedDataset


def criteo_dataset(path: Path | str, **given: Any) -> StreamedDataset:
    return StreamedDataset(path, CRITEO, **given)


def scan(path: Path | str, **given: Any) -> Scan:
    return streamed.scan(path, CRITEO, **given)


def good_line(label: str = "1", integer: str = "3", token: str = "05db9164") -> str:
    return "\t".join([label, *[integer] * 13, *[token] * 26])


def test_a_line_becomes_label_log_integers_and_one_key_per_field():
    block = parse(good_line(integer="7").encode())
    assert block.labels.tolist() == [1.0]
    np.testing.assert_allclose(block.dense, np.full((1, 13), np.log1p(7.0)), rtol=1e-6)
    assert block.keys.shape == (1, 26)
    assert len(set(block.keys[0].tolist())) == 26, "the same token of two fields must differ"
    assert block.bad == []


def test_missing_and_negative_integers_are_zero_and_missing_tokens_are_a_key():
    fields = ["0", "", "-3", *["0"] * 11, "", *["a"] * 25]
    block = parse("\t".join(fields).encode())
    assert block.dense[0, :3].tolist() == [0.0, 0.0, 0.0]
    other = parse("\t".join(["0", *["0"] * 13, *["a"] * 26]).encode())
    assert block.keys[0, 0] != other.keys[0, 0]
    assert block.keys[0, 1:].tolist() == other.keys[0, 1:].tolist()


def test_tokens_differ_by_leading_zeros_and_agree_by_case():
    keys = [parse(good_line(token=t).encode()).keys[0, 0] for t in ("0a", "a", "A", "00a")]
    assert keys[1] == keys[2]
    assert len({keys[0], keys[1], keys[3]}) == 3


def test_block_and_line_wise_parsing_agree():
    rng = np.random.default_rng(1)
    lines = [criteo_line(rng) for _ in range(300)]
    whole = parse(("\n".join(lines) + "\n").encode())
    single = [parse(line.encode()) for line in lines]
    np.testing.assert_array_equal(whole.keys, np.concatenate([b.keys for b in single]))
    np.testing.assert_array_equal(whole.dense, np.concatenate([b.dense for b in single]))
    np.testing.assert_array_equal(whole.labels, np.concatenate([b.labels for b in single]))


def test_windows_line_ends_change_nothing():
    lines = [good_line(token="ab"), good_line(label="0", token="cd")]
    unix = parse(("\n".join(lines) + "\n").encode())
    windows = parse(("\r\n".join(lines) + "\r\n").encode())
    np.testing.assert_array_equal(unix.keys, windows.keys)
    assert windows.bad == []


MALFORMED = [
    ("0\t1\t2", None, "3 tab-separated fields, expected 40"),
    ("", None, "line is empty"),
    (good_line() + "\t", None, "41 tab-separated fields"),
    (good_line(label="2"), "label", "'2' is not 0 or 1"),
    (good_line(label=""), "label", "'' is not 0 or 1"),
    (good_line().replace("\t3\t", "\t3.5\t", 1), "I1", "'3.5' is not an integer"),
    (good_line().replace("\t3\t", "\t-\t", 1), "I1", "'-' is not an integer"),
    (good_line(integer="1" * 16), "I1", "is not an integer of at most 15 digits"),
    (good_line(token="xyz"), "C1", "'xyz' is not a hexadecimal token"),
    (good_line(token="1" * 17), "C1", "is not a hexadecimal token of at most 16 digits"),
    (good_line().replace("05db9164", "dé", 1), "C1", "'dé' is not a hexadecimal token"),
]


@pytest.mark.parametrize(("line", "column", "problem"), MALFORMED)
def test_a_malformed_line_is_reported_with_file_line_column_and_problem(
    tmp_path: Path, line: str, column: str | None, problem: str
):
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join([good_line(), good_line(), line, good_line()]) + "\n")
    with pytest.raises(DataError) as caught:
        scan(path)
    assert caught.value.path == path
    assert caught.value.line == 3
    assert caught.value.column == column
    assert problem in str(caught.value)
    assert f"{path}, line 3" in str(caught.value)


def test_bad_lines_are_skipped_and_counted_when_asked(tmp_path: Path):
    path = tmp_path / "clicks.tsv"
    bad = [line for line, _, _ in MALFORMED]
    path.write_text("\n".join([good_line(), *bad, good_line(label="0")]) + "\n")
    found = scan(path, skip_bad_lines=True)
    assert found.samples == 2
    assert found.bad_lines == len(bad)
    assert "line 2" in str(found.first_bad_line)
    dataset = criteo_dataset(path, scan=found, holdout=0, skip_bad_lines=True)
    (batch,) = dataset.train_batches(10, Position())
    assert batch.labels.tolist() == [1.0, 0.0]


def test_a_file_of_nothing_but_bad_lines_holds_no_samples(tmp_path: Path):
    path = tmp_path / "clicks.tsv"
    path.write_text("a\nb\n")
    with pytest.raises(DataError, match=r"holds no samples .2 malformed lines skipped"):
        scan(path, skip_bad_lines=True)


def test_line_numbers_count_the_header(tmp_path: Path):
    path = tmp_path / "clicks.tsv"
    header = "\t".join(["label", *[f"I{i}" for i in range(13)], *[f"C{i}" for i in range(26)]])
    path.write_text("\n".join([header, good_line(), "broken"]) + "\n")
    with pytest.raises(DataError, match=r"line 3"):
        scan(path)


def test_line_numbers_are_right_beyond_the_first_block(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(streamed, "_BLOCK_BYTES", 1000)
    path = criteo_file(tmp_path / "clicks.tsv", 50)
    with path.open("a") as file:
        file.write("broken\n")
    with pytest.raises(DataError, match=r"line 51"):
        scan(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(3 << 20))
    with pytest.raises(DataError, match=r"longer than 1 MiB"):
        scan(path)


@pytest.mark.parametrize("block_bytes", [700, 4096, 1 << 20])
def test_batches_hold_every_sample_once_in_order(tmp_path: Path, monkeypatch, block_bytes: int):
    monkeypatch.setattr(streamed, "_BLOCK_BYTES", block_bytes)
    path = criteo_file(tmp_path / "clicks.tsv", 203)
    whole = parse(path.read_bytes())
    dataset = criteo_dataset(path, scan=scan(path), holdout=0.1)
    train = list(dataset.train_batches(32, Position()))
    test = list(dataset.test_batches(7))
    assert sum(map(len, train)) == dataset.num_train() == 183
    assert sum(map(len, test)) == 20
    assert {len(batch) for batch in train[:-1]} == {32}
    for feature in range(26):
        keys = np.concatenate([b.feature_keys(feature) for b in [*train, *test]])
        np.testing.assert_array_equal(keys, whole.keys[:, feature])
    np.testing.assert_array_equal(np.concatenate([b.dense for b in [*train, *test]]), whole.dense)


@pytest.mark.parametrize("compressed", [False, True])
def test_reading_goes_on_at_a_position(tmp_path: Path, monkeypatch, compressed: bool):
    monkeypatch.setattr(streamed, "_BLOCK_BYTES", 3000)
    path = criteo_file(tmp_path / "clicks.tsv", 120)
    if compressed:
        packed = tmp_path / "clicks.tsv.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path = packed
    dataset = criteo_dataset(path, scan=scan(path), holdout=0.1)
    batches = list(dataset.train_batches(16, Position()))
    for done, batch in enumerate(batches, start=1):
        rest = list(dataset.train_batches(16, batch.next))
        assert len(rest) == len(batches) - done
        for again, first in zip(rest, batches[done:], strict=True):
            np.testing.assert_array_equal(again.keys, first.keys)
            assert again.next == first.next


def test_without_a_scan_the_whole_file_is_trained_on(tmp_path: Path):
    path = criteo_file(tmp_path / "clicks.tsv", 25)
    dataset = criteo_dataset(path)
    assert dataset.num_train() is None
    assert sum(map(len, dataset.train_batches(10, Position()))) == 25
    assert list(dataset.test_batches(10)) == []


def test_distinct_keys_are_estimated_within_three_per_cent(tmp_path: Path):
    path = criteo_file(tmp_path / "clicks.tsv", 3000, tokens_per_field=2000)
    keys = parse(path.read_bytes()).keys
    found = scan(path)
    for field, estimate in enumerate(found.distinct):
        exact = len(np.unique(keys[:, field]))
        assert abs(estimate - exact) <= max(2, 0.03 * exact), (
            f"field {field}: {estimate} of {exact}"
        )


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"nowhere.tsv: cannot be opened: No such file"):
        scan("nowhere.tsv")


def test_real_sample_in_time_order_is_read_whole():
    found = scan(shared("criteo-kaggle/train_80k_hashed.tsv.gz"))
    assert found.samples == 80_000
    assert found.bad_lines == 0
    published = [484, 491, 35104, 20779, 136, 11, 7221, 235, 3, 9833, 3674, 33160, 2732, 26, 4804]
    for estimate, exact in zip(found.distinct, published, strict=False):
        # A missing token counts as one more key here.
        assert abs(estimate - exact) <= max(2, 0.03 * exact)


def test_real_raw_and_hashed_samples_hold_the_same_rows():
    raw = shared("criteo-kaggle/train_first8k_raw.tsv.gz")
    hashed = shared("criteo-kaggle/train_80k_hashed.tsv.gz")
    first, second = (
        next(criteo_dataset(path).train_batches(8000, Position())) for path in (raw, hashed)
    )
    np.testing.assert_array_equal(first.labels, second.labels)
    same = np.mean(np.isclose(first.dense, second.dense))
    assert same > 0.998, "the notes to the samples say which cells differ"
