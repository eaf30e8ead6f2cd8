"""The manifest of a commit of ranks: which stores it is made of, for readers and exporters.

Ranks need none to go on: they ask each other. One is written when all stores have the commit, so
what it names is there until the stores' later commits drop it (``docs/formats/ranks.md``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from embedrock._arguments import file_errors
from embedrock._ranks import commit_manifest_name, manifest_content
from embedrock.distributed.binding import Binding
from embedrock.weights.drafts import atomic

__all__ = ["remove_manifests", "write_manifest"]

_MANIFEST = re.compile(r"manifest-(\d{12,20})\.json")


def write_manifest(folder: Path, bound: Binding, step: int, buckets: Sequence[str]) -> None:
    """Writes it into a folder of stores, durably.

    ``buckets`` are those of each rank in their order, such as ``"0-511"``.

    Errors: ``FullError``, ``IoError``.
    """
    with atomic(folder / commit_manifest_name(step)) as file:
        file.write(manifest_content(bound.run, step, bound.token, buckets, bound.tables), 0)


def remove_manifests(folder: Path, kept: Collection[int]) -> None:
    """Removes those of steps that a store in the folder does not keep.

    Errors: ``IoError``.
    """
    with file_errors(f"removing old manifests in {folder}"):
        for old in folder.iterdir():
            match = _MANIFEST.fullmatch(old.name)
            if match and int(match[1]) not in kept:
                old.unlink(missing_ok=True)
