"""`embedrock train` for knowledge graphs: trains on triples, commits as it goes, ranks at the end.

What always holds: a commit carries entities, relations, both optimizers and random generators of
one and the same step, and batches are functions of the seed and the step. So a run that was
stopped, however, and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import embedrock
from embedrock import kge
from embedrock.commits import PendingCommit
from embedrock.data.text import Head
from embedrock.errors import EmbedrockError, MismatchError, MisuseError
from embedrock.initializers import uniform
from embedrock.kge.triples import files_of
from embedrock.observe.step_report import StepReport
from embedrock.report.progress import Sink, Task
from embedrock.store import Store
from embedrock.training.batches import ReadAhead
from embedrock.training.graph_options import GraphOptions
from embedrock.training.history import History
from embedrock.training.interrupt import Interrupt
from embedrock.training.stored import (
    PROGRAM,
    check_continues,
    create,
    open_stored,
    row_optimizer,
    stored_run,
)
from embedrock.training.trainer import Seconds

_SHOWN_LOSSES = 100
_REPORT_ROWS = 200


class GraphTrainer:
    """A model with its optimizers, and the constraint of its entities where it has one."""

    def __init__(
        self,
        model: kge.KnowledgeGraphModel,
        optimizers: list[torch.optim.Optimizer],
        options: GraphOptions,
    ) -> None:
        """Takes the model and all of its optimizers."""
        self.model, self.optimizers = model, optimizers
        self.seconds = Seconds()
        recipe = options.recipe
        self._loss = recipe.loss
        self._with = {
            "margin": recipe.margin,
            "temperature": recipe.temperature,
            "regularization": recipe.regularization,
        }
        self._rates = (recipe.lr, recipe.dense_lr)
        self._decay = recipe.lr_decay
        self.constraint = kge.RowConstraint(model.entities) if recipe.unit_rows else None

    def begin_epoch(self, epoch: int) -> None:
        """Sets the learning rates of an epoch."""
        for optimizer, rate in zip(self.optimizers, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self._decay**epoch

    def step(self, batch: kge.TripleBatch) -> float:
        """Trains on one batch and returns its loss (before the update)."""
        started = perf_counter()
        if self.constraint is not None:
            self.constraint.before(batch.entities())
        rows = self.model.rows_of(batch)
        fetched = perf_counter()
        loss = self.model.loss(batch, self._loss, rows=rows, **self._with)
        loss.backward()
        value = float(loss.detach())
        computed = perf_counter()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.constraint is not None:
            self.constraint.after(batch.entities())
        self.seconds.embedding += fetched - started
        self.seconds.computing += computed - fetched
        self.seconds.updating += perf_counter() - computed
        return value

    def rank(self, triples: Any, known: Iterable[Any]) -> kge.Ranks:
        """Filtered ranks of triples."""
        fresh = None if self.constraint is None else kge.unit
        return kge.rank(self.model, triples, known=known, fresh=fresh)


@dataclass
class _Run:
    """A run that is under way."""

    options: GraphOptions
    store: Store
    graph: kge.Graph
    heads: dict[str, Any]
    trainer: GraphTrainer
    batches: kge.TripleBatches
    step: int
    history: History
    report: StepReport
    losses: list[float] = field(default_factory=list)
    pending: PendingCommit | None = None
    triples: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    ahead: ReadAhead[kge.TripleBatch] | None = None

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
                "data": self.heads,
            }
            trainer = self.trainer
            pending = embedrock.save(
                self.store, trainer.model, trainer.optimizers, self.step, meta=meta, wait=False
            )
            if wait:
                pending.wait()
            else:
                self.pending = pending

    def note(self) -> str:
        """How it goes, for people."""
        recent = self.losses[-_SHOWN_LOSSES:]
        epoch = (self.step - 1) // self.batches.per_epoch + 1
        said = f"epoch {epoch} of {self.options.recipe.epochs}"
        return f"{said}, loss {sum(recent) / len(recent):.4f}"


def train(options: GraphOptions, sink: Sink) -> dict[str, Any]:
    """Trains as told and returns what came of it (JSON values); `interrupted` says whether Ctrl-C
    ended it early, with everything up to there committed.

    Errors: DataError for the data, MisuseError when the store already holds a run and `resume` was
    not given or the data are others, MismatchError when it holds another kind of run; those of the
    engine. What fails in a step ends the run at its last commit.

    Durability: a commit every `commit_every` steps, during which training goes on, and one at the
    end, or at Ctrl-C, which is waited for.
    """
    options.check()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as stack:
        run = _begin(options, sink, stack)
        with Interrupt() as interrupt:
            try:
                _train(run, sink, interrupt)
                run.commit(wait=True)
            except EmbedrockError:
                step = run.store.step or 0
                print(f"the last commit is of step {step}: --resume goes on there", file=sys.stderr)
                raise
        measured: dict[str, Any] = {}
        if not run.interrupted:
            for part in ("valid", "test"):
                triples = getattr(run.graph, part)
                if len(triples):
                    with Task(sink, f"ranking {part}"):
                        ranks = run.trainer.rank(triples, run.graph.known())
                    measured[part] = ranks.summary() | {"scans": ranks.scans}
        return _result(run, measured)


def _begin(options: GraphOptions, sink: Sink, stack: contextlib.ExitStack) -> _Run:
    """Opens data and store, makes the model, and goes to the last commit if that was asked for."""
    store = open_stored(options, stack)
    stored = None if store is None else stored_run(store, options)
    if stored is not None:
        options = _continuing(stored, options)
    options.check_pipeline()
    heads = _heads(options.data)
    if stored is not None:
        _check_data(heads, stored["data"], options)
    with Task(sink, "reading triples"):
        graph = kge.read(
            options.data, unknown=options.unknown, skip_bad_lines=options.skip_bad_lines
        )
    if graph.skipped:
        counts = ", ".join(f"{count} of {what}" for what, count in graph.skipped.items())
        print(f"skipped {counts}, the first: {graph.first_skipped}", file=sys.stderr)
    if store is None:
        store = create(options, stack)
    recipe = options.recipe
    entities = embedrock.nn.Embedding(
        len(graph.entities),
        recipe.embedding_dim,
        store=store,
        name="entities",
        optimizer=recipe.optimizer,
        initializer=uniform(-recipe.initial, recipe.initial),
        dtype=getattr(torch, recipe.dtype),
        output_dtype=torch.float32,
    )
    torch.manual_seed(options.seed)
    relations = kge.dense_relations(
        options.model,
        len(graph.relations),
        recipe.embedding_dim,
        entity_bound=recipe.initial,
    )
    model = kge.KnowledgeGraphModel(options.model, entities, relations)
    rows = row_optimizer(model, recipe)
    dense = torch.optim.Adagrad(relations.parameters(), lr=recipe.dense_lr)
    trainer = GraphTrainer(model, [rows, dense], options)
    batches = kge.TripleBatches(
        graph.train,
        len(graph.entities),
        batch_size=recipe.batch_size,
        negatives=recipe.negatives,
        epochs=recipe.epochs,
        seed=options.seed,
    )
    step = 0
    if stored is not None:
        step = embedrock.resume(store, model, trainer.optimizers)
        batches.load_state_dict({**batches.state_dict(), "step": step})
    return _Run(
        options,
        store,
        graph,
        heads,
        trainer,
        batches,
        step,
        history=History(trainer, store),
        report=StepReport(store, trainer.optimizers, max_rows=_REPORT_ROWS, step=step),
    )


def _continuing(stored: dict[str, Any], options: GraphOptions) -> GraphOptions:
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


def _heads(data: Path) -> dict[str, Any]:
    """What tells the files of a graph from others."""
    files = files_of(data) if data.is_dir() else {"train": data}
    return {
        part: {"path": str(path.absolute()), **asdict(Head.of(path))}
        for part, path in files.items()
    }


def _check_data(heads: dict[str, Any], before: dict[str, Any], options: GraphOptions) -> None:
    """Errors: MisuseError where files are not those that the stored run has read."""
    for part in {**before, **heads}:
        now, then = heads.get(part, {}), before.get(part, {})
        if (now.get("bytes"), now.get("blake2b")) != (then.get("bytes"), then.get("blake2b")):
            raise MisuseError(
                f"{now.get('path', f'{options.data} without {part}')} is not what the run in "
                f"{options.store} has read, {then.get('path', f'no {part}')}; pass the same data, "
                f"or name another --store"
            )


def _train(run: _Run, sink: Sink, interrupt: Interrupt) -> None:
    """Trains from the run's position to the end of the last epoch, or to an interrupt."""
    options, batches = run.options, run.batches
    per_epoch = len(run.graph.train)
    trainer = run.trainer
    run.ahead = ReadAhead(batches, trainer.model, trainer.model.keys_of, options)
    with (
        Task(sink, "training", per_epoch * options.recipe.epochs) as task,
        run.ahead,
        contextlib.closing(run.report.steps(run.ahead)) as measured,
    ):
        epoch, started = -1, perf_counter()
        task.done = run.step // batches.per_epoch * per_epoch
        run.history.resume()
        for batch in measured:
            if interrupt.requested:
                run.interrupted = True
                task.outcome = f"stopped at step {run.step}"
                break
            if batch.epoch != epoch:
                epoch = batch.epoch
                run.losses.clear()
                run.trainer.begin_epoch(epoch)
            run.losses.append(run.trainer.step(batch))
            run.history.step(run.losses[-1], len(batch))
            run.step = batch.step + 1
            run.triples += len(batch)
            task.advance(len(batch), run.note())
            if run.step % options.commit_every == 0:
                run.commit(wait=False)
        run.seconds = perf_counter() - started
        run.history.pause()


def _result(run: _Run, measured: dict[str, Any]) -> dict[str, Any]:
    """What the run came to, as JSON values."""
    return {
        "store": str(run.store.path),
        "step": run.step,
        "interrupted": run.interrupted,
        "entities": len(run.graph.entities),
        "relations": len(run.graph.relations),
        "samples": run.triples,
        "seconds": run.seconds,
        "samples_per_s": run.triples / run.seconds if run.seconds > 0 else None,
        "train_loss": sum(run.losses) / len(run.losses) if run.losses else None,
        "ranks": measured,
        "skipped": run.graph.skipped,
        "time": run.trainer.seconds.as_dict(),
        "settings": run.options.settings(),
        "history": run.history.points(),
        "stats": run.store.stats(),
        "window": run.store.window.stats(),
        **({} if run.ahead is None else run.ahead.stats()),
        "step_report": run.report.to_dict(),
    }
