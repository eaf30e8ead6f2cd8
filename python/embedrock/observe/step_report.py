"""``StepReport``: where the time of training steps goes, and what they read, as they go by."""

from __future__ import annotations

import contextlib
import csv
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from embedrock._arguments import (
    file_errors,
    iterable,
    iterated,
    named_path,
    shown,
    whole,
    whole_or_none,
)
from embedrock._listeners import Listener, Listeners, Waits
from embedrock._memory import size_of
from embedrock.errors import ClosedError, EmbedrockError, MisuseError
from embedrock.observe import step_table
from embedrock.observe.key_sample import KeySample
from embedrock.observe.step_rows import CAUSES, Counters, Row, derived, halved, plain, totals

if TYPE_CHECKING:
    from embedrock.store import Store

__all__ = ["CAUSES", "StepReport"]

B = TypeVar("B")

_NOTHING = Waits(0, 0.0, 0.0)
_OVERHEAD_MAX = 0.005
"""Reading the counters takes at most this share of the time, or rows have several steps."""


class StepReport:
    """Measures a training loop: seconds by cause, pages, window and cache, per step.

    Put it round whatever gives the batches: a list, a ``DataLoader``, a ``LookaheadLoader``, a
    ``Pipeline``. A step goes from one batch being asked for to the next; one in which the loop is
    left counts when it has updated something.

    ======================= ====================================================================
    ``blocked_by_read_s``   the loop waited for rows: in page reads, or for the window
    ``computing_s``         the rest of the step: forward, backward, whatever the loop does
    ``updating_s``          in the steps of ``optimizers``, in ``updating()``, and waiting until a
                            pipeline has applied earlier steps
    ``drawing_s``           the loader made the batch, or announced those behind it
    ``committing_s``        in ``committing()``
    ``window_batches``      batches that were announced and not finished (mean over the steps)
    ``pages``, ``requests`` read from the device, by verbs and ahead; ``pages_ahead`` of the pages
                            by the window
    ``pages_once_share``    of ``pages_ahead``, those that their group of batches read once
    ``rows_loaded``         rows that were brought into memory; ``rows_loaded_for`` these steps, as
                            far as the window read them before or reads for later ones
    ``distinct_rows``       distinct rows of each step, summed; about, when keys are sampled
    ``hit_rate``            share of the distinct rows that needed no load; what is read ahead
                            counts with the batches that it was read for; 0 where rows are loaded
                            again within a step, which the memory does not hold
    ``optimal_hit_rate``    (``optimal_rows_loaded``) that of the best cache of this size that knows
                            as many batches ahead as the window held on average; all, where nothing
                            was announced
    ======================= ====================================================================

    Without a pipeline, reads that an update waits for are part of ``blocked_by_read_s``, and taken
    out of ``computing_s`` (which is too small by that) unless nothing is left of it.

    Cost: reading the counters takes 0.1 to 0.5 ms; where that would be more than half a per cent of
    the time, a row of the report has several steps. Noting keys takes 20 ns for each and at most
    ``key_bytes``; when they are full a smaller sample of all keys is kept. Neither is within the
    memory budget. Work outside of the loop, as an evaluation between two passes, is in no row.

    Args:
        store: The store that the loop trains.
        optimizers: Torch optimizers whose steps are updates, of tables and dense ones; one, or
            several.
        steps_per_row: Steps of a row; None as many as keep it cheap.
        max_rows: When there are more rows, neighbours become one.
        key_bytes: Most bytes for noted keys; 0 notes none: no hit rates then.
        step: The number of steps that were made before, by a run that is resumed.

    Source: the columns are RecDB's Table 3 (block by read, computation, update) and Fig. 13 (blocks
    by how often they are loaded).

    >>> batches = [np.arange(step, step + 3) for step in range(4)]
    >>> loader = embedrock.LookaheadLoader(batches, store, keys_of=lambda keys: {"ads": keys})
    >>> report = embedrock.StepReport(store, steps_per_row=2)
    >>> for keys in report.steps(loader):
    ...     rows = table.get(keys)
    ...     with report.updating():
    ...         done = table.update(keys, np.ones_like(rows), lr=0.1)
    >>> [(row["step"], row["distinct_rows"]) for row in report.rows()]
    [(2, 6), (4, 6)]
    >>> report.totals()["hit_rate"]
    1.0
    """

    def __init__(
        self,
        store: Store,
        optimizers: Iterable[Any] | Any = (),
        *,
        steps_per_row: int | None = None,
        max_rows: int = 500,
        key_bytes: int | str = "4MiB",
        step: int = 0,
    ) -> None:
        """Measures nothing before ``steps``.

        Errors: ``MisuseError`` for what is no store or no torch optimizer; ``ClosedError``.
        """
        if not isinstance(getattr(store, "_listeners", None), Listeners):
            raise MisuseError(f"store is {shown(store)}, expected an embedrock.Store")
        if store.closed:
            raise ClosedError(f"store {store.path} is closed; open it again")
        several = [optimizers]
        if isinstance(optimizers, Iterable):
            several = iterated("optimizers", optimizers, "torch optimizers")
        for one in several:
            if not hasattr(one, "register_step_pre_hook"):
                raise MisuseError(f"optimizers has {shown(one)}, expected torch optimizers")
        self._store = store
        self._per_row = whole_or_none("steps_per_row", steps_per_row, 1)
        self._max_rows = whole("max_rows", max_rows, 2)
        self._first = whole("step", step, 0)
        self._rows: list[Row] = []
        self._groups: list[dict[str, int]] = []
        self._capacities: list[int] = []
        bound = size_of("key_bytes", key_bytes, 0)
        self._sample = KeySample(bound) if bound else None
        self._overhead_s = self._elapsed_s = 0.0
        self._derived: tuple[int, list[dict[str, Any]]] | None = None
        self._clear()
        if self._sample is not None:
            store._listeners.add(self._sample)
        self._hooks = [hook for one in several for hook in _hooked(one, self)]

    def steps(self, batches: Iterable[B]) -> Generator[B, None, None]:
        """Gives the batches, and measures the steps of the loop that takes them.

        Errors of ``batches`` reach the loop. Errors: ``MisuseError`` for an object that cannot be
        iterated.
        """
        return self._steps(iterable(batches))

    def _steps(self, batches: Iterable[B]) -> Generator[B, None, None]:
        self._clear()
        self._counters, _ = self._read()
        if self._sample is not None:
            self._sample.running = True
        self._mark = perf_counter()
        iterator = None
        try:
            iterator = iter(batches)
            while True:
                blocked = self._blocked_s()
                begin = perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                self._drawing += perf_counter() - begin
                self._blocked_drawing += self._blocked_s() - blocked
                self._updated, self._in_update = False, False
                yield batch
                self._end_step()
        except GeneratorExit:
            if self._updated:
                self._end_step()
            raise
        finally:
            if self._open_steps:
                self._close_row(perf_counter())
            if self._sample is not None:
                self._sample.running = False
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Counts the block as an update, if no torch optimizer makes it."""
        self._begin_update()
        try:
            yield
        finally:
            self._end_update()

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Counts the block as a commit."""
        begin, blocked, updating = perf_counter(), self._blocked_s(), self._updating
        try:
            yield
        finally:
            self._committing += perf_counter() - begin - (self._updating - updating)
            self._blocked_elsewhere += self._blocked_s() - blocked

    def last(self) -> dict[str, Any] | None:
        """The newest row without computing: seconds by cause, pages, window."""
        return None if not self._rows else plain(self._rows[-1], self._step)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, oldest first: ``step``, the number of the last step of each, how many ``steps``
        it has, their ``seconds``, and what is named above.

        Shares and rates are None where there was nothing to share. Blocking: finds the optimum of
        the noted keys, in a second per million of them.
        """
        if self._derived is None or self._derived[0] != self._step:
            self._derived = (
                self._step,
                derived(self._rows, self._first, self._sample, self._capacities),
            )
        return [dict(row) for row in self._derived[1]]

    def totals(self) -> dict[str, Any]:
        """One row for all steps, and ``hit_vs_optimum``: 1 - (rows loaded - optimum) / optimum;
        ``key_share``, the share of all keys that the sample has; ``overhead_s``, what reading the
        counters took."""
        if not self._rows:
            return {"step": self._step, "steps": 0, "seconds": 0.0}
        total = totals(self._rows, self.rows(), self._step)
        total["key_share"] = None if self._sample is None else self._sample.rate
        total["overhead_s"] = self._overhead_s
        return total

    def to_dict(self) -> dict[str, Any]:
        """``columns`` (name to list, a value per row) and ``totals``, as JSON values."""
        rows = self.rows()
        columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        return {"columns": columns, "totals": self.totals()}

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Writes the rows with a header; what is not known is empty. Errors: ``IoError``."""
        rows, path = self.rows(), named_path("file", file)
        with file_errors(f"writing {path}"), open(path, "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(rows[0]) if rows else ["step"])
            writer.writeheader()
            writer.writerows(rows)

    def table(self) -> str:
        """Ten lines over time and one for all, as text: a step's milliseconds, its parts in per
        cent, and per step what it read."""
        rows = self.rows()
        if not rows:
            return "no steps were measured"
        return step_table.text(rows, self.totals())

    def close(self) -> None:
        """Ends measuring: optimizers and store are as they were; what was measured stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._sample is not None:
            self._sample.ended()
            self._store._listeners.remove(self._sample)

    def __enter__(self) -> StepReport:
        """The report itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def __del__(self) -> None:
        """Closes it."""
        if hasattr(self, "_hooks"):
            self.close()

    def __str__(self) -> str:
        """The table."""
        return self.table()

    @property
    def _step(self) -> int:
        return self._first + sum(row.steps for row in self._rows)

    def _clear(self) -> None:
        """Nothing is measured of a row yet."""
        self._open_steps = 0
        self._updated = False
        self._loop: Listener | None = None
        self._waited = _NOTHING
        self._counters = Counters()
        self._mark = 0.0
        self._clear_times()

    def _clear_times(self) -> None:
        self._drawing = self._updating = self._committing = 0.0
        self._blocked_drawing = self._blocked_elsewhere = 0.0
        self._in_update = False

    def _begin_update(self) -> None:
        if not self._in_update:
            self._in_update = True
            self._update_begun, self._blocked_begun = perf_counter(), self._blocked_s()

    def _end_update(self) -> None:
        if self._in_update:
            self._updating += perf_counter() - self._update_begun
            self._blocked_elsewhere += self._blocked_s() - self._blocked_begun
            self._in_update, self._updated = False, True

    def _blocked_s(self) -> float:
        """Seconds that the loop has waited for a pipeline's updates."""
        return _waits(self._store._listeners.overlapping(), _NOTHING).updates_s

    def _end_step(self) -> None:
        now = perf_counter()
        self._open_steps += 1
        loop = self._store._listeners.overlapping()
        if loop is not None and loop is not self._loop:
            self._loop, self._waited = loop, _NOTHING
        if self._sample is not None:
            self._sample.end_step()
        elapsed = self._elapsed_s + now - self._mark
        if (
            self._open_steps >= self._per_row
            if self._per_row is not None
            else self._overhead_s <= _OVERHEAD_MAX * elapsed
        ):
            self._close_row(now)

    def _close_row(self, now: float) -> None:
        """Makes a row of the steps since the last one."""
        begin = perf_counter()
        try:
            counters, window = self._read()
        except EmbedrockError:  # the store was closed within the loop
            self._open_steps = 0
            return
        counted, self._counters = counters - self._counters, counters
        seconds = now - self._mark
        before, self._waited = self._waited, _waits(self._loop, self._waited)
        updates_s = self._waited.updates_s - before.updates_s
        blocked = max(updates_s - self._blocked_elsewhere, 0.0)
        if self._waited.overlapped == before.overlapped:
            read = min(counted.window_wait_s, self._drawing)
            waited = counted.read_wait_s + counted.window_wait_s - read
        else:
            read, waited = 0.0, self._waited.rows_s - before.rows_s
        drawing_blocked = min(blocked, self._blocked_drawing, self._drawing - read)
        drawing = self._drawing - read - drawing_blocked
        updating = min(self._updating + blocked, seconds)
        rest = max(seconds - self._drawing - self._updating - self._committing, 0.0)
        rest = max(rest - (blocked - drawing_blocked), 0.0)
        in_rest = min(waited, rest)
        in_updating = min(waited - in_rest, updating)
        self._add(
            Row(
                steps=self._open_steps,
                seconds=seconds,
                blocked_by_read_s=read + in_rest + in_updating,
                computing_s=rest - in_rest,
                updating_s=updating - in_updating,
                drawing_s=drawing,
                committing_s=self._committing,
                requests=counted.requests,
                pages=counted.pages,
                pages_ahead=counted.pages_ahead,
                pages_again=counted.pages_again,
                rows_loaded=counted.rows_loaded,
                rows_initial=counted.rows_initial,
                window_batches=float(max(window["announced"] - window["finished"], 0)),
                filled=max(window["filled"] - window["finished"] - 1, 0),
            )
        )
        self._elapsed_s += seconds
        self._open_steps = 0
        self._clear_times()
        self._mark = perf_counter()
        self._overhead_s += self._mark - begin

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) > self._max_rows:
            self._rows = halved(self._rows)

    def _read(self) -> tuple[Counters, dict[str, Any]]:
        stats, window = self._store.stats(), self._store.window.stats()
        classes = stats["classes"]
        self._capacities = [int(one["cache_capacity"]) for one in classes]
        if self._sample is not None and len(stats["tables"]) != len(self._sample.class_of):
            numbers = {one["row_bytes"]: number for number, one in enumerate(classes)}
            self._sample.class_of = {
                one["spec"]["name"]: numbers.get(one["row_bytes"], 0) for one in stats["tables"]
            }
        counters = Counters(
            read_wait_s=stats["read_wait_s"],
            window_wait_s=window["wait_s"],
            pages=stats["pages_read"],
            pages_ahead=window["pages"],
            pages_again=window["pages_again"],
            requests=stats["read_requests"],
            rows_loaded=stats["rows_loaded"],
            rows_initial=stats["rows_initial"],
        )
        return counters, window


def _waits(loop: Listener | None, otherwise: Waits) -> Waits:
    waits = None if loop is None else loop.waits()
    return otherwise if waits is None else waits


def _hooked(optimizer: Any, report: StepReport) -> list[Any]:
    """Hooks round the steps of a torch optimizer, which do not keep the report alive."""
    found = weakref.ref(report)

    def calling(method: Callable[[StepReport], None]) -> Callable[..., None]:
        def hook(*_: object) -> None:
            alive = found()
            if alive is not None:
                method(alive)

        return hook

    return [
        optimizer.register_step_pre_hook(calling(StepReport._begin_update)),
        optimizer.register_step_post_hook(calling(StepReport._end_update)),
    ]
