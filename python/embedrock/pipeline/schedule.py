"""``embedrock.schedule``: from the keys of all batches to the next use of each row.

Owns the pass over batches. The result is an :class:`embedrock.ahead.Schedule`; the work is done in
``crates/schedule``, with a temporary file beside that of the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from embedrock import _core
from embedrock._arguments import choice, function, iterable, named_path, shown, whole
from embedrock._arrays import as_keys
from embedrock.ahead import Schedule
from embedrock.ahead.schedule import name_of
from embedrock.errors import MisuseError
from embedrock.pipeline.keys import FlatKeys, KeyFinder, KeysOf, for_model, stores_here
from embedrock.pipeline.scheduled import keys_by_name
from embedrock.store import Store
from embedrock.trace.trace import Trace

__all__ = ["Maker", "Progress", "schedule"]

Progress: TypeAlias = Callable[[int, int], object]
Batch: TypeAlias = Mapping[str, FlatKeys]

_STRETCH_BATCHES_MAX = 2**32 - 1
_TRACE_CHUNK = 1 << 14
"""Queries of a trace that are handed over together."""


def schedule(
    batches: Iterable[Any] | Trace,
    path: str | os.PathLike[str],
    stretch_batches: int = 64,
    *,
    model: Any = None,
    keys_of: KeysOf | None = None,
    behind: Iterable[Any] | Literal["repeat"] | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Makes a schedule: for every use of a row by these batches, the row's next use.

    With it, a training writes each row that leaves memory to a page of the stretch of batches that
    uses it next, and reads such a stretch as a whole (``docs/lookahead.md``). It never changes a
    result.

    Args:
        batches: The batches in the order in which they will be used, gone through once. Each is
            ``{table name: keys}``, with keys of any shape; or an argument of ``keys_of``. Or a
            :class:`embedrock.trace.Trace`, a batch for each query.
        path: The file to make. An existing file is replaced once the new one is complete. Any
            number of runs and processes may use it.
        stretch_batches: Batches of a stretch. The rows of a stretch should fit into an eighth of
            the cache.
        model: A model with modules of :mod:`embedrock.nn`, or a store, whose rows the batches use.
            None: batches name tables themselves.
        keys_of: From a batch to ``{table: keys}``, as :mod:`embedrock.pipeline` describes; None
            takes the model's own.
        behind: The batches that follow these, so that their last uses have a next one, too:
            ``"repeat"``, the same batches again and again; or batches, such as those of the next
            epoch. None: unknown.
        progress: Called several times a second with the finished uses, and the total, once all
            batches have been read. An exception from it ends the work.

    Two bytes for each use, and some for each batch. While it is made, temporary files beside it
    take eleven bytes for each use, more where a stretch has few; memory stays below 256 MiB,
    however many uses and keys there are, but for 16 bytes a batch.

    Errors: ``MisuseError`` for batches that are no mapping from tables to keys, for none at all,
    and for a ``keys_of`` without a model; ``IoError``, ``FullError``.

    Blocking: looks at all batches, then writes; returns once the file is on disk. Ctrl-C ends it,
    and leaves what was at ``path``.

    Source: time-forward processing of external-memory algorithms, for an order of training that is
    known (RecDB, section 3.2.1).

    >>> batches = [{"ads": [1, 2, 3]}, {"ads": [2, 3]}, {"ads": [1]}]
    >>> made = embedrock.schedule(batches, "ads.schedule", 1, behind="repeat")
    >>> made.batch(2, {"ads": [1]}).next_use["ads"].tolist()
    [1]
    """
    target = named_path("path", path)
    stretch_batches = whole("stretch_batches", stretch_batches, 1)
    if stretch_batches > _STRETCH_BATCHES_MAX:
        raise MisuseError(f"stretch_batches is {stretch_batches}, expected less than 2**32")
    progress = function("progress", progress, "uses that are done, and all of them")
    repeats = isinstance(behind, str)
    if isinstance(behind, str):
        choice("behind", behind, ["repeat"])
    keys = _keys_of(model, keys_of)
    if isinstance(batches, Trace):
        maker = _of_trace(batches, target, stretch_batches)
    else:
        maker = Maker(target, stretch_batches)
        if model is not None:
            maker.begin(name for store in stores_here(model, "schedule") for name in store.tables)
        for batch in iterable(batches):
            maker.add(keys(batch))
    if behind is not None and not repeats:
        maker.end()
        for batch in _batches(behind):
            maker.add(keys(batch))
    return maker.finish(repeats=repeats, progress=progress)


class Maker:
    """A schedule that is being made, whose tables become known with the first batches."""

    def __init__(self, path: os.PathLike[str], stretch_batches: int) -> None:
        """Makes no file before the first batch."""
        self._path = path
        self._stretch_batches = stretch_batches
        self._core: _core.ScheduleMaker | None = None
        self._places: dict[str, int] = {}
        self.batches = 0
        """Batches that were added."""

    def begin(self, tables: Iterable[str]) -> None:
        """Says which tables batches use, before the first."""
        names = list(tables)
        self._places = {name: place for place, name in enumerate(names)}
        self._core = _core.ScheduleMaker(self._path, names, self._stretch_batches)

    def add(self, batch: Batch) -> None:
        """Takes the keys of the next batch.

        Errors: ``MisuseError`` for a table that the first batch does not name; ``IoError``.
        """
        if self._core is None:
            self.begin(batch)
        assert self._core is not None
        parts = []
        for name, keys in batch.items():
            if name not in self._places:
                known = ", ".join(map(repr, self._places))
                raise MisuseError(
                    f"batch {self.batches} uses table {name!r}, the first one does not ({known}): "
                    f"let every batch name all tables, those that it does not use with no keys"
                )
            parts.append((self._places[name], keys))
        self._core.add(sorted(parts, key=lambda part: part[0]))
        self.batches += 1

    def add_many(self, values: FlatKeys, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Takes many batches of one table: those between the offsets."""
        assert self._core is not None
        self._core.add_many(values, offsets)
        self.batches += len(offsets) - 1

    def end(self) -> None:
        """Says that what was added are the batches of the schedule: those that are added from here
        on only say what comes behind them, from a new stretch on.

        Errors: ``MisuseError`` where there is no batch; ``IoError``.
        """
        self._begun().end()

    def finish(self, *, repeats: bool = False, progress: Progress | None = None) -> Schedule:
        """Writes the schedule, and opens it.

        Errors: ``MisuseError`` where there is no batch; ``IoError``, ``FullError``.
        """
        self._begun().finish(repeats, progress)
        return Schedule(self._path)

    def _begun(self) -> _core.ScheduleMaker:
        if self._core is None or self.batches == 0:
            raise MisuseError(f"there is no batch to make {self._path} of, expected one at least")
        return self._core


def _keys_of(model: Any, keys_of: KeysOf | None) -> Callable[[Any], Batch]:
    if model is None:
        if keys_of is None:
            return _named
        raise MisuseError("keys_of without model: pass model=, a model or the store, too")
    stores = stores_here(model, "schedule")
    if keys_of is None and isinstance(model, Store):
        return _named
    finder = KeyFinder(for_model(model) if keys_of is None else keys_of, stores)
    return lambda batch: keys_by_name(finder(batch))


def _named(batch: Any) -> Batch:
    if not isinstance(batch, Mapping):
        raise MisuseError(
            f"a batch is {shown(batch)}, expected {{table name: keys}}; pass model= where batches "
            f"are those of a model"
        )
    return {name_of(table): as_keys(keys, "keys of a batch").flat for table, keys in batch.items()}


def _batches(behind: Any) -> Iterator[Any]:
    try:
        return iter(iterable(behind))
    except MisuseError:
        expected = "expected batches, 'repeat' or None"
        raise MisuseError(f"behind is {shown(behind)}, {expected}") from None


def _of_trace(trace: Trace, path: os.PathLike[str], stretch_batches: int) -> Maker:
    maker = Maker(path, stretch_batches)
    maker.begin(trace.tables)
    if len(trace.tables) == 1:
        (queries,) = trace.tables.values()
        for begin in range(0, len(queries), _TRACE_CHUNK):
            part = queries.between(begin, min(begin + _TRACE_CHUNK, len(queries)))
            maker.add_many(part.values, part.offsets)
        return maker
    for number in range(trace.queries):
        of_tables = trace.tables.items()
        maker.add({name: found.between(number, number + 1).values for name, found in of_tables})
    return maker
