"""Whether data are what a run has read: told apart wherever they differ, packed or not."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from embedrock.data import DataError
from embedrock.data.known_files import Known, compared
from embedrock.data.log_files import log_files

TEXT = b"".join(b"line %d of a text that repeats itself\n" % i for i in range(60_000))


@pytest.fixture
def then(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "log").write_bytes(TEXT)
    return Known.of(tmp_path / "log").as_dict()


def test_a_file_is_known_again_however_it_is_named_and_packed(
    tmp_path: Path, then: dict[str, object]
) -> None:
    path = tmp_path / "log"
    assert len(TEXT) > 2 << 20 and compared(then, path) == "same"
    os.utime(path, ns=(1, 1))
    assert compared(then, path) == "same"
    path.rename(tmp_path / "renamed")
    assert compared(then, tmp_path / "renamed") == "same"
    (tmp_path / "log.gz").write_bytes(gzip.compress(TEXT[:9999]) + gzip.compress(TEXT[9999:]))
    assert compared(then, tmp_path / "log.gz") == "same"


# A log was known by its first MiB alone.
@pytest.mark.parametrize("place", [0, 1 << 20, 2_000_001, len(TEXT) - 1])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_one_other_byte_anywhere_makes_another_file(
    tmp_path: Path, then: dict[str, object], place: int, pack: type
) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT[:place] + b"!" + TEXT[place + 1 :]))
    assert compared(then, path) == "other"


def test_samples_tell_a_file_whose_time_was_set_back(
    tmp_path: Path, then: dict[str, object]
) -> None:
    path, stat = tmp_path / "log", (tmp_path / "log").stat()
    path.write_bytes(TEXT[: len(TEXT) // 2] + TEXT[len(TEXT) // 2 :][::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == then["file_bytes"]
    assert compared(then, path) == "other"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_more_behind_it_is_told_from_another_text(
    tmp_path: Path, then: dict[str, object], pack: type
) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(TEXT + b"more\n"))
    assert compared(then, path) == "grown"
    path.write_bytes(pack(b"x" + TEXT[1:] + b"more\n"))
    assert compared(then, path) == "other"
    path.write_bytes(pack(TEXT[:-1]))
    assert compared(then, path) == "other"
    with pytest.raises(DataError, match="gone: cannot be opened"):
        compared(then, tmp_path / "gone")


def test_files_of_a_log_come_in_the_order_that_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    for name in ("part-10.csv", "part-9.csv", "a/z.csv", "_SUCCESS", ".part.crc", "_tmp/x.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    ordered = [folder / "a" / "z.csv", folder / "part-9.csv", folder / "part-10.csv"]
    assert log_files([folder]) == tuple(ordered)
    assert log_files([folder / "part-*.csv"]) == tuple(ordered[1:])
    given = [folder / "part-10.csv", folder / "part-9.csv"]
    assert log_files(given) == tuple(given)
    with pytest.raises(DataError, match=r"part-9.csv: comes twice"):
        log_files([folder, folder / "part-9.csv"])
    with pytest.raises(DataError, match=r"is a pattern that no file has the name of"):
        log_files([folder / "day-*.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: holds no files"):
        log_files([tmp_path / "empty"])
    assert log_files([tmp_path / "none.csv"]) == (tmp_path / "none.csv",)
