"""`embedrock train`: trains a model on a file, commits as it goes, and goes on where it stopped.

Invariant: a commit carries tables, dense model, both optimizers, random generators and the position
in the data of one and the same step. So a run that was stopped, in whatever way, and resumed ends
with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch

import embedrock
from embedrock import initializers
from embedrock._made_keys import meta_of
from embedrock.commits import PendingCommit
from embedrock.data import Batch, Dataset, Position
from embedrock.data.streamed import StreamedDataset
from embedrock.errors import EmbedrockError, FullError
from embedrock.models.base import ClickModel
from embedrock.observe.step_report import StepReport
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training.batches import (
    Foretold,
    ReadAhead,
    Trial,
    all_epochs,
    foretold,
    may_pay,
)
from embedrock.training.history import History
from embedrock.training.interrupt import Interrupt
from embedrock.training.models import over_store
from embedrock.training.options import TrainOptions
from embedrock.training.run_data import RunData, opened, pruned, recognised
from embedrock.training.stored import (
    KEEP,
    PROGRAM,
    check_continues,
    create,
    open_stored,
    row_optimizer,
    stored_run,
)
from embedrock.training.trainer import Trainer

#: Samples predicted at once while evaluating; results do not depend on it beyond rounding.
_EVALUATION_BATCH = 2048
_SHOWN_LOSSES = 100
#: Rows of the step report, each of one step or more.
_REPORT_ROWS = 200
#: Half the width of the uniform initial rows, small against what training makes of them.
_INITIAL = 0.01
#: Commits that meet a full disk: after `KEEP`, all that are kept hold the same rows, and the next
#: one reuses what they have released. In runs with disks of half their usual size, a third ended
#: what two had left full.
_RELEASING_COMMITS = KEEP + 1


@dataclass
class _Run:
    """A run that is under way."""

    options: TrainOptions
    store: Store
    dataset: Dataset
    data: RunData
    model: ClickModel
    trainer: Trainer
    position: Position
    step: int
    losses: list[float]
    bad_lines: int
    history: History
    report: StepReport
    #: The source of the batches; None before there is one.
    ahead: ReadAhead[Batch] | None = None
    #: The last commit, unless it was waited for: it may be under way.
    pending: PendingCommit | None = None
    #: Messages that came while it was under way, for reports.
    notes: list[str] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0
    epoch_started: float = 0.0
    epoch_samples: int = 0
    interrupted: bool = False
    #: Uncommitted batches and rows of the store when the current step was complete; unknown if a
    #: pipeline applies steps later.
    complete: tuple[int, int] | None = (0, 0)

    def note(self) -> str:
        """Progress line for people."""
        epochs = self.options.recipe.epochs
        recent = self.losses[-_SHOWN_LOSSES:]
        loss = sum(recent) / len(recent)
        rate = self.epoch_samples / (perf_counter() - self.epoch_started)
        said = f"epoch {self.position.epoch + 1} of {epochs}, loss {loss:.4f}"
        said += f", {rate:,.0f} samples/s"
        last = self.report.last()
        if last is not None and last["seconds"] > 0:
            said += f", blocked by read {last['blocked_by_read_s'] / last['seconds']:.0%}"
        return said

    def stop_clock(self) -> None:
        """Stops the clock: what follows is not part of the training time."""
        self.history.pause()
        self.samples += self.epoch_samples
        self.seconds += perf_counter() - self.epoch_started

    def commit(self, *, again: bool = False) -> None:
        """Makes the current step durable; does nothing when it is already, unless `again`."""
        self.begin_commit(again=again)
        with self.report.committing():
            self.wait_for_commit()

    def begin_commit(self, *, again: bool = False) -> None:
        """Has the current step made durable while training goes on; does nothing when it is, or
        is about to be, unless `again`. Waits for the commit before, so one is under way at most.

        Errors: what kept the commit before from becoming durable, and those of `embedrock.save`.
        """
        last = self.store.step if self.pending is None else self.pending.step
        if last == self.step and not again:
            return
        scan = self.data.scan
        meta = {
            "program": PROGRAM,
            "settings": self.options.fixed(),
            "changeable": self.options.changeable(),
            "max_disk_bytes": self.options.max_disk_bytes,
            **self.data.meta(),
            **meta_of(_keys_of(self.options), self.store.tables),
            "position": asdict(self.position),
            "scan": None if scan is None else asdict(pruned(scan, self.dataset)),
        }
        with self.report.committing():
            self.wait_for_commit()
            self.pending = embedrock.save(
                self.store, self.model, self.trainer.optimizers, self.step, meta=meta, wait=False
            )
        self.complete = None if self.options.pipeline else self.store.uncommitted

    def wait_for_commit(self) -> None:
        """Returns when no commit is under way. Errors: what kept the last one from becoming
        durable, each time."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def checkpoint(self) -> None:
        """Begins a commit between steps, and says once when look-ahead does not work."""
        self.begin_commit()
        said = None if self.ahead is None or self.notes else self.ahead.advice()
        if said is not None:
            self.notes.append(said)
            print(said, file=sys.stderr)

    def rescue(self) -> None:
        """Commits the last complete step after a later one failed, unless the failed one has left
        its mark on rows, or the store takes no commit; says from which step the run can go on. With
        a pipeline the dense part is ahead of the tables: that is the last commit's.

        Errors: what kept the last commit from becoming durable, which is why others failed.
        """
        failed = None
        try:
            self.wait_for_commit()
        except EmbedrockError as error:
            failed = error
        if failed is None and not self.options.pipeline:
            with contextlib.suppress(EmbedrockError):
                if self.store.uncommitted == self.complete:
                    self.trainer.forget()
                    self.commit()
                    print(f"the run is committed at step {self.step}", file=sys.stderr)
                    return
        step = self.store.step or 0
        print(f"the last commit is of step {step}: --resume goes on there", file=sys.stderr)
        if failed is not None:
            raise failed


def train(options: TrainOptions, sink: Sink) -> dict[str, Any]:
    """Trains as the options say and returns the result (JSON values); `interrupted` says whether
    Ctrl-C ended it early, with everything up to there committed.

    Errors: DataError for the data, MisuseError when the store already holds a run and `resume` was
    not given or the data are others, MismatchError when it holds another kind of run; those of the
    engine.

    Durability: a commit every `commit_every` steps and after each epoch, during which training goes
    on, and one at the end, or at Ctrl-C, which is waited for. A step that fails with one of these
    errors is preceded by one, too, if the store still accepts it. An error that keeps a commit from
    becoming durable ends the run at the next commit, or at the next step that the store refuses.
    """
    options.check()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as stack:
        run = _begin(options, sink, stack)
        with Interrupt() as interrupt:
            try:
                _train_epochs(run, sink, interrupt)
                run.commit()
            except EmbedrockError:
                run.rescue()
                raise
        evaluation = None
        if not run.interrupted:
            with Task(sink, "evaluating") as task:
                batches = _counted(run.dataset.test_batches(_EVALUATION_BATCH), task)
                evaluation = run.trainer.evaluate(batches)
        return _result(run, evaluation)


def _begin(options: TrainOptions, sink: Sink, stack: contextlib.ExitStack) -> _Run:
    """Opens data and store, makes the model, and goes to the last commit if that was asked for."""
    store = open_stored(options, stack)
    stored = None if store is None else stored_run(store, options)
    if stored is not None:
        options = _continuing(stored, options)
    options.check_pipeline()
    options.check_model()
    data = recognised(stored, options, sink)
    dataset, data, bad_lines = opened(data, options, sink)
    if store is None:
        store = create(options, stack)

    recipe = options.recipe
    initializer = initializers.uniform(-_INITIAL, _INITIAL)
    model = over_store(recipe, store, dataset, initializer=initializer, seed=options.seed)
    trainer = Trainer(
        model,
        [
            row_optimizer(model, recipe),
            torch.optim.Adagrad(model.dense_modules().parameters(), lr=recipe.dense_lr),
        ],
    )
    position, step = Position(), 0
    if stored is not None:
        step = embedrock.resume(store, model, trainer.optimizers)
        position = Position(**stored["position"])
        if options.grown == "train" and position.epoch >= recipe.epochs:
            print(
                f"the run has made its {recipe.epochs} epochs: with --epochs {recipe.epochs + 1} "
                f"it trains on the new part",
                file=sys.stderr,
            )
    return _Run(
        options,
        store,
        dataset,
        data,
        model,
        trainer,
        position,
        step,
        losses=[],
        history=History(trainer, store),
        report=embedrock.StepReport(store, trainer.optimizers, max_rows=_REPORT_ROWS, step=step),
        bad_lines=bad_lines,
    )


def _continuing(stored: dict[str, Any], options: TrainOptions) -> TrainOptions:
    """The options with which a stored run goes on: its own, except for what was asked for."""
    changeable = stored.get("changeable", {})  # older stores do not have it
    # Older stores do not name these.
    unnamed = {"dtype": "float32", "optimizer": "adagrad", "model": "dlrm", "model_options": {}}
    settings = {**unnamed, **stored["settings"]}
    options = options.continuing({**settings, **changeable})
    check_continues(options, stored, settings)
    return options


def _train_epochs(run: _Run, sink: Sink, interrupt: Interrupt) -> None:
    """Trains from the run's position to the end of the last epoch, or to an interrupt."""
    recipe, options = run.options.recipe, run.options
    per_epoch = run.dataset.num_train() or 0
    run.ahead = ReadAhead(
        all_epochs(run.dataset, recipe, run.position),
        run.model,
        run.model.embeddings.keys_of,
        options,
        _foretold(run, sink),
    )
    with (
        Task(sink, "training", per_epoch * recipe.epochs) as task,
        run.ahead,
        contextlib.closing(run.report.steps(run.ahead)) as measured,
    ):
        task.done = run.position.epoch * per_epoch + run.position.batch * recipe.batch_size
        _begin_epoch(run)
        for batch in measured:
            if batch.next.epoch > run.position.epoch:
                _end_epoch(run, batch.next.epoch)
                _begin_epoch(run)
            if interrupt.requested:
                run.interrupted = True
                break
            run.losses.append(_step(run, batch))
            run.history.step(run.losses[-1], len(batch))
            run.position = batch.next
            run.step += 1
            run.epoch_samples += len(batch)
            if not options.pipeline:
                run.complete = run.store.uncommitted
            task.advance(len(batch), run.note())
            if run.step % options.commit_every == 0:
                run.checkpoint()
        if run.interrupted:
            run.stop_clock()
            task.outcome = f"stopped at step {run.step}"
        else:
            _end_epoch(run, max(run.position.epoch, recipe.epochs))


def _foretold(run: _Run, sink: Sink) -> Foretold[Batch] | Trial[Batch] | None:
    """The batches to come, for a schedule that was asked for, or that may pay."""
    recipe, options, dataset = run.options.recipe, run.options, run.dataset
    if options.schedule:
        return foretold(dataset, recipe, run.position, sink)
    in_memory = not isinstance(dataset, StreamedDataset)
    if not may_pay(options, recipe.epochs - run.position.epoch, in_memory):
        return None
    per_epoch = math.ceil((dataset.num_train() or 0) / recipe.batch_size)

    def left(batch: Batch) -> int | None:
        is_last = batch.next.batch >= per_epoch
        return recipe.epochs - batch.next.epoch - 1 if is_last else None

    def of(epochs: int) -> Foretold[Batch]:
        return foretold(dataset, recipe, Position(recipe.epochs - epochs), sink)

    return Trial(left, of)


def _begin_epoch(run: _Run) -> None:
    """Sets the rates of the run's epoch, and starts the clock."""
    run.trainer.scale_learning_rates(run.options.recipe.lr_decay**run.position.epoch)
    run.losses.clear()
    run.history.resume()
    run.epoch_started, run.epoch_samples = perf_counter(), 0


def _end_epoch(run: _Run, following: int) -> None:
    """Begins a commit of the end of the epochs before the one that follows."""
    run.stop_clock()
    run.position = Position(following)
    run.checkpoint()


def _step(run: _Run, batch: Batch) -> float:
    """One step. A full disk is met with commits, each of which releases copies that only an older
    one held; when that is not enough, nothing is lost: the error says where the run stands. (Not
    with a pipeline, whose later steps have met the full disk, too, when the error arrives.)"""
    if run.options.pipeline:
        return run.trainer.step(batch)
    for number in range(1, _RELEASING_COMMITS + 1):
        try:
            return run.trainer.step(batch)
        except FullError as error:
            print(
                f"{error}; committing at step {run.step} to release copies "
                f"({number} of at most {_RELEASING_COMMITS} times)",
                file=sys.stderr,
            )
        run.trainer.forget()
        try:
            run.commit(again=True)
        except FullError as error:
            raise FullError(
                f"{error}; the last commit is of step {run.store.step or 0}: with more room, "
                f"--resume goes on"
            ) from error
    try:
        return run.trainer.step(batch)
    except FullError as error:
        raise FullError(
            f"{error}; {_RELEASING_COMMITS} commits have not released enough; the run is committed "
            f"at step {run.step}: with more room, --resume goes on"
        ) from error


def _counted(batches: Iterator[Batch], task: Task) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        task.advance(len(batch))


def _keys_of(options: TrainOptions) -> str:
    """The kind of the keys (`embedrock._made_keys`)."""
    return "hash_keys" if options.format in ("csv", "sessions") else "column_hash"


def _result(run: _Run, evaluation: Any) -> dict[str, Any]:
    """The results of the run, as JSON values."""
    mean_loss = sum(run.losses) / len(run.losses) if run.losses else None
    evaluated = evaluation is not None and evaluation.samples > 0
    return {
        "store": str(run.store.path),
        "step": run.step,
        "position": asdict(run.position),
        "interrupted": run.interrupted,
        "samples": run.samples,
        "seconds": run.seconds,
        "samples_per_s": run.samples / run.seconds if run.seconds > 0 else None,
        "train_loss": mean_loss,
        "test_samples": evaluation.samples if evaluated else 0,
        "auc": evaluation.auc if evaluated else None,
        "log_loss": evaluation.log_loss if evaluated else None,
        "targets": {
            name: {"auc": found[0], "log_loss": found[1]}
            for name, found in zip(
                run.dataset.targets, evaluation.by_target if evaluated else (), strict=False
            )
        },
        "time": run.trainer.seconds.as_dict(),
        "bad_lines": run.bad_lines,
        "keys": _keys_of(run.options),
        "settings": run.options.settings(),
        "history": run.history.points(),
        "stats": run.store.stats(),
        "window": run.store.window.stats(),
        **({} if run.ahead is None else run.ahead.stats()),
        "notes": run.notes,
        "step_report": run.report.to_dict(),
    }
