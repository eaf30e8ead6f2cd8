"""Schedules of ranks: when the rows of one rank's store are used next, by the batches of all.

The ids of a pass are known to the rank whose loader has them, and its rows are with others. So the
ranks go through their coming batches together, before the pass: each sends the ids of a step to
those that have the rows, and each makes the schedule of what it is asked for. Every rank makes one
or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from embedrock.ahead import Schedule
from embedrock.distributed.ahead import Pass
from embedrock.distributed.exchange import Verb
from embedrock.pipeline.epochs import EpochSchedules
from embedrock.pipeline.keys import KeyFinder
from embedrock.pipeline.orders import Order, equal, generators_kept, orders
from embedrock.pipeline.samples import Samples
from embedrock.pipeline.schedule import Batch
from embedrock.pipeline.scheduled import PassSchedule, keys_by_name

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["RankSchedules"]

_VERB = "schedule"
_NOTHING, _THIS, _NEXT, _REPEATS, _MADE = range(1, 6)
"""What a rank knows of its batches: none; those of this pass; those of the next one, too; that they
repeat; that they are those of the schedule before."""


class _Coming(NamedTuple):
    """The batches of this rank's loader."""

    knows: int
    batches: Callable[[], Iterable[Batch]]
    behind: Callable[[], Iterable[Batch]]
    order: Order


class RankSchedules(EpochSchedules):
    """The schedules of the passes over the loaders of all ranks, for the rows of this one."""

    def __init__(self, shard: Shard, loader: Any, finder: KeyFinder, depth: int) -> None:
        """Looks at nothing yet.

        Errors: ``MisuseError`` for a loader whose order nobody can know before.
        """
        super().__init__(loader, finder, [shard.store], depth)
        self._shard = shard

    def next(self, tell: Callable[[str], None]) -> PassSchedule | None:
        """The schedule of the pass that begins. Collective."""
        coming: _Coming | None = None
        failed: BaseException | None = None
        self._shard.window._settle()  # its thread has the group until then
        with generators_kept():
            try:
                coming = self._look()
            except Exception as error:
                failed = error
            try:
                schedule = self._together(coming, failed)
            except Exception as error:  # of this rank or of another
                if self._shard.window._exchange.is_broken:
                    raise
                self._without(error, tell)
                return None
        return self._begun(schedule, tell)

    def _look(self) -> _Coming:
        """Looks at the order of this rank's batches, and at the samples that are new."""
        if not self._is_sampled:
            repeats = _MADE if self._made is not None else _REPEATS
            knows = repeats if len(self._loader) else _NOTHING  # type: ignore[arg-type]
            of = self._of_loader
            return _Coming(knows, of, of, [])
        coming = orders(self._loader)
        this = coming[0]
        if not this:
            return _Coming(_NOTHING, list, list, this)
        if self._samples is None or not all(map(self._samples.has, coming)):
            known = None if self._samples is None else self._samples.indices
            self._samples = Samples(self._loader, self._finder, self._folder, coming, known)
        samples, behind = self._samples, coming[-1]
        knows = _THIS if len(coming) == 1 else _NEXT
        if knows == _NEXT and equal(this, behind):
            is_made = self._made is not None and equal(self._made[0], this)
            knows = _MADE if is_made else _REPEATS
        return _Coming(knows, lambda: samples.batches(this), lambda: samples.batches(behind), this)

    def _of_loader(self) -> Iterator[Batch]:
        return (keys_by_name(self._finder(batch)) for batch in self._loader)

    def _together(self, coming: _Coming | None, failed: BaseException | None) -> Schedule | None:
        """The schedule of what all ranks request from this one; None where one has no batch."""
        notes = self._meet(failed, 0 if coming is None else coming.knows)
        assert coming is not None
        knows = int(notes.min())
        if knows == _NOTHING:
            return None
        if knows == _MADE and self._made is not None:
            return self._made[1]
        of = Pass()
        batches = self._asked(coming.batches, of)
        behind: Iterable[Batch] | Literal["repeat"] | None = None
        if knows >= _NEXT:
            behind = "repeat" if knows >= _REPEATS else self._asked(coming.behind, of)
        found: Schedule | None = None
        failed = None
        try:
            found = self._schedule(batches, behind)
        except Exception as error:
            if of.failed:  # all ranks know
                raise
            failed = error
        self._meet(failed, 1)
        assert found is not None
        self._made = (coming.order, found) if knows >= _REPEATS else None
        return found

    def _meet(self, failed: BaseException | None, note: int) -> np.ndarray[Any, Any]:
        with self._shard.window._exchange as exchange:
            return exchange.meet(Verb(_VERB), failed=failed, note=note).notes

    def _asked(self, batches: Callable[[], Iterable[Batch]], of: Pass) -> Iterator[Batch]:
        """What all ranks request from this one, step by step, until one has no more batches."""
        window = self._shard.window
        own: Iterator[Batch] | None = None
        while True:
            parts, failed = None, None
            try:
                own = iter(batches()) if own is None else own
                parts = window._parts(next(own))
            except StopIteration:
                pass
            except Exception as error:
                failed = error
            try:
                asked = window._asked(_VERB, parts, failed, of)
            except Exception:
                of.failed = True
                raise
            if asked is None:
                return
            yield {table.name: keys for table, keys in asked.of_all().items()}
