"""Reads MovieLens ratings and what is known about users and items, in each of its published forms.

| ratings file | separator | users | items |
|---|---|---|---|
| `*.inter` (RecBole) | tab, header | `*.user` | `*.item` |
| `u.data` (100K) | tab | `u.user` | `u.item` |
| `ratings.dat` (1M, 10M) | `::` | `users.dat` | `movies.dat` |
| `ratings.csv` (20M and later) | comma, header | none | `movies.csv` |

Every file may be gzip or zstd. Users and items files lie beside the ratings; where one is missing,
the features made of it are left out. Any other file name is read as ratings by its separator.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedrock.data.bad_lines import BadLines
from embedrock.data.errors import DataError
from embedrock.data.text import TextStream

_RATINGS_NAMES = ("ml-100k.inter", "u.data", "ratings.dat", "ratings.csv")
_Row = TypeVar("_Row", bound=tuple[Any, ...])
_COMPRESSED = ("", ".gz", ".zst")
_FIRST_BYTES = 1 << 16
_MARK = "\xef\xbb\xbf"
"""Of UTF-8, as latin-1."""
_GENRES_100K = [
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
]


@dataclass
class Users:
    """Per rating: what the users file says. Codes are 64-bit hashes of the tokens."""

    age: NDArray[np.int64]
    gender: NDArray[np.int64]
    occupation: NDArray[np.int64]
    zip_prefix: NDArray[np.int64]


@dataclass
class Items:
    """Per rating: release year (0 where unknown) and genres as bags."""

    year: NDArray[np.int64]
    genres: NDArray[np.int64]
    genre_offsets: NDArray[np.int64]


@dataclass
class Ratings:
    """All ratings in order of time (stable), with attributes joined on. Shapes: (N,) each."""

    path: Path
    user: NDArray[np.int64]
    item: NDArray[np.int64]
    rating: NDArray[np.float32]
    timestamp: NDArray[np.int64]
    users: Users | None
    items: Items | None
    bad_lines: BadLines


def read(path: str | Path, *, skip_bad_lines: bool = False) -> Ratings:
    """The ratings in `path`, a ratings file or a folder that holds one, with users and items.

    Errors: DataError with file, line and what was wrong, at the first malformed line unless
    `skip_bad_lines`; the rest of lines are then read and `bad_lines` counts.
    """
    ratings_path = ratings_file(Path(path))
    bad = BadLines(skip_bad_lines)
    rows = list(_rows(ratings_path, _separator(ratings_path), bad, _rating))
    if not rows:
        raise DataError("holds no ratings", path=ratings_path)
    user, item, rating, timestamp = (np.array(column) for column in zip(*rows, strict=True))
    order = np.argsort(timestamp, kind="stable")
    user, item = user[order].astype(np.int64), item[order].astype(np.int64)
    return Ratings(
        path=ratings_path,
        user=user,
        item=item,
        rating=rating[order].astype(np.float32),
        timestamp=timestamp[order].astype(np.int64),
        users=_join_users(ratings_path, user, bad),
        items=_join_items(ratings_path, item, bad),
        bad_lines=bad,
    )


def token_code(token: str) -> int:
    """A signed 64-bit code of a token that is the same in every process and version."""
    return int.from_bytes(
        hashlib.blake2b(token.encode(), digest_size=8).digest(), "little", signed=True
    )


def ratings_file(path: Path) -> Path:
    """The file that `read` takes ratings from. Errors: DataError when a folder holds none."""
    if not path.is_dir():
        return path
    candidates = [path / (n + c) for n in _RATINGS_NAMES for c in _COMPRESSED]
    candidates += sorted(path.glob("*.inter"))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DataError(f"folder holds none of {', '.join(_RATINGS_NAMES)}", path=path)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that `read` reads: ratings, and users and items where they are there.

    Errors: DataError when a folder holds no ratings.
    """
    ratings = ratings_file(path)
    stem = _plain_name(ratings).removesuffix(".inter")
    found = [ratings]
    for names in (
        (f"{stem}.user", "u.user", "users.dat"),
        (f"{stem}.item", "u.item", "movies.dat", "movies.csv"),
    ):
        there = _beside(ratings, *names)
        found += [] if there is None else [there]
    return tuple(found)


def was_taken_for_header(path: Path) -> bool:
    """Whether versions that read by older rules left the first rating out: one behind a mark, a
    space or a sign."""
    ratings = ratings_file(path)
    with TextStream(ratings, keep_mark=True) as stream:
        first = stream.read(_FIRST_BYTES).decode("latin-1").split("\n")[0]
    before = first.split(_separator(ratings))[0]
    return not before.isdigit() and _is_number(before.removeprefix(_MARK))


def _plain_name(path: Path) -> str:
    return path.stem if path.suffix in (".gz", ".zst") else path.name


def _beside(ratings: Path, *names: str) -> Path | None:
    """The first of the named files, compressed or not, in the folder of the ratings."""
    for name in names:
        for compressed in _COMPRESSED:
            candidate = ratings.with_name(name + compressed)
            if candidate.is_file():
                return candidate
    return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, line without its end); latin-1, which older releases use, where UTF-8 fails."""
    with TextStream(path) as stream:
        text = b"".join(iter(lambda: stream.read(1 << 22), b""))
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        decoded = text.decode("latin-1")
    for number, line in enumerate(decoded.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line.strip():
            yield number, line


def _separator(path: Path) -> str:
    name = _plain_name(path)
    known = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}
    if name in known:
        return known[name]
    if name.endswith(".inter"):
        return "\t"
    for _, line in _lines(path):
        return next((s for s in ("::", "\t", ",") if s in line), "\t")
    return "\t"


def _rows(
    path: Path, separator: str, bad: BadLines, parse: Callable[[list[str]], _Row]
) -> Iterator[_Row]:
    """Parses each line; a first line whose first field is no number is the header."""
    for number, line in _lines(path):
        fields = next(csv.reader([line])) if separator == "," else line.split(separator)
        if number == 1 and not _is_number(fields[0]):
            continue
        try:
            yield parse(fields)
        except ValueError as error:
            bad.add(DataError(str(error), path=path, line=number))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _id(text: str) -> int:
    """An id of 64 bits. Errors: ValueError."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"id {text} lies outside of 64 bits, expected -2^63 to 2^63 - 1")
    return number


def _rating(fields: list[str]) -> tuple[int, int, float, int]:
    if len(fields) != 4:
        raise ValueError(f"{len(fields)} fields, expected 4: user, item, rating, time")
    rating = float(fields[2])
    if not 0 <= rating <= 10:
        raise ValueError(f"rating is {fields[2]}, expected 0 to 10")
    time = float(fields[3])
    if not abs(time) < 2**63:
        raise ValueError(f"time is {fields[3]}, expected seconds since 1970")
    return _id(fields[0]), _id(fields[1]), rating, int(time)


def _user(
    age: int, gender: int, occupation: int, zip_code: int
) -> Callable[[list[str]], tuple[int, ...]]:
    """A parser of users lines with the given field places."""
    width = 5

    def parse(fields: list[str]) -> tuple[int, int, int, int, int]:
        if len(fields) != width:
            raise ValueError(f"{len(fields)} fields, expected {width}")
        return (
            _id(fields[0]),
            _id(fields[age]),
            token_code(fields[gender]),
            token_code(fields[occupation]),
            token_code(fields[zip_code][:2]),
        )

    return parse


def _join_users(ratings: Path, user: NDArray[np.int64], bad: BadLines) -> Users | None:
    stem = _plain_name(ratings).removesuffix(".inter")
    for names, separator, parse in (
        ((f"{stem}.user",), "\t", _user(1, 2, 3, 4)),
        (("u.user",), "|", _user(1, 2, 3, 4)),
        (("users.dat",), "::", _user(2, 1, 3, 4)),
    ):
        path = _beside(ratings, *names)
        if path is None:
            continue
        known = {row[0]: row[1:] for row in _rows(path, separator, bad, parse)}
        nobody = (0, token_code(""), token_code(""), token_code(""))
        table = np.array([known.get(int(u), nobody) for u in user], np.int64)
        return Users(*(np.ascontiguousarray(table[:, c]) for c in range(4)))
    return None


def _year(text: str) -> int:
    found = re.search(r"(?:18|19|20)\d\d", text)
    return int(found.group()) if found else 0


def _item_recbole(fields: list[str]) -> tuple[int, int, list[str]]:
    if len(fields) != 4:
        raise ValueError(f"{len(fields)} fields, expected 4: item, title, year, genres")
    return _id(fields[0]), _year(fields[2]), fields[3].split()


def _item_100k(fields: list[str]) -> tuple[int, int, list[str]]:
    if len(fields) != 24:
        raise ValueError(f"{len(fields)} fields, expected 24: item, title, dates, link, 19 genres")
    genres = [g for g, flag in zip(_GENRES_100K, fields[5:], strict=True) if flag == "1"]
    return _id(fields[0]), _year(fields[2]), genres


def _item_titled(fields: list[str]) -> tuple[int, int, list[str]]:
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields, expected 3: item, title (year), genres")
    in_title = re.search(r"\((\d{4})\)\s*$", fields[1])
    return _id(fields[0]), int(in_title.group(1)) if in_title else 0, fields[2].split("|")


def _join_items(ratings: Path, item: NDArray[np.int64], bad: BadLines) -> Items | None:
    stem = _plain_name(ratings).removesuffix(".inter")
    for names, separator, parse in (
        ((f"{stem}.item",), "\t", _item_recbole),
        (("u.item",), "|", _item_100k),
        (("movies.dat",), "::", _item_titled),
        (("movies.csv",), ",", _item_titled),
    ):
        path = _beside(ratings, *names)
        if path is None:
            continue
        known = {row[0]: row[1:] for row in _rows(path, separator, bad, parse)}
        years = np.array([known.get(int(i), (0, []))[0] for i in item], np.int64)
        codes = {key: [token_code(g) for g in row[1]] for key, row in known.items()}
        bags = [codes.get(int(i), []) for i in item]
        offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])]).astype(np.int64)
        genres = np.array([code for bag in bags for code in bag], np.int64)
        return Items(years, genres, offsets)
    return None
