"""One side of the comparison of speeds, in a process of its own, which trains when it is told.

Before its first round every row is written, with values and state that are not the initial ones,
committed and reopened; rows that fit into memory are read, and some steps are trained. A round
trains a fixed number of steps on batches that are made before its clock starts. Rows that changed
and leave memory are written within it; a commit after it is timed apart.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, TextIO

import numpy as np
import torch

import embedrock
from embedrock.data import Batch, Dataset
from embedrock.report.counters import Counters
from embedrock.report.progress import JsonLines, Sink, Task
from embedrock.store import Store
from embedrock.training import engine
from embedrock.training.history import History
from embedrock.training.trainer import Trainer
from embedrock_lab.demo import models, stores
from embedrock_lab.demo.paths import EMBEDROCK, LOOK_AHEAD, PLAIN_TORCH, WHOLE_AHEAD, WHOLE_BUDGET
from embedrock_lab.demo.settings import Keys, Settings, ShapedSettings
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed

_EVALUATION_BATCH = 1024
#: Batches that are announced ahead, as far as the window holds them.
_DEPTH = 512
_STEPS_PER_POINT = 5
#: Batches that may be drawn beyond those announced: the one at hand, those that a pipeline holds.
_DRAWN_BEYOND = 8


def serve(settings: Settings, name: str, sink: JsonLines, commands: TextIO) -> dict[str, Any]:
    """Writes all rows, then does what each line says, and answers: `warm up`, `round` as often as
    it comes, and `finish`, after which the rest is returned."""
    torch.set_num_threads(settings.threads)
    with contextlib.ExitStack() as stack:
        system = _System(settings, name, sink, stack)
        sink.send({"answer": {}})
        for line in commands:
            command = line.strip()
            if command == "finish":
                return system.finish()
            sink.send({"answer": system.warm_up() if command == "warm up" else system.round()})
    raise embedrock.errors.MisuseError("the other end closed before the comparison was over")


class _System:
    def __init__(
        self, settings: Settings, name: str, sink: Sink, stack: contextlib.ExitStack
    ) -> None:
        self._settings, self._name, self._sink = settings, name, sink
        self._store: Store | None = None
        self._dataset, keys = settings.compared_data(name == PLAIN_TORCH)
        self._losses: list[float] = []
        self._rounds = 0
        if name == PLAIN_TORCH:
            self._trainer = _in_memory(settings, self._dataset, keys, sink, name)
        else:
            whole = name in (WHOLE_BUDGET, WHOLE_AHEAD)
            budget = "100%" if whole else settings.memory
            with stores.open_store(settings, name, budget) as store:
                stores.write_rows(settings, store, self._dataset.features, keys, sink, name)
            machine.reset_peak_rss()
            self._store = stack.enter_context(stores.open_store(settings, name, budget))
            self._trainer = models.over_store(settings, self._store, self._dataset)
            if whole:
                _read_rows(self._store, keys, sink, name)
        self._history = History(self._trainer, self._store, _STEPS_PER_POINT)
        self._source = settings.endless(self._dataset)
        self._made: deque[Batch] = deque()
        self._loader: embedrock.LookaheadLoader[Batch] | None = None
        self._pipeline: embedrock.Pipeline[Batch] | None = None
        self._batches: Iterator[Batch] = self._given()
        self._looks_ahead = name in (LOOK_AHEAD, WHOLE_AHEAD, EMBEDROCK)
        if self._looks_ahead:
            model = self._trainer.model
            keys_of = model.embeddings.keys_of
            # The bench's rounds are too short to see where look-ahead pays: who is there to show
            # what it gives announces everything.
            announce = True if name == LOOK_AHEAD else None
            self._loader = embedrock.LookaheadLoader(
                self._batches, model, _DEPTH, keys_of, announce=announce
            )
            self._pipeline = stack.enter_context(embedrock.Pipeline(model, self._loader))
            self._batches = iter(self._pipeline)

    def warm_up(self) -> dict[str, Any]:
        """The steps before the clock starts."""
        warm_up, _ = self._settings.steps_of_rounds(self._dataset)
        if self._name == PLAIN_TORCH and self._settings.torch_warm_up is not None:
            warm_up = self._settings.torch_warm_up
        self._make(warm_up)
        self._history.resume()
        with Task(self._sink, f"{self._name}: warming up", warm_up) as task:
            for batch in islice(self._batches, warm_up):
                self._step(batch)
                task.advance(1, f"loss {self._losses[-1]:.4f}")
        self._rest()
        return {"steps": len(self._losses), "commit_s": self._commit()}

    def round(self) -> dict[str, Any]:
        """Some timed steps; afterwards, the device's rate."""
        _, steps = self._settings.steps_of_rounds(self._dataset)
        self._make(steps)
        before, spent = self._counters(), self._trainer.seconds.copy()
        timed = Timed()
        samples = 0
        self._rounds += 1
        waited = self._waited_s()
        with Task(self._sink, f"{self._name}: round {self._rounds}", steps) as task:
            self._history.resume()
            with timed:
                if self._loader is not None and self._store is not None:
                    self._store.window.resume()
                for batch in islice(self._batches, steps):
                    self._step(batch)
                    samples += len(batch)
                    task.advance(1, f"loss {self._losses[-1]:.4f}")
                if self._store is not None:
                    _ = self._store.uncommitted  # once a pipeline has applied all steps
            self._rest()
        answer: dict[str, Any] = {
            "steps": steps,
            "samples": samples,
            "seconds": timed.seconds,
            "core_wait_s": timed.waited if timed.known else None,
            "time": (self._trainer.seconds - spent).as_dict(),
        }
        if self._store is not None:
            counted = self._counters() - before
            answer["engine"] = counted.counted()
            answer["device_least_s"] = engine.device_seconds(self._store, counted)
            answer["window_wait_s"] = self._waited_s() - waited
            answer["commit_s"] = self._commit()
            answer["device_requests_per_s"] = engine.device_rate(self._store)
            answer["device_requests_per_s_own_unit"] = engine.device_rate(
                self._store, own_unit=True
            )
        return answer

    def finish(self) -> dict[str, Any]:
        """Remaining results when all rounds are over."""
        if self._loader is not None and self._store is not None:
            window = self._store.window.stats()
            self._store.window.resume()
            self._loader.close()
        result: dict[str, Any] = {"steps": len(self._losses), "losses": self._losses}
        result["history"] = self._history.points()
        result["peak_rss_bytes"] = machine.peak_rss_bytes()
        last = self._settings.last_checks
        if last and isinstance(self._settings, ShapedSettings):
            with Task(self._sink, f"{self._name}: evaluating", self._settings.test_samples):
                batches = self._dataset.test_batches(_EVALUATION_BATCH)
                evaluation = self._trainer.evaluate(batches)
            result["auc"], result["log_loss"] = evaluation.auc, evaluation.log_loss
        if self._store is not None:
            result["engine"] = engine.summary(self._store)
            if self._pipeline is not None:
                result["window"], result["pipeline"] = window, self._pipeline.stats()
            if last:
                result["digests"] = digests(self._store, self._sink, self._name)
        return result

    def _make(self, steps: int) -> None:
        """Makes the batches of so many steps, and those that are announced behind them."""
        ahead = _DEPTH + _DRAWN_BEYOND if self._looks_ahead else 0
        missing = steps + ahead - len(self._made)
        if self._looks_ahead and self._rounds:
            missing = steps  # those behind them were announced in the round before
        self._made.extend(islice(self._source, max(missing, 0)))

    def _given(self) -> Iterator[Batch]:
        """The batches that were made, in order."""
        while True:
            yield self._made.popleft() if self._made else next(self._source)

    def _rest(self) -> None:
        """The end of a round: what others measure must not be disturbed."""
        self._history.pause()
        if self._loader is not None and self._store is not None:
            self._store.window.pause()

    def _waited_s(self) -> float:
        """Seconds that the trainer was blocked until batches were read ahead."""
        if self._loader is None or self._store is None:
            return 0.0
        return float(self._store.window.stats()["wait_s"])

    def _commit(self) -> float | None:
        """Seconds that a commit of tables, model and optimizers took; None without a store."""
        if self._store is None:
            return None
        started = perf_counter()
        embedrock.save(
            self._store, self._trainer.model, self._trainer.optimizers, len(self._losses)
        )
        return perf_counter() - started

    def _step(self, batch: Batch) -> None:
        self._losses.append(self._trainer.step(batch))
        self._history.step(self._losses[-1], len(batch))

    def _counters(self) -> Counters:
        return Counters() if self._store is None else Counters.of(self._store)


def digests(store: Store, sink: Sink, name: str) -> dict[str, int]:
    """The digest of every table."""
    found: dict[str, int] = {}
    with Task(sink, f"{name}: digests", sum(map(len, store.tables.values()))) as task:
        for table in store.tables.values():

            def advance(done: int, _: int, before: int = task.done) -> None:
                task.to(before + done)

            found[table.name] = table.digest(advance)
    return found


def _read_rows(store: Store, keys: Sequence[Keys], sink: Sink, name: str) -> None:
    """Reads every row once, so that those that fit are in memory."""
    with Task(sink, f"{name}: reading all rows", sum(map(len, keys))) as task:
        for table, some in zip(store.tables.values(), keys, strict=True):
            for part in stores.pieces(some):
                table.get(part)
                task.advance(len(part))


def _in_memory(
    settings: Settings, dataset: Dataset, keys: Sequence[Keys], sink: Sink, name: str
) -> Trainer:
    """PyTorch's tables and Adagrad with the rows and state that the stores get."""
    dim = settings.recipe.embedding_dim
    weights, sums = [], []
    with Task(sink, f"{name}: writing all rows", sum(map(len, keys))) as task:
        for place, some in enumerate(keys):
            values = np.empty((len(some), dim), np.float32)
            state = np.empty((len(some), dim), np.float32)
            done = 0
            for part in stores.pieces(some):
                rows = slice(done, done + len(part))
                values[rows] = stores.written_values(place, part, dim)
                state[rows] = stores.written_state(place, part, dim)
                done = rows.stop
                task.advance(len(part))
            weights.append(torch.from_numpy(values))
            sums.append(torch.from_numpy(state))
    trainer = models.in_memory(settings, dataset, weights)
    tables = trainer.optimizers[0]
    for parameter, state in zip(tables.param_groups[0]["params"], sums, strict=True):
        tables.state[parameter]["sum"].copy_(state)
    return trainer
