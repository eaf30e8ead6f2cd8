"""How the stores of a run of ranks lie in a folder (``docs/formats/ranks.md``). Without PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "BUCKETS",
    "RANKS",
    "UNFINISHED_RESHARD",
    "buckets_in",
    "commit_manifest_name",
    "folder_name",
    "folders_in",
    "manifest_content",
    "ranks_of",
]

BUCKETS = 1024
"""Each key is in one of so many, for ever."""
RANKS = "ranks"
"""The byte string of a commit of ranks that says which buckets its store has."""
UNFINISHED_RESHARD = "unfinished-reshard"
"""Lies in a folder of stores until all of them are whole."""
_FOLDER = re.compile(r"buckets-(\d{4})-(\d{4})")


def folder_name(first: int, last: int) -> str:
    """The folder of the store of these buckets."""
    return f"buckets-{first:04}-{last:04}"


def buckets_in(folder: str) -> tuple[int, int] | None:
    """First and last bucket of a store, by the name of its folder; None for other names."""
    match = _FOLDER.fullmatch(folder)
    return (int(match[1]), int(match[2])) if match else None


def folders_in(path: Path) -> dict[str, Path]:
    """The stores of ranks in a folder, by the names of theirs, in the order of buckets."""
    there = path.iterdir() if path.is_dir() else ()
    found = {
        child.name: child
        for child in there
        if buckets_in(child.name) is not None and (child / "superblock").is_file()
    }
    return dict(sorted(found.items()))


def ranks_of(world: int) -> str:
    """So many ranks, in words of a message."""
    return "1 rank" if world == 1 else f"{world:,} ranks"


def commit_manifest_name(step: int) -> str:
    """The file of the manifest of a commit."""
    return f"manifest-{step:012}.json"


def manifest_content(
    run: str, step: int, token: str, buckets: Sequence[str], tables: Mapping[str, str]
) -> bytes:
    """Content of the manifest of a commit; ``buckets`` are those of each rank in order, such as
    ``"0-511"``."""
    facts = {
        "format": 1,
        "run": run,
        "step": step,
        "token": token,
        "world": len(buckets),
        "buckets": list(buckets),
        "tables": dict(tables),
    }
    return json.dumps(facts, indent=1).encode() + b"\n"
