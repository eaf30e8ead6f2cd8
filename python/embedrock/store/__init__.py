"""Stores: a directory with tables, one memory budget and one history of commits.

:func:`open` gives a :class:`Store`, whose ``table`` gives a :class:`~embedrock.table.Table`. This
package and ``table.py`` settle shapes, dtypes and defaults and make one call a batch into the
engine (``_verbs.py``), which works without the interpreter lock.
"""

from embedrock._distinct import distinct
from embedrock.store.changes import ChangedRows, Changes
from embedrock.store.files import check, copy, resize
from embedrock.store.opening import open
from embedrock.store.registry import close_all
from embedrock.store.store import Store

__all__ = [
    "ChangedRows",
    "Changes",
    "Store",
    "check",
    "close_all",
    "copy",
    "distinct",
    "open",
    "resize",
]
