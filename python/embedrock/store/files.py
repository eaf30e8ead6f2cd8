"""Stores as a whole, which need not be open: checking and copying them."""

from __future__ import annotations

import os
from typing import Any, Literal

from embedrock import _core
from embedrock._arguments import (
    Progress,
    choice,
    function,
    named_path,
    named_path_or_none,
    text,
    whole_or_none,
)
from embedrock._memory import memory_text

__all__ = ["check", "copy"]


def check(path: str | os.PathLike[str], progress: Progress | None = None) -> dict[str, Any]:
    """Reads and verifies every page that a kept commit of a store needs.

    Returns ``{"commits", "pages", "rows", "problems", "problem_count"}``; each problem has the
    ``step`` of the commit that it concerns and a ``message`` with file, page and table. Damage is
    reported, not raised. The store may be open and written to meanwhile; nothing is written.
    ``progress(done, total)`` is called now and then, in pages. Ctrl-C ends the check between two
    batches.

    Errors: ``NotFoundError`` when there is no store.

    Blocking: reads the whole store.
    """
    function("progress", progress, "pages done and in all")
    report: dict[str, Any] = _core.check(named_path("path", path), progress)
    return report


def copy(
    path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    step: int | None = None,
    memory: int | str = "256MiB",
    storage: Literal["log", "lsm"] | None = None,
    cold_directory: str | os.PathLike[str] | None = None,
    buckets: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Copies one commit of a store, the last one by default, to a new store.

    The store may be open and written to meanwhile. ``memory`` is the budget of each of the two.
    ``storage`` is how the copy stores the rows of all its tables, as ``Store.table`` says; None
    stores each as it was. A log has 4 bytes of memory for each id of a table with
    ``num_embeddings``, however few have rows, and at most 2^32 - 1 ids. ``cold_directory`` is where
    the copy has its partitions, as :func:`open` says; None keeps all of the copy in one directory.
    ``buckets`` copies keys of some of the 1,024 buckets alone, such as ``"0-340,800"``: of a server
    that shares the keys with others. Ids stay what they are.
    ``progress(done, total)`` is called now and then, in rows of the source. Ctrl-C ends the copy
    between two batches.

    Returns the commit that was copied, the rows, and the bytes of the copy on disk.

    Errors: ``NotFoundError``, ``MisuseError`` when the destination holds a store with a commit or
    a table has more ids than a log can have, ``MismatchError`` when the cold directory is another
    store's, ``BudgetError`` when the index does not fit, ``CorruptError``, ``FullError``.

    Durability: the copy is durable when this returns. What a copy leaves that failed or was cut off
    is no store: ``open`` and ``check`` refuse it, and the next copy to that place replaces it.

    Blocking: reads and writes every row of the commit.
    """
    number = whole_or_none("step", step, 0)
    if storage is not None:
        choice("storage", storage, ("log", "lsm"))
    function("progress", progress, "rows done and in all")
    report: dict[str, Any] = _core.copy(
        named_path("path", path),
        named_path("destination", destination),
        memory_text(memory),
        number,
        storage,
        named_path_or_none("cold_directory", cold_directory),
        None if buckets is None else text("buckets", buckets),
        progress,
    )
    return report
