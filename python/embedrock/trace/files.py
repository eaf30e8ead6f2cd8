"""Files of traces: which format one has, reading several, writing one. See `docs/formats/trace.md`.

A format that is read is told by the first bytes of the file, one that is written by its name.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedrock._arguments import Progress, file_errors
from embedrock.data.errors import DataError
from embedrock.errors import MisuseError
from embedrock.trace import parquet, text
from embedrock.trace.collected import Collected, Part
from embedrock.trace.queries import Queries, checked, total_keys

__all__ = ["DAMAGED", "ENDINGS", "UNNAMED", "ending", "read", "replaced", "write"]

UNNAMED = ""
"""The name of a table of which a file does not say it."""
_ARRAYS = ("values", "offsets")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NUMPY = b"\x93NUMPY"
_PARQUET = b"PAR1"
_HEAD_BYTES = 8
DAMAGED: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, KeyError, RuntimeError)
DAMAGED += (MemoryError, zipfile.BadZipFile, zlib.error)
"""The errors of reading a damaged archive."""
_NPZ = (
    'np.savez(file, values=..., offsets=...) of one table, or {"<table>/values": ..., '
    '"<table>/offsets": ...} of several'
)
ENDINGS = (".npz", ".txt", ".txt.gz", ".txt.zst", ".parquet")


def read(
    paths: Sequence[Path],
    *,
    table: str | None,
    column: str | None,
    form: str | None,
    keys: str,
    share: float,
    seed: int,
    progress: Progress | None,
) -> dict[str, Queries]:
    """The queries of files one after another, by table. See ``Trace.load``."""
    collected = Collected(share, seed)
    sizes = [_size(path) for path in paths]
    for place, path in enumerate(paths):
        before, size = sum(sizes[:place]), sizes[place]

        def report(done: float, before: int = before, size: int = size) -> None:
            if progress is not None:
                progress(before + round(min(done, 1) * size), sum(sizes))

        for part in _parts(path, table, column, form, keys, report):
            try:
                collected.add(part)
            except MisuseError as error:
                raise DataError(str(error), path=path) from error
        report(1)
    named = ", ".join(map(str, paths))
    if collected.seen == 0:
        raise DataError("holds no query, expected one at least", path=named)
    found = collected.tables()
    if total_keys(found) == 0:
        problem = f"holds no key in {collected.seen:,} queries, expected one at least"
        if collected.kept < collected.seen:
            problem = f"holds no key in {collected.kept:,} of {collected.seen:,} queries, a sample"
            problem += f" of {share:g}; take a larger one"
        raise DataError(problem, path=named)
    return found


def _parts(
    path: Path, table: str | None, column: str | None, form: str | None, keys: str, report: Any
) -> Iterator[dict[str, Part]]:
    """Parts of one file, by table. ``report`` gets how much of it is done, from 0 to 1."""
    head, size = _head(path), max(_size(path), 1)
    name = UNNAMED if table is None else table
    if column is not None and not head.startswith(_PARQUET):
        raise DataError(f"is no Parquet file and has no column {column!r}", path=path)
    if form is not None and head.startswith((*_ZIP, _NUMPY, _PARQUET)):
        raise DataError(f"is no text, which alone has a format; leave {form!r} out", path=path)
    if keys == "words" and head.startswith((*_ZIP, _NUMPY)):
        raise DataError("has keys already; leave out that they are of words", path=path)
    if head.startswith(_ZIP):
        found = _npz(path, table)
        yield {name: (one.values, np.diff(one.offsets)) for name, one in found.items()}
    elif head.startswith(_NUMPY):
        raise DataError(f"is a single NumPy array, expected {_NPZ}", path=path)
    elif head.startswith(_PARQUET):
        read = parquet.parts(
            path, column, lambda row, rows: report(row / max(rows, 1)), words=keys == "words"
        )
        for part in read:
            yield {name: part}
    else:
        read = text.parts(path, form=form, keys=keys, progress=lambda done: report(done / size))
        for part in read:
            yield {name: part}


def _npz(path: Path, table: str | None) -> dict[str, Queries]:
    """The tables of an ``.npz`` file, or the one of that name. Errors: ``DataError``."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            named = _named(path, arrays.files, table)
            found = {name: [arrays[one] for one in pair] for name, pair in named.items()}
    except DataError:
        raise
    except DAMAGED as error:
        raise DataError(f"cannot be read as an .npz file: {error}", path=path) from error
    try:
        tables = {name: checked(pair[0], pair[1], name) for name, pair in found.items()}
    except MisuseError as error:
        raise DataError(str(error), path=path) from error
    counts = {name: len(one) for name, one in tables.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count:,} of {name!r}" for name, count in counts.items())
        raise DataError(
            f"has queries {said}: expected as many of each table; a query that asks nothing of a "
            f"table has two equal offsets there",
            path=path,
        )
    return tables


def _named(path: Path, files: Sequence[str], table: str | None) -> dict[str, tuple[str, str]]:
    """The names of both arrays by table, or of that table alone. Errors: ``DataError``."""
    parts = {one: one.rpartition("/") for one in files}
    strange = [one for one, (_, _, kind) in parts.items() if kind not in _ARRAYS]
    if strange or not files:
        what = f"the array {strange[0]!r}" if strange else "no arrays"
        raise DataError(f"has {what}, expected {_NPZ}", path=path)
    names = list(dict.fromkeys(name for name, _, _ in parts.values()))
    pairs = {}
    for name in names:
        pair = tuple(f"{name}/{kind}" if name else kind for kind in _ARRAYS)
        absent = [one for one in pair if one not in files]
        if absent:
            raise DataError(f"has no array {absent[0]!r}, expected {_NPZ}", path=path)
        pairs[name] = (pair[0], pair[1])
    if UNNAMED in pairs and len(pairs) > 1:
        raise DataError(
            f"has arrays of a table without a name beside {names[-1] or names[0]!r}: expected "
            f"{_NPZ}",
            path=path,
        )
    if table is None:
        return pairs
    if UNNAMED in pairs:
        return {table: pairs[UNNAMED]}
    if table not in pairs:
        known = ", ".join(map(repr, names))
        raise DataError(f"has no table {table!r}; it has {known}", path=path)
    return {table: pairs[table]}


def ending(path: Path) -> str:
    """The ending of the name, which selects the format to write. Errors: ``MisuseError``."""
    for one in ENDINGS:
        if path.name.lower().endswith(one):
            return one
    raise MisuseError(f"{path} is no name of a trace, expected one of *{', *'.join(ENDINGS)}")


def write(path: Path, tables: Mapping[str, Queries]) -> None:
    """Writes a trace in the format that its name ends with. See ``Trace.save``."""
    end = ending(path)
    if end != ".npz" and len(tables) > 1:
        raise MisuseError(
            f"{path} can hold one table, and the trace has {', '.join(map(repr, tables))}: save it "
            f"as .npz, or the traces of its tables one by one (trace.only)"
        )
    name, queries = next(iter(tables.items()))
    with replaced(path) as new, file_errors(f"writing {path}"):
        if end == ".npz":
            arrays: dict[str, Any] = {}
            for table, one in tables.items():
                before = f"{table}/" if table else ""
                arrays[f"{before}values"], arrays[f"{before}offsets"] = one.values, one.offsets
            with new.open("wb") as file:
                np.savez(file, **arrays)
        elif end == ".parquet":
            parquet.write(new, queries, name or "keys")
        else:
            text.write(new, queries, end.removeprefix(".txt"))


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of ``path`` when all went well: never a half of one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        yield new
        with file_errors(f"writing {path}"):
            new.replace(path)
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"cannot be opened: {error.strerror or error}", path=path) from error


def _size(path: Path) -> int:
    """Bytes of a file; 0 where it cannot be looked at, which opening it will say."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
