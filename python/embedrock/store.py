"""Stores: a directory with tables, one memory budget and one history of commits.

:func:`open` gives a :class:`Store`, whose ``table`` gives a :class:`~embedrock.table.Table`. This
module and ``table.py`` settle shapes, dtypes and defaults and make one call a batch into the
engine, which works without the interpreter lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock import initializers as _initializers
from embedrock import optimizers as _optimizers
from embedrock._arguments import (
    choice,
    flag,
    function,
    iterated,
    named_path,
    shown,
    text,
    whole,
    whole_or_none,
)
from embedrock._arrays import ArrayLike, Keys, as_keys, dtype_name
from embedrock._handles import close_all, open_once, register
from embedrock._keys import KeysNamed
from embedrock._memory import memory_text, warn_beyond_machine
from embedrock.ahead.permits import Permits
from embedrock.ahead.prefetch import Prefetch, Prefetcher
from embedrock.ahead.window import WINDOW_GROUP, Window
from embedrock.clip import Clip, bounds
from embedrock.commits import Commit, PendingCommit, commit_of, decode_meta, encode_meta
from embedrock.errors import (
    EmbedrockError,
    ForkedError,
    MisuseError,
    NotFoundError,
    UncommittedWarning,
)
from embedrock.observe.key_sample import KeySample
from embedrock.observe.recording import Recording
from embedrock.table import (
    NON_FINITE,
    Floats,
    NonFinite,
    Table,
    UpdateReport,
    update_part,
    update_report,
)

if TYPE_CHECKING:
    from embedrock.pipeline.run import Run
    from embedrock.pipeline.together import Together

__all__ = ["Store", "check", "close_all", "copy", "distinct", "open"]

T = TypeVar("T")
Progress = Callable[[int, int], object]


class Store:
    """An open store. ``embedrock.open`` makes it; close it, or use it in a ``with`` statement.

    One process writes to a store at a time. Any verb may be called from several threads at once.
    A process forked while a store is open gets ``ForkedError`` when it touches it, and the function
    that runs in a ``modify`` gets ``MisuseError`` when it calls its store; both at once. Closing
    without a commit discards what came after the last one, with an ``UncommittedWarning`` that says
    how much.

    >>> with embedrock.open("ads.store", memory="64MiB") as store:
    ...     table = store.table("ads", 4, optimizer="adagrad", initializer=0.0)
    ...     table.put([7, 8], np.ones((2, 4), np.float32))
    ...     commit = store.commit(step=1, meta={"note": "two rows"})
    >>> with embedrock.open("ads.store", memory="64MiB", create=False) as store:
    ...     print(store.step, store.meta, len(store.table("ads")))
    1 {'note': 'two rows'} 2
    """

    def __init__(self, core: _core.Store, path: Path, memory: str, read_only: bool = False) -> None:
        """Not for callers: stores come from ``embedrock.open``."""
        self._core = core
        self._path = path
        self._memory = memory
        self._read_only = read_only
        self._closed = False
        self._pid = os.getpid()
        self._prefetcher = Prefetcher(core, path)
        self._recordings: tuple[Recording | KeySample, ...] = ()
        self._recordings_lock = threading.Lock()
        self._pending_step: int | None = None
        """Step of the last commit that was not waited for."""
        self._arguments: dict[str, Any] = {}
        """What a store that is open to write was opened with (``_handles``)."""
        self._place: tuple[int, int] | None = None
        self._given_again = 0
        """How often ``open`` gave this handle out again, ``with`` blocks that ended apart."""
        self._run: Run | None = None
        """What a pipeline does on the store (:class:`embedrock.Pipeline`)."""
        self._together: Together | None = None
        """Rows that forwards of the batch at hand read together."""

    @property
    def path(self) -> Path:
        """The store's directory: absolute, as it was when the store was opened.

        Links are left as they were given. A later ``os.chdir`` does not move the store.
        """
        return self._path

    @property
    def window(self) -> Window:
        """The look-ahead window: reads rows before they are used."""
        return Window(self)

    @property
    def memory(self) -> str:
        """The memory budget as it was given to ``open``."""
        return self._memory

    @property
    def read_only(self) -> bool:
        """Whether the store was opened to be read alone."""
        return self._read_only

    @property
    def held(self) -> bool:
        """Whether this store holds the commit at hand now, so that no writer drops it.

        A writer takes holds away, the oldest first, where readers keep more on disk than its
        ``max_held_bytes``. That has a value wherever the writer has ``max_disk_bytes``: a quarter
        of it. So True is no promise, unless the writer has neither bound. False also for a reader
        that may not write in the directory, where a hold is a file: on a read-only medium, or in a
        directory of another user. On a medium that nobody writes to it does not matter.

        Without a hold, what is not in memory raises ``CommitGoneError`` once a writer has dropped
        the commit; call :meth:`refresh`, or open the store again then.

        Errors: ``ForkedError``.

        >>> store.held
        True
        """
        return self._core.is_held()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def table(
        self,
        name: str,
        embedding_dim: int | None = None,
        num_embeddings: int | None = None,
        *,
        expected_rows: int | None = None,
        optimizer: _optimizers.OptimizerLike | None = None,
        initializer: _initializers.InitializerLike | None = None,
        dtype: Any = None,
        rounding: Literal["stochastic", "nearest"] | None = None,
    ) -> Table:
        """The table of that name, created if there is none.

        With ``num_embeddings`` the table is dense: its keys are ``0..num_embeddings``. Without, it
        grows by itself and takes any 64-bit key; ``expected_rows`` then sizes its index and the
        budget's percentage. Without ``embedding_dim`` an existing table is opened as it is stored.
        ``optimizer`` is a name or a description of ``embedrock.optimizers``, ``initializer`` a
        number or a description of ``embedrock.initializers``, ``dtype`` the type of the stored
        values (``"float32"``, ``"float16"``, ``"bfloat16"``, or NumPy's or PyTorch's object). Of
        the latter two, ``rounding`` says how updates round: ``"stochastic"`` takes the neighbours
        of a value by chance, the nearer one more often, so that small updates count on average and
        equal runs still give equal bits; ``"nearest"`` loses updates below half a unit in the last
        place. When they are None, an existing table keeps its own and a new one takes row-wise
        Adagrad, ``uniform(-0.05, 0.05)``, float32 and stochastic rounding.

        Errors: ``MismatchError`` when the stored table has other parameters, ``NotFoundError``
        without ``embedding_dim`` and table, ``FullError`` when its rows would not fit on the
        disk, ``BudgetError`` when a budget in bytes cannot hold the table, with one that would work
        in the unit that ``open`` was given, or when one in per cent meets a growing table without
        ``expected_rows``. A budget in per cent grows with the tables that are still to come.

        Durability: a new table is durable with the next commit.

        >>> store.table("users", 8, num_embeddings=1000, optimizer="adam")
        <embedrock.Table 'users': 0 rows x 8 float32, dense of 1000, adam, 96 bytes per row>
        """
        handle = self._core.find_table(text("name", name))
        if embedding_dim is None:
            if num_embeddings is not None or handle is None:
                raise self._no_table(name)
            return Table(self, handle)
        if rounding is not None:
            choice("rounding", rounding, ("stochastic", "nearest"))
        stored = None if handle is None else self._core.table_info(handle)["spec"]
        spec = {
            "name": name,
            "embedding_dim": whole("embedding_dim", embedding_dim, 1),
            "num_embeddings": whole_or_none("num_embeddings", num_embeddings, 1),
            "expected_rows": whole_or_none("expected_rows", expected_rows, 1),
            "dtype": dtype_name("float32" if dtype is None else dtype),
            "rounding": rounding or "stochastic",
            "optimizer": _optimizers.resolve("rowwise_adagrad" if optimizer is None else optimizer),
            "initializer": _initializers.resolve(
                _initializers.uniform() if initializer is None else initializer
            ),
        }
        if stored is not None:
            given = {
                "optimizer": optimizer,
                "initializer": initializer,
                "expected_rows": expected_rows,
                "dtype": dtype,
                "rounding": rounding,
            }
            spec |= {n: stored[n] for n, v in given.items() if v is None and n in stored}
        return Table(self, self._core.table(json.dumps(spec)))

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name, in order of creation."""
        found = (Table(self, handle) for handle in self._core.tables())
        return {table.name: table for table in found}

    def get(
        self, batches: Sequence[tuple[Table, ArrayLike]], out: Sequence[Any] | None = None
    ) -> list[Floats]:
        """Rows of several tables in one call, as :meth:`Table.get` for each.

        Shapes: ``[(table, keys (*,)), ...] -> [values (*, embedding_dim) float32, ...]``.

        >>> [rows.shape for rows in store.get([(table, [1, 2]), (table, [[3]])])]
        [(2, 4), (1, 1, 4)]
        """
        found = [(self._own(table), as_keys(keys)) for table, keys in _parts(batches, 2)]
        given = [None] * len(found) if out is None else _arrays_for(found, out)
        filled = [
            table._new_values(keys, "float32")
            if array is None
            else (array, table._out_values(keys, array, f"out[{i}]"))
            for i, ((table, keys), array) in enumerate(zip(found, given, strict=True))
        ]
        parts = [
            (table._handle, keys.flat, values, None)
            for (table, keys), (_, values) in zip(found, filled, strict=True)
        ]
        self._settle()
        with KeysNamed(*found):
            self._core.get(parts)
        self._visited(*found)
        return [answer for answer, _ in filled]

    def lookahead(
        self,
        batches: Sequence[tuple[Table, ArrayLike]],
        out: Sequence[Any],
        *,
        announced: int | None = None,
    ) -> Prefetch[list[Any]]:
        """Reads rows of several tables into arrays of the caller, in the background.

        As :meth:`Table.lookahead` with ``out``, in one request: the arrays are filled together.
        :attr:`window` announces batches of several tables to the store.

        Shapes: ``[(table, keys (*,)), ...], out [(*, embedding_dim), ...]``.

        >>> rows = [np.empty((2, 4), np.float32), np.empty((1, 1, 4), np.float32)]
        >>> coming = store.lookahead([(table, [1, 2]), (table, [[3]])], rows)
        >>> [values.shape for values in coming.wait()]
        [(2, 4), (1, 1, 4)]
        """
        found = [(self._own(table), as_keys(keys)) for table, keys in _parts(batches, 2)]
        given = _arrays_for(found, out)
        return self._prefetch(found, given, given, announced)

    def put(
        self,
        batches: Sequence[tuple[Table, ArrayLike, ArrayLike]],
        *,
        reset_state: bool = False,
        non_finite: NonFinite = "refuse",
    ) -> None:
        """Writes rows of several tables in one call, as :meth:`Table.put` for each.

        >>> store.put([(table, [1], np.ones((1, 4), np.float32))])
        """
        flag("reset_state", reset_state)
        choice("non_finite", non_finite, NON_FINITE)
        batches = _parts(batches, 3)
        found = [(self._own(table), as_keys(keys)) for table, keys, _ in batches]
        parts = [
            (table._handle, keys.flat, table._rows(keys, batch[2], "values", "embedding_dim"), None)
            for (table, keys), batch in zip(found, batches, strict=True)
        ]
        self._settle()
        with KeysNamed(*found):
            self._core.put(parts, reset_state, non_finite)
        self._changed(*found)

    def update(
        self,
        batches: Sequence[tuple[Table, ArrayLike, ArrayLike]],
        *,
        lr: float,
        eps: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        non_finite: NonFinite = "refuse",
        step: int | None = None,
        clip: Clip | None = None,
        other_norm: float = 0.0,
        **more: float,
    ) -> UpdateReport:
        """One optimizer step on rows of several tables, as :meth:`Table.update` for each.

        All batches are checked before the first row of any table changes. ``Clip.norm`` bounds the
        norm over all tables.

        >>> batches = [(table, [1, 2], np.ones((2, 4), np.float32))]
        >>> store.update(batches, lr=0.1)
        {'rows': 2, 'skipped': 0}
        >>> store.update(batches, lr=0.1, clip=embedrock.Clip(norm=1.0), other_norm=1.0)
        {'rows': 2, 'skipped': 0, 'norm': 3.0}
        """
        factors = (lr, eps, betas, weight_decay, more)
        found, parts = self._updates(batches, factors)
        within = bounds(clip, other_norm)
        choice("non_finite", non_finite, NON_FINITE)
        number = whole_or_none("step", step, 1)
        self._settle()
        with KeysNamed(*found):
            report = update_report(*self._core.update(parts, non_finite, number, within))
        self._changed(*found)
        return report

    def gradient_norm(
        self,
        batches: Sequence[tuple[Table, ArrayLike, ArrayLike]],
        *,
        clip: Clip | None = None,
        non_finite: NonFinite = "refuse",
    ) -> float:
        """The norm of gradients of several tables, those of equal keys summed; changes nothing.

        With ``clip`` it is that of elements and rows within their bounds: what ``update`` would
        scale. To bound it together with gradients elsewhere, a table of another store for example,
        pass theirs to ``update`` as ``other_norm``.

        >>> store.gradient_norm([(table, [1, 1], np.full((2, 4), 0.5, np.float32))])
        2.0
        """
        choice("non_finite", non_finite, NON_FINITE)
        found, parts = self._updates(batches, (1.0, None, (0.9, 0.999), 0.0, {}))
        with KeysNamed(*found):
            return self._core.gradient_norm(parts, non_finite, bounds(clip, 0.0))

    @overload
    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[True] = True,
    ) -> Commit: ...

    @overload
    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[False],
    ) -> PendingCommit: ...

    @overload
    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: bool,
    ) -> Commit | PendingCommit: ...

    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: bool = True,
    ) -> Commit | PendingCommit:
        """Makes everything so far durable, atomically, under the caller's step number.

        ``meta`` is anything that JSON holds. ``state`` are named byte strings (dense parameters,
        their optimizer, generators, a loader's position) that belong to the commit. With
        ``wait=False`` it returns when what belongs to the commit is fixed, and a thread of the
        engine writes it while training goes on: the handle says when it is durable. A row that is
        changed before it is written is written first, so the commit has what was there at the call.

        Errors: ``FullError``, ``IoError``, ``PoisonedError``. With ``wait=False``, errors of the
        disk are raised by the handle, and by every later verb that changes rows.

        Blocking: waits until the disk has it; the cost follows what changed since the last commit.
        With ``wait=False`` for a commit that is still under way, and until the state is handed to
        the operating system; later verbs wait where they need room that the commit has yet to
        write. What needs the store alone (``modify``, ``delete``, ``close``, ``items`` of a growing
        table, a new table, another commit) waits until a commit is over. With ``wait=True``, too,
        verbs of other threads go on meanwhile, and what they change is not part of the commit.

        Durability: when it returns, or with ``wait=False`` when the handle's ``wait`` does, the
        commit survives any crash; before, the last one does. The last ``keep`` commits stay.

        >>> store.commit(10, {"epoch": 1}, {"dense": b"weights"}).step
        10
        >>> store.state()
        {'dense': b'weights'}
        >>> pending = store.commit(11, wait=False)
        >>> pending.wait().step
        11
        """
        named, wait = _named_bytes(state), flag("wait", wait)
        number, note = whole("step", step, 0), encode_meta(meta)
        self._settle()
        if wait:
            return commit_of(self._core.commit(number, note, named))
        pending = PendingCommit(self._core.commit_in_background(number, note, named), number)
        self._pending_step = number
        return pending

    def commits(self) -> list[Commit]:
        """The commits that are kept, oldest first."""
        return [commit_of(info) for info in self._core.commits()]

    def refresh(self) -> Commit | None:
        """Moves a store that is open ``read_only`` to the newest commit.

        Returns that commit, or None when it was open already. Rows that did not change since stay
        in memory, all others are read anew; a table that came since is there, and then memory
        begins empty. ``step``, ``meta`` and ``state()`` follow. Arrays that were returned or filled
        before keep what they had. A loop of ``items`` that was begun before has to begin again.

        Errors: ``MisuseError`` for a store that is open to write, which always is at its newest
        commit; ``BudgetError`` naming the memory that works, where the index has outgrown it; as
        ``open`` otherwise. The store stays where it was then, with all its rows; it is closed, and
        the message says so, only where not even its own commit can be recovered.

        Blocking: reads what the writer has put down since; the time follows how much changed. Verbs
        of other threads wait meanwhile.

        >>> store.commit(step=1).step
        1
        >>> with embedrock.open(store.path, memory="1MiB", read_only=True) as reader:
        ...     commit = store.commit(step=2)
        ...     before, moved, again = reader.step, reader.refresh(), reader.refresh()
        ...     print(before, moved.step, again, reader.step)
        1 2 None 2
        """
        self._together = None
        found = self._core.refresh()
        return None if found is None else commit_of(found)

    @property
    def step(self) -> int | None:
        """Step of the commit that the store was opened at or that became durable last.

        None before the first.
        """
        last = self._core.last_commit()
        return None if last is None else int(last["step"])

    @property
    def meta(self) -> Any:
        """Meta of the commit that the store was opened at or made last."""
        last = self._core.last_commit()
        return None if last is None else decode_meta(last["meta"])

    def state(self) -> dict[str, bytes]:
        """The named byte strings of the commit that the store was opened at or made last.

        Blocking: reads them from the disk.
        """
        return dict(self._core.state())

    @property
    def uncommitted(self) -> tuple[int, int]:
        """What closing would discard: (batches, rows they touched) since the last commit.

        >>> store.uncommitted
        (0, 0)
        """
        self._settle()
        return self._core.uncommitted()

    def stats(self) -> dict[str, Any]:
        """Counters and sizes as nested dicts and lists, for people and programs.

        How memory is spent is under ``memory``, the device under ``device``, row classes and tables
        under ``classes`` and ``tables``. Units are in the names (``_bytes``, ``_s``); counts are
        since ``open``.

        Blocking: waits for verbs that write rows.
        """
        stats: dict[str, Any] = self._core.stats()
        return stats

    def warm(self) -> int:
        """Brings stored rows into memory until it is full; returns how many rows were loaded.

        A store that was just opened has nothing in memory, and every first use of a row is a read.
        This reads the file in its order, many times faster than rows one by one: for a budget that
        holds all rows, and before serving. When they do not all fit, those that come first in the
        file come, and are the first to leave again; what is in memory stays.

        Blocking: until done; other threads' verbs go on meanwhile.

        >>> store.commit(step=1).step
        1
        >>> store.warm()
        0
        """
        return self._core.warm()

    def record(self, max_bytes: int = 64 << 20) -> Recording:
        """Begins to note the keys of every get, put, update and modify of this store.

        The recording says what each step costs and what it could cost at least, how the cache did
        beside the best possible one, and saves the keys as a trace. It ends with its ``with`` block
        or ``stop()``, or when the keys take ``max_bytes``, which the memory budget does not cover.

        Errors: ``ClosedError``, ``ForkedError``.

        >>> with store.record() as recording:
        ...     for step in range(9):
        ...         rows = table.get([1, 2, 3])
        >>> recording.batches, recording.report()["optimal_hit_rate"]
        (9, 1.0)
        """
        recording = Recording(self, whole("max_bytes", max_bytes, 1))
        self._tell(recording)
        return recording

    def permits(self, staleness_bound: float = 0) -> Permits:
        """Permits with which trainers that read ahead keep to a bound of staleness.

        0 lets a batch be read when all earlier ones that share a row with it are applied, a number
        when at most as many are not, ``math.inf`` always. All trainer threads share one object.

        Errors: ``MisuseError`` for a bound that is negative or no number.

        >>> store.permits(staleness_bound=4).staleness_bound
        4
        """
        return Permits(self, staleness_bound)

    def close(self) -> None:
        """Closes the store and gives up its lock, or its hold; a second call does nothing.

        Where ``open`` gave one handle out several times, it is closed for all who have it.

        Warns with ``UncommittedWarning`` when changes since the last commit are discarded.
        """
        self._close(stacklevel=3)

    def __enter__(self) -> Store:
        """The store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the store, unless it was open already when this block opened it."""
        if self._given_again:
            self._given_again -= 1
            return
        self._close(stacklevel=3)

    def __del__(self) -> None:
        """Closes a store that was left open, so that the lock does not outlive its last user."""
        # In a forked child there is nothing to close, and at its end nothing to raise errors with.
        if not getattr(self, "_closed", True) and self._pid == os.getpid():
            with contextlib.suppress(EmbedrockError):
                self._close(stacklevel=2)

    def __reduce__(self) -> Any:
        """Refuses to be pickled."""
        raise TypeError(
            f"a store cannot be pickled or copied: open {self._path} in the process that uses it"
        )

    def __repr__(self) -> str:
        if self._closed:
            return f"<embedrock.Store {str(self._path)!r} closed>"
        try:
            tables, (batches, _) = len(self._core.tables()), self._core.uncommitted()
            facts = f"step={self.step} tables={tables} uncommitted_batches={batches}"
        except ForkedError:
            facts = "(opened before this process was forked)"
        except MisuseError:
            facts = "(inside modify)"
        except EmbedrockError as error:
            facts = f"({error})"
        return f"<embedrock.Store {str(self._path)!r} memory={self._memory!r} {facts}>"

    def _close(self, stacklevel: int) -> None:
        if self._closed:
            return
        self._core.check_call()  # what follows waits for other threads
        try:
            if self._run is not None:
                self._run.stop()
        finally:
            self._prefetcher.stop()
            for recording in self._recordings:
                recording.stop()
            batches, rows = self._core.close()
            self._closed = True
        if batches:
            warnings.warn(
                f"{self._path}: closed without a commit: {batches} batches that touched {rows} "
                f"rows since the last commit are discarded; call commit(step) before close()",
                UncommittedWarning,
                stacklevel=stacklevel,
            )

    def _prefetch(
        self, found: Sequence[tuple[Table, Keys]], out: Sequence[Any], answer: T, announced: Any
    ) -> Prefetch[T]:
        """Begins to fill the arrays; the handle gives ``answer``."""
        names = ["out"] if len(out) == 1 else [f"out[{i}]" for i in range(len(out))]
        parts = [
            (table._handle, keys.flat, table._out_values(keys, array, name), None)
            for (table, keys), array, name in zip(found, out, names, strict=True)
        ]
        KeysNamed(*found).check()
        number = whole_or_none("announced", announced, 1)
        self._settle()
        prefetch = self._prefetcher.read(parts, answer, number)
        self._visited(*found)
        return prefetch

    def _tell(self, recording: Recording | KeySample) -> None:
        """Tells it of verbs from here on."""
        with self._recordings_lock:
            self._recordings += (recording,)

    def _forget(self, recording: Recording | KeySample) -> bool:
        """Ends a recording; False when it has ended already."""
        with self._recordings_lock:
            others = tuple(one for one in self._recordings if one is not recording)
            ended = len(others) < len(self._recordings)
            self._recordings = others
        return ended

    def _visited(self, *parts: tuple[Table, Keys]) -> None:
        """Tells the recordings which rows a verb has visited."""
        for recording in self._recordings:
            recording._add([(table.name, keys.flat) for table, keys in parts])

    def _settle(self) -> None:
        """Waits until the steps that a pipeline was given are applied."""
        if self._run is not None:
            self._core.check_call()  # inside modify these would wait for it
            self._run.settle()

    def _changed(self, *parts: tuple[Table, Keys]) -> None:
        """Tells recordings and a pipeline which rows a verb has visited and changed."""
        self._visited(*parts)
        self._forgot(*parts)

    def _forgot(self, *parts: tuple[Table, Keys]) -> None:
        """Tells a pipeline that what it has read of these rows is no longer so."""
        if self._run is not None:
            self._run.changed([(table, keys.flat.view(np.int64)) for table, keys in parts])
        if self._together is not None:
            self._together.changed(table for table, _ in parts)

    def _updates(
        self, batches: Sequence[tuple[Table, ArrayLike, ArrayLike]], factors: tuple[Any, ...]
    ) -> tuple[list[tuple[Table, Keys]], list[Any]]:
        """The tables and keys of an update's batches, and these as the engine takes them."""
        batches = _parts(batches, 3)
        found = [(self._own(table), as_keys(keys)) for table, keys, _ in batches]
        parts = [
            update_part(
                table, keys, batch[2], _optimizers.hyper(table._optimizer["kind"], *factors)
            )
            for (table, keys), batch in zip(found, batches, strict=True)
        ]
        return found, parts

    def _own(self, table: Table) -> Table:
        if not isinstance(table, Table):
            raise MisuseError(f"a batch is of {shown(table)}, expected a Table of this store")
        if table._store._core is not self._core:
            raise MisuseError(f"table {table.name!r} belongs to another store, {table.store.path}")
        return table

    def _no_table(self, name: str) -> EmbedrockError:
        if self._core.find_table(name) is not None:
            return MisuseError(f"table {name!r}: num_embeddings needs embedding_dim beside it")
        names = ", ".join(repr(table) for table in self.tables) or "none"
        return NotFoundError(
            f"{self._path} has no table {name!r} (it has {names}); "
            f"create it with table({name!r}, embedding_dim)"
        )


def open(
    path: str | os.PathLike[str],
    memory: int | str = "10%",
    *,
    max_disk_bytes: int | None = None,
    max_held_bytes: int | None = None,
    page_bytes: int | None = None,
    segment_bytes: int | None = None,
    io: Literal["auto", "uring", "pread"] = "auto",
    policy: Literal["lru", "lfu"] = "lfu",
    window_bytes: int | None = None,
    window_group: int = WINDOW_GROUP,
    keep: int = 2,
    seed: int = 0,
    create: bool = True,
    step: int | None = None,
    read_only: bool = False,
    check_disk: bool = True,
) -> Store:
    """Opens the store in the directory ``path``, at its last commit; creates it if there is none.

    Where this process has it open to write already, with the same arguments, that handle is
    returned as it is, with what no commit holds yet: so a cell of a notebook can be run again. Its
    ``close`` closes it for all who have it; the end of a ``with`` block that did not open it leaves
    it open. :func:`close_all` closes what nothing refers to any more. Each call with ``read_only``
    opens a reader of its own.

    A store takes a folder of its own: one with other files is refused, and so is a path of which
    more than the last folder and its parent is missing.

    Args:
        path: The store's directory. A relative one is that of the working directory now.
        memory: The budget for cache, index and buffers together: bytes, ``"2GiB"``, ``"512MB"``, or
            per cent of all rows with their optimizer state (``"10%"``). Per cent mean that much,
            but at least what works: where tables are small, a ``BudgetWarning`` says once what is
            taken. It warns of more than the machine has, too.
        max_disk_bytes: Most bytes the store may take on disk; None leaves it to the file system: up
            to 7 times the rows, by how far commits are apart (``docs/choosing.md``).
        max_held_bytes: Most bytes on disk that readers may keep beyond the kept commits. Past it
            the oldest of their commits go, and such a reader gets ``CommitGoneError``, never other
            rows. None: a quarter of ``max_disk_bytes``, and without that no bound. It is the writer
            whose bound counts.
        page_bytes: Page size of new tables, 512 x 2**n up to 65,536; None measures the device.
        segment_bytes: Unit of allocation and cleaning of new tables, a power of two from 16 pages
            to 4 MiB; None follows the size of the table.
        io: Who reads and writes pages; ``"auto"`` takes io_uring where the system allows it, else
            threads that call pread.
        policy: Which rows leave memory first: least recently or least frequently used.
        window_bytes: Most bytes of the budget that the look-ahead window takes, rows apart, up to a
            half of it; None: a quarter. Without look-ahead it takes none.
        window_group: Most batches whose rows the window reads together (256).
        keep: How many commits stay, at least 1.
        seed: Seed of initial rows, fixed when the store is created.
        create: Whether to create a store where there is none.
        step: Go back to the commit of this step; what came after it is dropped by the next commit.
        read_only: Refuse every change, take no lock, and hold the commit, so that no writer drops
            it as long as readers keep no more than its ``max_held_bytes`` (:attr:`Store.held` says
            whether this one holds its commit now).
        check_disk: Refuse a table whose rows, all written, would not fit on the disk.

    Errors: ``LockedError`` names the process that writes to the store, or what this process has it
    open with that is not as asked for; ``MisuseError``, ``NotFoundError``, ``CommitGoneError``,
    ``CorruptError``, ``BudgetError``, ``IoError``.

    Blocking: reads the index; the time follows the size of the store's journal.

    >>> with embedrock.open("other.store", memory=64 << 20) as other:
    ...     print(other.step)
    None
    """
    directory = named_path("path", path).absolute()
    budget = memory_text(memory)
    arguments: dict[str, Any] = {
        "max_disk_bytes": whole_or_none("max_disk_bytes", max_disk_bytes, 1),
        "max_held_bytes": whole_or_none("max_held_bytes", max_held_bytes, 0),
        "page_bytes": whole_or_none("page_bytes", page_bytes, 1),
        "segment_bytes": whole_or_none("segment_bytes", segment_bytes, 1),
        "io": choice("io", io, ("auto", "uring", "pread")),
        "policy": choice("policy", policy, ("lru", "lfu")),
        "window_bytes": whole_or_none("window_bytes", window_bytes, 0),
        "window_group": whole("window_group", window_group, 1),
        "keep": whole("keep", keep, 1),
        "seed": whole("seed", seed, 0),
        "step": whole_or_none("step", step, 0),
        "check_disk": flag("check_disk", check_disk),
    }
    create, reads = flag("create", create), flag("read_only", read_only)

    def make() -> Store:
        warn_beyond_machine(budget)
        core = _core.Store(directory, budget, create=create, read_only=reads, **arguments)
        return Store(core, directory, str(memory), reads)

    if reads:
        return register(make())
    store, was_open = open_once(directory, {"memory": str(memory), **arguments}, make)
    store._given_again += was_open
    return store


def distinct(keys: ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct keys in order of first occurrence, and each key's place among them.

    Shapes: ``keys (*,) int64 or uint64 -> distinct (U,) of the same type, inverse (*,) int64``,
    with ``distinct[inverse] == keys``. ``np.unique`` sorts instead, which costs more and destroys
    the order in which rows are used together.

    >>> embedrock.distinct([5, 3, 5])
    (array([5, 3]), array([0, 1, 0]))
    """
    found = as_keys(keys)
    first, inverse = _core.distinct(found.flat)
    return first.view(np.int64 if found.signed else np.uint64), inverse.reshape(found.shape)


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
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Copies one commit of a store, the last one by default, to a new store.

    The store may be open and written to meanwhile. ``memory`` is the budget of each of the two.
    ``progress(done, total)`` is called now and then, in rows. Ctrl-C ends the copy between two
    batches.

    Returns the commit that was copied, the rows, and the bytes of the copy on disk.

    Errors: ``NotFoundError``, ``MisuseError`` when the destination holds a store with a commit,
    ``CorruptError``, ``FullError``.

    Durability: the copy is durable when this returns. What a copy leaves that failed or was cut off
    is no store: ``open`` and ``check`` refuse it, and the next copy to that place replaces it.

    Blocking: reads and writes every row of the commit.
    """
    number = whole_or_none("step", step, 0)
    function("progress", progress, "rows done and in all")
    report: dict[str, Any] = _core.copy(
        named_path("path", path),
        named_path("destination", destination),
        memory_text(memory),
        number,
        progress,
    )
    return report


_PARTS = {2: "pairs (table, keys)", 3: "triples (table, keys, rows)"}


def _parts(batches: Any, width: int) -> list[Any]:
    """The batches of a call, each with its table, keys and, of three, rows."""
    found = iterated("batches", batches, f"a list of {_PARTS[width]}")
    for i, batch in enumerate(found):
        if not isinstance(batch, (tuple, list)) or len(batch) != width:
            raise MisuseError(f"batches[{i}] is {shown(batch)}, expected {_PARTS[width]}")
    return found


def _arrays_for(found: Sequence[object], out: Any) -> list[Any]:
    """One array to fill for each batch."""
    given = iterated("out", out, "a list of arrays, one per batch")
    if len(given) != len(found):
        raise MisuseError(f"out has {len(given)} arrays, expected {len(found)}: one per batch")
    return given


def _named_bytes(state: Any) -> list[tuple[str, bytes]]:
    """The byte strings of a commit."""
    if state is None:
        return []
    if not isinstance(state, Mapping):
        raise MisuseError(f"state is {shown(state)}, expected a dict of names to bytes")
    for name, content in state.items():
        text("a name of state", name)
        # Not whatever bytes() takes: of a number n it makes n zero bytes.
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise MisuseError(
                f"state[{name!r}] is {shown(content)}, expected bytes; encode it: a text with "
                f".encode(), an array with .tobytes(), plain values with json.dumps(...).encode(), "
                f"or give tensors and plain values to embedrock.save(extra=)"
            )
    return [(name, bytes(content)) for name, content in state.items()]
