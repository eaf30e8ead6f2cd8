"""Waiting for the disk."""

from __future__ import annotations

import os

__all__ = ["sync"]


def sync(path: str | os.PathLike[str]) -> None:
    """Waits until the disk has a file, or of a directory the names in it.

    Errors: ``OSError``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
