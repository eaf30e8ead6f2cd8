"""Schedules: in which stretch of a training each row is used next.

:func:`embedrock.schedule` makes one, from the keys of all batches in their order; the window takes
it batch by batch (:meth:`Window.announce`). The files are those of ``crates/schedule``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedrock import _core
from embedrock._arguments import named_path, shown, whole
from embedrock._arrays import ArrayLike, as_keys
from embedrock.errors import MisuseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embedrock.table import Table

__all__ = ["BatchSchedule", "Schedule", "name_of"]


@dataclass(frozen=True)
class BatchSchedule:
    """The place of a batch in the schedule of a training, and the next uses of its rows.

    A training is divided into *stretches* of some batches each, so that the rows of a stretch fit
    into an eighth of the cache. Source: time-forward processing of external-memory algorithms, for
    the order of training that RecDB (section 3.2.1) takes as known.

    >>> steps = [[1, 2, 3], [2, 3, 4], [1, 4, 5]]  # in stretches of one batch
    >>> soon = [[2, 1, 1], [-1, -1, 1], [-1, -1, -1]]
    >>> for stretch, (keys, uses) in enumerate(zip(steps, soon)):
    ...     place = BatchSchedule(stretch, 1, 2, {table: uses})
    ...     number = store.window.announce({table: keys}, schedule=place)
    >>> store.window.clear()
    """

    stretch: int
    """The number of the batch's stretch, from 0 on: the same as that of the batch before, or
    larger."""
    stretch_batches: int
    """Batches of each stretch, at most."""
    furthest: int
    """So many stretches ahead a next use is at most. As many stretches, less where memory or disk
    have no room for it, have a page of their own that rows are written to."""
    next_use: Mapping[Table | str, ArrayLike]
    """For each table of the batch, and each of its keys in their order, in how many stretches the
    row is used again: 0 for a later batch of this stretch, -1 where nobody knows. Of a key that
    occurs several times in the batch the last one counts."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name, least in (("stretch", 0), ("stretch_batches", 1), ("furthest", 0)):
            number = whole(name, getattr(self, name), least)
            if number >= 2**32:
                raise MisuseError(f"{name} is {number}, expected less than 2**32")
            object.__setattr__(self, name, number)
        if not isinstance(self.next_use, Mapping):
            expected = "expected {table: stretches until the next use}"
            raise MisuseError(f"next_use is {shown(self.next_use)}, {expected}")


class Schedule:
    """The next use of every row that the batches of a training use, from a file.

    A schedule is of batches in one order: those of an epoch, say. It is made once
    (:func:`embedrock.schedule`) and may be used by several runs and processes at the same time. The
    entries of a batch are read from the file when they are needed; the schedule takes next to no
    memory.

    Args:
        path: The file.

    Errors: ``NotFoundError``; ``CorruptError`` for a file that is no schedule, or damaged;
    ``UnsupportedError`` for a newer version; ``IoError``.

    >>> made = embedrock.schedule([{"ads": [1, 2]}, {"ads": [2, 3]}], "ads.schedule", 1)
    >>> schedule = embedrock.ahead.Schedule("ads.schedule")
    >>> schedule
    <embedrock.ahead.Schedule of 2 batches in 2 stretches, 4 uses of tables 'ads'>
    >>> schedule.batch(0, {"ads": [1, 2]}).next_use["ads"].tolist()
    [-1, 1]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file."""
        self.path = named_path("path", path)
        """The file."""
        self._core = _core.Schedule(self.path)
        self.tables: list[str] = self._core.tables()
        """The names of the tables whose rows the batches use."""
        self._places = {name: place for place, name in enumerate(self.tables)}

    def __len__(self) -> int:
        """Number of batches."""
        return self._core.batches()

    @property
    def uses(self) -> int:
        """Keys of all batches, equal ones counted as often as they come."""
        return self._core.uses()

    @property
    def stretch_batches(self) -> int:
        """Batches of each stretch but the last."""
        return self._core.stretch_batches()

    @property
    def stretches(self) -> int:
        """Number of stretches."""
        return -(-len(self) // self.stretch_batches)

    @property
    def furthest(self) -> int:
        """So many stretches ahead a next use is at most."""
        return self._core.furthest()

    @property
    def repeats(self) -> bool:
        """Whether the batches come again, in the same order, behind the last one."""
        return self._core.repeats()

    def batch(
        self, number: int, keys: Mapping[Table | str, ArrayLike], *, first_stretch: int = 0
    ) -> BatchSchedule | None:
        """The place of a batch and the next uses of its rows, for :meth:`Window.announce`.

        Args:
            number: Index of the batch in the schedule, from 0.
            keys: Its keys, by table or name, as they will be announced. Tables that are not in the
                schedule are left out of the result.
            first_stretch: The number of the schedule's first stretch: in the second of several
                passes over the same batches ``stretches``, and so on.

        None where the batch has other keys than that of the schedule, or has them in another order:
        the data, or the order, is another then.

        Errors: ``MisuseError`` for a number that it does not have, ``CorruptError`` where the file
        is damaged, ``IoError``.

        Blocking: reads the part of the file that is of the batch.
        """
        number = whole("number", number, 0)
        flat = self._flat(keys)
        uses = self._core.next_uses(number, [flat.get(name) for name in self.tables])
        if uses is None:
            return None
        return BatchSchedule(
            whole("first_stretch", first_stretch, 0) + number // self.stretch_batches,
            self.stretch_batches,
            self.furthest,
            {table: uses[self._places[name]] for table, name in _named(keys) if name in flat},
        )

    def find(self, keys: Mapping[Table | str, ArrayLike], *, start: int = 0) -> int | None:
        """The number of the first batch from ``start`` on that has these keys; then of those
        before it; None where there is none.

        Errors: ``CorruptError`` where the file is damaged, ``IoError``.

        Blocking: reads the file, up to that batch.
        """
        flat = self._flat(keys)
        return self._core.find(whole("start", start, 0), [flat.get(name) for name in self.tables])

    def __repr__(self) -> str:
        tables = ", ".join(map(repr, self.tables))
        return (
            f"<embedrock.ahead.Schedule of {len(self):,} batches in {self.stretches:,} stretches, "
            f"{self.uses:,} uses of tables {tables}>"
        )

    def _flat(self, keys: Mapping[Table | str, ArrayLike]) -> dict[str, NDArray[np.uint64]]:
        if not isinstance(keys, Mapping):
            raise MisuseError(f"keys is {shown(keys)}, expected {{table: keys}}")
        return {name: as_keys(keys[t]).flat for t, name in _named(keys) if name in self._places}


def _named(keys: Mapping[Table | str, ArrayLike]) -> list[tuple[Table | str, str]]:
    return [(table, name_of(table)) for table in keys]


def name_of(table: Any) -> str:
    """The name of a table that a batch names by it or by itself. Errors: ``MisuseError``."""
    name = table if isinstance(table, str) else getattr(table, "name", None)
    if not isinstance(name, str):
        raise MisuseError(f"a batch names {shown(table)}, expected a table or its name")
    return name
