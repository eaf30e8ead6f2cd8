"""Files of a graph: lines of whole numbers, rows of numbers, arrays of NumPy.

Texts are read by blocks, plain or packed, and converted whole; a block in which something is amiss
is gone through line by line, for the line to be named. Parquet is read by `graph_parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock._warnings import warn
from embedrock.data.bad_lines import BadLines
from embedrock.data.errors import DataError
from embedrock.data.graph_parquet import read_features, read_names, read_numbers
from embedrock.data.names import Names
from embedrock.data.parquet import is_parquet
from embedrock.data.text import whole_lines

__all__ = ["find", "load_array", "read_dense", "read_named", "read_pairs"]
__all__ += ["read_sparse"]

Ids: TypeAlias = npt.NDArray[np.int64]

_SHOWN = 60
_SPACES = bytes.maketrans(b",;\t\r", b"    ")
_DIGITS = b"0123456789 \n"
_PLACES_MAX = 1 << 40
_DENSE_BYTES = 64 << 20
_DENSE_TIMES = 16
"""Features of more bytes, with more than 16 values per nonzero one, are worth a word."""
_LARGEST = np.iinfo(np.int64).max
_TEXTS = tuple(f"{kind}{packed}" for kind in (".tsv", ".csv", ".txt") for packed in ("", ".gz"))
_TEXTS += (".tsv.zst", ".csv.zst", ".txt.zst", ".parquet")


def find(folder: Path, name: str, arrays: tuple[str, ...] = (".npy",)) -> Path | None:
    """The file of this name with one of the endings that are read; None where there is none.

    Errors: DataError for two of them.
    """
    there = [folder / f"{name}{ending}" for ending in (*_TEXTS, *arrays)]
    there = [path for path in there if path.is_file()]
    if len(there) > 1:
        raise DataError(f"has {there[0].name} and {there[1].name}; keep one", path=folder)
    return there[0] if there else None


def read_pairs(path: Path, expected: str, bad: BadLines, nodes: tuple[int, str] | None) -> Ids:
    """Lines of two whole numbers from 0 on, as ``(2, L)``, separated by tab, comma or space.

    A first line without any number is a header; empty ones and those that begin with "#" are left
    out. ``expected`` says what the two are, and ``nodes`` below what the first must be, and the
    second where both are nodes, with what has so many.

    Errors: DataError with the line, unless ``bad`` counts it.
    """
    limit, told = (_LARGEST, "") if nodes is None else nodes
    ends = 2 if expected == EDGE else 1

    def check(pairs: Ids, lines: Sequence[int] | None, rows: Ids | None = None) -> Ids:
        beyond = (pairs[:, :ends] >= limit).any(axis=1)
        for place in np.flatnonzero(beyond).tolist():
            problem = beyond_text(int(pairs[place, :ends].max()), limit, told)
            line = None if lines is None else lines[place]
            row = None if rows is None else int(rows[place])
            bad.add(DataError(problem, path=path, line=line, row=row))
        return pairs[~beyond] if beyond.any() else pairs

    blocks = []
    if is_parquet(path):
        for pairs, numbers in read_numbers(path, expected, bad):
            blocks.append(check(pairs, None, numbers))
        return _joined(blocks)
    for first, text in whole_lines(path):
        plain = text.translate(_SPACES)
        found = _two_a_line(plain)
        if found is not None:
            blocks.append(check(found, range(first, first + len(found))))
            continue
        rows, lines = [], []
        for number, words in _words(plain, first):
            problem = None
            if not all(word.isdigit() for word in words):
                problem = f"{_shown(b' '.join(words))}, expected whole numbers from 0 on"
                problem += "; map_ids=True numbers names and words"
            elif len(words) != 2:
                problem = f"{len(words)} numbers, expected {expected}"
            elif max(int(word) for word in words) >= _LARGEST:
                problem = f"{_shown(b' '.join(words))}, expected numbers below 2**63 - 1"
            if problem is not None:
                bad.add(DataError(problem, path=path, line=number))
                continue
            rows.append([int(word) for word in words])
            lines.append(number)
        pairs = np.array(rows, np.int64).reshape(-1, 2)
        blocks.append(check(pairs, lines))
    return _joined(blocks)


def _joined(blocks: list[Ids]) -> Ids:
    joined = np.concatenate(blocks) if blocks else np.empty((0, 2), np.int64)
    return np.ascontiguousarray(joined.T)


def read_named(path: Path, expected: str, bad: BadLines) -> list[tuple[bytes, bytes]]:
    """Lines of two names, separated by tab, comma or space; empty ones and those that begin with
    "#" are left out. There is no header. Of Parquet, the texts of two columns.

    Errors: DataError with the line, unless ``bad`` counts it.
    """
    if is_parquet(path):
        return read_names(path, expected, bad)
    found = []
    for first, text in whole_lines(path):
        for number, line in enumerate(text.translate(_SPACES).split(b"\n"), first):
            words = line.split()
            if not words or words[0].startswith(b"#"):
                continue
            if len(words) != 2:
                problem = f"{len(words)} words, expected {expected}"
                bad.add(DataError(problem, path=path, line=number))
                continue
            found.append((words[0], words[1]))
    return found


EDGE = "two nodes"
"""The expectation of ``read_pairs`` for edges."""


def beyond_text(node: int, limit: int, told: str) -> str:
    """Of a node that there is not: which, what there is instead, and the way out."""
    return (
        f"node {node}, expected 0 to {limit - 1}, as {told}; leave it out, or give the node a row "
        f"there"
    )


def read_dense(path: Path) -> npt.NDArray[np.float32]:
    """Rows of numbers, one line for each node, ``(N, D)``; a first line without any is a header.

    Errors: DataError with the line, of a row of another width too.
    """
    if is_parquet(path):
        return read_features(path)
    blocks: list[npt.NDArray[np.float32]] = []
    width = 0
    for first, text in whole_lines(path):
        rows = []
        for number, words in _words(text.translate(_SPACES), first):
            try:
                row = np.array(words, np.float32)
            except ValueError as error:
                problem = f"{_shown(b' '.join(words))}, expected numbers"
                raise DataError(problem, path=path, line=number) from error
            width = width or len(row)
            if len(row) != width:
                raise DataError(
                    f"{len(row)} features, expected {width}, as in the lines before; every node "
                    f"has as many",
                    path=path,
                    line=number,
                )
            rows.append(row)
        if rows:
            blocks.append(np.stack(rows))
    if not blocks:
        raise DataError("has no rows of numbers", path=path)
    return np.concatenate(blocks)


def read_sparse(path: Path, names: Names | None = None) -> npt.NDArray[np.float32]:
    """Lines of a node and the places of its features that are one, as ``(N, D)``: nodes and places
    up to the largest that comes. With ``names`` a node is one of them, or a new one.

    Errors: DataError with the line.
    """
    nodes: list[int] = []
    places: list[int] = []
    most = -1
    for first, text in whole_lines(path):
        for number, words in _words(text.translate(_SPACES), first):
            if names is not None:
                words[0] = str(names.add([words[0]])[0]).encode()
            if not all(word.isdigit() for word in words):
                problem = f"{_shown(b' '.join(words))}, expected whole numbers from 0 on"
                if names is None:
                    problem += "; map_ids=True numbers nodes that have names"
                raise DataError(problem, path=path, line=number)
            node, *here = (int(word) for word in words)
            if max(node, *here, 0) >= _PLACES_MAX:
                problem = f"{max(node, *here)}, expected nodes and places below {_PLACES_MAX}"
                raise DataError(problem, path=path, line=number)
            most = max(most, node)
            nodes.extend([node] * len(here))
            places.extend(here)
    if not places:
        raise DataError("has no features", path=path)
    shape = most + 1, max(places) + 1
    _warn_dense(path, shape, len(places), names is not None)
    rows = np.zeros(shape, np.float32)
    rows[nodes, places] = 1.0
    return rows


def load_array(path: Path, names: tuple[str, ...] = ()) -> npt.NDArray[Any]:
    """The array of a ``.npy`` file, mapped, or of a ``.npz`` file: the one of these names, the only
    one, or a matrix that SciPy has saved as CSR, which becomes dense.

    Errors: DataError.
    """
    try:
        found: Any = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None)
        if isinstance(found, np.ndarray):
            return found
        with found:
            arrays: dict[str, npt.NDArray[Any]] = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"is no array of NumPy that can be read: {error}", path=path) from error
    if {"indptr", "indices", "data", "shape"} <= arrays.keys():
        return _dense(path, arrays)
    named = [arrays[name] for name in names if name in arrays]
    if len(named) != 1 and len(arrays) == 1:
        named = [*arrays.values()]
    if len(named) != 1:
        raise DataError(
            f"has the arrays {', '.join(arrays) or 'none'}, expected one, or one of the name "
            f"{' or '.join(names)}",
            path=path,
        )
    return named[0]


def _dense(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    kind = arrays.get("format", np.array(b"csr")).item()
    if kind not in (b"csr", "csr"):
        raise DataError(f"is a matrix in format {kind!r}, expected csr: save x.tocsr()", path=path)
    nodes, width = (int(n) for n in arrays["shape"])
    _warn_dense(path, (nodes, width), len(arrays["indices"]))
    rows = np.zeros((nodes, width), np.float32)
    begins = arrays["indptr"].astype(np.int64)
    if len(begins) != len(rows) + 1 or begins[-1] != len(arrays["indices"]):
        raise DataError("is no whole matrix: indptr does not fit shape and indices", path=path)
    of = np.repeat(np.arange(len(rows)), np.diff(begins))
    np.add.at(rows, (of, arrays["indices"]), arrays["data"])
    return rows


def _warn_dense(path: Path, shape: tuple[int, int], ones: int, has_names: bool = False) -> None:
    """Warns, before it is allocated, of a table that is almost all zeros."""
    nodes, width = shape
    size = nodes * width * 4
    if size <= _DENSE_BYTES or ones * _DENSE_TIMES >= nodes * width:
        return
    fewer = "keep the places that say most"
    if not has_names:  # the rows have no order
        fewer = (
            "put a projection of them in its place as features.npy (TruncatedSVD of scikit-learn, "
            "to 128 columns)"
        )
    warn(
        f"{path} becomes a dense table of {nodes:,} x {width:,} float32, {size:,} bytes in memory "
        f"and on disk, of which {ones:,} values are not 0. Fewer columns make it small: {fewer}, "
        f"or train embeddings without features (--rows embeddings)"
    )


def _words(plain: bytes, first: int) -> Iterator[tuple[int, list[bytes]]]:
    """The words of each line that has some and is neither header nor comment."""
    for number, line in enumerate(plain.split(b"\n"), first):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        if number == 1 and not any(_is_number(word) for word in words):
            continue
        yield number, words


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _two_a_line(plain: bytes) -> Ids | None:
    """Lines of two numbers with one space between them; None where they are not all that."""
    if plain.translate(None, _DIGITS):
        return None
    text = np.frombuffer(plain, np.uint8)
    ends, spaces = np.flatnonzero(text == ord("\n")), np.flatnonzero(text == ord(" "))
    if len(ends) != len(spaces) or (spaces > ends).any() or (spaces[1:] < ends[:-1]).any():
        return None
    numbers = np.fromstring(plain.decode("ascii"), np.int64, sep=" ")
    if len(numbers) != 2 * len(ends) or numbers.max() >= _LARGEST:
        return None
    return numbers.reshape(-1, 2)


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN].decode(errors="replace"))
