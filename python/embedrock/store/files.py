"""Stores as a whole, which need not be open: checking, copying and resizing them."""

from __future__ import annotations

import os
from typing import Any, Literal

from embedrock import _core
from embedrock._arguments import (
    Progress,
    choice,
    flag,
    function,
    named_path,
    named_path_or_none,
    step_or_pin,
    text,
    whole,
    whole_or_none,
)
from embedrock._memory import memory_text
from embedrock.errors import NotFoundError
from embedrock.store.copied import Copied, Facts, look_at, write_note

__all__ = ["check", "copy", "resize"]

_LOOKS = 4
"""Number of attempts at the last commit: a writer may drop it before it is copied."""


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
    step: int | str | None = None,
    memory: int | str = "256MiB",
    storage: Literal["log", "lsm", "pmem"] | None = None,
    cold_directory: str | os.PathLike[str] | None = None,
    pmem_path: str | os.PathLike[str] | None = None,
    capacity: int | None = None,
    buckets: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Copies one commit of a store, the last one by default, to a new store.

    ``step`` is the step of a commit that is kept or pinned, or the name of a pin.
    The store may be open and written to meanwhile. ``memory`` is the budget of each of the two.
    ``storage`` is how the copy stores the rows of all its tables, as ``Store.table`` says; None
    stores each as it was. A log has 2 to 4 bytes of memory for each id of a table with
    ``num_embeddings``, or a seventh of one and 5 for each row where ``expected_rows`` makes that
    less, and at most 2^32 - 1 ids. ``cold_directory`` is where
    the copy has its partitions, as :func:`open` says; None keeps all of the copy in one directory.
    ``pmem_path`` is the folder of regions of the copy, and ``capacity`` how many rows each of them
    has room for: None takes all ids, or what the table had, or twice its rows.
    ``buckets`` copies keys of some of the 1,024 buckets alone, such as ``"0-340,800"``: of a server
    that shares the keys with others. Ids stay what they are; of a table with ``num_embeddings``
    the copy expects rows of the ids in these buckets.
    ``progress(done, total)`` is called now and then, in rows of the source. Ctrl-C ends the copy
    between two batches.

    Beside the copy it is noted which commit of which store it is, in the file ``copied-from``:
    :class:`embedrock.follow.StoreFollower` takes no other store for a copy.

    Returns the commit that was copied, the rows, and the bytes of the copy on disk.

    Errors: ``NotFoundError``, ``MisuseError`` when the destination holds a store with a commit or
    a table has more ids than a log can have, ``MismatchError`` when the cold directory is another
    store's, ``BudgetError`` when the index does not fit, ``CorruptError``, ``FullError``.

    Durability: the copy is durable when this returns. The remains of a failed or interrupted copy
    are no store: ``open`` and ``check`` refuse them, and the next copy to that place replaces them.

    Blocking: reads and writes every row of the commit.
    """
    number, pin = step_or_pin("step", step)
    if storage is not None:
        choice("storage", storage, ("log", "lsm", "pmem"))
    function("progress", progress, "rows done and in all")
    source, target = named_path("path", path), named_path("destination", destination)
    some = None if buckets is None else text("buckets", buckets)
    rest = (
        storage,
        named_path_or_none("cold_directory", cold_directory),
        named_path_or_none("pmem_path", pmem_path),
        whole_or_none("capacity", capacity, 1),
        some,
        progress,
    )
    budget = memory_text(memory)
    for left in reversed(range(_LOOKS)):
        seen = look_at(source, number, pin)
        # The very commit that was seen, though a writer goes on.
        at = seen.facts.step if seen is not None and pin is None else number
        try:
            report: dict[str, Any] = _core.copy(source, target, budget, at, pin, *rest)
            break
        except NotFoundError:
            if at == number or not left:
                raise
    if seen is not None and seen.may_be(report["commit"]):
        own = Facts.of(report["commit"])
        write_note(target, Copied(seen.store, seen.facts, own, str(source.absolute()), some))
    return report


def resize(
    path: str | os.PathLike[str],
    table: str,
    capacity: int,
    *,
    pmem_path: str | os.PathLike[str] | None = None,
    make_empty: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Gives a table with storage ``"pmem"`` room for ``capacity`` rows, more or fewer than before.

    Nobody may have the store open meanwhile. The rows are copied into a new region, which then
    takes the place of the old one, so the disk needs room for both. ``pmem_path`` is the folder of
    the region, where it was moved to another. ``make_empty`` makes an empty region in the place of
    one that is lost; it is refused where the region is there. ``progress(done, total)`` is called
    now and then, in parts of the index; what it raises ends the resize, which changes nothing then.

    Returns ``{"rows", "capacity", "bytes"}``: the table's rows, for how many it has room, and the
    bytes of its region.

    Errors: ``NotFoundError`` for a store or a table that is not there, ``LockedError`` while
    somebody has the store open, ``MisuseError`` for a table with another storage or fewer ids,
    ``FullError`` when it has more rows, or the disk too little room, ``CorruptError``,
    ``IoError``.

    Durability: on return; a crash before leaves the old region or the new one, whole.

    Blocking: reads and writes every row of the table.
    """
    function("progress", progress, "parts done and in all")
    report: dict[str, Any] = _core.resize(
        named_path("path", path),
        text("table", table),
        whole("capacity", capacity, 1),
        named_path_or_none("pmem_path", pmem_path),
        flag("make_empty", make_empty),
        progress,
    )
    return report
