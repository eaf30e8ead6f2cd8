"""The files of a knowledge graph, by their names; `embedrock.kge` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from embedrock.data.errors import DataError

__all__ = ["PARTS", "UNKNOWN", "Unknown", "files_of"]

Unknown: TypeAlias = Literal["refuse", "skip", "add"]
"""The treatment of names that training does not have."""

UNKNOWN = ("refuse", "skip", "add")
PARTS = ("train", "valid", "test")
_SUFFIXES = ("", ".tsv", ".txt", ".tsv.gz", ".txt.gz", ".tsv.zst", ".txt.zst")


def files_of(folder: str | Path) -> dict[str, Path]:
    """The files of a folder by part: ``train``, and ``valid`` and ``test`` where they are there,
    with an ending of text files, plain, gzip or zstd.

    Errors: ``DataError`` for a folder without a file for training, or with two for one part.
    """
    folder = Path(folder)
    found: dict[str, Path] = {}
    for part in PARTS:
        there = [folder / f"{part}{suffix}" for suffix in _SUFFIXES]
        there = [path for path in there if path.is_file()]
        if len(there) > 1:
            raise DataError(f"has {there[0].name} and {there[1].name}; keep one", path=folder)
        if there:
            found[part] = there[0]
    if "train" not in found:
        raise DataError(
            "has no train.tsv or train.txt, plain, gzip or zstd, with a triple a line: head, "
            "relation and tail, separated by tabs",
            path=folder,
        )
    return found
