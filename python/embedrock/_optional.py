"""Packages that are not installed with Embedrock, and how to get them.

Errors name the missing library itself, because every package index has it. An extra such as
``embedrock[torch]`` works only with an index that has this package.
"""

from __future__ import annotations

import importlib.util

__all__ = ["missing", "require_torch"]


def missing(what: str, library: str, package: str) -> str:
    """ "embedrock.nn needs PyTorch: pip install torch"."""
    return f"{what} needs {library}: pip install {package}"


def require_torch(what: str) -> None:
    """Errors: ``ModuleNotFoundError`` that says what needs PyTorch, when it is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(missing(what, "PyTorch", "torch"), name="torch")
