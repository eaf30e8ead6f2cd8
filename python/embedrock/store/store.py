"""``Store``: tables, verbs over several of them, and commits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from embedrock import _verbs
from embedrock import initializers as _initializers
from embedrock import optimizers as _optimizers
from embedrock._arguments import choice, flag, shown, text, whole
from embedrock._arrays import ArrayLike, Keys, as_keys
from embedrock._keys import KeysNamed
from embedrock._made_keys import HASHED, kinds_of
from embedrock._memory import size_of
from embedrock._rows import Bounds
from embedrock._verbs import (
    ASKS,
    NON_FINITE,
    VISITS,
    Floats,
    NonFinite,
    UpdateReport,
    call,
    update_part,
)
from embedrock.ahead.permits import Permits
from embedrock.ahead.prefetch import Prefetch
from embedrock.ahead.window import Window
from embedrock.clip import Clip, bounds
from embedrock.commits import Commit, PendingCommit, commit_of, decode_meta, encode_meta
from embedrock.errors import EmbedrockError, MisuseError, NotFoundError
from embedrock.observe.recording import Recording
from embedrock.store.batches import arrays_for, batches_of, named_bytes
from embedrock.store.changes import Changing
from embedrock.store.specs import asked_of, spec_of
from embedrock.table import Table

__all__ = ["Store"]


class Store(Changing):
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

    @property
    def window(self) -> Window:
        """The look-ahead window: reads rows before they are used."""
        return Window(self)

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

    def __getitem__(self, name: str) -> Table:
        """The table of that name. Errors: ``NotFoundError``.

        >>> store["ads"].embedding_dim, "ads" in store, list(store)
        (4, True, ['ads'])
        """
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is a table of that name."""
        return isinstance(name, str) and self._has_table(name)

    def __iter__(self) -> Iterator[str]:
        """The names of all tables, in order of creation."""
        return iter(self.tables)

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
        storage: Literal["log", "lsm", "pmem"] | None = None,
        capacity: int | None = None,
    ) -> Table:
        """The table of that name, created if there is none.

        With ``num_embeddings`` the table is dense: its keys are ``0..num_embeddings``. Otherwise it
        grows as needed and takes any 64-bit key; ``expected_rows`` then sizes its index and a
        budget in per cent. With both, memory and disk are planned for the expected rows if that is
        less. The index of a table in a log then has a bit for each id, and 4 to 5 bytes for each
        row. If fewer than a third of the ids are expected, a table in an lsm checks ids but is
        stored like one that grows, of up to 2^64 - 1 ids, and rows do not come in order of ids.
        More rows than expected take memory from the cache. Without ``embedding_dim`` an existing
        table is opened as it is stored. ``optimizer`` is a name or a description of
        ``embedrock.optimizers``, ``initializer`` a number or a description of
        ``embedrock.initializers``, ``dtype`` the type of the stored values (``"float32"``,
        ``"float16"``, ``"bfloat16"``, or NumPy's or PyTorch's object; ``"int8"`` and ``"int4"``,
        which :func:`embedrock.freeze` writes, with optimizer ``"none"`` alone). Of float16 and
        bfloat16, ``rounding`` says how updates round: ``"stochastic"`` picks one of the two
        neighbours at random, the nearer one more often, so that small updates count on average, and
        equal runs still give equal bits; ``"nearest"`` loses updates below half a unit in the last
        place. ``storage`` is how rows that are not in memory are stored: ``"log"`` reads one page
        for a row and keeps 4 to 8 bytes in memory for each; ``"lsm"``, for small rows or very many,
        keeps less than one and may read a page for a key that was never written; ``"pmem"`` keeps
        rows in a mapped region of a fixed ``capacity`` (all ids of a dense table unless it says
        less; a growing one must say it), for persistent memory and tmpfs. Its rows are durable with
        each verb that changes them, whatever a commit does (``docs/how-to/persistent-memory.md``).
        When they are None, an existing table keeps its own and a new one takes row-wise Adagrad,
        ``uniform(-0.05, 0.05)``, float32, stochastic rounding and a log.

        Errors: ``MismatchError`` when the stored table has other parameters, ``NotFoundError``
        without ``embedding_dim`` and table, ``FullError`` when its rows would not fit on the disk,
        ``MisuseError`` without the ``capacity`` that a region needs, ``BudgetError`` when a budget
        in bytes cannot hold the table, with one that would work in the unit that ``open`` was
        given, or when one in per cent meets a growing table without ``expected_rows``. A budget in
        per cent grows with the tables that are still to come.

        Durability: a new table is durable with the next commit; until then rows of one with storage
        ``"pmem"`` go with it.

        >>> store.table("users", 8, num_embeddings=1000, optimizer="adam")
        <embedrock.Table 'users': 0 rows x 8 float32, dense of 1000, adam, 96 bytes per row>
        """
        handle = self._core.find_table(text("name", name))
        if embedding_dim is None:
            if num_embeddings is not None or handle is None:
                raise self._no_table(name)
            return Table(self, handle)
        asked = asked_of(
            embedding_dim,
            num_embeddings,
            expected_rows=expected_rows,
            optimizer=optimizer,
            initializer=initializer,
            dtype=dtype,
            rounding=rounding,
            storage=storage,
            capacity=capacity,
        )
        stored = None if handle is None else self._core.table_info(handle)["spec"]
        made = self._core.table(json.dumps(spec_of(name, asked, stored)))
        if handle is None:
            self._later = []  # a new table is a change, behind which nothing is left
            if optimizer is None:
                self._unnamed[made] = self._sequence()
        if optimizer is not None:
            self._name_optimizer(made)
        return Table(self, made)

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name, in order of creation."""
        found = (Table(self, handle) for handle in self._core.tables())
        return {table.name: table for table in found}

    def get(
        self, batches: Sequence[tuple[Table, ArrayLike]], out: Sequence[Any] | None = None
    ) -> list[Floats]:
        """Returns rows of several tables in one call, as :meth:`Table.get` for each.

        Shapes: ``[(table, keys (*,)), ...] -> [values (*, embedding_dim) float32, ...]``.

        >>> [rows.shape for rows in store.get([(table, [1, 2]), (table, [[3]])])]
        [(2, 4), (1, 1, 4)]
        """
        found = self._keys_of(batches_of(batches, 2))
        given = [None] * len(found) if out is None else arrays_for(found, out)
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
        call(self, found, VISITS + ASKS, self._core.get, parts)
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
        found = self._keys_of(batches_of(batches, 2))
        given = arrays_for(found, out)
        return _verbs.lookahead(self, found, given, given, announced)

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
        batches = batches_of(batches, 3)
        found = self._keys_of(batches)
        parts = [
            _verbs.put_part(table, keys, batch[2])
            for (table, keys), batch in zip(found, batches, strict=True)
        ]
        _verbs.put(self, found, parts, reset_state, non_finite)

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
        """Makes one optimizer step on rows of several tables, as :meth:`Table.update` for each.

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
        return _verbs.update(self, found, parts, non_finite, step, clip, other_norm)

    def gradient_norm(
        self,
        batches: Sequence[tuple[Table, ArrayLike, ArrayLike]],
        *,
        clip: Clip | None = None,
        non_finite: NonFinite = "refuse",
    ) -> float:
        """Returns the norm of gradients of several tables, with those of equal keys summed.

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
        pin: str | None = None,
    ) -> Commit: ...

    @overload
    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: Literal[False],
        pin: str | None = None,
    ) -> PendingCommit: ...

    @overload
    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: bool = ...,
        pin: str | None = None,
    ) -> Commit | PendingCommit: ...

    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Mapping[str, bytes] | None = None,
        *,
        wait: bool = True,
        pin: str | None = None,
    ) -> Commit | PendingCommit:
        """Makes everything so far durable, atomically, under the caller's step number.

        ``meta`` is anything that JSON holds. ``state`` are named byte strings (dense parameters,
        their optimizer, generators, a loader's position) that belong to the commit. With
        ``wait=False`` it returns when the contents of the commit are fixed, and a thread of the
        engine writes them while training continues; the handle says when the commit is durable. If
        a row changes before it is written, its old value is written first, so the commit has the
        rows as of the call.

        With ``pin``, the commit is pinned under that name once it is durable, as :meth:`pin` does;
        a name that another commit has moves to it. If an error says that the commit was made but
        not pinned, the name is where it was.

        Errors: ``FullError``, ``IoError``, ``PoisonedError``; those of :meth:`pin`. With
        ``wait=False``, errors of the disk are raised by the handle, and by every later verb that
        changes rows.

        Blocking: waits until the commit is on disk; the cost depends on the changes since the last
        one. With ``wait=False`` it waits for a commit that is still under way, and until the state
        is handed to the operating system; later verbs wait if they need room that the commit has
        yet to write. Calls that need the store alone (``modify``, ``delete``, ``close``, ``items``
        of a growing table, a new table, another commit) wait until a commit is over. With
        ``wait=True``, too, verbs of other threads go on meanwhile, and their changes are not part
        of the commit.

        Durability: when it returns, or with ``wait=False`` when the handle's ``wait`` does, the
        commit survives any crash; before, the last one does. The last ``keep`` commits stay.

        >>> store.commit(10, {"epoch": 1}, {"dense": b"weights"}).step
        10
        >>> store.state()
        {'dense': b'weights'}
        >>> pending = store.commit(11, wait=False)
        >>> pending.wait().step
        11
        >>> store.commit(12, pin="best").step, store.pins()
        (12, {'best': 12})
        """
        named, wait = named_bytes(state), flag("wait", wait)
        number, note = whole("step", step, 0), encode_meta(meta)
        name = None if pin is None else text("pin", pin)
        if self._of_ranks is not None and self._of_ranks not in dict(named):
            raise MisuseError(
                f"store {self.path} is that of one rank, and a commit is one of all of them: call "
                f"commit of the shard, on all ranks"
            )
        self._listeners.before()
        if wait:
            made = self._core.commit(number, note, named, name)
            self._state_taken = True
            return commit_of(made)
        pending = PendingCommit(self._core.commit_in_background(number, note, named, name), number)
        self._state_taken = True
        self._pending, self._pending_step = pending, number
        self._pending_pin = name is not None
        return pending

    def commits(self) -> list[Commit]:
        """Returns the kept commits, oldest first."""
        return [commit_of(info) for info in self._core.commits()]

    def refresh(self) -> Commit | None:
        """Moves a store that is open ``read_only`` to the newest commit.

        Returns that commit, or None when it was open already. Unchanged rows stay in memory, all
        others are read again. New tables appear, and in that case memory starts empty. ``step``,
        ``meta`` and ``state()`` follow. Arrays that were returned or filled earlier keep their
        contents. A running loop over ``items`` has to start again.

        Errors: ``MisuseError`` for a store that is open to write, which always is at its newest
        commit; ``BudgetError`` naming the memory that works, where the index has outgrown it; as
        ``open`` otherwise. The store stays where it was then, with all its rows.

        Blocking: reads what the writer has put down since; the time follows how much changed. Verbs
        of other threads go on at the old commit meanwhile, and wait only for the moment of the
        move. Until it returns there is a second index in memory, beside the budget.

        >>> store.commit(step=1).step
        1
        >>> with embedrock.open(store.path, memory="1MiB", read_only=True) as reader:
        ...     commit = store.commit(step=2)
        ...     before, moved, again = reader.step, reader.refresh(), reader.refresh()
        ...     print(before, moved.step, again, reader.step)
        1 2 None 2
        """
        self._listeners.refreshing()
        found = self._core.refresh()
        if found is None:
            return None
        self._tell_again()
        return commit_of(found)

    def _hashed_by(self, name: str) -> str | None:
        """Kind of the hashes that a table's keys are, if the commit names one."""
        last = self._core.last_commit()
        if last is None:
            return None
        encoded, kinds = self._kinds
        if encoded != last["meta"]:  # read once for all tables
            kinds = kinds_of(decode_meta(last["meta"]))
            self._kinds = last["meta"], kinds
        kind = kinds.get(name)
        return kind if kind in HASHED else None

    @property
    def meta(self) -> Any:
        """Meta of the commit that the store was opened at or made last."""
        last = self._core.last_commit()
        return None if last is None else decode_meta(last["meta"])

    def state(self) -> dict[str, bytes]:
        """The named byte strings of the commit that the store was opened at or made last.

        Blocking: reads them from the disk.
        """
        self._state_taken = True
        return self._stored_state()

    def _stored_state(self) -> dict[str, bytes]:
        """The same, for who does not take it over."""
        return dict(self._core.state())

    @property
    def uncommitted(self) -> tuple[int, int]:
        """Changes that closing would discard: (batches, rows they touched) since the last commit.

        >>> store.uncommitted
        (0, 0)
        """
        self._listeners.before()
        return self._core.uncommitted()

    def stats(self) -> dict[str, Any]:
        """Counters and sizes as nested dicts and lists, for people and programs.

        How memory is spent is under ``memory``. ``budget`` says how the budget is divided, in
        bytes that sum up to it: ``rows`` that the caches have room for, with the state of their
        optimizer; ``lines`` of the caches beside rows; ``index``; ``buffer``, where rows wait to be
        written; ``staging``, what pages are read into; ``window``, the look-ahead; the ``rest``,
        which growing indexes and the journal may take. ``rows_share`` is the part of the budget
        that is rows.

        The device is under ``device``, row classes and tables under ``classes`` and ``tables``; a
        class has under ``damage`` what upkeep could not read and left as it is. ``upkeep`` counts
        ``merges``: the ``seconds`` that their steps took and those from begin to outcome
        (``latency``), the longest of each (``_max``), and what a scheduler has ``put_off``.
        ``pins`` has of each pinned commit its ``name``, ``step`` and number (``sequence``), when it
        was ``committed`` and pinned (``unix_time``), and the ``bytes`` that only it keeps. Other
        units are in the names (``_bytes``, ``_s``); counts are since ``open``.

        Blocking: waits for verbs that write rows.
        """
        stats: dict[str, Any] = self._core.stats()
        stats["pins"] = self._core.pins()
        return stats

    def warm(self) -> int:
        """Loads stored rows into memory until it is full, and returns their number.

        A newly opened store has nothing in memory, and every first use of a row is a read. This
        method reads the file sequentially, many times faster than single rows. Use it for a budget
        that holds all rows, and before serving. If not all rows fit, those at the beginning of the
        file are loaded, and are evicted first; rows already in memory stay.

        If another thread refreshes a reader meanwhile, it starts again at the new commit, up to
        four times, and skips rows already loaded.

        Blocking: until done; other threads' verbs, commits and refreshes go on meanwhile, but disk
        that they release is not used again before it ends.

        >>> store.commit(step=1).step
        1
        >>> store.warm()
        0
        """
        return self._core.warm()

    def record(self, max_bytes: int | str = "64MiB") -> Recording:
        """Begins to note the keys of every get, put, update and modify of this store.

        The recording reports the cost of each step and the least possible cost, compares the cache
        with the best possible one, and saves the keys as a trace. It ends with its ``with`` block
        or ``stop()``, or when the keys take ``max_bytes``, which the memory budget does not cover.

        Errors: ``ClosedError``, ``ForkedError``.

        >>> with store.record() as recording:
        ...     for step in range(9):
        ...         rows = table.get([1, 2, 3])
        >>> recording.batches, recording.report()["optimal_hit_rate"]
        (9, 1.0)
        """
        return Recording(self, size_of("max_bytes", max_bytes, 1))

    def permits(self, staleness_bound: float = 0) -> Permits:
        """Returns permits by which trainers that read ahead keep to a staleness bound.

        With 0, a batch may be read when all earlier batches that share a row with it are applied;
        with a number, when at most so many are not; with ``math.inf``, always. All trainer threads
        share one object.

        Errors: ``MisuseError`` for a bound that is negative or no number.

        >>> store.permits(staleness_bound=4).staleness_bound
        4
        """
        return Permits(self, staleness_bound)

    _elsewhere: str | None = None
    """It is here; a store of a server says how its user gets what needs one that is here."""
    _collective = _each_occurrence = False

    _commits_together = False
    """Its commits are its own; those of ranks are made by all of them."""

    def _made_elsewhere(self) -> str | None:
        """Why what its commit has of a process is not of this one: it is."""
        return None

    def _give_up(self, error: BaseException) -> None:
        """Nobody waits for its commit."""

    def _check_dense(self, owners: Sequence[tuple[str, Any]]) -> None:
        """Nobody has another dense part."""

    def _has_table(self, name: str) -> bool:
        try:
            return self._core.find_table(name) is not None
        except UnicodeEncodeError:  # a lone surrogate has no bytes, and no table such a name
            return False

    def _update(
        self,
        parts: list[Any],
        non_finite: NonFinite,
        within: Bounds,
        settled: Callable[[int], object],
    ) -> float | None:
        """One optimizer step on what ``Table._update_part`` has made: all parts, or none."""
        return self._core.update(parts, non_finite, None, within)[3]

    def _gradient_norm(self, parts: list[Any], non_finite: NonFinite, within: Bounds) -> float:
        return self._core.gradient_norm(parts, non_finite, within)

    def _keys_of(self, batches: Iterable[Sequence[Any]]) -> list[tuple[Table, Keys]]:
        """The tables and keys of batches, which must be of this store."""
        return [(self._own(batch[0]), as_keys(batch[1])) for batch in batches]

    def _updates(
        self, batches: Sequence[tuple[Table, ArrayLike, ArrayLike]], factors: tuple[Any, ...]
    ) -> tuple[list[tuple[Table, Keys]], list[Any]]:
        """The tables and keys of an update's batches, and these as the engine takes them."""
        batches = batches_of(batches, 3)
        found = self._keys_of(batches)
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
        said = f"{self._path} has no table {name!r} ({self._names_beside(name)})"
        if self._read_only:
            return NotFoundError(f"{said}; it is open read_only, and only a writer creates tables")
        return NotFoundError(f"{said}; create it with table({name!r}, embedding_dim)")
