"""The user's own click log, one sample a line, streamed: no part of it is kept in memory.

What a line means is the format's business (`criteo`, `avazu`). One pass over the file before
training (`scan`) counts samples and distinct keys, so that a memory budget in per cent means
something, the last samples can be held out, and a malformed line is reported before hours of
training rather than after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedrock.data.bad_lines import BadLines
from embedrock.data.batch import Batch, Feature, Position
from embedrock.data.errors import DataError
from embedrock.data.lines import Block
from embedrock.data.sketch import DistinctCounter
from embedrock.data.text import TextStream

#: Text parsed at once. Larger blocks leave the processor's caches, smaller ones cost more calls.
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20


class Format(Protocol):
    """What a reader of click logs knows of its kind of file."""

    @property
    def name(self) -> str:
        """What users call it."""
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

    def header_bytes(self, text: bytes, path: Path) -> int:
        """How many bytes at the beginning of the text are its header, 0 for none.

        Errors: DataError when the text cannot be of this format.
        """
        ...

    def parse(self, block: bytes) -> Block:
        """Parses whole lines."""
        ...


@dataclass(frozen=True)
class Mark:
    """A place in the text: `samples` good ones lie before byte `offset`, the start of `line`."""

    samples: int
    offset: int
    line: int


@dataclass
class Scan:
    """What one pass over the file found."""

    samples: int
    distinct: list[int]
    marks: list[Mark] = field(repr=False)
    bad_lines: int
    first_bad_line: str | None = None


@dataclass(frozen=True)
class _Located:
    """A parsed block and where it starts in the text (line numbers are 1-based)."""

    block: Block
    offset: int
    line: int


def _blocks(path: Path, kind: Format, offset: int, line: int, bad: BadLines) -> Iterator[_Located]:
    """Parses the text from `offset`, the start of line `line`; bad lines go to `bad`."""
    with TextStream(path) as stream:
        stream.skip_to(offset)
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
            if offset == 0 and whole:
                header = kind.header_bytes(whole, path)
                whole, offset, line = whole[header:], header, line + (header > 0)
            if whole:
                block = kind.parse(whole)
                for one in block.bad:
                    at = line + one.index
                    bad.add(DataError(one.problem, path=path, line=at, column=one.column))
                yield _Located(block, offset, line)
                offset += len(whole)
                line += block.num_lines
            if not text:
                return


def scan(
    path: str | Path,
    kind: Format,
    *,
    skip_bad_lines: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Scan:
    """Reads the file once. `progress` gets the bytes of text read so far.

    Errors: DataError at the first malformed line unless `skip_bad_lines`, or when no sample is
    left.
    """
    path = Path(path)
    bad = BadLines(skip_bad_lines)
    counters = [DistinctCounter() for _ in kind.features]
    samples = 0
    marks = []
    for located in _blocks(path, kind, 0, 1, bad):
        marks.append(Mark(samples, located.offset, located.line))
        samples += len(located.block.labels)
        for counter, keys in zip(counters, located.block.keys.T, strict=True):
            counter.add(keys)
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
    """A file of one of the formats, in its own order. See `Dataset`.

    With a `scan`, the last `holdout` share of the samples is held out; without one, nothing is.
    """

    def __init__(
        self,
        path: str | Path,
        kind: Format,
        *,
        scan: Scan | None = None,
        holdout: float = 0.1,
        skip_bad_lines: bool = False,
    ) -> None:
        """Opens nothing yet: the file is read while batches are taken."""
        self.name = kind.name
        self.path = Path(path)
        self.num_dense = kind.num_dense
        self.targets = kind.targets
        self._kind = kind
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

    def train_batches(self, batch_size: int, start: Position) -> Iterator[Batch]:
        """See `Dataset`; `start` must come from a batch of the same file and size."""
        limit = self.num_train()
        done = start.batch * batch_size
        left = None if limit is None else limit - done
        samples = _Samples(self.path, self._kind, start.offset, max(start.line, 1), self.bad_lines)
        number = start.batch
        while left is None or left > 0:
            taken = samples.take(batch_size if left is None else min(batch_size, left))
            if taken is None:
                return
            number += 1
            if left is not None:
                left -= len(taken.labels)
            yield taken.batch(Position(start.epoch, number, taken.end, taken.line))

    def test_batches(self, batch_size: int) -> Iterator[Batch]:
        """See `Dataset`; reads the end of the file."""
        if self._scan is None or self._num_test == 0:
            return
        first = self._scan.samples - self._num_test
        mark = max((m for m in self._scan.marks if m.samples <= first), key=lambda m: m.samples)
        samples = _Samples(
            self.path, self._kind, mark.offset, mark.line, BadLines(self.bad_lines.skip)
        )
        skip = first - mark.samples
        while skip > 0:
            taken = samples.take(skip)
            if taken is None:
                return
            skip -= len(taken.labels)
        while (taken := samples.take(batch_size)) is not None:
            yield taken.batch(Position())


@dataclass(frozen=True)
class _Taken:
    """Samples taken off the stream, and the place behind the last of them."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.int64]
    end: int
    line: int

    def batch(self, following: Position) -> Batch:
        keys = np.ascontiguousarray(self.keys.T).reshape(-1)
        return Batch(self.dense, keys, np.arange(len(keys) + 1), self.labels, following)


class _Samples:
    """Cuts the stream of blocks into pieces of any size."""

    def __init__(self, path: Path, kind: Format, offset: int, line: int, bad: BadLines) -> None:
        self._blocks = _blocks(path, kind, offset, line, bad)
        self._located: _Located | None = None
        self._used = 0

    def take(self, count: int) -> _Taken | None:
        """Up to `count` samples, fewer only at the end of the file; None when there are none."""
        pieces: list[tuple[Block, slice]] = []
        end, line, missing = 0, 0, count
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
        if not pieces:
            return None
        if len(pieces) == 1:
            block, piece = pieces[0]
            return _Taken(block.labels[piece], block.dense[piece], block.keys[piece], end, line)
        return _Taken(
            np.concatenate([block.labels[piece] for block, piece in pieces]),
            np.concatenate([block.dense[piece] for block, piece in pieces]),
            np.concatenate([block.keys[piece] for block, piece in pieces]),
            end,
            line,
        )
