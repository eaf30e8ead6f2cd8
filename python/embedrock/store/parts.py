"""Stores that have the keys of some buckets: those of ranks, of which one has not all rows.

Of a key of other ranks such a store gives the initial row, as of any key that was never written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from embedrock._ranks import BUCKETS, RANKS, buckets_in
from embedrock._warnings import warn
from embedrock.errors import EmbedrockError, PartWarning
from embedrock.store.store import Store

__all__ = ["known_parts", "part_of", "warn_of_part"]

_READ_MAX = 16 << 20
"""Bytes of a commit's state that are read of a store in a folder of another name."""
_KNOWN = ContextVar("known", default=False)


@contextmanager
def known_parts() -> Iterator[None]:
    """Nobody is warned within the block, on this thread: its caller knows of parts."""
    token = _KNOWN.set(True)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def part_of(store: Store) -> str | None:
    """The buckets that a store of one rank has, such as ``"0-511"``; None where it has all.

    Blocking: reads the state of the commit. That of a store in a folder with another name than
    ranks give theirs is read up to 16 MiB: a model's dense part may be long.
    """
    last = store._core.last_commit()
    is_named = buckets_in(store.path.name) is not None
    if last is None or (last["state_bytes"] > _READ_MAX and not is_named):
        return None
    # Damaged content is reported by the code that needs it.
    with suppress(EmbedrockError, ValueError, KeyError, TypeError, AttributeError):
        content = store._stored_state().get(RANKS) if last["state_bytes"] else None
        if content is not None:
            buckets = json.loads(content)["buckets"]
            first, last_one = int(buckets["first"]), int(buckets["last"])
            if last_one + 1 - first < BUCKETS:
                return f"{first}-{last_one}"
    return None


def warn_of_part(store: Store) -> Store:
    """The store; warns where it is that of one rank, unless the caller knows."""
    buckets = None if _KNOWN.get() else part_of(store)
    if buckets is not None:
        warn(
            f"{store.path} is the store of one rank, with the buckets {buckets} of {BUCKETS:,}: "
            f"rows of keys in other buckets read as initial ones here. Train on all stores with "
            f"embedrock.distributed.open, serve them together with embedrock serve --cluster, or "
            f"make one store of them: embedrock reshard {store.path.parent} NEW --ranks 1",
            PartWarning,
        )
    return store
