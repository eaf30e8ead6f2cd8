"""The folder in which a demo works."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from embedrock.demo.settings import Settings

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
