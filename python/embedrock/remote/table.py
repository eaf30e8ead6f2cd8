"""A table of a server: the verbs of a table, for those that the protocol has."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from embedrock._arguments import choice, flag, whole_or_none
from embedrock._arrays import ArrayLike, Keys, as_keys, as_out, as_rows
from embedrock._verbs import NON_FINITE, Floats, NonFinite, UpdateReport
from embedrock.errors import KeyRangeError, MisuseError
from embedrock.optimizers import factors
from embedrock.remote.hot import Sampler
from embedrock.remote.pool import Pool
from embedrock.remote.wire import Wire

__all__ = ["RemoteTable"]

_AROUND = 4096
"""Bytes of a request beside keys and rows, at most."""


class RemoteTable:
    """A table of a server, from ``connect(...)["name"]``.

    Keys and rows are those of :class:`embedrock.Table`: int64 or uint64 keys of any shape, NumPy or
    DLPack, and float32 rows, whatever the dtype that the server stores. Every verb is one request,
    which the server checks as a whole before the first row changes; a ``get`` that is larger than a
    reply may be takes several. What the server refuses raises the exception that a store in this
    process would raise; ``IoError`` says that the server was not reached, or did not answer in
    time: then an update may have been made, and is not sent again.
    """

    def __init__(
        self,
        pool: Pool,
        info: dict[str, Any],
        limits: dict[str, int],
        sampler: Sampler | None = None,
    ) -> None:
        """Not for callers: tables come from a :class:`RemoteStore`."""
        self._pool, self._sampler = pool, sampler
        self._limits = limits
        self._name: str = info["name"]
        self._encoded = self._name.encode()
        self._embedding_dim: int = info["embedding_dim"]
        self._num_embeddings: int | None = info["num_embeddings"]
        self._dtype: str = info["dtype"]
        self._optimizer: str = info["optimizer"]

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

            written[part][self._pool.run(pull, repeats=True)] = False
        if self._sampler is not None:
            self._sampler.look(self._encoded, asked.flat)
        answer = rows if out is None else out
        return (answer, written.reshape(asked.shape)) if wants_found else answer

    def put(self, keys: ArrayLike, values: ArrayLike, *, non_finite: NonFinite = "refuse") -> None:
        """Writes rows; of equal keys the last one wins. Optimizer state stays.

        Shapes: ``keys (*,), values (*, embedding_dim) float32``.

        Errors: as :meth:`embedrock.Table.put`; ``MisuseError`` for more than a request may have.
        Durability: with the server's next commit.
        """
        asked = as_keys(keys)
        rows = as_rows(values, *self._shape(asked), "values")
        policy = choice("non_finite", non_finite, NON_FINITE)
        self._write(b"EMB.PUSH", asked, rows, [b"NONFINITE", policy.encode()])

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
        rows = as_rows(gradients, *self._shape(asked), "gradients")
        numbers = factors(self._optimizer, lr, eps, betas, weight_decay, more)
        if self._optimizer == "momentum":
            numbers = {"momentum": 0.0, **numbers}  # the server has torch's usual one without
        options = [b"NONFINITE", choice("non_finite", non_finite, NON_FINITE).encode()]
        number = whole_or_none("step", step, 1)
        if number is not None:
            options += [b"STEP", b"%d" % number]
        for name, value in numbers.items():
            given = int(value) if name == "nesterov" else repr(float(value))
            options += [name.upper().encode(), str(given).encode()]
        counts = self._write(b"EMB.UPDATE", asked, rows, options)
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

        self._pool.run(announce, repeats=False)

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

    def _write(self, command: bytes, keys: Keys, rows: Floats, options: list[bytes]) -> Any:
        self._check(keys, rows.nbytes)
        arguments = [self._encoded, _packed(keys.flat), _bytes_of(rows), *options]
        flat = self._pool.run(lambda wire: wire.call(command, *arguments), repeats=False)
        return dict(zip(flat[::2], flat[1::2], strict=True))

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
