"""``Pipeline``: a training loop that reads, computes and updates at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from embedrock._arguments import iterable, shown, whole
from embedrock._rows import RowStore
from embedrock.ahead.permits import staleness_bound_of
from embedrock.errors import ClosedError, MisuseError
from embedrock.pipeline.announcing import Announcing
from embedrock.pipeline.feed import Feed
from embedrock.pipeline.keys import KeyFinder, KeysOf, for_model, stores_here
from embedrock.pipeline.loader import LookaheadLoader
from embedrock.pipeline.pace import Pace
from embedrock.pipeline.run import Run

__all__ = ["Pipeline"]

B = TypeVar("B")

_READ_AHEAD = 2
_READ_AHEAD_MAX = 16


class Pipeline(Generic[B]):
    """Gives the batches of a loader to a training loop, and reads and updates rows in parallel.

    The loop stays as it is: forward, loss, backward, steps of the optimizers. While it computes
    one batch, one thread reads the rows of the next ones, and another applies the steps of
    optimizers of ``embedrock.optim`` that it has made. Dense optimizers are torch's own and work
    as ever, on the loop's thread.

    **Staleness.** At bound 0 a row that an earlier batch changes is read after that update, and
    all else before: losses, rows and optimizer state have the same bits as without a pipeline. A
    bound of b lets rows be read while at most b earlier batches that touch them are not applied;
    ``math.inf`` whenever there is room. Results then depend on how fast the stages are. Gradients
    always meet the newest rows.

    **Order.** Steps are applied in the order in which they are made. Every verb of the store and
    every forward that is not of the batch at hand waits for them first, and so do forwards under
    ``torch.no_grad()`` (validation) and ``embedrock.save``: a commit has all batches up to the one
    at hand and none behind it.

    **Errors.** An error while a step is applied (``NonFiniteError``, ``FullError``) is raised by
    the next step, batch or verb; that step has changed no row, and none after it is applied. An
    error of the loader comes in its batch's place. However the loop ends, steps that were made are
    applied and the threads end; ``close`` does it at once if an exception keeps the loop alive.

    **When it pays.** Overlapping hides the disk and costs switching between threads: on two cores,
    with all rows in memory, it can take longer than a plain loop. So some steps of the training are
    made either way, again from time to time, and the faster way is kept; the plain loop comes first
    if rows leave a cache that holds fewer than three batches. ``overlap`` overrides the choice.

    Rows that are read ahead are held beside the memory budget: those of ``read_ahead`` batches.

    Args:
        model: The model, whose tables are in one store.
        loader: Any iterable of batches, or an ``embedrock.LookaheadLoader``, which also announces
            batches that are further ahead.
        staleness_bound: 0, a number of batches, or ``math.inf``.
        read_ahead: Number of batches that are read ahead of the present one; None: 2, and with a
            larger bound one more than that, up to 16.
        overlap: True always reads and updates in parallel to the loop, False never; None: if
            measuring shows that it is faster.
        keys_of: From a batch to ``{table: keys}``, as :mod:`embedrock.pipeline` describes; None
            takes that of the ``LookaheadLoader``, else the model's own. Rows that it does not name
            are read when they are needed.

    Errors: ``MisuseError`` for a bad bound, a model without tables or with several stores, and a
    store on which another pipeline works; ``ClosedError``.

    Blocking: asking for a batch waits for the loader; a forward waits for its rows.

    >>> import torch
    >>> bag = embedrock.nn.EmbeddingBag(None, 4, mode="sum", store=store, name="words")
    >>> model = torch.nn.Sequential(bag, torch.nn.Linear(4, 1))
    >>> tables = embedrock.optim.RowWiseAdagrad(model, lr=0.05)
    >>> dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1)
    >>> batches = [{"words": torch.tensor([[1, 2], [i, 2]])} for i in range(5)]
    >>> trainer = embedrock.Pipeline(model, batches, staleness_bound=0)
    >>> for step, batch in enumerate(trainer, 1):
    ...     loss = model(batch["words"]).square().mean()
    ...     dense.zero_grad()
    ...     loss.backward()
    ...     tables.step()
    ...     dense.step()
    >>> embedrock.save(store, model, [tables, dense], step).step
    5
    >>> trainer.stats()["batches"], trainer.stats()["permits"]["staleness_max"]
    (5, 0)
    >>> embedrock.Pipeline(model, batches, overlap=True)
    <embedrock.Pipeline of list, read_ahead=2, staleness_bound=0, overlapping>
    """

    def __init__(
        self,
        model: Any,
        loader: Iterable[B],
        *,
        staleness_bound: float = 0,
        read_ahead: int | None = None,
        overlap: bool | None = None,
        keys_of: KeysOf | None = None,
    ) -> None:
        """Starts nothing before it is iterated."""
        self._bound = staleness_bound_of(staleness_bound)
        if read_ahead is None:
            wanted = _READ_AHEAD_MAX if self._bound is None else self._bound + 1
            read_ahead = min(max(wanted, _READ_AHEAD), _READ_AHEAD_MAX)
        self._read_ahead = whole("read_ahead", read_ahead, 1)
        if not (overlap is None or isinstance(overlap, bool)):
            raise MisuseError(f"overlap is {shown(overlap)}, expected True, False or None")
        self._pace = Pace(overlap)
        if isinstance(model, RowStore):
            raise MisuseError("model is a Store, expected a model; verbs of a store need no loop")
        stores = stores_here(model, "Pipeline")
        if len(stores) != 1:
            raise MisuseError(
                f"the model's tables are in {len(stores)} stores, expected one: a commit is of one"
            )
        (self._store,) = stores
        if self._store.closed:
            raise ClosedError(f"store {self._store.path} is closed; open it again")
        self.loader = iterable(loader)
        """The loader, as it was given."""
        if isinstance(loader, LookaheadLoader) and keys_of is not None:
            raise MisuseError("keys_of is given beside a LookaheadLoader, which has one")
        if isinstance(loader, LookaheadLoader) and loader._stores != stores:
            paths = ", ".join(str(store.path) for store in loader._stores)
            raise MisuseError(
                f"the LookaheadLoader announces to {paths}, and the model's tables are in "
                f"{self._store.path}; make both with the same model"
            )
        if not isinstance(loader, LookaheadLoader):
            keys_of = for_model(model) if keys_of is None else keys_of
            self._finder = KeyFinder(keys_of, stores)
        self._run: Run | None = None
        self._last: dict[str, Any] = {}

    def __iter__(self) -> Iterator[B]:
        """A pass over the loader. It ends the pass before, if that has not ended."""
        self.close()
        if self._store._listeners.find(Run) is not None:
            raise MisuseError(
                f"another pipeline works on {self._store!r}; close it, or let its loop end"
            )
        feed = self._open_feed()
        try:
            run = Run(self._store, feed, self._bound, self._read_ahead, self._pace)
        except BaseException:
            feed.close()
            raise
        self._run = run
        self._store._listeners.add(run)
        return self._batches(run)

    def __len__(self) -> int:
        """Number of batches, from the loader. Errors: ``TypeError`` if the loader has no length."""
        return len(self.loader)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        of = self.loader if isinstance(self.loader, LookaheadLoader) else type(self.loader).__name__
        bound = math.inf if self._bound is None else self._bound
        state = "overlapping" if self._pace.overlap else "resting"
        return (
            f"<embedrock.Pipeline of {of}, read_ahead={self._read_ahead}, "
            f"staleness_bound={bound}, {state}>"
        )

    def __bool__(self) -> bool:
        """True: that a loader is there has nothing to do with how many batches it has."""
        return True

    def close(self) -> None:
        """Applies the steps that were made and ends the threads; a second call does nothing.

        Errors: what applying a step has raised.
        """
        if self._run is not None:
            self._end(self._run)

    def __enter__(self) -> Pipeline[B]:
        """The pipeline itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def stats(self) -> dict[str, Any]:
        """Counters of the pass that is under way, or of the last one; empty before the first.

        ``batches`` handed out, of which ``overlapped`` were read and updated beside the loop;
        seconds that forwards waited for rows (``waited_for_rows_s``) and
        that the loop waited for steps to be applied (``waited_for_updates_s``), and that the two
        threads were busy (``reading_s``, ``updating_s``); ``rows_ahead``, of which ``rows_late``
        had to wait for updates and ``rows_again`` were read twice because they changed
        unannounced; look-ups of a table that took rows read ahead (``forwards_ahead``) and that
        read for themselves (``forwards_direct``); ``permits``, as ``Permits.stats`` has them.
        """
        return self._last if self._run is None else self._run.stats()

    def _open_feed(self) -> Feed:
        if isinstance(self.loader, LookaheadLoader):
            # Two ways that are tried at once would disturb each other.
            return self.loader._open(times=False)
        announcing = Announcing(True)  # they are read at once
        return Feed(
            self.loader, self._finder, [self._store], self._read_ahead, announcing, lambda _: None
        )

    def _batches(self, run: Run) -> Iterator[B]:
        try:
            while True:
                try:
                    batch: B = run.advance()
                except StopIteration:
                    return
                yield batch
        finally:
            self._end(run)

    def _end(self, run: Run) -> None:
        try:
            run.stop()
        finally:
            self._store._listeners.remove(run)
            if self._run is run:
                self._last, self._run = run.stats(), None
            if isinstance(self.loader, LookaheadLoader):
                self.loader._end(run.feed)
