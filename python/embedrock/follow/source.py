"""The interface of a log that a follower needs: records in order, and a position to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from embedrock._verbs import Floats

__all__ = ["Kind", "Position", "Record", "RemoteSource", "Source"]

Kind = Literal["put", "update", "delete"]
Position = Mapping[str, Any]
"""The next read position of a log: any JSON value, including the log's identity."""


@dataclass(frozen=True, slots=True)
class Record:
    """One batch of one table, as a log has it."""

    kind: Kind | None
    """The verb of the record; None if the record cannot be read, for which see ``fault``."""
    table: str
    """Name of the table."""
    keys: npt.NDArray[np.uint64]
    """(N,) uint64."""
    rows: Floats | None
    """(N, dim) float32: values of a put, gradients of an update; None for a delete."""
    options: Mapping[str, Any]
    """Further arguments of ``Table.put`` or ``Table.update`` by name, ``lr`` for example."""
    place: str
    """The place of the record, for people."""
    position: Position = field(repr=False)
    """The position behind the record."""
    fault: str = ""
    """Why a record that arrived whole cannot be read."""
    count: int = 1
    """Number of records of the log that it consists of."""
    parts: Callable[[], Sequence[Record]] | None = field(default=None, repr=False)
    """These records one by one, where there are several: the one that does not fit is looked for
    among them."""


@runtime_checkable
class Source(Protocol):
    """A log that can be followed. :class:`LogReader` is one; write your own for another.

    The follower keeps the position; a source keeps nothing. Records come in one order, the same
    whenever a position is sought again.
    """

    @property
    def position(self) -> Position:
        """The position behind all records that ``poll`` has returned. Plain values, for JSON."""
        ...

    def begin(self) -> None:
        """Goes to the first record. Errors: ``NotFoundError`` when it is not kept any more."""
        ...

    def end(self) -> None:
        """Goes behind the last record that there is."""
        ...

    def seek(self, position: Position) -> None:
        """Goes to a position. Errors: ``MismatchError`` for one of another log."""
        ...

    def poll(self) -> Sequence[Record]:
        """Some of the next records; none where there are none yet. Does not wait for them.

        Errors: ``CorruptError`` naming the place, and nothing of what is behind it.
        """
        ...

    def lag_bytes(self) -> int | None:
        """Bytes from the position to the end of the log; None where the log does not say it."""
        ...


@runtime_checkable
class RemoteSource(Source, Protocol):
    """A source whose ``poll`` may return none although there are more: they are on their way."""

    def at_end(self) -> bool:
        """Whether ``poll`` has returned all that there is.

        Errors: ``IoError`` where that has not come to be known for too long.
        """
        ...

    def lag_records(self) -> int:
        """Records from the position to the end of the log."""
        ...
