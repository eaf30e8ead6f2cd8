"""Warnings at the user's own line, through however many frames of this package and of PyTorch."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

__all__ = ["warn"]

_PACKAGE = str(Path(__file__).parent) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns where code of neither this package nor PyTorch called: there the user can act.

    A module of PyTorch calls the forward of its parts, an autograd function the backward of its
    own, so a fixed number of frames would name files that the user has not written.
    """
    inside = _inside()
    if sys.version_info >= (3, 12):
        warnings.warn(message, category, skip_file_prefixes=inside)
        return
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)  # beyond the last frame it names sys


def _inside() -> tuple[str, ...]:
    """The beginning of the paths of both packages' files."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)  # callers in torch have imported it
    return (_PACKAGE,) if torch is None else (_PACKAGE, str(Path(torch).parent) + os.sep)
