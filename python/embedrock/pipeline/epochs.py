"""Schedules of epochs: one for each pass over a loader, of the order that its batches will have.

Two kinds of loaders have an order that is known: batches in a list, and loaders with a
``batch_sampler``, a ``dataset`` and a ``collate_fn``, as PyTorch's ``DataLoader`` (``orders.py``,
``samples.py``). Nothing here changes what a pass gives, and what fails costs the schedule alone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embedrock.ahead import Schedule
from embedrock.errors import MisuseError
from embedrock.pipeline.keys import KeyFinder
from embedrock.pipeline.orders import Order, ends, equal, generators_kept, orders
from embedrock.pipeline.samples import Samples
from embedrock.pipeline.schedule import Batch, Maker
from embedrock.pipeline.scheduled import PassSchedule, keys_by_name
from embedrock.store import Store

__all__ = ["EpochSchedules", "stretch_of", "temporary_schedule"]

_STRETCH_OF_CACHE = 8
"""A stretch's rows fill this part of the cache, at most."""
_STRETCHES_AHEAD = 3
"""Stretches that are announced ahead, at least."""
_STRETCH_BATCHES_LEAST = 4
_LOOKED_AT = 8
"""Batches by which the length of stretches is chosen."""


class EpochSchedules:
    """The schedules of a loader's passes.

    Errors: ``MisuseError`` for a loader whose order nobody can know before.
    """

    def __init__(
        self, loader: Iterable[Any], finder: KeyFinder, stores: Sequence[Store], depth: int
    ) -> None:
        """Looks at nothing yet. ``depth`` batches are announced ahead; temporary files are beside
        the first of the stores."""
        self._loader = loader
        self._finder = finder
        self._folder = stores[0].path.parent
        self._stores = stores
        self._depth = depth
        self._stretch_batches: int | None = None
        self._stretch = 0
        self._made: tuple[Order, Schedule] | None = None
        """The order that repeats, and its schedule."""
        self._samples: Samples | None = None
        self._ahead: _Ahead | None = None
        self._is_sampled = all(
            getattr(loader, name, None) is not None
            for name in ("batch_sampler", "dataset", "collate_fn")
        )
        sampler = getattr(loader, "batch_sampler", None)
        if not (ends(sampler) if self._is_sampled else isinstance(loader, Sequence)):
            raise MisuseError(
                f"schedule='epoch' needs to know the order of {type(loader).__name__} before a "
                f"pass begins: pass a DataLoader with batches of a dataset that has a length, or a "
                f"list of batches; or make the schedule with embedrock.schedule()"
            )

    def next(self, tell: Callable[[str], None]) -> PassSchedule | None:
        """The schedule of the pass that begins. The first one looks at all batches, or samples.
        None where it cannot be made, which ``tell`` is told: the pass then goes as without."""
        try:
            with generators_kept():
                schedule = self._of_samples() if self._is_sampled else self._of_batches()
        except Exception as error:  # of the dataset, of keys_of, of the disk
            self._without(error, tell)
            return None
        return self._begun(schedule, tell)

    def close(self) -> None:
        """Ends what is being made for the next pass."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def _without(self, error: Exception, tell: Callable[[str], None]) -> None:
        """Says why a pass has no schedule."""
        tell(
            f"there is no schedule for this pass: {type(error).__name__}: {error}; it goes on "
            f"without, with the same results"
        )

    def _begun(self, schedule: Schedule | None, tell: Callable[[str], None]) -> PassSchedule | None:
        """The pass with this schedule, whose stretches come behind those of the pass before."""
        if schedule is None:
            return None
        first, self._stretch = self._stretch, self._stretch + schedule.stretches
        return PassSchedule(schedule, first, tell)

    def _of_batches(self) -> Schedule | None:
        """Of a list of batches."""
        if not len(self._loader):  # type: ignore[arg-type]
            return None
        if self._made is None:
            batches = (keys_by_name(self._finder(batch)) for batch in self._loader)
            self._made = ([], self._schedule(batches, "repeat"))
        return self._made[1]

    def _of_samples(self) -> Schedule | None:
        coming = orders(self._loader, 3)
        this, behind = coming[0], coming[1:2]
        if not this:
            return None
        if self._samples is None or not all(map(self._samples.has, coming)):
            self.close()
            known = None if self._samples is None else self._samples.indices
            self._samples = Samples(self._loader, self._finder, self._folder, coming, known)
        if behind and equal(this, behind[0]):
            if self._made is None or not equal(self._made[0], this):
                schedule = self._schedule(self._samples.batches(this), "repeat")
                self._made = (this, schedule)
            return self._made[1]
        made, self._ahead = self._ahead, None
        found = None if made is None else made.take(coming[:2])
        schedule = self._schedule_of(coming[:2]) if found is None else found
        if self._samples.are_kept and len(coming) == 3:
            # That of the next pass, while this one trains.
            self._ahead = _Ahead(coming[1:], self._schedule_of)
        return schedule

    def _schedule_of(
        self, coming: list[Order], is_stopped: Callable[[], bool] = lambda: False
    ) -> Schedule:
        assert self._samples is not None
        behind = self._samples.batches(coming[1]) if len(coming) > 1 else None
        return self._schedule(self._samples.batches(coming[0]), behind, is_stopped)

    def _schedule(
        self,
        batches: Iterable[Batch],
        behind: Iterable[Batch] | Literal["repeat"] | None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Schedule:
        if self._stretch_batches is None:
            # Kept: where a row is used in the next pass, this one says in its own stretches.
            self._stretch_batches, batches = stretch_of(batches, self._stores, self._depth)
        tables = [name for store in self._stores for name in store.tables]
        return temporary_schedule(
            batches,
            self._folder,
            self._stretch_batches,
            tables,
            behind=behind,
            is_stopped=is_stopped,
        )


class _Stopped(Exception):
    """A schedule is not wanted any more."""


class _Ahead:
    """A schedule that is made on a thread of its own, with what time others leave."""

    def __init__(
        self,
        coming: list[Order],
        make: Callable[[list[Order], Callable[[], bool]], Schedule],
    ) -> None:
        """Begins. It touches nothing of the loader."""
        self._coming, self._make = coming, make
        self._pid = os.getpid()
        self._found: Schedule | None = None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedrock schedule", daemon=True)
        self._thread.start()

    def take(self, coming: list[Order]) -> Schedule | None:
        """The schedule; None where it is of other passes than these, or failed."""
        if self._pid != os.getpid():  # a forked child does not have the thread
            return None
        if len(coming) != len(self._coming) or not all(map(equal, coming, self._coming)):
            self.stop()
            return None
        self._thread.join()
        return self._found

    def stop(self) -> None:
        """Ends the thread, which removes its files."""
        self._is_stopped.set()
        if self._pid == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        with contextlib.suppress(Exception):  # making it again raises it again
            self._found = self._make(self._coming, self._is_stopped.is_set)


def temporary_schedule(
    batches: Iterable[Batch],
    folder: Path,
    stretch_batches: int,
    tables: Iterable[str],
    *,
    behind: Iterable[Batch] | Literal["repeat"] | None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Schedule:
    """A schedule in a file without a name, of batches that use some of these tables.

    Errors: ``MisuseError`` where there is no batch; ``IoError``, ``FullError``.
    """

    def go_on(*_: object) -> None:
        if is_stopped():
            raise _Stopped

    with tempfile.TemporaryDirectory(prefix=".schedule-", dir=folder) as made:
        maker = Maker(Path(made, "schedule"), stretch_batches)
        maker.begin(tables)
        for batch in batches:
            go_on()
            maker.add(batch)
        if behind is not None and not isinstance(behind, str):
            maker.end()
            for batch in behind:
                go_on()
                maker.add(batch)
        return maker.finish(repeats=isinstance(behind, str), progress=go_on)


def stretch_of(
    batches: Iterable[Batch], stores: Iterable[Store], depth: int
) -> tuple[int, Iterable[Batch]]:
    """Batches whose rows together fill an eighth of the caches, by the first of them; three such
    stretches are announced at least. And the batches, from the first on."""
    batches = iter(batches)
    first = list(islice(batches, _LOOKED_AT))
    facts = [store.stats() for store in stores]
    cached = sum(one["cache_capacity"] for of_store in facts for one in of_store["classes"])
    rows = sum(len(np.unique(keys)) for batch in first for keys in batch.values())
    of_batch = max(rows / max(len(first), 1), 1)
    most = min(cached / _STRETCH_OF_CACHE / of_batch, depth / _STRETCHES_AHEAD)
    return max(int(most), _STRETCH_BATCHES_LEAST), chain(first, batches)
