"""The way in which the keys of tables were made from data, as recorded in the commits of a run.

A commit of `embedrock train` has `keys` in its meta: the kind of each table's keys. If keys are
hashes, looking up an id as a number reads an initial row. Programs that commit to such a store with
their own meta can keep `keys` in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HASHED", "SAID", "are_small", "kinds_of", "meta_of"]

SAID = {
    "hash_keys": "embedrock.hash_keys of the text of each value: hash_keys(['7']) of id 7",
    "column_hash": "hashes of column and value",
    "names": "numbers of names, in the order in which these come first in the data",
    "ids": "ids as they stand in the data",
}
"""The kinds, for people."""
HASHED = ("hash_keys", "column_hash")
"""Kinds of which keys are 64 random bits."""

_SMALL = np.uint64(1 << 48)
"""Hardly one of 65,536 hashes is below that, and hardly an id above it."""


def meta_of(kind: str, tables: Mapping[str, object]) -> dict[str, Any]:
    """The entry of a commit's meta about tables with keys of this kind."""
    return {"keys": dict.fromkeys(tables, kind)}


def kinds_of(meta: Any) -> dict[str, str]:
    """The kinds of keys by table, as far as a commit says them."""
    found = meta.get("keys") if isinstance(meta, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(name): kind for name, kind in found.items() if kind in SAID}


def are_small(keys: npt.NDArray[np.uint64]) -> bool:
    """Whether keys are numbers such as ids are, and no hashes."""
    return bool(len(keys)) and bool((keys < _SMALL).all())
