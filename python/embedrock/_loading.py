"""Loading a model's dense part alone, whatever its rows are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["is_dense_only", "loading_dense_only"]


class _Ignored(threading.local):
    """Whether this thread loads without a look at rows."""

    depth = 0


_ignored = _Ignored()


@contextlib.contextmanager
def loading_dense_only() -> Iterator[None]:
    """Lets ``load_state_dict`` take a dict that was saved beside other rows.

    Dense parameters alone are loaded, and rows stay as they are. It is for rows that are known to
    fit: those of a copy of the store, for example. It holds for the calling thread.

    >>> import torch
    >>> bag = embedrock.nn.EmbeddingBag(None, 4, store=store, name="words")
    >>> saved = bag.state_dict()
    >>> bag.table.update([7], np.ones((1, 4), np.float32), lr=0.1)["rows"]
    1
    >>> bag.load_state_dict(saved)
    Traceback (most recent call last):
    ...
    embedrock.errors.MismatchError: ...
    >>> with embedrock.nn.loading_dense_only():
    ...     bag.load_state_dict(saved)
    <All keys matched successfully>
    """
    _ignored.depth += 1
    try:
        yield
    finally:
        _ignored.depth -= 1


def is_dense_only() -> bool:
    """Whether the calling thread loads the dense part alone."""
    return _ignored.depth > 0
