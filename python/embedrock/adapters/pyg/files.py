"""Arrays and a list of them in a directory: attributes and edges that do not go into tables.

A file appears under its name whole and durable, or not at all. The list comes after the arrays that
it names.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embedrock._arguments import file_errors, named_path
from embedrock.errors import CorruptError
from embedrock.weights.drafts import atomic, writing

__all__ = ["Directory"]

_VERSION = 1


class Directory:
    """Arrays of a feature or graph store, by file names, and what is known of them."""

    def __init__(self, path: str | os.PathLike[str], listed: str) -> None:
        """Makes the directory; ``listed`` is the name of the list."""
        self.path = named_path("directory", path)
        self._list = self.path / listed
        with file_errors(f"making {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[dict[str, Any]]:
        """The last list, or an empty one. Errors: ``CorruptError``."""
        if not self._list.exists():
            return []
        with file_errors(f"reading {self._list}"):
            text = self._list.read_text()
        try:
            found = json.loads(text)
            entries: list[dict[str, Any]] = found["entries"]
            version = found["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{self._list} is damaged: {error}") from error
        if version != _VERSION:
            raise CorruptError(f"{self._list} has version {version}, this build reads {_VERSION}")
        return entries

    def write_list(self, entries: list[dict[str, Any]]) -> None:
        """Lists these instead of what was listed, and drops the files that no entry names."""
        text = json.dumps({"version": _VERSION, "entries": entries}, indent=1)
        with atomic(self._list) as draft:
            draft.write(text.encode(), at=0)
        used = {name for entry in entries for name in entry["files"].values()}
        for path in self.path.glob(f"{self._list.stem}-*.npy"):
            if path.name not in used:
                with contextlib.suppress(OSError):  # nobody reads it: it only takes room
                    path.unlink()

    def save(self, array: Tensor) -> str:
        """Writes a tensor to a file of its own and returns its name."""
        number = 0
        while (path := self.path / f"{self._list.stem}-{number}.npy").exists():
            number += 1
        values = array.detach().cpu().contiguous()
        bits = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        with atomic(path) as draft, writing(path):
            np.save(draft.file, bits.numpy())
        return path.name

    def map(self, name: str, dtype: torch.dtype) -> Tensor:
        """A file's array as a tensor over the mapped file; writing to it changes memory alone.

        Errors: ``CorruptError``, ``IoError``.
        """
        path = self.path / name
        with file_errors(f"reading {path}"):
            try:
                found = np.load(path, mmap_mode="c")
            except (ValueError, EOFError) as error:
                raise CorruptError(f"{path} is no .npy file that can be mapped: {error}") from error
        tensor = torch.from_numpy(found)
        return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor
