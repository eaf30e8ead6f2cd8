"""Tables: batches of keys to rows, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from embedrock import _core, _verbs
from embedrock._arguments import Progress, flag, shown, whole
from embedrock._arguments import function as function_or_none
from embedrock._arrays import (
    ArrayLike,
    BFloat16Rows,
    Keys,
    as_keys,
    as_out,
    as_rows,
    crossing_dtype,
    dtype_name,
)
from embedrock._keys import KeysNamed
from embedrock._made_keys import SAID, are_small
from embedrock._verbs import ASKS, CHANGES, VISITS, Floats, NonFinite, UpdateReport, call
from embedrock._warnings import warn
from embedrock.ahead.prefetch import Prefetch
from embedrock.clip import Clip
from embedrock.errors import EmbedrockError, KeysWarning, MisuseError, NotFoundError
from embedrock.optimizers import OptimizerSpec, hyper

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = ["Table", "UpdateReport"]

_SEEN_BYTES = 8192
"""Of bits that are looked through at once: 65,536 ids."""

T = TypeVar("T")
Function = Callable[[Floats, Floats], "Floats | tuple[Floats, Floats] | None"]


class Table:
    """A table of a store: 64-bit keys to rows of values and optimizer state.

    Tables come from :meth:`embedrock.store.Store.table`. A dense table (``num_embeddings`` given)
    has the keys ``0..num_embeddings``; a growing table takes any 64-bit key, and int64 -1 and
    uint64 2**64 - 1 are the same one. So -1, which often marks a missing value in data, is an
    ordinary key: ``padding_idx=-1`` of a module keeps its row at zero and never trains it. A key
    that was never written reads as its initial row.

    Keys are int64 or uint64 arrays of any shape ``(*,)``: NumPy, lists of ints, or any object that
    supports DLPack, such as a ``torch.Tensor`` (detached; copied to the host from another device).
    Other integer types are converted. Duplicates are allowed. Rows are float32 arrays of shape
    ``(*, embedding_dim)``, also of a table whose values are stored as float16 or bfloat16: widened
    when read, rounded to nearest (ties to even) when written. Contiguous rows of the right type are
    not copied; keys are copied at the beginning of a call. Masked elements of ``np.ma`` are
    refused, because they have no value.

    Arguments should not change during a call. If another thread overwrites one, the call may use
    any of its values, for rows even unchecked ones; other rows, and the store, are not affected.
    Arrays that concurrent calls fill, or fill and read, must not overlap.

    Every verb checks its whole batch before the first row changes, and raises ``MisuseError`` for
    unusable arguments, ``KeyRangeError`` for a key that a dense table does not have,
    ``ClosedError``, ``ForkedError``, ``IoError`` and ``CorruptError``. Verbs that change rows also
    raise ``FullError`` and ``PoisonedError``. Every verb blocks until the rows it needs have been
    read, without holding the interpreter lock, and may be called from several threads at once.
    Changes are visible at once and durable with :meth:`Store.commit`.

    The examples below share one store with a growing table of four values per row.

    >>> table
    <embedrock.Table 'ads': 0 rows x 4 float32, growing, adagrad, 32 bytes per row>
    """

    def __init__(self, store: Store, handle: _core.TableId) -> None:
        """Not for callers: tables come from ``Store.table``."""
        self._store = store
        self._handle = handle
        self._keys_known = False
        """Whether keys were looked up here: how they are made is doubted once."""
        self._look()
        with store._tables_lock:
            store._tables.add(self)

    def _look(self) -> None:
        """Takes over what the engine says of the table."""
        info = self._store._core.table_info(self._handle)
        spec = info["spec"]
        self._name: str = spec["name"]
        self._first_name: str = spec.get("first_name") or self._name
        self._embedding_dim: int = spec["embedding_dim"]
        self._num_embeddings: int | None = spec["num_embeddings"]
        self._expected_rows: int | None = spec["expected_rows"]
        self._optimizer: OptimizerSpec = spec["optimizer"]
        self._initializer: dict[str, Any] = spec["initializer"]
        self._dtype: str = spec["dtype"]
        self._crossing_dtype = crossing_dtype(self._dtype)
        self._rounding: str = spec.get("rounding", "stochastic")
        self._storage: str = spec.get("storage", "log")
        self._capacity: int | None = spec.get("capacity")
        self._by_id: bool = info["by_id"]
        #: How keys were made, while it may be that a caller does not know that they are hashes.
        self._hashed_by: str | None = None
        if not self._keys_known and self._handle not in self._store._doubted:
            self._hashed_by = self._store._hashed_by(self._name)
        self._row_bytes: int = info["row_bytes"]
        self._state_words: int = info["state_words"]
        # Of each kind of row: its size, and what a shape of such rows means.
        self._widths = {
            width: (size, f"keys.shape + ({width},) of table {self._name!r}")
            for width, size in (
                ("embedding_dim", self._embedding_dim),
                ("state_words", self._state_words),
            )
        }

    def _moved(self, handle: _core.TableId) -> None:
        """The store has gone back: its engine has another handle for the table."""
        self._handle = handle
        self._look()

    def _gone(self) -> None:
        """The store has gone back to where the table is not: it has no handle, for its number may
        become another table's."""
        with self._store._tables_lock:
            self._store._tables.discard(self)
        del self._handle

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "_handle" and "_name" in vars(self):
                raise NotFoundError(
                    f"table {self._name!r} is gone: it was dropped, or its name is another "
                    f"table's at the commit that the store went back to; Store.table gives the "
                    f"table that has the name now"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def store(self) -> Store:
        """The store that the table belongs to."""
        return self._store

    @property
    def name(self) -> str:
        """The table's name, unique within its store."""
        return self._name

    @property
    def embedding_dim(self) -> int:
        """Values per row."""
        return self._embedding_dim

    @property
    def num_embeddings(self) -> int | None:
        """Rows of a dense table; None for a growing table."""
        return self._num_embeddings

    def grow(self, num_embeddings: int) -> None:
        """Gives a dense table more ids: ``0..num_embeddings`` from here on.

        Rows that are there stay as they are, with their optimizer state; new ones have initial rows
        and state. A table that has as many ids is left as it is. Modules over the table follow.

        Errors: ``MisuseError`` for fewer ids than there are, for a growing table, which takes any
        key, and for a store that is open ``read_only``; ``BudgetError`` where the index does not
        fit, with a memory that works; ``FullError``. Nothing has changed then.

        Blocking: waits for verbs of other threads and for a commit that is under way, and writes
        changed rows; the cache begins empty.

        Durability: with the next commit, together with all else that it has.

        >>> days = store.table("days", 4, num_embeddings=365)
        >>> days.grow(366)
        >>> days.get([365]).shape, days.num_embeddings
        ((1, 4), 366)
        """
        self._store._grow(self, whole("num_embeddings", num_embeddings, 1))

    @property
    def expected_rows(self) -> int | None:
        """Number of rows that the table was declared to reach, if it was."""
        return self._expected_rows

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row, values and state."""
        return self._row_bytes

    @property
    def state_words(self) -> int:
        """Optimizer state per row, in 4-byte words."""
        return self._state_words

    @property
    def dtype(self) -> str:
        """Type of the stored values: ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"int8"`` or
        ``"int4"``."""
        return self._dtype

    @property
    def rounding(self) -> str:
        """How updates round to the dtype: ``"stochastic"`` or ``"nearest"``; float32 does not."""
        return self._rounding

    @property
    def storage(self) -> str:
        """How rows that are not in memory are stored: ``"log"``, ``"lsm"``, ``"pages"``, which
        :func:`embedrock.freeze` makes, or ``"pmem"``, whose rows are in a region of their own."""
        return self._storage

    @property
    def capacity(self) -> int | None:
        """Rows for which a table with storage ``"pmem"`` has room; None for others, which grow."""
        return self._capacity

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer whose state the rows carry, as ``embedrock.optimizers`` describes it."""
        return self._optimizer.copy()

    @property
    def initializer(self) -> dict[str, Any]:
        """The values of unwritten rows, as ``embedrock.initializers`` describes them."""
        return dict(self._initializer)

    def __repr__(self) -> str:
        dense = "growing" if self._num_embeddings is None else f"dense of {self._num_embeddings}"
        try:
            rows = f"{len(self)} rows"
        except EmbedrockError as error:  # the table of a closed or forked store can be printed
            rows = f"{type(error).__name__}, rows"
        return (
            f"<embedrock.Table {self._name!r}: {rows} x {self._embedding_dim} {self._dtype}, "
            f"{dense}, {self._optimizer['kind']}, {self._row_bytes} bytes per row>"
        )

    def __len__(self) -> int:
        """Number of keys that are written and not deleted, uncommitted ones included."""
        self._store._listeners.before()
        return self._store._core.len(self._handle)

    def __contains__(self, key: object) -> bool:
        """Whether this one key is written; :meth:`contains` answers for many."""
        return bool(self.contains(key).all())  # type: ignore[arg-type]

    @overload
    def get(self, keys: ArrayLike, out: Any = None, *, state: Literal[False] = False) -> Floats: ...

    @overload
    def get(
        self, keys: ArrayLike, out: Any = None, *, state: Literal[True]
    ) -> tuple[Floats, Floats]: ...

    @overload
    def get(
        self, keys: ArrayLike, out: Any = None, *, state: bool = False, found: Literal[True]
    ) -> tuple[Any, npt.NDArray[np.bool_]]: ...

    @overload
    def get(
        self,
        keys: ArrayLike,
        out: Any = None,
        *,
        state: bool = False,
        dtype: Any,
        found: bool = False,
    ) -> Any: ...

    def get(
        self,
        keys: ArrayLike,
        out: Any = None,
        *,
        state: bool = False,
        dtype: Any = None,
        found: bool = False,
    ) -> Any:
        """Returns the rows of these keys, in the order of the keys.

        A key that was never written yields its initial row; reading stores nothing. With
        ``state=True`` the result is a pair of values and optimizer state. ``out`` is an array to
        fill instead of a new one (a pair with ``state=True``), and is returned: float32 or the
        table's own dtype, contiguous and writeable; a CPU tensor of PyTorch works too. ``dtype``
        requests values in the table's own dtype: NumPy float16, or for bfloat16 an object that
        NumPy reads as float32 and ``torch.from_dlpack`` takes without conversion. With
        ``found=True`` the result is a pair: the result as above, and which keys are written. This
        is looked up first, so a key that another thread writes meanwhile may have its row and count
        as not written.

        Shapes: ``keys (*,) -> values (*, embedding_dim) float32, state (*, state_words) float32,
        found (*,) bool``.

        Blocking: waits for the pages of rows that are not in memory.

        >>> table.get([7, 8]).shape
        (2, 4)
        >>> values, state = table.get([[7], [8]], state=True)
        >>> state.shape
        (2, 1, 4)
        >>> table.put([7], np.ones((1, 4), np.float32))
        >>> rows, written = table.get([7, 1000], found=True)
        >>> written
        array([ True, False])
        >>> store.table("half", 4, dtype="float16").get([7, 8], dtype="float16").dtype
        dtype('float16')
        """
        asked, state, wants_found = as_keys(keys), flag("state", state), flag("found", found)
        if state and out is not None and not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise MisuseError("out with state=True is a pair (values, state) of arrays to fill")
        out_values, out_state = out if state and out is not None else (out, None)
        if dtype is not None and out_values is not None:
            raise MisuseError("get takes out or dtype, not both; out has a dtype of its own")
        if out_values is None:
            answer, values = self._new_values(asked, "float32" if dtype is None else dtype)
        else:
            answer, values = out_values, self._out_values(asked, out_values, "out")
        states = self._room(asked, out_state, "out[1]", "state_words") if state else None
        part = (self._handle, asked.flat, values, states)
        written = self._written(asked) if wants_found else None
        call(self._store, [(self, asked)], VISITS + ASKS, self._store._core.get, [part])
        if states is not None:
            answer = answer, states if out_state is None else out_state
        return answer if written is None else (answer, written)

    def put(
        self,
        keys: ArrayLike,
        values: ArrayLike,
        *,
        state: ArrayLike | None = None,
        reset_state: bool = False,
        non_finite: NonFinite = "refuse",
    ) -> None:
        """Writes rows; of equal keys the last one wins.

        An existing row keeps its optimizer state, a new one starts with the initial state. With
        ``state`` both are written; with ``reset_state=True`` the initial state is written without
        reading the stored row.

        Shapes: ``keys (*,), values (*, embedding_dim), state (*, state_words)``, rows float32; for
        a table that stores 16 bits, values may be doubles, which are rounded once.

        Errors: ``NonFiniteError`` for NaN and infinite values, and for those beyond the range of
        the table's dtype, unless ``non_finite`` is ``"skip"`` (such rows are left out) or
        ``"apply"`` (the latter become infinite; an int8 or int4 table, which cannot hold them,
        refuses all the same).

        >>> table.put([7, 8], np.ones((2, 4), np.float32))
        >>> table.get(7)
        array([1., 1., 1., 1.], dtype=float32)
        """
        if flag("reset_state", reset_state) and state is not None:
            raise MisuseError("put takes state or reset_state=True, not both")
        found = as_keys(keys)
        parts = [_verbs.put_part(self, found, values, state)]
        _verbs.put(self._store, [(self, found)], parts, reset_state, non_finite)

    def update(
        self,
        keys: ArrayLike,
        gradients: ArrayLike,
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
        """Makes one optimizer step on the rows of these keys.

        Gradients of equal keys are summed first, in float32 and in order of occurrence; then every
        distinct key makes one step of the table's optimizer. If ``eps`` is None, it is 1e-10 for
        Adagrad and row-wise Adagrad, and 1e-8 for the Adam family, which also uses ``betas``.
        ``weight_decay`` adds that multiple of the row to its gradient; with AdamW it shrinks the
        row. ``more`` are the hyperparameters of other optimizers: ``momentum``, ``dampening``,
        ``nesterov``; ``lr_power``, ``l1``, ``l2``, ``beta`` of FTRL (:mod:`embedrock.optimizers`).
        ``step`` is the number of the step for a global bias correction; None: one more than the
        table's count of updates.

        ``clip`` bounds the summed gradients (:class:`embedrock.Clip`). ``other_norm`` is the norm
        of other gradients, for example dense ones, to include in ``Clip.norm``; the report's norm
        covers all of them, and the caller scales the others by it.

        Shapes: ``keys (*,), gradients (*, embedding_dim) float32``.

        The step is computed in float32. A float16 or bfloat16 table rounds the results as set at
        its creation (``rounding``); a value outside the range is clamped.

        Returns ``{"rows": distinct rows updated, "skipped": distinct rows left out}``, with
        ``Clip.norm`` the norm before scaling as ``"norm"``, and as ``"saturated"`` the number of
        rows with clamped values, if any.

        Errors: ``NonFiniteError`` for NaN and infinite gradients, unless ``non_finite`` is
        ``"skip"`` (their rows are left out) or ``"apply"``; they are looked for before clipping.

        >>> table.update([7, 7, 9], np.ones((3, 4), np.float32), lr=0.1)
        {'rows': 2, 'skipped': 0}
        """
        found = as_keys(keys)
        factors = hyper(self._optimizer["kind"], lr, eps, betas, weight_decay, more)
        parts = [_verbs.update_part(self, found, gradients, factors)]
        return _verbs.update(
            self._store, [(self, found)], parts, non_finite, step, clip, other_norm
        )

    def modify(self, keys: ArrayLike, function: Function, /) -> None:
        """Rewrites rows with a function from (values, state) to (values, state).

        ``function`` is called once, with arrays ``(U, embedding_dim)`` and ``(U, state_words)`` of
        the rows of the U distinct keys in order of first occurrence, which ``embedrock.distinct``
        gives. It changes them in place and returns None, or returns new values, or a pair of new
        values and state. No other thread sees or changes the rows in between.

        Errors: what ``function`` raises reaches the caller unchanged, and no row has changed. A
        call of the same store from inside it is refused with ``MisuseError``. ``NonFiniteError``
        when it leaves NaN or infinite numbers.

        Blocking: calls of the store by other threads wait until ``function`` is done.

        Source: Rmw of MLKV.

        >>> table.put([7], np.full((1, 4), 3.0, np.float32))
        >>> table.modify([7, 7], lambda values, state: values * 2)
        >>> table.get(7)
        array([6., 6., 6., 6.], dtype=float32)
        """
        if not callable(function):
            raise MisuseError(
                f"function is {shown(function)}, expected a callable of (values, state)"
            )

        def apply(values: Floats, state: Floats) -> None:
            returned = function(values, state)
            if returned is None:
                return
            pair = returned if isinstance(returned, tuple) else (returned, state)
            if len(pair) != 2:
                raise MisuseError(f"function returned {len(pair)} arrays, expected values, state")
            meaning = "one row for each distinct key"
            stored = self._crossing_dtype
            new_values = as_rows(pair[0], values.shape, meaning, "returned values", stored)
            new_state = as_rows(pair[1], state.shape, meaning, "returned state")
            values[...] = new_values
            state[...] = new_state

        found = as_keys(keys)
        does, engine = VISITS + CHANGES + ASKS, self._store._core.modify
        call(self._store, [(self, found)], does, engine, self._handle, found.flat, apply)
        self._store._name_optimizer(self._handle)

    def delete(self, keys: ArrayLike) -> int:
        """Deletes rows and returns their number; the keys then read as initial rows.

        >>> table.put([7, 8], np.ones((2, 4), np.float32))
        >>> table.delete([7, 7, 1000])
        1
        """
        found = as_keys(keys)
        engine = self._store._core.delete
        return call(self._store, [(self, found)], CHANGES, engine, self._handle, found.flat)

    def contains(self, keys: ArrayLike) -> npt.NDArray[np.bool_]:
        """Returns which keys are written and not deleted. The answer is exact, and may need reads.

        Shapes: ``keys (*,) -> (*,) bool``.

        >>> table.put([7], np.ones((1, 4), np.float32))
        >>> table.contains([7, 1000])
        array([ True, False])
        """
        return self._written(as_keys(keys))

    def _written(self, keys: Keys) -> npt.NDArray[np.bool_]:
        out = np.empty(keys.flat.shape, np.bool_)
        engine = self._store._core.contains
        call(self._store, [(self, keys)], 0, engine, self._handle, keys.flat, out)
        return out.reshape(keys.shape)

    def _doubt(self, keys: npt.NDArray[np.uint64]) -> None:
        """Warns once of ids that are looked up in a table whose keys are hashes of them."""
        kind = self._hashed_by
        if kind is None or not len(keys):
            return
        self._hashed_by, self._keys_known = None, True
        if not are_small(keys) or self.contains(keys).any():
            return
        self._store._doubted.add(self._handle)
        example = ""
        if kind == "hash_keys":
            example = f": get(embedrock.hash_keys(['{int(keys[0])}'])) reads the row of that id"
        warn(
            f"table {self._name!r} has none of the {len(keys)} keys that are asked for, the first "
            f"of them {int(keys[0])}, so initial rows are read; its keys are {SAID[kind]}{example}",
            KeysWarning,
        )

    def promote(self, keys: ArrayLike) -> int:
        """Brings rows that are asked for often to where they are read soonest, the first ones
        first, which should be the hottest. Results never change.

        Stored rows are loaded into at most half of the memory; the result is the number of loaded
        rows. With storage ``"pmem"``, their keys move to the bucket in which look-ups begin, and
        others make way; the result is the number of them that are there now. During an iteration
        over the table nothing moves, and the result is 0. A thread moves all displaced keys home
        over time, so this is for keys that are hot now.

        Errors: ``KeyRangeError``; ``MisuseError`` for a table with storage ``"pmem"`` of a store
        that was opened ``read_only``.

        Source: hotness-aware placement of PetPS (3.2).

        >>> table.put([7, 8], np.ones((2, 4), np.float32))
        >>> table.promote([7, 8])  # they are in memory already
        0
        """
        found = as_keys(keys)
        with KeysNamed((self, found)):
            return self._store._core.promote(self._handle, found.flat)

    @overload
    def lookahead(self, keys: ArrayLike) -> None: ...

    @overload
    def lookahead(
        self, keys: ArrayLike, out: T, *, announced: int | None = None
    ) -> Prefetch[T]: ...

    def lookahead(
        self, keys: ArrayLike, out: Any = None, *, announced: int | None = None
    ) -> Prefetch[Any] | None:
        """Reads rows before they are used: into the store, or with ``out`` into an array.

        Without ``out``, announces the keys of one future ``get`` of this table; their rows are then
        read ahead into the store. The call returns at once, and never changes results, only their
        timing. Announcements are made in the order of the gets. The get of these keys, in any order
        and with any repetition, begins the batch, and the next announced get finishes it, together
        with any announcements that it skips. :class:`embedrock.ahead.Window` has batches of several
        tables and tells when they begin and end.

        With ``out``, a thread of the store fills that array as a ``get`` would, and the call
        returns a handle whose ``wait()`` returns the array. Each row is as it was at some moment
        between the call and the end of the read: it has every update that was applied before the
        call, and none that is applied after; of those in between it may have some. An array is not
        updated afterwards, so this is for batches within the staleness bound: take a permit
        (:meth:`Store.permits`) before the call and release it when the batch's updates are applied.
        Requests are read in their order. ``announced`` is the number that ``store.window.announce``
        gave for the batch: the request, instead of the caller, waits until the batch was read
        ahead. :class:`embedrock.ahead.Prefetch` describes the rules until the array is filled.

        Shapes: ``keys (*,), out (*, embedding_dim)``, float32 or the table's own dtype, as for
        ``get``; keys are copied.

        Errors: ``KeyRangeError`` for ids outside a dense table. With ``out`` also ``MisuseError``
        for an array that cannot be filled or that another request is filling; errors in reading are
        raised by ``wait()``.

        Blocking: returns at once, but for a commit or ``modify`` under way.

        Source: Lookahead(keys, dest) of MLKV (III-C), whose destinations are the store's memory and
        the application's.

        >>> table.lookahead(np.arange(100))
        >>> rows = np.empty((3, 4), np.float32)
        >>> table.lookahead([7, 8, 9], out=rows).wait().shape
        (3, 4)
        """
        found = as_keys(keys)
        if out is not None:
            return _verbs.lookahead(self._store, [(self, found)], [out], out, announced)
        if announced is not None:
            raise MisuseError("announced says when an array is read: lookahead takes it with out")
        with KeysNamed((self, found)):
            self._store._core.lookahead(self._handle, found.flat)
        return None

    @overload
    def items(
        self, batch_size: int = 65536, *, state: Literal[False] = False, unwritten: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]: ...

    @overload
    def items(
        self, batch_size: int = 65536, *, state: Literal[True], unwritten: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], Floats, Floats]]: ...

    def items(
        self, batch_size: int = 65536, *, state: bool = False, unwritten: bool = False
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """Iterates over every written row once, in batches, in the engine's order.

        Rows that were never written, or were deleted, are left out: training has not touched them.
        With ``unwritten=True`` those of a dense table follow the others, as ``get`` reads them, so
        that every id appears once; the written ones then come in storage order, each page being
        read once. ``Embedding.topk`` ranks these same rows.

        Shapes: yields ``keys (B,) int64, values (B, embedding_dim) float32`` and, with
        ``state=True``, ``state (B, state_words) float32``; ``B`` is at most ``batch_size``. Keys of
        2**63 and above appear negative; ``keys.view(np.uint64)`` turns them back.

        Errors: ``MisuseError`` when the table was written to since the iteration began, and for
        ``unwritten`` rows of a growing table, whose number is unlimited; ``FullError`` if there is
        no disk space for changed rows.

        Blocking: reads the table, page after page. Changed rows of a growing table, and with
        ``unwritten=True`` of any, are written to the disk first, without a commit; until such an
        iteration ends, or its iterator is gone, disk that other tables' updates release is not used
        again.

        >>> table.put([3], np.ones((1, 4), np.float32))
        >>> for keys, values in table.items():
        ...     print(keys, values.shape)
        [3] (1, 4)
        """
        most, state = whole("batch_size", batch_size, 1), flag("state", state)
        if flag("unwritten", unwritten) and self._num_embeddings is None:
            raise MisuseError(
                f"unwritten=True, but table {self._name!r} grows: its keys that were never written "
                f"are without end; get reads those that you name"
            )
        self._store._listeners.before()
        # The arrays of a batch hold no more than there is.
        scan = self._store._core.scan(self._handle, stored=unwritten)
        written = self._batches(scan, min(most, max(len(self), 1)), state)
        return self._with_unwritten(written, most, state) if unwritten else written

    def keys(self, batch_size: int = 65536) -> Iterator[npt.NDArray[np.int64]]:
        """Every written key once, in batches of at most ``batch_size``, as int64.

        >>> table.put([3, 5], np.ones((2, 4), np.float32))
        >>> sorted(np.concatenate(list(table.keys())).tolist())
        [3, 5]
        """
        return (keys for keys, _ in self.items(batch_size))

    def digest(self, progress: Progress | None = None) -> int:
        """A 64-bit hash of all written rows, values and state, whatever their order on disk.

        Two tables of equal parameters with equal rows have equal digests. ``progress(done, total)``
        is called now and then, in rows. Ctrl-C ends it between two batches.

        Blocking: reads the table once.

        >>> table.digest() == table.digest()
        True
        """
        function_or_none("progress", progress, "rows done and in all")
        self._store._listeners.before()
        return self._store._core.digest(self._handle, progress)

    def _update_part(self, keys: Keys, gradients: ArrayLike, factors: dict[str, Any]) -> Any:
        """The table's part of an optimizer step, as ``Store._update`` takes it."""
        return _verbs.update_part(self, keys, gradients, _core.Hyper(**factors))

    def _batches(
        self, scan: _core.Scan, batch_size: int, state: bool
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        while True:
            keys = np.empty(batch_size, np.uint64)
            values = np.empty((batch_size, self._embedding_dim), np.float32)
            states = np.empty((batch_size, self._state_words), np.float32) if state else None
            count = scan.next_batch(keys, values, states)
            if count == 0:
                return
            found = (keys[:count].view(np.int64), values[:count])
            yield found if states is None else (*found, states[:count])

    def _with_unwritten(
        self, written: Iterator[tuple[npt.NDArray[Any], ...]], batch_size: int, state: bool
    ) -> Iterator[tuple[npt.NDArray[Any], ...]]:
        """Written rows, then those of all other ids: a bit for each id says which were there."""
        size = self._num_embeddings
        assert size is not None
        seen = np.zeros(-(-size // 8), np.uint8)
        for found in written:
            ids = found[0]
            np.bitwise_or.at(seen, ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8))
            yield found
        left = np.empty(0, np.int64)
        for begin in range(0, len(seen), _SEEN_BYTES):
            bits = np.unpackbits(seen[begin : begin + _SEEN_BYTES], bitorder="little")
            ids = 8 * begin + np.flatnonzero(bits[: size - 8 * begin] == 0)
            left = np.concatenate([left, ids])
            last = begin + _SEEN_BYTES >= len(seen)
            while len(left) >= batch_size or (last and len(left)):
                part, left = left[:batch_size], left[batch_size:]
                rows = self.get(part, state=True) if state else (self.get(part),)
                yield (part, *rows)

    def _new_values(self, keys: Keys, dtype: Any) -> tuple[Any, npt.NDArray[Any]]:
        """New values of a dtype as the caller gets them, and as the engine fills them."""
        name, (shape, _) = dtype_name(dtype), self._shape(keys, "embedding_dim")
        if name not in ("float32", self._crossing_dtype):
            own = "" if self._crossing_dtype == "float32" else f" or {self._crossing_dtype}"
            raise MisuseError(f"dtype is {name}, table {self._name!r} gives float32{own}")
        if name == "float32":
            values = np.empty(shape, np.float32)
            return values, values
        bits = np.empty(shape, np.uint16)
        return (bits.view(np.float16) if name == "float16" else BFloat16Rows(bits)), bits

    def _out_values(self, keys: Keys, out: Any, name: str) -> npt.NDArray[Any]:
        """The caller's array for values as the engine fills it."""
        return as_out(out, *self._shape(keys, "embedding_dim"), name, self._crossing_dtype)

    def _room(self, keys: Keys, out: Any, name: str, width: str) -> Floats:
        shape, meaning = self._shape(keys, width)
        return np.empty(shape, np.float32) if out is None else as_out(out, shape, meaning, name)

    def _rows(self, keys: Keys, rows: ArrayLike, name: str, width: str) -> Floats:
        stored = self._crossing_dtype if name == "values" else "float32"
        return as_rows(rows, *self._shape(keys, width), name, stored)

    def _shape(self, keys: Keys, width: str) -> tuple[tuple[int, ...], str]:
        """The shape of one row of this width per key, and what it means."""
        size, meaning = self._widths[width]
        return (*keys.shape, size), meaning
