"""Keys that a table does not have, told as the caller passed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from embedrock._arrays import Keys
from embedrock.errors import KeyRangeError

__all__ = ["Keyed", "KeysNamed"]


class Keyed(Protocol):
    """A table, as far as its keys go."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def num_embeddings(self) -> int | None:
        """Rows of a dense table; None for a growing one."""


class KeysNamed:
    """Makes a ``KeyRangeError`` name the key and its place as the caller passed them.

    The engine sees unsigned keys in one flat array; the caller may have passed -1 at ``[2, 0]``.
    """

    def __init__(self, *parts: tuple[Keyed, Keys]) -> None:
        """Remembers each table with the keys it was given."""
        self._parts: Sequence[tuple[Keyed, Keys]] = parts

    def __enter__(self) -> None:
        """Nothing to do before the call."""

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Rewrites the engine's message, once it has one."""
        if kind is not None and issubclass(kind, KeyRangeError):
            self.check()

    def check(self) -> None:
        """Errors: ``KeyRangeError`` for the first key that its table does not have."""
        for table, keys in self._parts:
            message = _out_of_range(table, keys)
            if message is not None:
                raise KeyRangeError(message) from None


def _out_of_range(table: Keyed, keys: Keys) -> str | None:
    limit = table.num_embeddings
    if limit is None:
        return None
    places = np.flatnonzero(keys.flat >= np.uint64(limit))
    if places.size == 0:
        return None
    first = int(places[0])
    key = int(keys.flat.view(np.int64)[first]) if keys.signed else int(keys.flat[first])
    index = ", ".join(str(int(i)) for i in np.unravel_index(first, keys.shape))
    others = f" ({places.size - 1} more like it)" if places.size > 1 else ""
    return (
        f"keys[{index}] is {key}{others}, expected 0 to {limit - 1}: table {table.name!r} is dense "
        f"with num_embeddings={limit}; map ids into that range, or use a growing table "
        f"(num_embeddings=None)"
    )
