"""``embedrock.open``: a store from its directory, or the handle that is open already."""

from __future__ import annotations

import os
from typing import Any, Literal

from embedrock import _core
from embedrock._arguments import (
    between_or_none,
    choice,
    flag,
    named_path,
    named_path_or_none,
    step_or_pin,
    whole,
)
from embedrock._memory import is_in_bytes, memory_text, size_or_none, warn_beyond_machine
from embedrock.ahead.window import WINDOW_GROUP
from embedrock.errors import LockedError
from embedrock.store.locked import for_one_process
from embedrock.store.parts import known_parts, warn_of_part
from embedrock.store.registry import open_once, register
from embedrock.store.store import Store

__all__ = ["open", "open_part"]

MERGE_PICKERS = ("score", "largest", "round_robin", "oldest")
UPKEEP_SCHEDULERS = ("off", "gate", "share")


def open(
    path: str | os.PathLike[str],
    memory: int | str = "10%",
    *,
    max_disk_bytes: int | str | None = None,
    max_held_bytes: int | str | None = None,
    page_bytes: int | str | None = None,
    segment_bytes: int | str | None = None,
    cold_directory: str | os.PathLike[str] | None = None,
    pmem_path: str | os.PathLike[str] | None = None,
    io: Literal["auto", "uring", "pread"] = "auto",
    policy: Literal["lru", "lfu"] = "lfu",
    window_bytes: int | str | None = None,
    window_group: int = WINDOW_GROUP,
    merge_picker: Literal["score", "largest", "round_robin", "oldest"] = "score",
    upkeep_scheduler: Literal["off", "gate", "share"] = "off",
    top_share: float | None = None,
    filters: bool = False,
    keep: int = 2,
    seed: int = 0,
    create: bool = True,
    step: int | str | None = None,
    read_only: bool = False,
    check_disk: bool = True,
) -> Store:
    """Opens the store in the directory ``path``, at its last commit; creates it if there is none.

    If this process already has the store open for writing, with the same arguments (``"1GiB"`` of
    memory is ``"1024 MiB"``), the same handle is returned, including its uncommitted changes, so
    that a notebook cell can be run again. Its ``close`` closes it for all users; the end of a
    ``with`` block that did not open it leaves it open. :func:`close_all` closes handles that
    nothing refers to any more. Each call with ``read_only`` opens a separate reader.

    A store needs a folder of its own: a folder with other files is refused, and so is a path of
    which more than the last folder and its parent are missing.

    Args:
        path: The store's directory. A relative path is resolved against the current working
            directory.
        memory: The budget for cache, index and buffers together: bytes, ``"2GiB"``, ``"512MB"``, or
            per cent of all rows with their optimizer state (``"10%"``). A percentage means that
            much, but at least the minimum: for small tables, a ``BudgetWarning`` says once what is
            taken. It also warns about more memory than the machine has. Other sizes are written the
            same way, without per cent: bytes, or a text such as ``"64MiB"``.
        max_disk_bytes: Maximum bytes of the store on disk. None sets no bound: the store takes up
            to 7 times its rows, depending on the interval between commits (``docs/choosing.md``).
        max_held_bytes: Maximum bytes on disk that readers may keep beyond the kept commits. Beyond
            it, the oldest of their commits are dropped, and such a reader gets ``CommitGoneError``,
            never wrong rows. None: a quarter of ``max_disk_bytes``, or no bound without that. The
            writer's bound applies.
        page_bytes: Page size of new tables, 512 x 2**n up to 65,536; None measures the device,
            once for all stores that a process makes there within an hour.
        segment_bytes: Unit of allocation and cleaning of new tables, a power of two from 16 pages
            to 4 MiB; None: chosen by the size of the table.
        cold_directory: A separate directory for the partitions of tables with ``storage="lsm"``,
            for example on another disk. It is created if needed, and the store remembers it: pass
            it again only if it was moved. A directory of another store is refused. See
            ``docs/storages.md``.
        pmem_path: The folder for regions of new tables with ``storage="pmem"``, for example on
            persistent memory (DAX) or in ``/dev/shm``. Stores may share it. None: the store's own
            folder. The store remembers the place of each region; pass the new folder if regions
            were moved.
        io: How pages are read and written; ``"auto"`` uses io_uring if the system allows it,
            otherwise threads that call pread.
        policy: The rows that are evicted first: least recently or least frequently used.
        window_bytes: Maximum bytes of the budget for the look-ahead window, without rows; at most
            half of it, and an eighth if the cache holds few batches. None: a quarter, or a third of
            the caches' bytes if that is less. Without look-ahead the window takes none.
        window_group: Maximum number of batches whose rows the window reads together.
        merge_picker: The partition of tables with ``storage="lsm"`` that is merged next:
            ``"score"`` takes the one whose merge removes most rows from the top for its time.
            ``"largest"``, ``"round_robin"`` and ``"oldest"`` are for comparison.
        upkeep_scheduler: When merges and cleaning run. ``"off"``: as soon as written rows have paid
            for them. ``"gate"``: only while batches that were read ahead cover the time of a step.
            ``"share"``: for at most a fifth of the time. If disk space or reads would suffer, they
            run in any case.
        top_share: The share of all rows in the top of an lsm at which merges become due, 0.01 to
            0.5. A larger share writes fewer bytes and takes more memory for its index. It is stored
            with commits. None: the value of the opened commit, 0.1 in a new store.
        filters: Whether merges write filters of tables with ``storage="lsm"``: a key that was never
            written then hardly ever costs a page read, for 0.6 to 0.9 bytes of memory per row of a
            growing table, and up to 0.4 per id of a dense one.
        keep: Number of commits to keep, at least 1.
        seed: Seed of initial rows, fixed when the store is created.
        create: Whether to create a store if there is none.
        step: Go back to the commit of this step, or pinned under this name (:meth:`Store.pin`); the
            next commit drops all later ones.
        read_only: Refuse every change, take no lock, and hold the commit, so that no writer drops
            it as long as readers keep no more than its ``max_held_bytes`` (:attr:`Store.held` says
            whether this one holds its commit now).
        check_disk: Refuse a table whose rows, all written, would not fit on the disk.

    Errors: ``LockedError`` names the process that writes to the store, or the arguments with which
    this process has it open, if they differ; ``MisuseError``, ``NotFoundError``,
    ``CommitGoneError``, ``CorruptError``, ``BudgetError``, ``IoError``; ``MismatchError`` if the
    cold directory is missing or belongs to another store.

    Warns with ``PartWarning`` if the store belongs to one rank of several: keys of other ranks
    would read as initial rows.

    Blocking: reads the index; the time follows the size of the store's journal.

    >>> with embedrock.open("other.store", memory=64 << 20) as other:
    ...     print(other.step)
    None
    """
    directory = named_path("path", path).absolute()
    budget = memory_text(memory)
    number, pin = step_or_pin("step", step)
    arguments: dict[str, Any] = {
        "max_disk_bytes": size_or_none("max_disk_bytes", max_disk_bytes, 1),
        "max_held_bytes": size_or_none("max_held_bytes", max_held_bytes, 0),
        "page_bytes": size_or_none("page_bytes", page_bytes, 1),
        "segment_bytes": size_or_none("segment_bytes", segment_bytes, 1),
        "cold_directory": named_path_or_none("cold_directory", cold_directory),
        "pmem_path": named_path_or_none("pmem_path", pmem_path),
        "io": choice("io", io, ("auto", "uring", "pread")),
        "policy": choice("policy", policy, ("lru", "lfu")),
        "window_bytes": size_or_none("window_bytes", window_bytes, 0),
        "window_group": whole("window_group", window_group, 1),
        "merge_picker": choice("merge_picker", merge_picker, MERGE_PICKERS),
        "upkeep_scheduler": choice("upkeep_scheduler", upkeep_scheduler, UPKEEP_SCHEDULERS),
        "top_share": between_or_none("top_share", top_share, 0.01, 0.5),
        "filters": flag("filters", filters),
        "keep": whole("keep", keep, 1),
        "seed": whole("seed", seed, 0),
        "step": number,
        "pin": pin,
        "check_disk": flag("check_disk", check_disk),
    }
    create, reads = flag("create", create), flag("read_only", read_only)

    def opener(back_to: int | str | None, /, *, later_pins_stay: bool = False) -> _core.Store:
        if back_to is None:
            return _core.Store(directory, budget, create=create, read_only=reads, **arguments)
        number, pin = step_or_pin("step", back_to)
        there = {**arguments, "step": number, "pin": pin}
        there["later_pins_stay"] = later_pins_stay
        return _core.Store(directory, budget, create=False, read_only=reads, **there)

    def make() -> Store:
        warn_beyond_machine(budget)
        try:
            return Store(opener, directory, str(memory), reads)
        except LockedError as error:
            raise for_one_process(error) from None

    if reads:
        return warn_of_part(register(_divided(make(), budget)))
    store, was_open = open_once(directory, {"memory": budget, **arguments}, make)
    if was_open:
        store._give_again()
    return warn_of_part(store)


def _divided(reader: Store, memory: str) -> Store:
    """The reader with its memory divided among the tables, as a writer's is when it is open: that
    too little was given is said here and not by the first verb.

    Only of memory in bytes. Per cent are at least what works, and of a growing table that does not
    say how many rows it will have they come to nothing: its commits can be looked at all the same.
    """
    if is_in_bytes(memory) and reader._core.tables():
        try:
            reader._core.stats()
        except BaseException:
            reader.close()
            raise
    return reader


def open_part(path: str | os.PathLike[str], memory: int | str = "10%", **options: Any) -> Store:
    """As :func:`open`, for callers who know that a store may have the keys of some buckets alone.

    Errors: those of :func:`open`.
    """
    with known_parts():
        return open(path, memory, **options)
