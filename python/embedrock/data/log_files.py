"""The files of a log: some that are named, those of a folder, or those that a pattern names.

Invariant: named files come in the given order, and those of a folder or a pattern in the order of
their names, in which numbers are compared as numbers: `part-9` comes before `part-10`. The log is
one file after another, and its last samples are the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from embedrock.data.errors import DataError

__all__ = ["check_there", "log_files"]

_NUMBERS = re.compile(r"(\d+)")
_PATTERN = re.compile(r"[*?\[]")


def check_there(files: Iterable[Path]) -> None:
    """Errors: DataError for a file that cannot be opened."""
    for path in files:
        try:
            path.open("rb").close()
        except OSError as error:
            raise DataError(f"cannot be opened: {error.strerror or error}", path=path) from error


def log_files(given: Sequence[Path]) -> tuple[Path, ...]:
    """The files that these paths name. Of a folder and of the folders in it, those are left out
    whose names begin with "." or "_": marks and sums of the programs that wrote the others.

    Errors: DataError for a folder or a pattern without files, and for a file that comes twice.
    """
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            files = [file for file in path.rglob("*") if _is_data(file, path)]
            if not files:
                raise DataError("holds no files, expected those of a log", path=path)
        elif _PATTERN.search(path.name) and not path.exists():
            files = [file for file in path.parent.glob(path.name) if file.is_file()]
            if not files:
                raise DataError("is a pattern that no file has the name of", path=path)
        else:
            found.append(path)
            continue
        found += sorted(files, key=_by_name)
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise DataError("comes twice among the files of the log; name it once", path=path)
        seen.add(path.resolve())
    return tuple(found)


def _is_data(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return file.is_file() and not any(part.startswith((".", "_")) for part in parts)


def _by_name(path: Path) -> list[list[tuple[int, str]]]:
    """Names with their numbers as numbers."""
    return [
        [(int(word), "") if word.isdecimal() else (-1, word) for word in _NUMBERS.split(part)]
        for part in path.parts
    ]
