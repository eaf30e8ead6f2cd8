"""``LookaheadLoader``: any loader of batches, whose coming keys the store knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Generic, Literal, TypeVar

from embedrock._arguments import iterable, shown, whole
from embedrock._warnings import warn
from embedrock.ahead import Schedule
from embedrock.errors import ClosedError, LookaheadWarning, MisuseError
from embedrock.pipeline.announcing import Announcing
from embedrock.pipeline.epochs import EpochSchedules
from embedrock.pipeline.feed import Feed, FeedCounts
from embedrock.pipeline.keys import KeyFinder, KeysOf, for_model, stores_here
from embedrock.pipeline.scheduled import Schedules, SchedulesOf
from embedrock.store import Store

__all__ = ["LookaheadLoader"]

B = TypeVar("B")


class LookaheadLoader(Generic[B]):
    """Gives the batches of a loader, and tells the store which rows the coming ones will read.

    If steps wait for rows, up to ``depth`` batches after the last one handed out are drawn from the
    loader and their keys announced. The store reads those rows before they are needed and keeps
    them until their last use; its window says how many batches it has room for, and no more than
    that are drawn. That never changes results, only when rows arrive.

    **When it pays.** While steps hardly wait for rows, since all or nearly all are in memory or
    were never written, batches are passed through: nothing is drawn ahead, and only the first batch
    of a pass has its keys looked at, so that a missing ``keys_of`` is an error of the first step.
    If they wait, steps with announced batches are compared with those before; if they are not
    faster, look-ahead is set aside, with a ``LookaheadWarning`` that has the figures, and tried
    again later. Another warning says that the memory is too small for look-ahead; a loader warns
    once. ``announce`` overrides the choice.

    Drawing happens on the thread that asks for the next batch, in the order of the loader. A
    ``torch.utils.data.DataLoader`` with workers is wrapped as it is: its workers never touch the
    store. Batches that wait are held in memory beside the budget. A loader that draws random
    numbers in this process (shuffling, negative samples) draws them earlier than it would without
    look-ahead, how much earlier depends on what is measured: give it a generator of its own, so
    that the model's dropout has its numbers alone.

    A loader must give each batch memory of its own. If it reuses the same memory, the keys of a
    batch that was drawn ahead change, which is an error; labels and dense features that change, and
    keys that ``keys_of`` copies, are not looked at.

    ``Store.go_back`` within a pass leaves the loader where it is: the rows of the commit are met
    with the batches that come next, which are announced anew.

    One pass at a time should announce to a store: what a second one finishes, and its end, let go
    of the rows that the first has announced, which are then read when they are used.

    Args:
        loader: Any iterable of batches; one that can be iterated again gives a further pass.
        model: A model with modules of ``embedrock.nn``, or the store itself.
        depth: The most batches that are announced ahead, at least 1.
        keys_of: From a batch to ``{table: keys}``, as :mod:`embedrock.pipeline` describes; None
            takes the model's own.
        announce: True announces every batch, False none; None: those of steps for which it pays,
            and with a schedule every batch.
        schedule: When rows are used next (``docs/lookahead.md``): ``"epoch"`` makes a schedule at
            the beginning of each pass; or one that :func:`embedrock.schedule` has made, for passes
            over the same batches in the same order. None: only announced batches are known.

    **With a schedule**, rows that leave memory are written to a page of the stretch of batches that
    uses them next, which saves most reads of a loop that waits for the disk. ``"epoch"`` takes a
    ``DataLoader`` over a dataset with a length, or a list of batches. It looks at the keys of all
    samples, or batches, before the first batch is handed out: those of a ``DataLoader`` in a worker
    process, once if the keys of a batch are those of its samples one after another, in each pass
    otherwise. It knows the order of the next pass, too, if the sampler has a generator of its own
    (``DataLoader(..., generator=torch.Generator())``), keeps the order, or has ``set_epoch``; give
    it one. If a schedule cannot be made, and for batches that are not in the schedule, a warning
    says so, and they are announced without.

    Errors: ``MisuseError`` when there is nothing to announce keys by, for a schedule of a loader
    whose order is not known, and from an iteration when a batch has other keys than when it was
    drawn; ``CorruptError`` if the file of a schedule is damaged; ``ClosedError``. Errors of the
    loader reach the caller in the place of their batch.

    Blocking: asking for a batch waits for the loader, and until the batch's rows have been read;
    with ``"epoch"`` the first one for the schedule, whose temporary files, of up to 40 bytes for
    each use of a row in a pass, are beside the store.

    Source: Lookahead of MLKV (III-C), the request preprocessor of RecDB (4.2).

    >>> batches = [np.array([1, 2]), np.array([2, 3])]
    >>> loader = embedrock.LookaheadLoader(batches, store, keys_of=lambda batch: {"ads": batch})
    >>> loader
    <embedrock.LookaheadLoader of list, depth=512, resting>
    >>> for batch in loader:
    ...     report = table.update(batch, np.ones((2, 4), np.float32), lr=0.1)
    >>> len(loader), loader.stats()["handed_out"]
    (2, 2)
    """

    def __init__(
        self,
        loader: Iterable[B],
        model: Any,
        depth: int = 512,
        keys_of: KeysOf | None = None,
        *,
        announce: bool | None = None,
        schedule: Schedule | Literal["epoch"] | None = None,
    ) -> None:
        """Draws and announces nothing before it is iterated."""
        self.loader = iterable(loader)
        """The loader that is wrapped."""
        self.depth = whole("depth", depth, 1)
        """The most batches that are announced ahead."""
        if not (announce is None or isinstance(announce, bool)):
            raise MisuseError(f"announce is {shown(announce)}, expected True, False or None")
        self._told = False
        if schedule is not None and announce is None:
            announce = True
        self._announcing = Announcing(announce)
        self._stores = stores_here(model, "LookaheadLoader")
        if keys_of is None and isinstance(model, Store):
            raise MisuseError(
                "keys_of is None, and a store does not know what a batch reads; pass keys_of=, a "
                "function from a batch to {table: keys}, or the model instead of the store"
            )
        self._finder = KeyFinder(for_model(model) if keys_of is None else keys_of, self._stores)
        for store in self._stores:
            if store.closed:
                raise ClosedError(f"store {store.path} is closed; open it again")
        self._schedules = self._schedules_of(schedule)
        self._feed: Feed | None = None
        self._counts = FeedCounts()
        self._left: Feed | None = None
        """The last pass, where it ended with batches of the loader left."""

    def __iter__(self) -> Iterator[B]:
        """A pass over the loader. It ends the pass before, if that has not ended."""
        return self._batches(self._open())

    def __len__(self) -> int:
        """Number of batches, from the loader. Errors: ``TypeError`` if the loader has no length."""
        return len(self.loader)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        state = "announcing" if self._announcing.announce else "resting"
        wrapped = type(self.loader).__name__
        return f"<embedrock.LookaheadLoader of {wrapped}, depth={self.depth}, {state}>"

    def __bool__(self) -> bool:
        """True: that a loader is there has nothing to do with how many batches it has."""
        return True

    def close(self) -> None:
        """Ends the pass that is under way and forgets what it announced.

        A ``for`` loop that ends or breaks does so by itself; one that an exception has ended does
        when the exception is gone.
        """
        self._end_pass()
        if isinstance(self._schedules, EpochSchedules):
            self._schedules.close()

    def _end_pass(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
            self._counts = feed.counts
            self._left = None if feed.whole else feed

    def stats(self) -> dict[str, int]:
        """Counts of the pass that is under way, or of the last one.

        ``handed_out`` batches, of which ``announced`` were announced before; ``refused``, the
        number of times that the window had no room; ``skipped``, the number that it has passed
        over, because they came too late or because the cache holds the rows of hardly one batch: if
        that is most of them, look-ahead does nothing, and more memory or smaller batches would
        help. Of those that were not announced, ``resident`` are those of steps that hardly waited
        for rows, and ``set_aside`` those for which announcing was no faster, or that were used for
        measuring. ``scheduled`` are those in the schedule. More counters of the window are in
        ``Store.window.stats()``.
        """
        if self._feed is not None:
            self._feed.count_skipped()
            return asdict(self._feed.counts)
        return asdict(self._counts)

    def state_dict(self) -> Any:
        """The state of the loader behind the batch that was handed out last.

        Batches that were drawn ahead are not part of it: a run that goes on from it draws them
        again. So it is after a pass that has ended early (``break``, an exception) too, until the
        next one begins; the loader's own ``state_dict`` has gone further then. Errors:
        ``MisuseError`` when the loader has no ``state_dict``.
        """
        self._check_stateful()
        feed = self._left if self._feed is None else self._feed
        if feed is not None:
            return feed.position
        return self.loader.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: Any) -> None:
        """Brings the loader to a state; a pass that is under way ends."""
        self._check_stateful()
        self.close()
        self._left = None
        self.loader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def _check_stateful(self) -> None:
        if not (hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")):
            raise MisuseError(
                f"the wrapped loader, {type(self.loader).__name__}, has no state_dict() and "
                f"load_state_dict(): it cannot tell its position; wrap one that can (torchdata's "
                f"StatefulDataLoader), or leave loader= out and skip the batches that are done"
            )

    def _open(self, *, times: bool = True) -> Feed:
        """Begins a pass; without ``times``, no steps are compared."""
        self._end_pass()
        self._left = None
        self._announcing.times = times
        schedule = None if self._schedules is None else self._schedules.next(self._tell)
        self._feed = Feed(
            self.loader,
            self._finder,
            self._stores,
            self.depth,
            self._announcing,
            self._tell,
            schedule,
        )
        return self._feed

    def _schedules_of(self, schedule: object) -> Schedules | None:
        if schedule is None:
            return None
        if isinstance(schedule, Schedule):
            return SchedulesOf(schedule)
        if not isinstance(schedule, str) or schedule != "epoch":
            expected = "expected 'epoch', an embedrock.ahead.Schedule or None"
            raise MisuseError(f"schedule is {shown(schedule)}, {expected}")
        return EpochSchedules(self.loader, self._finder, self._stores, self.depth)

    def _tell(self, message: str) -> None:
        """Warns, once."""
        if not self._told:
            self._told = True
            warn(message, LookaheadWarning)

    def _batches(self, feed: Feed) -> Iterator[B]:
        drawn = None
        try:
            while True:
                if drawn is not None:
                    feed.finish(drawn)
                try:
                    drawn = feed.take()
                except StopIteration:
                    return
                feed.begin(drawn)
                batch: B = feed.hand_out(drawn)
                feed.offer(drawn)
                yield batch
        finally:
            self._end(feed)

    def _end(self, feed: Feed) -> None:
        """Ends a pass, be it the one that is under way or one before."""
        if self._feed is feed:
            self._end_pass()
        else:
            feed.close()
