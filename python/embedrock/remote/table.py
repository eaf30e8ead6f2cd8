"""A table of a server: the verbs of a table, for those that the protocol has."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from embedrock._arguments import choice, flag, whole_or_none
from embedrock._arrays import ArrayLike, Keys, as_keys, as_out, as_rows
from embedrock._verbs import NON_FINITE, Floats, NonFinite, UpdateReport
from embedrock.errors import (
    CorruptError,
    EmbedrockError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NonFiniteError,
)
from embedrock.optimizers import OptimizerSpec, factors
from embedrock.remote.batches import Pull
from embedrock.remote.hot import Sampler
from embedrock.remote.pool import Pool
from embedrock.remote.wire import Wire

if TYPE_CHECKING:
    from embedrock.remote.client import RemoteStore

__all__ = ["RemoteTable", "UpdatePart"]

T = TypeVar("T")

_AROUND = 4096
"""Bytes of a request beside keys and rows, at most."""


_ELSEWHERE = {
    "delete": "the server's protocol has no such command",
    "modify": "its function would run in the server",
    "items": "iterate over a store that is open here, a copy of the server's for example",
    "keys": "iterate over a store that is open here, a copy of the server's for example",
    "digest": "ask a store that is open here, a copy of the server's for example",
}
"""Verbs of tables that are here, and why they are not there of a server's."""


class UpdatePart(NamedTuple):
    """One table's part of an optimizer step."""

    table: RemoteTable
    keys: Keys
    gradients: Floats
    factors: dict[str, Any]

    def check_finite(self) -> None:
        """Refuses gradients of distinct keys that are NaN or infinite, as the engine does."""
        rows = self.gradients.reshape(-1, self.table.embedding_dim)
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if bad.size:
            keys = self.keys.flat.view(np.int64) if self.keys.signed else self.keys.flat
            raise NonFiniteError(
                f"gradients of {bad.size} of {len(rows)} rows of table {self.table.name!r} are NaN "
                f"or infinite, the first for key {keys[bad[0]]}; nothing was changed; the loss is "
                f"probably not finite: lower the learning rate or clip gradients; "
                f"non_finite='skip' would leave such rows out"
            )


class RemoteTable:
    """A table of a server, from ``connect(...)["name"]``.

    Keys and rows are those of :class:`embedrock.Table`: int64 or uint64 keys of any shape, NumPy or
    DLPack, and float32 rows, whatever the dtype that the server stores. Every verb is one request,
    which the server checks as a whole before the first row changes; a ``get`` above the size limit
    of a reply takes several. A refusal by the server raises the same exception as a store in this
    process; ``IoError`` says that the server was not reached, or did not answer in time: then an
    update may have been made, and is not sent again.
    """

    def __init__(
        self,
        store: RemoteStore,
        pool: Pool,
        info: dict[str, Any],
        limits: dict[str, int],
        sampler: Sampler | None = None,
    ) -> None:
        """Not for callers: tables come from a :class:`RemoteStore`."""
        self._store = store
        self._pool, self._sampler = pool, sampler
        self._limits = limits
        self._name: str = info["name"]
        self._encoded = self._name.encode()
        self._embedding_dim: int = info["embedding_dim"]
        self._num_embeddings: int | None = info["num_embeddings"]
        self._dtype: str = info["dtype"]
        self._optimizer: str = info["optimizer"]
        self._spec: dict[str, Any] = json.loads(info["spec"])

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    def embedding_dim(self) -> int:
        """Values per row."""
        return self._embedding_dim

    @property
    def num_embeddings(self) -> int | None:
        """Rows of a dense table; None for a growing table."""
        return self._num_embeddings

    @property
    def dtype(self) -> str:
        """Type of the values as the server stores them; rows cross as float32."""
        return self._dtype

    @property
    def store(self) -> RemoteStore:
        """The store that the table belongs to."""
        return self._store

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer whose state the rows carry, as ``embedrock.optimizers`` describes it."""
        found: OptimizerSpec = self._spec["optimizer"].copy()
        return found

    @property
    def initializer(self) -> dict[str, Any]:
        """The values of unwritten rows, as ``embedrock.initializers`` describes them."""
        return dict(self._spec["initializer"])

    if not TYPE_CHECKING:  # to type checkers a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Says why a verb of a table that is here is not there."""
            reason = _ELSEWHERE.get(name)
            said = f"'RemoteTable' has no {name!r}"
            raise AttributeError(f"{said}: {reason}" if reason else said, name=name, obj=self)

    def __contains__(self, key: object) -> bool:
        """Whether this one key was ever written."""
        written: bool = self.get(key, found=True)[1].all()  # type: ignore[call-overload]
        return bool(written)

    def __repr__(self) -> str:
        ids = "growing" if self._num_embeddings is None else f"dense of {self._num_embeddings}"
        return (
            f"<embedrock.RemoteTable {self._name!r} at {self._pool.name}: {self._embedding_dim} "
            f"{self._dtype}, {ids}, {self._optimizer}>"
        )

    @overload
    def get(self, keys: ArrayLike, out: Any = None, *, found: Literal[False] = False) -> Any: ...

    @overload
    def get(
        self, keys: ArrayLike, out: Any = None, *, found: Literal[True]
    ) -> tuple[Any, npt.NDArray[np.bool_]]: ...

    def get(self, keys: ArrayLike, out: Any = None, *, found: bool = False) -> Any:
        """The rows of these keys, in their order. One that was never written gives its initial row.

        ``out`` is a float32 array to fill instead of a new one. With ``found=True`` the answer is
        the pair of rows and of which keys were ever written.

        Shapes: ``keys (*,) -> rows (*, embedding_dim) float32, found (*,) bool``.

        Blocking: until the rows are here. After a failed connection it is tried again.
        """
        asked, wants_found = as_keys(keys), flag("found", found)
        shape, meaning = self._shape(asked)
        rows = np.empty(shape, np.float32) if out is None else as_out(out, shape, meaning, "out")
        flat = rows.reshape(-1, self._embedding_dim)
        written = np.ones(asked.flat.shape, np.bool_)
        for part in self._parts(len(asked.flat)):
            packed, into = _packed(asked.flat[part]), flat[part]

            def pull(
                wire: Wire, packed: memoryview = packed, into: Floats = into
            ) -> npt.NDArray[np.uint32]:
                wire.send(b"EMB.PULLB", self._encoded, packed)
                return wire.rows(into, self._embedding_dim)

            written[part][self._run(pull, repeats=True)] = False
        self._look(asked)
        answer = rows if out is None else out
        return (answer, written.reshape(asked.shape)) if wants_found else answer

    def put(self, keys: ArrayLike, values: ArrayLike, *, non_finite: NonFinite = "refuse") -> None:
        """Writes rows; of equal keys the last one wins. Optimizer state stays.

        Shapes: ``keys (*,), values (*, embedding_dim) float32``.

        Errors: as :meth:`embedrock.Table.put`; ``MisuseError`` for more than a request may have.
        Durability: with the server's next commit.
        """
        asked = as_keys(keys)
        rows = as_rows(values, *self._shape(asked), "values", self.dtype)
        policy = choice("non_finite", non_finite, NON_FINITE)
        request = self._request(b"EMB.PUSH", asked, rows, [b"NONFINITE", policy.encode()])
        self._write(request, asked)

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
        **more: float,
    ) -> UpdateReport:
        """One optimizer step on the rows of these keys, as :meth:`embedrock.Table.update` makes it.

        Gradients of equal keys are summed first. It is sent once: where no answer comes, an
        ``IoError`` says so, and whether the step was made is not known.

        Shapes: ``keys (*,), gradients (*, embedding_dim) float32``.

        Durability: with the server's next commit.
        """
        asked = as_keys(keys)
        numbers = factors(self._optimizer, lr, eps, betas, weight_decay, more)
        part = self._update_part(asked, gradients, numbers)
        number = whole_or_none("step", step, 1)
        counts = self._write(self._update_request(part, non_finite, number), asked)
        report: UpdateReport = {"rows": counts[b"rows"], "skipped": counts[b"skipped"]}
        if counts[b"saturated"]:
            report["saturated"] = counts[b"saturated"]
        return report

    def lookahead(self, keys: ArrayLike) -> None:
        """Announces the keys of one coming ``get``, whose rows the server then reads ahead.

        Announcements are those of the server's one store: clients that announce side by side pass
        over each other's. They change when rows arrive, never which.
        """
        asked = as_keys(keys)
        self._check_range(asked)
        # One announcement for each request that the get will send.
        parts = [_packed(asked.flat[part]) for part in self._parts(len(asked.flat))]

        def announce(wire: Wire) -> None:
            for packed in parts:
                wire.call(b"EMB.LOOKAHEAD", self._encoded, packed)

        self._run(announce, repeats=False)

    def promote(self, keys: ArrayLike) -> None:
        """Tells the server which keys are hot, the hottest first: their rows are brought into
        memory before they are asked for.

        The server does so beside what it serves, later than this returns. A new set of a table
        takes the place of one that still waits. It changes no row, and counts as no pull.
        ``connect(..., sample=)`` finds such keys and sends them.

        Errors: ``KeyRangeError``; ``MisuseError`` for more than 65,536 keys.
        """
        asked = as_keys(keys)
        self._check_range(asked)
        promote(self._pool, self._encoded, asked.flat)

    def _update_part(self, keys: Keys, gradients: ArrayLike, factors: dict[str, Any]) -> UpdatePart:
        """The table's part of an optimizer step, as ``RemoteStore._update`` takes it."""
        return UpdatePart(self, keys, as_rows(gradients, *self._shape(keys), "gradients"), factors)

    def _update_request(
        self, part: UpdatePart, non_finite: NonFinite, step: int | None
    ) -> list[bytes | memoryview]:
        numbers = part.factors
        if self._optimizer == "momentum":
            numbers = {"momentum": 0.0, **numbers}  # the server has torch's usual one without
        options = [b"NONFINITE", choice("non_finite", non_finite, NON_FINITE).encode()]
        if step is not None:
            options += [b"STEP", b"%d" % step]
        for name, value in numbers.items():
            given = int(value) if name == "nesterov" else repr(float(value))
            options += [name.upper().encode(), str(given).encode()]
        return self._request(b"EMB.UPDATE", part.keys, part.gradients, options)

    def _request(
        self, command: bytes, keys: Keys, rows: Floats, options: list[bytes]
    ) -> list[bytes | memoryview]:
        self._check(keys, rows.nbytes)
        return [command, self._encoded, _packed(keys.flat), _bytes_of(rows), *options]

    def _write(self, request: list[bytes | memoryview], keys: Keys) -> Any:
        flat = self._run(lambda wire: wire.call(*request), repeats=False)
        self._tell_changed(keys)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _run(self, function: Callable[[Wire], T], *, repeats: bool) -> T:
        """The answer to a request. If it fails because the table has changed, the error says so."""
        try:
            return self._store._run(function, repeats=repeats)
        except (CorruptError, MisuseError) as error:
            dim = self._dim_now()
            if dim is None or dim == self._embedding_dim:
                raise
            raise MismatchError(
                f"server {self._pool.name} has another table {self._name!r} now, with {dim} values "
                f"per row; this one is of {self._embedding_dim}: take it again, by "
                f"store[{self._name!r}]"
            ) from error

    def _dim_now(self) -> int | None:
        """Values per row that the server's table of this name has; None where it does not tell."""
        with contextlib.suppress(EmbedrockError):
            found = self._store._tables().get(self._name)
            return None if found is None else int(found["embedding_dim"])
        return None

    def _has_grown(self) -> bool:
        """Whether the server's table has more ids than were known, which are known then."""
        with contextlib.suppress(EmbedrockError):
            found = self._store._tables().get(self._name, {})
            ids, before = found.get("num_embeddings"), self._num_embeddings
            if ids is not None and before is not None and ids > before:
                self._num_embeddings = ids
                return True
        return False

    def _tell_changed(self, keys: Keys) -> None:
        """Tells who keeps rows of the table, in this process alone."""
        self._store._listeners.changed([(self._name, keys.flat)])

    def _look(self, keys: Keys) -> None:
        """Lets the sampler see what is asked for."""
        if self._sampler is not None:
            self._sampler.look(self._encoded, keys.flat)

    def _pulls(self, keys: Keys, into: Floats) -> list[Pull]:
        """The requests for these rows."""
        self._check_range(keys)
        flat = into.reshape(-1, self._embedding_dim)
        return [
            Pull(self._encoded, _packed(keys.flat[part]), flat[part])
            for part in self._parts(len(keys.flat))
        ]

    def _check(self, keys: Keys, row_bytes: int) -> None:
        """Refuses what the server would refuse only once most of it was sent."""
        count, most = len(keys.flat), self._limits.get("max-keys")
        if most is not None and count > most:
            raise MisuseError(
                f"{count} keys, server {self._pool.name} takes at most {most} in a request; send "
                f"them in parts"
            )
        size, most = count * 8 + row_bytes, self._limits.get("max-request-bytes")
        if most is not None and size + _AROUND > most:
            raise MisuseError(
                f"a request of {size} bytes, server {self._pool.name} takes at most "
                f"{most - _AROUND} beside names; send it in parts"
            )
        self._check_range(keys)

    def _check_range(self, keys: Keys) -> None:
        """Refuses keys that a dense table does not have."""
        count = len(keys.flat)
        if self._num_embeddings is not None and count:
            worst = int(keys.flat.max())
            if worst >= self._num_embeddings:
                if self._has_grown():
                    return self._check_range(keys)
                said = np.array(worst, np.uint64).view(np.int64) if keys.signed else worst
                raise KeyRangeError(
                    f"key {said} of table {self._name!r}, expected 0 to {self._num_embeddings - 1}"
                )

    def _parts(self, count: int) -> list[slice]:
        """Keys by request, so that neither it nor its reply is too large."""
        per_key = self._embedding_dim * 4 + 4
        least = [self._limits.get("max-keys", count)]
        if "max-reply-bytes" in self._limits:
            least.append((self._limits["max-reply-bytes"] - 64) // per_key)
        if "max-request-bytes" in self._limits:
            least.append((self._limits["max-request-bytes"] - _AROUND) // 8)
        size = max(min(least), 1)
        return [slice(begin, begin + size) for begin in range(0, max(count, 1), size)]

    def _shape(self, keys: Keys) -> tuple[tuple[int, ...], str]:
        meaning = f"keys.shape + (embedding_dim,) of table {self._name!r}"
        return (*keys.shape, self._embedding_dim), meaning


def promote(pool: Pool, table: bytes, keys: npt.NDArray[np.uint64]) -> None:
    """Sends a hot set of a table, by its encoded name."""
    packed = _packed(keys)
    pool.run(lambda wire: wire.call(b"EMB.HOT", table, packed), repeats=True)


def _packed(keys: npt.NDArray[np.uint64]) -> memoryview:
    """Keys as they are sent: 8 bytes each, the least significant first."""
    return _bytes_of(np.ascontiguousarray(keys, "<u8"))


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
