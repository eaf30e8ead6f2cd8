"""The folder in which a demo works."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from embedrock.errors import FullError
from embedrock_lab.demo.settings import Settings, ShapedSettings

#: Distinct keys of a sample, rounded up: how many rows a step may write.
_KEYS_PER_SAMPLE = 8
#: Size of a store relative to its rows, and bytes that are left to others.
_STORE_FACTOR, _FREE_BYTES_MIN = 1.3, 1 << 30

_S = TypeVar("_S", bound=Settings)


@contextlib.contextmanager
def work_folder(settings: _S, keep: bool) -> Iterator[_S]:
    """The settings with `folder` replaced by a fresh one in it, which is removed unless `keep`."""
    base = Path(settings.folder)
    base.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="demo-", dir=base)
    try:
        yield replace(settings, folder=folder)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def check_disk(settings: ShapedSettings, stores: int) -> None:
    """Errors: FullError naming what is there and what would be needed."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = settings.samples * _KEYS_PER_SAMPLE * settings.row_bytes
    each = int(_STORE_FACTOR * settings.rows * settings.row_bytes) + written
    free, needed = shutil.disk_usage(folder).free, stores * each
    if free < needed + _FREE_BYTES_MIN:
        raise FullError(
            f"{folder} has {free:,} bytes free, {stores} stores of {settings.rows:,} rows may take "
            f"{needed:,} and {_FREE_BYTES_MIN:,} are left to others; make room, choose another "
            f"disk with --cache-dir, or fewer --rows"
        )
