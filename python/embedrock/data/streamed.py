"""The user's own click log, one sample a line, streamed: no part of it is kept in memory.

A log is one file, or several of one kind in a row. The formats (`criteo`, `avazu`, `csv`,
`parquet_log`) interpret lines and rows. One pass over the files before training (`scan`) counts
samples and distinct keys, so that a memory budget in per cent can be computed, the last samples can
be held out, and a malformed line is reported before hours of training rather than after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embedrock.data.bad_lines import BadLines
from embedrock.data.batch import Batch, Feature, Position
from embedrock.data.errors import DataError
from embedrock.data.lines import Block
from embedrock.data.memory import jagged
from embedrock.data.sketch import DistinctCounter
from embedrock.data.text import TextStream

#: Text parsed at once. Larger blocks leave the processor's caches, smaller ones cost more calls.
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
#: Samples that are counted at once.
_COUNTED = 1 << 16
_BEGINNING = Position()


class Described(Protocol):
    """The description that every format has."""

    @property
    def name(self) -> str:
        """Its name for users."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the sparse features, one key each."""
        ...

    @property
    def num_dense(self) -> int:
        """Dense features."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of what is predicted: labels have a column for each where there are several."""
        ...


@runtime_checkable
class Format(Described, Protocol):
    """A format of text: what a reader of click logs knows of its kind of file."""

    def header_bytes(self, text: bytes, path: Path) -> int:
        """Size in bytes of the header at the beginning of the text, 0 for none.

        Errors: DataError when the text cannot be of this format.
        """
        ...

    def parse(self, block: bytes) -> Block:
        """Parses whole lines."""
        ...


class RowFormat(Described, Protocol):
    """A format of rows that are not text: offsets in it are numbers of rows."""

    def blocks(self, first: int) -> Iterator[tuple[int, Block]]:
        """Rows from number `first` on: the number of the first of each block, and the block."""
        ...


Kind: TypeAlias = Format | RowFormat


@dataclass(frozen=True)
class Part:
    """A file of a log, and its format: that of all its files, each with its own header. Rows that
    are in no file have no path."""

    path: Path | None
    kind: Kind


@dataclass(frozen=True)
class Mark:
    """A place in a file, `part` of the log: `samples` good ones lie before byte `offset`, the start
    of `line`."""

    samples: int
    offset: int
    line: int
    part: int = 0


@dataclass
class Scan:
    """The result of one pass over the file."""

    samples: int
    distinct: list[int]
    marks: list[Mark] = field(repr=False)
    bad_lines: int
    first_bad_line: str | None = None


@dataclass(frozen=True)
class _Located:
    """A parsed block and where it starts in its file (line numbers are 1-based)."""

    block: Block
    offset: int
    line: int
    part: int


def _blocks(
    parts: Sequence[Part], part: int, offset: int, line: int, bad: BadLines
) -> Iterator[_Located]:
    """Parses the log from `offset` in a part, the start of line `line`; bad lines go to `bad`."""
    for number in range(part, len(parts)):
        path, kind = parts[number].path, parts[number].kind
        if isinstance(kind, Format):
            assert path is not None
            yield from _text_blocks(path, kind, number, offset, line, bad)
        else:
            for first, block in kind.blocks(offset):
                for one in block.bad:
                    row = first + one.index + 1
                    bad.add(DataError(one.problem, path=path, row=row, column=one.column))
                yield _Located(block, first, first + 1, number)
        offset, line = 0, 1


def _text_blocks(
    path: Path, kind: Format, part: int, offset: int, line: int, bad: BadLines
) -> Iterator[_Located]:
    empty: list[DataError] = []  # lines with nothing behind them so far
    with TextStream(path) as stream:
        begins = offset == 0
        stream.skip_to(offset)
        offset = stream.offset
        rest = b""
        while True:
            text = stream.read(_BLOCK_BYTES)
            whole = rest + text
            if text:
                cut = whole.rfind(b"\n") + 1
                whole, rest = whole[:cut], whole[cut:]
                if len(rest) > _LONGEST_LINE_BYTES:
                    place = line + whole.count(b"\n")
                    raise DataError("is longer than 1 MiB: not a text file?", path=path, line=place)
            else:
                rest = b""
            if begins and whole:
                header = kind.header_bytes(whole, path)
                whole, offset, line = whole[header:], offset + header, line + (header > 0)
                begins = False
            if whole:
                block = kind.parse(whole)
                last = block.num_lines - 1 - _empty_at_the_end(whole)
                if last >= 0:
                    _tell(empty, bad)
                for one in block.bad:
                    error = DataError(
                        one.problem, path=path, line=line + one.index, column=one.column
                    )
                    if one.index > last:
                        empty.append(error)
                    else:
                        bad.add(error)
                yield _Located(block, offset, line, part)
                offset += len(whole)
                line += block.num_lines
            if not text:
                return


def _empty_at_the_end(text: bytes) -> int:
    """Number of empty lines at the end of a block of whole lines."""
    held = text.rstrip(b"\r\n")
    return max(text[len(held) :].count(b"\n") - bool(held), 0)


def _tell(errors: list[DataError], bad: BadLines) -> None:
    for error in errors:
        bad.add(error)
    errors.clear()


def scan(
    path: str | Path | None,
    kind: Kind,
    *,
    more: Sequence[Part] = (),
    skip_bad_lines: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Scan:
    """Reads the file, and those behind it, once. `progress` gets the bytes of text read so far, of
    one file.

    Errors: DataError at the first malformed line unless `skip_bad_lines`, or when no sample is
    left.
    """
    path = None if path is None else Path(path)
    bad = BadLines(skip_bad_lines)
    parts = [Part(path, kind), *more]
    counters = [DistinctCounter() for _ in kind.features]
    samples = 0
    marks = []
    for located in _blocks(parts, 0, 0, 1, bad):
        marks.append(Mark(samples, located.offset, located.line, located.part))
        samples += len(located.block.labels)
        for feature, counter in enumerate(counters):
            counter.add(located.block.column(feature).keys)
        if progress is not None:
            progress(located.offset + _BLOCK_BYTES)
    if samples == 0:
        skipped = (
            f" ({bad.count} malformed lines skipped, the first: {bad.first})" if bad.count else ""
        )
        raise DataError(f"holds no samples{skipped}", path=path)
    distinct = [counter.estimate() for counter in counters]
    return Scan(samples, distinct, marks, bad.count, None if bad.first is None else str(bad.first))


class StreamedDataset:
    """A log of one of the formats, in its own order. See `Dataset`.

    With a `scan`, the last `holdout` share of the samples is held out; without one, nothing is.
    """

    def __init__(
        self,
        path: str | Path | None,
        kind: Kind,
        *,
        more: Sequence[Part] = (),
        scan: Scan | None = None,
        holdout: float = 0.1,
        skip_bad_lines: bool = False,
    ) -> None:
        """Takes a file and those after it. Opens nothing yet: files are read while batches are
        taken. Samples that the log has gained since the scan are left out."""
        self.name = kind.name
        self.parts = [Part(None if path is None else Path(path), kind), *more]
        self.num_dense = kind.num_dense
        self.targets = kind.targets
        self.bad_lines = BadLines(skip_bad_lines)
        self._scan = scan
        self._num_test = 0 if scan is None else int(scan.samples * holdout)
        expected = [None] * len(kind.features) if scan is None else scan.distinct
        self.features = [
            Feature(name, expected_rows=rows)
            for name, rows in zip(kind.features, expected, strict=True)
        ]

    def num_train(self) -> int | None:
        """Samples of an epoch, known after a scan only."""
        return None if self._scan is None else self._scan.samples - self._num_test

    def train_batches(self, batch_size: int, start: Position = _BEGINNING) -> Iterator[Batch]:
        """See `Dataset`; `start` must come from a batch of the same log and size."""
        limit = self.num_train()
        done = start.batch * batch_size
        left = None if limit is None else limit - done
        samples = _Samples(self.parts, start.part, start.offset, max(start.line, 1), self.bad_lines)
        number = start.batch
        while left is None or left > 0:
            taken = samples.take(batch_size if left is None else min(batch_size, left))
            if taken is None:
                return
            number += 1
            if left is not None:
                left -= len(taken.labels)
            yield taken.batch(Position(start.epoch, number, taken.end, taken.line, taken.part))

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """See `Dataset`; reads the end of the log."""
        if self._scan is None or self._num_test == 0:
            return
        first = self._scan.samples - self._num_test
        samples, skip = self._from_mark(first)
        while skip > 0:
            taken = samples.take(skip)
            if taken is None:
                return
            skip -= len(taken.labels)
        left = self._num_test
        while left > 0 and (taken := samples.take(min(batch_size, left))) is not None:
            left -= len(taken.labels)
            yield taken.batch(Position())

    def samples_there(self) -> int:
        """Number of samples in the log at present, by counting those after the scan's last mark."""
        assert self._scan is not None
        count = self._scan.samples
        samples, skip = self._from_mark(count - self._num_test)
        count -= self._num_test + skip
        while (taken := samples.take(_COUNTED)) is not None:
            count += len(taken.labels)
        return count

    def _from_mark(self, first: int) -> tuple[_Samples, int]:
        """Reads from the last mark before a sample on; and how many samples it comes behind it."""
        assert self._scan is not None
        mark = max((m for m in self._scan.marks if m.samples <= first), key=lambda m: m.samples)
        bad = BadLines(self.bad_lines.skip)
        return _Samples(self.parts, mark.part, mark.offset, mark.line, bad), first - mark.samples


@dataclass(frozen=True)
class _Taken:
    """Samples taken off the stream, and the place behind the last of them. `bags` are as those of
    `Block`, as (keys, sizes)."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.int64]
    bags: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]
    end: int
    line: int
    part: int

    def batch(self, following: Position) -> Batch:
        if not self.bags:
            keys = np.ascontiguousarray(self.keys.T).reshape(-1)
            return Batch(self.dense, keys, np.arange(len(keys) + 1), self.labels, following)
        ones = np.ones(len(self.labels), np.int64)
        features = range(self.keys.shape[1])
        keys, offsets = jagged(
            [self.bags.get(feature, (self.keys[:, feature], ones)) for feature in features]
        )
        return Batch(self.dense, keys, offsets, self.labels, following)


class _Samples:
    """Cuts the stream of blocks into pieces of any size."""

    def __init__(
        self, parts: Sequence[Part], part: int, offset: int, line: int, bad: BadLines
    ) -> None:
        self._blocks = _blocks(parts, part, offset, line, bad)
        self._located: _Located | None = None
        self._used = 0

    def take(self, count: int) -> _Taken | None:
        """Up to `count` samples, fewer only at the end of the file; None when there are none."""
        pieces: list[tuple[Block, slice]] = []
        end, line, part, missing = 0, 0, 0, count
        while missing > 0:
            if self._located is None or self._used == len(self._located.block.labels):
                self._located = next(self._blocks, None)
                self._used = 0
                if self._located is None:
                    break
                continue
            block = self._located.block
            piece = slice(self._used, min(self._used + missing, len(block.labels)))
            pieces.append((block, piece))
            self._used = piece.stop
            missing -= piece.stop - piece.start
            end = self._located.offset + int(block.ends[piece.stop - 1])
            line = self._located.line + int(block.lines[piece.stop - 1]) + 1
            part = self._located.part
        if not pieces:
            return None
        return _Taken(
            _joined([block.labels[piece] for block, piece in pieces]),
            _joined([block.dense[piece] for block, piece in pieces]),
            _joined([block.keys[piece] for block, piece in pieces]),
            _bags(pieces),
            end,
            line,
            part,
        )


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _bags(
    pieces: list[tuple[Block, slice]],
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(keys, sizes) of those features that have bags in one of the pieces."""
    found = {}
    for feature in sorted({feature for block, _ in pieces for feature in block.bags}):
        gathered = [
            block.column(feature).gather(np.arange(piece.start, piece.stop))
            for block, piece in pieces
        ]
        keys, sizes = zip(*gathered, strict=True)
        found[feature] = _joined(list(keys)), _joined(list(sizes))
    return found
