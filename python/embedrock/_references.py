"""Whether models are pickled and copied by reference: with where their rows are, and without them.

Stores and modules ask; ``embedrock.nn.by_reference`` says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["is_by_reference", "referring"]


class _References(threading.local):
    """Whether this thread pickles and copies by reference."""

    depth = 0


_references = _References()


@contextlib.contextmanager
def referring() -> Iterator[None]:
    """Within the block, and in this thread, it does."""
    _references.depth += 1
    try:
        yield
    finally:
        _references.depth -= 1


def is_by_reference() -> bool:
    """Whether the calling thread pickles and copies by reference."""
    return _references.depth > 0
