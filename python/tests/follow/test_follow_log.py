"""Logs of updates: what is written is read, however the end, the middle or the files look."""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedrock.errors import (
    ClosedError,
    CorruptError,
    ForkedError,
    IoError,
    LockedError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
    PoisonedError,
    UnsupportedError,
)
from embedrock.follow import LogReader, LogWriter, Record
from embedrock.follow.segment import RECORD_BYTES_MAX, decoded
from rows import numbered

HEADER = 64


def segment(log: Path, number: int = 1) -> Path:
    return log / f"segment-{number:010}.log"


def write(log: Path, numbers: Any, **arguments: Any) -> None:
    """A record of one row for each number."""
    with LogWriter(log, **arguments) as writer:
        for number in numbers:
            writer.put("t", [number], numbered([number]))


def read(reader: LogReader) -> list[Record]:
    found: list[Record] = []
    while more := reader.poll():
        found += more
    return found


def keys(records: list[Record]) -> list[int]:
    return [int(key) for record in records for key in record.keys]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_records_are_read_as_they_were_written(log: Path) -> None:
    with LogWriter(log) as writer:
        writer.put("t", [[1, 2], [-1, 4]], np.ones((2, 2, 3), np.float32), reset_state=True)
        writer.update(
            "ü", [7], np.full((1, 5), 0.1, np.float32), lr=0.1, betas=(0.8, 0.9), nesterov=True
        )
        writer.delete("t", np.array([2**64 - 1], np.uint64))
        writer.put("t", [], np.empty((0, 3), np.float32))
        writer.update("t", [], np.empty((0, 3), np.float32), lr=1, step=3)
        assert writer.records == 5
    with LogReader(log) as reader:
        put, update, delete, nothing, step = reader.poll()
        assert reader.position["records"] == 5 and reader.lag_bytes() == 0
    assert (put.kind, put.table, put.options) == ("put", "t", {"reset_state": True})
    assert put.keys.tolist() == [1, 2, 2**64 - 1, 4] and put.rows.shape == (4, 3)
    assert (update.table, update.rows.tolist()) == ("ü", [[np.float32(0.1)] * 5])
    assert update.options == {"lr": 0.1, "betas": [0.8, 0.9], "nesterov": True}
    assert (delete.kind, delete.keys.tolist(), delete.rows) == ("delete", [2**64 - 1], None)
    assert nothing.rows.shape == (0, 3) and step.options == {"lr": 1.0, "step": 3}


def test_an_empty_log_has_no_records_and_an_identity(log: Path) -> None:
    with LogWriter(log) as writer, LogReader(log) as reader:
        assert reader.poll() == [] and reader.log == writer.log and len(reader.log) == 32


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_segments_is_no_log(log: Path, made: bool) -> None:
    if made:
        log.mkdir()
    with pytest.raises(NotFoundError, match="holds no log"):
        LogReader(log)


def test_a_reader_goes_on_over_rotations_while_the_log_is_written(log: Path) -> None:
    seen: list[int] = []
    with LogWriter(log, segment_bytes=300) as writer, LogReader(log) as reader:
        for number in range(50):
            writer.put("t", [number], numbered([number]))
            if number % 3 == 0:
                seen += keys(reader.poll())
        writer.rotate()
        seen += keys(read(reader))
    assert seen == list(range(50))
    assert len(list(log.glob("segment-*.log"))) > 8


def test_every_position_is_one_to_go_on_from(log: Path) -> None:
    write(log, range(20), segment_bytes=300)
    with LogReader(log) as reader:
        records = read(reader)
        for number, record in enumerate(records):
            reader.seek(record.position)
            assert keys(read(reader)) == list(range(number + 1, 20))


def test_an_unfinished_record_is_waited_for_at_every_length(log: Path) -> None:
    write(log, [1, 2])
    whole = segment(log).read_bytes()
    with LogReader(log) as reader:
        (_, second) = reader.poll()
    begins = int(second.place.split()[-1])
    for length in range(begins, len(whole)):
        segment(log).write_bytes(whole[:length])
        with LogReader(log) as reader:
            assert keys(read(reader)) == [1], length
            assert reader.lag_bytes() == length - begins
            segment(log).write_bytes(whole)
            assert keys(read(reader)) == [2], length


def test_zeros_behind_an_unfinished_record_are_waited_for(log: Path) -> None:
    # A power cut leaves this if the file system had already extended the file.
    write(log, [1, 2])
    whole = segment(log).read_bytes()
    for length in range(len(whole) - 64, len(whole)):
        segment(log).write_bytes(whole[:length] + bytes(len(whole) - length))
        with LogReader(log) as reader:
            assert keys(read(reader)) == [1], length


def test_more_zeros_than_a_read_takes_are_waited_for(log: Path) -> None:
    # They were taken for damage, which neither a reader nor a writer went over.
    write(log, [1, 2])
    with LogReader(log) as reader:
        begin = reader.poll()[0].position["offset"]
    os.truncate(segment(log), begin + 8)
    os.truncate(segment(log), 9 << 20)
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1]
        assert read(reader) == []
    with open(segment(log), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with LogReader(log) as reader:
        assert keys(reader.poll()) == [1]
        with pytest.raises(CorruptError, match=rf"offset {begin}\b"):
            reader.poll()
    os.truncate(segment(log), 8 << 20)
    with LogWriter(log) as writer:
        assert writer.cut_bytes == (8 << 20) - begin


def test_a_writer_cuts_off_what_a_killed_one_left(log: Path) -> None:
    write(log, [1, 2])
    whole = segment(log).read_bytes()
    with LogReader(log) as reader:
        segment(log).write_bytes(whole[:-5])
        assert keys(read(reader)) == [1]
        with LogWriter(log) as writer:
            assert writer.cut_bytes == 59
        write(log, [3, 4])
        assert keys(read(reader)) == [3, 4]
        assert reader.position["records"] == 3


def test_a_writer_goes_on_behind_the_end_of_a_segment(log: Path) -> None:
    with LogWriter(log) as writer:
        writer.put("t", [1], numbered([1]))
        writer.rotate()
    segment(log, 2).unlink()  # killed between the two
    write(log, [2])
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1, 2]


@pytest.mark.parametrize("damaged", range(0, 96, 5))
def test_damage_before_the_end_is_an_error_with_file_and_offset(log: Path, damaged: int) -> None:
    write(log, range(6))
    with LogReader(log) as reader:
        third = reader.poll()[2].place
    content = bytearray(segment(log).read_bytes())
    offset = int(third.split()[-1])
    content[offset + damaged % 64] ^= 0x10
    segment(log).write_bytes(content)
    with LogReader(log) as reader:
        assert keys(reader.poll()) == [0, 1]
        with pytest.raises(CorruptError, match=rf"segment-0000000001.log .*offset {offset}\b"):
            reader.poll()
        assert reader.position["records"] == 2
    with pytest.raises(CorruptError, match=rf"cut the file to {offset} bytes"):
        LogWriter(log)


def test_a_damaged_end_of_an_earlier_segment_is_an_error(log: Path) -> None:
    write(log, range(6), segment_bytes=300)
    first = segment(log)
    first.write_bytes(first.read_bytes()[:-40])  # its end, and a part of the last record
    with LogReader(log) as reader, pytest.raises(CorruptError, match=r"0000000001.log .*offset"):
        read(reader)


@pytest.mark.parametrize("offset", [0, 20, 33, 41, 50, 61])
def test_a_damaged_header_is_an_error(log: Path, offset: int) -> None:
    write(log, [1])
    content = bytearray(segment(log).read_bytes())
    content[offset] ^= 1
    segment(log).write_bytes(content)
    with pytest.raises(CorruptError, match=r"segment-0000000001.log.* offset 0"):
        LogReader(log)


def test_a_newer_version_is_refused(log: Path) -> None:
    write(log, [1])
    content = bytearray(segment(log).read_bytes())
    content[8] = 2
    segment(log).write_bytes(content)
    with pytest.raises(UnsupportedError, match=r"version 2 .* reads 1"):
        LogReader(log)


def test_segments_of_two_logs_are_not_one_log(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(log, range(6), segment_bytes=300)
    write(other, range(6), segment_bytes=300)
    segment(other, 2).rename(segment(log, 2))
    with LogReader(log) as reader, pytest.raises(CorruptError, match=r"0000000002.log.* of log"):
        read(reader)
    with LogReader(log) as reader, LogReader(other) as stranger:
        position, said = stranger.position, rf"{stranger.log}.* {log} is log {reader.log}"
        with pytest.raises(MismatchError, match=said):
            reader.seek(position)


def test_an_interrupted_read_loses_no_record(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The reader went behind each record as it decoded it, and dropped those before the interrupt.
    write(log, range(4))
    with LogReader(log) as reader:
        before = reader.position

        def interrupted(raw: Any, place: str, position: Any) -> Record:
            if position["records"] == 3:
                raise KeyboardInterrupt
            return decoded(raw, place, position)

        monkeypatch.setattr("embedrock.follow.reader.decoded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.poll()
        monkeypatch.undo()
        assert reader.position == before
        assert keys(read(reader)) == [0, 1, 2, 3]


def test_a_log_that_lost_what_was_followed_is_an_error(log: Path) -> None:
    write(log, range(3))
    whole = segment(log).read_bytes()
    with LogReader(log) as reader:
        first, second, _ = reader.poll()
        begin = int(second.place.split()[-1])
        segment(log).write_bytes(whole[:begin])
        with pytest.raises(CorruptError, match="has lost records that were followed"):
            reader.seek(second.position)
        write(log, [7, 8, 9])  # as long as before, and other records
        # It was noticed only when the next record was read, and never where there was none.
        with pytest.raises(CorruptError, match=f"not what was followed before.* offset {begin}"):
            reader.seek(second.position)
        earlier = {name: value for name, value in second.position.items() if name != "last"}
        reader.seek(earlier)  # of a release that did not keep it
        assert reader.position == earlier
        with pytest.raises(CorruptError, match="not what was followed before"):
            reader.poll()
        reader.seek(first.position)
        assert keys(read(reader)) == [7, 8, 9]


def test_a_position_before_the_first_record_is_checked_too(log: Path) -> None:
    write(log, [])
    with LogReader(log) as reader:
        position = reader.position
        assert (position["offset"], position["last"]) == (HEADER, 0)
        reader.seek(position)
        with pytest.raises(CorruptError, match="not what was followed before"):
            reader.seek({**position, "checksum": position["checksum"] ^ 1})
        for last in (-1, HEADER, None, 1.0):
            with pytest.raises(MisuseError, match="expected one of a LogReader"):
                reader.seek({**position, "last": last})


def test_segments_that_were_read_may_be_deleted(log: Path) -> None:
    write(log, range(12), segment_bytes=300)
    with LogReader(log) as reader:
        records = read(reader)
        last_of_first = max(r.position["offset"] for r in records if r.position["segment"] == 1)
        behind = next(r for r in records if r.position["offset"] == last_of_first)
        reader.seek(behind.position)
        segment(log, 2).rename(log / "kept")
        assert reader.poll() == []  # now behind the mark of the end
        position = reader.position
        (log / "kept").rename(segment(log, 2))
        segment(log).unlink()
        reader.seek(position)
        rest = keys(read(reader))
        assert rest == list(range(12 - len(rest), 12)) and len(rest) > 4
        with pytest.raises(NotFoundError, match=r"0000000001.log is not there, and the store has"):
            reader.seek(records[0].position)
        with pytest.raises(NotFoundError, match="begins with segment 2"):
            reader.begin()
    write(log, [9])


def test_one_process_writes_to_a_log(log: Path) -> None:
    with LogWriter(log) as writer:
        with pytest.raises(LockedError, match="has a writer already"):
            LogWriter(log)
        writer.put("t", [1], numbered([1]))
    with pytest.raises(ClosedError):
        writer.sync()
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1]
    with pytest.raises(ClosedError):
        reader.poll()


def test_a_record_that_is_refused_leaves_nothing_in_the_log(log: Path) -> None:
    with LogWriter(log) as writer:
        with pytest.raises(NonFiniteError, match="values hold NaN"):
            writer.put("t", [1], [[np.nan]])
        with pytest.raises(MisuseError, match=r"shape \(2, 4\), expected \(1, 4\)"):
            writer.put("t", [1], np.ones((2, 4), np.float32))
        with pytest.raises(MisuseError, match="lr is inf"):
            writer.update("t", [1], np.ones((1, 4), np.float32), lr=np.inf)
        with pytest.raises(MisuseError, match="larger than a log takes"):
            writer.put("t", [1], np.broadcast_to(np.float32(0), (1, 70 << 20)))
    assert segment(log).stat().st_size == HEADER


def test_a_record_larger_than_a_read_is_read(log: Path) -> None:
    rows = np.arange(3 << 20, dtype=np.float32).reshape(3, -1)
    with LogWriter(log) as writer:
        for _ in range(2):
            writer.put("t", [1, 2, 3], rows)
    with LogReader(log) as reader:
        records = read(reader)
    assert len(records) == 2
    np.testing.assert_array_equal(records[1].rows, rows)


def test_threads_write_to_one_log(log: Path) -> None:
    with LogWriter(log, segment_bytes=2000) as writer:

        def append(first: int) -> None:
            for number in range(first, first + 100):
                writer.put("t", [number], numbered([number]))

        threads = [threading.Thread(target=append, args=(i * 100,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with LogReader(log) as reader:
        assert sorted(keys(read(reader))) == list(range(400))


def test_a_forked_process_does_not_write_to_its_parents_log(log: Path) -> None:
    with LogWriter(log) as writer:
        child = os.fork()
        if child == 0:
            try:
                writer.delete("t", [1])
            except ForkedError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.delete("t", [2])
    with LogReader(log) as reader:
        assert keys(read(reader)) == [2]


def test_a_write_that_fails_leaves_the_log_whole(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter(log) as writer:
        writer.put("t", [1], numbered([1]))
        real = os.writev

        def cut_short(file: int, parts: Any) -> int:
            return real(file, [b"".join(parts)[:50]])

        def full(file: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(os, "writev", cut_short)
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(IoError, match="no room"):
            writer.put("t", [2], numbered([2]))
        monkeypatch.undo()
        writer.put("t", [3], numbered([3]))
        monkeypatch.setattr(os, "writev", cut_short)  # and the rest by write
        writer.put("t", [4], numbered([4]))
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1, 3, 4]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_rotation_that_fails_leaves_the_record_out_of_the_log(
    log: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    # The record was in the log already: a retry applied its gradient twice. If the next segment
    # could not be opened, the retry was written after the end of this one.
    with LogWriter(log, segment_bytes=100) as writer:
        writer.put("t", [1], numbered([1]))

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(os, call, full)
        with pytest.raises(IoError, match="no room"):
            writer.put("t", [2], numbered([2]))
        monkeypatch.undo()
        with pytest.raises(PoisonedError, match="open a new LogWriter"):
            writer.put("t", [2], numbered([2]))
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1]
        write(log, [2])
        assert keys(read(reader)) == [2]


def test_a_segment_whose_end_does_not_fit_is_tried_again(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogWriter(log, segment_bytes=100) as writer:
        writer.put("t", [1], numbered([1]))

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(IoError, match="no room"):
            writer.put("t", [2], numbered([2]))
        monkeypatch.undo()
        writer.put("t", [2], numbered([2]))
    with LogReader(log) as reader:
        assert keys(read(reader)) == [1, 2]


def appended(log: Path, payload: bytes, *counts: int) -> None:
    """Appends a record of one update that ``LogWriter`` refuses."""
    with LogWriter(log) as writer:
        fields = struct.pack("<QIIIHHI", len(payload), 2, *counts, zlib.crc32(payload))
        checksum = zlib.crc32(fields, writer._chain)
        writer._write([fields + struct.pack("<I", checksum), payload], checksum, 1)


@pytest.mark.parametrize("options", [b"[" * 60_001, b'{"lr": ' + b"[" * 60_000])
def test_options_nested_too_deep_are_a_fault_of_their_record(log: Path, options: bytes) -> None:
    # The parser's RecursionError came without a place, and no skip_bad went over it.
    words = b"t" + options
    write(log, [1])
    appended(log, words + bytes(-len(words) % 8), 0, 0, 1, len(options))
    write(log, [2])
    with LogReader(log) as reader:
        first, odd, last = reader.poll()
    assert (first.kind, odd.kind, last.kind) == ("put", None, "put")
    assert odd.fault.startswith("its words cannot be read") and "offset" in odd.place


def test_a_record_of_other_bytes_than_its_rows_take_is_a_fault(log: Path) -> None:
    write(log, [1])
    appended(log, b"t" + bytes(7) + bytes(8), 0, 0, 1, 0)
    with LogReader(log) as reader:
        first, odd = reader.poll()
    assert (first.kind, odd.kind) == ("put", None)
    assert odd.fault == "it has 16 bytes, not those of 0 rows of 0 values"


def test_a_record_that_says_it_is_too_large_is_damage_and_not_waited_for(log: Path) -> None:
    write(log, [1])
    with LogWriter(log) as writer:
        fields = struct.pack("<QIIIHHI", RECORD_BYTES_MAX + 1, 2, 0, 0, 1, 0, 0)
        checksum = zlib.crc32(fields, writer._chain)
        writer._write([fields + struct.pack("<I", checksum), b"begun"], checksum, 1)
    with LogReader(log) as reader:
        assert keys(reader.poll()) == [1]
        with pytest.raises(CorruptError, match=f"bytes, at most {RECORD_BYTES_MAX}"):
            reader.poll()


def test_the_bytes_of_a_log_are_those_of_its_page(log: Path) -> None:
    # Made by hand as docs/formats/update-log.md says: a change of the format needs a new version.
    with LogWriter(log) as writer:
        identity = bytes.fromhex(writer.log)
        writer.put("ads", [7, -1], np.float32([[1, 2, 3], [4, 5, 6]]))
        writer.update("ads", [7], np.float32([[0.5]]), lr=0.25)
        writer.delete("b", [9])
        writer.rotate()

    def summed(fields: bytes, before: int = 0) -> bytes:
        return fields + struct.pack("<I", zlib.crc32(fields, before))

    def last(content: bytes) -> int:
        return int.from_bytes(content[-4:], "little")

    def header(number: int, records: int, previous: int) -> bytes:
        ids = struct.pack("<II16sQQI8x", 1, 0, identity, number, records, previous)
        return summed(b"EMBRKLOG" + ids)

    payloads = [
        (1, 2, 3, 3, 0, b"ads" + bytes(5) + struct.pack("<Qq6f", 7, -1, 1, 2, 3, 4, 5, 6)),
        (2, 1, 1, 3, 12, b'ads{"lr": 0.25}' + bytes(1) + struct.pack("<Qf", 7, 0.5) + bytes(4)),
        (3, 1, 0, 1, 0, b"b" + bytes(7) + struct.pack("<Q", 9)),
        (4, 0, 0, 0, 0, b""),
    ]
    content = header(1, 0, 0)
    chain = last(content)
    for *counts, payload in payloads:
        fields = struct.pack("<QIIIHHI", len(payload), *counts, zlib.crc32(payload))
        made = summed(fields, chain)
        chain = last(made)
        content += made + payload
    assert segment(log).read_bytes() == content
    assert segment(log, 2).read_bytes() == header(2, 3, chain)
