"""A run whose batches are functions of seed and step: epochs, commits, Ctrl-C, the result.

Invariant: a commit carries tables, dense part, optimizers and random generators of one and the same
step. So a run that was stopped, in whatever way, and resumed ends with the same bits as one that
was not.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

import embedrock
from embedrock._made_keys import meta_of
from embedrock.commits import PendingCommit
from embedrock.data.known_files import compared
from embedrock.data.text import Head
from embedrock.errors import EmbedrockError, MismatchError, MisuseError
from embedrock.observe.step_report import StepReport
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training.batches import Foretold, ReadAhead, Trial, may_pay, watched
from embedrock.training.history import History
from embedrock.training.interrupt import Interrupt
from embedrock.training.recipe_options import RecipeOptions
from embedrock.training.run_data import known_of
from embedrock.training.stored import (
    PROGRAM,
    check_continues,
    create,
    open_stored,
    stored_run,
)
from embedrock.training.trainer import Seconds

__all__ = ["Begun", "EpochRun", "RateTrainer", "begin", "train"]

_SHOWN_LOSSES = 100
#: Rows of the step report, each of one step or more.
_REPORT_ROWS = 200


class Numbered(Protocol):
    """A batch that knows its place."""

    @property
    def step(self) -> int:
        """Its number over all epochs, from 0 on."""

    @property
    def epoch(self) -> int:
        """The epoch that it is of."""

    def __len__(self) -> int:
        """Samples."""


class EpochBatches(Protocol):
    """Batches from a position on."""

    def epoch_of(self, step: int) -> int:
        """The epoch of a batch, by its number."""

    def __iter__(self) -> Iterator[Any]: ...


B = TypeVar("B", bound=Numbered)
Options = TypeVar("Options", bound=RecipeOptions)


class RateTrainer(ABC, Generic[B]):
    """A model with its optimizers, whose learning rates depend on the epoch."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        rates: Sequence[float],
        decay: float,
    ) -> None:
        """Takes the model and all of its optimizers, with a rate for each."""
        self.model: Any = model
        self.optimizers = list(optimizers)
        self.seconds = Seconds()
        self._rates, self._decay = rates, decay

    def begin_epoch(self, epoch: int) -> None:
        """Sets the learning rates of an epoch."""
        for optimizer, rate in zip(self.optimizers, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self._decay**epoch

    @abstractmethod
    def step(self, batch: B) -> float:
        """Trains on one batch and returns its loss (before the update)."""

    @abstractmethod
    def keys_of(self, batch: B) -> Mapping[Any, Any]:
        """The keys that a batch reads."""


@dataclass
class Begun(Generic[Options]):
    """The facts that are known before the data are read."""

    options: Options
    heads: dict[str, Any]
    """The identity of the data files."""
    stored: dict[str, Any] | None
    """The store's description of the run to continue."""
    opened: Store | None
    stack: contextlib.ExitStack

    def store(self) -> Store:
        """The store, made where there was none: the data are known to be good."""
        if self.opened is None:
            self.opened = create(self.options, self.stack)
        return self.opened


def begin(options: Options, sink: Sink, stack: contextlib.ExitStack) -> Begun[Options]:
    """Opens the store, if there is one, and holds options and data against the run in it.

    Errors: MisuseError, MismatchError, DataError.
    """
    store = open_stored(options, stack)
    stored = None if store is None else stored_run(store, options)
    if stored is not None:
        options = _continuing(stored, options)
    options.check_pipeline()
    heads = _known(options.files(), None if stored is None else stored["data"], options, sink)
    return Begun(options, heads, stored, store, stack)


def _continuing(stored: dict[str, Any], options: Options) -> Options:
    """The options with which a stored run goes on: its own, except for what was asked for."""
    settings, changeable = stored["settings"], stored.get("changeable", {})
    if settings.get("model", "dlrm") != options.model:
        raise MismatchError(
            f"model is {options.model}, but the run in {options.store} has "
            f"{settings.get('model', 'dlrm')}; pass that, or name another --store"
        )
    options = options.continuing({**settings, **changeable})
    check_continues(options, stored, settings)
    return options


def _known(
    files: dict[str, Path], before: dict[str, Any] | None, options: RecipeOptions, sink: Sink
) -> dict[str, Any]:
    """Identities of files. Errors: MisuseError if the files are not those that a run has read."""
    if before is None:
        return dict(zip(files, known_of([*files.values()], sink), strict=True))
    for part in {**before, **files}:
        then, path = before.get(part), files.get(part)
        seen = "other"
        if then is not None and path is not None:
            if "samples" in then:
                with Task(sink, f"looking at {path.name}"):
                    seen = compared(then, path)
            else:  # of an older version, by the first bytes alone
                head = Head.of(path)
                is_same = asdict(head) == {name: then[name] for name in asdict(head)}
                seen = "same" if is_same else "other"
        if seen != "same":
            now = f"{options.data} without {part}" if path is None else path.absolute()
            has = "has more in it than" if seen == "grown" else "is not"
            raise MisuseError(
                f"{now} {has} what the run in {options.store} has read, "
                f"{f'no {part}' if then is None else then['path']}; pass the same data, or name "
                f"another --store"
            )
    if all("samples" in then for then in before.values()):
        return before
    return dict(zip(files, known_of([*files.values()], sink), strict=True))


@dataclass
class EpochRun(ABC, Generic[B]):
    """A run that is under way."""

    begun: Begun[Any]
    trainer: RateTrainer[B]
    batches: EpochBatches
    per_epoch: int
    """Samples of an epoch."""
    step: int
    losses: list[float] = field(default_factory=list)
    pending: PendingCommit | None = None
    samples: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    ahead: ReadAhead[B] | None = None
    #: Kind of the keys (`embedrock._made_keys`).
    keys: str = "names"

    def __post_init__(self) -> None:
        """Starts what observes the run."""
        self.options, self.store = self.begun.options, self.begun.store()
        #: How batches are announced.
        self.ahead_options = self.options
        self.history = History(self.trainer, self.store)
        self.report = StepReport(
            self.store, self.trainer.optimizers, max_rows=_REPORT_ROWS, step=self.step
        )

    @abstractmethod
    def measure(self, sink: Sink) -> dict[str, Any]:
        """Quality of the model at the end, by part of the data, as JSON."""

    @abstractmethod
    def told(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Further facts about the data and measurements, as JSON."""

    def stored(self) -> dict[str, Any]:
        """Further facts about the run for a commit, as JSON."""
        return {}

    def note(self) -> str:
        """Progress line for people."""
        recent = self.losses[-_SHOWN_LOSSES:]
        epoch = self.batches.epoch_of(self.step - 1) + 1
        said = f"epoch {epoch} of {self.options.recipe.epochs}"
        return f"{said}, loss {sum(recent) / len(recent):.4f}"

    def commit(self, *, wait: bool) -> None:
        """Makes the current step durable; does nothing where it is. Without `wait` training goes on
        while it is written; one is under way at most.

        Errors: what kept the commit before from becoming durable, and those of `embedrock.save`.
        """
        with self.report.committing():
            if self.pending is not None:
                self.pending.wait()
                self.pending = None
            if self.store.step == self.step:
                return
            meta = {
                "program": PROGRAM,
                "settings": self.options.fixed(),
                "changeable": self.options.changeable(),
                "max_disk_bytes": self.options.max_disk_bytes,
                "data": self.begun.heads,
                **meta_of(self.keys, self.store.tables),
                **self.stored(),
            }
            trainer = self.trainer
            pending = embedrock.save(
                self.store, trainer.model, trainer.optimizers, self.step, meta=meta, wait=False
            )
            if wait:
                pending.wait()
            else:
                self.pending = pending

    def train(self, sink: Sink, interrupt: Interrupt) -> None:
        """Trains from the run's position to the end of the last epoch, or to an interrupt."""
        options, batches = self.options, self.batches
        trainer = self.trainer
        every: Iterable[B] = batches
        foretold = self._foretold(sink)
        self.ahead = ReadAhead(every, trainer.model, trainer.keys_of, self.ahead_options, foretold)
        with (
            Task(sink, "training", self.per_epoch * options.recipe.epochs) as task,
            self.ahead,
            contextlib.closing(self.report.steps(self.ahead)) as measured,
        ):
            epoch, started = -1, perf_counter()
            task.done = batches.epoch_of(self.step) * self.per_epoch
            self.history.resume()
            for batch in measured:
                if interrupt.requested:
                    self.interrupted = True
                    task.outcome = f"stopped at step {self.step}"
                    break
                if batch.epoch != epoch:
                    epoch = batch.epoch
                    self.losses.clear()
                    trainer.begin_epoch(epoch)
                self.losses.append(trainer.step(batch))
                self.history.step(self.losses[-1], len(batch))
                self.step = batch.step + 1
                self.samples += len(batch)
                task.advance(len(batch), self.note())
                if self.step % options.commit_every == 0:
                    self.commit(wait=False)
            self.seconds = perf_counter() - started
            self.history.pause()

    def _foretold(self, sink: Sink) -> Foretold[B] | Trial[B] | None:
        """The batches to come, for a schedule that was asked for, or that may pay."""
        batches, options = self.batches, self.ahead_options

        def left(step: int) -> int:
            return int(self.options.recipe.epochs - batches.epoch_of(step))

        def left_behind(batch: B) -> int | None:
            is_last = batches.epoch_of(batch.step + 1) > batch.epoch
            return left(batch.step + 1) if is_last else None

        def foretold(epochs: int) -> Foretold[B]:
            return Foretold(watched(copy.copy(batches), sink, self.per_epoch * epochs), False)

        if options.schedule:
            return foretold(left(self.step))
        return Trial(left_behind, foretold) if may_pay(options, left(self.step)) else None

    def result(self, measured: dict[str, Any]) -> dict[str, Any]:
        """The results of the run, as JSON values."""
        return {
            "store": str(self.store.path),
            "step": self.step,
            "interrupted": self.interrupted,
            "samples": self.samples,
            "seconds": self.seconds,
            "samples_per_s": self.samples / self.seconds if self.seconds > 0 else None,
            "train_loss": sum(self.losses) / len(self.losses) if self.losses else None,
            **self.told(measured),
            "keys": self.keys,
            "time": self.trainer.seconds.as_dict(),
            "settings": self.options.settings(),
            "history": self.history.points(),
            "stats": self.store.stats(),
            "window": self.store.window.stats(),
            **({} if self.ahead is None else self.ahead.stats()),
            "step_report": self.report.to_dict(),
        }


def train(
    options: Options,
    sink: Sink,
    begin_run: Callable[[Options, Sink, contextlib.ExitStack], EpochRun[Any]],
) -> dict[str, Any]:
    """Trains as the options say and returns the result (JSON values); `interrupted` says whether
    Ctrl-C ended it early, with everything up to there committed.

    Errors: DataError for the data, MisuseError when the store already holds a run and `resume` was
    not given or the data differ, MismatchError when it holds another kind of run; those of the
    engine. An error in a step ends the run at its last commit.

    Durability: a commit every `commit_every` steps, during which training goes on, and one at the
    end, or at Ctrl-C, which is waited for.
    """
    options.check()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as stack:
        run = begin_run(options, sink, stack)
        with Interrupt() as interrupt:
            try:
                run.train(sink, interrupt)
                run.commit(wait=True)
            except EmbedrockError:
                step = run.store.step or 0
                print(f"the last commit is of step {step}: --resume goes on there", file=sys.stderr)
                raise
        return run.result({} if run.interrupted else run.measure(sink))
