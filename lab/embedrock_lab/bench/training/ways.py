"""The ways to run a training: PyTorch in memory, the plain loop, look-ahead, and a pipeline too.

All of them run :func:`train`, the loop that users write, over the same batches, in one process;
while one trains the others rest. They begin with the same rows and weights. A round is a pass of
each over the batches of one stretch, through a loader that was made once, as epochs are.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import embedrock
from embedrock_lab.bench.training.cells import LOOKAHEAD, PIPELINE, PLAIN, SCHEDULE, TORCH
from embedrock_lab.bench.training.load import Load
from embedrock_lab.bench.training.places import InMemory, InStore, open_least, total
from embedrock_lab.measure.noise import Timed

__all__ = ["Loop", "OverStore", "Shuffled", "Stretch", "Ways", "bound_of", "train"]

DEPTH = 512
"""``LookaheadLoader``'s own default."""


def train(
    model: Any,
    optimizers: Sequence[Any],
    loader: Iterable[Any],
    loss_of: Callable[[Any, Any], Any],
) -> list[Any]:
    """The loop that is measured; its losses."""
    losses = []
    for batch in loader:
        loss = loss_of(model, batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


class Stretch:
    """A loader of a stretch of batches, which changes from pass to pass."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.batches: Sequence[Any] = []

    def __iter__(self) -> Iterator[Any]:
        """A pass over the stretch at hand."""
        return iter(self.batches)

    def __len__(self) -> int:
        """Its batches."""
        return len(self.batches)


class Shuffled(torch.utils.data.DataLoader[Any]):  # type: ignore[misc]
    """The same batches in a new order in each pass, which is that of a seed."""

    def __init__(self, batches: Sequence[Any], seed: int) -> None:
        """Takes the batches of an epoch."""
        self.batches: Sequence[Any] = batches
        super().__init__(
            _Items(batches),
            batch_size=1,
            shuffle=True,
            collate_fn=operator.itemgetter(0),
            generator=torch.Generator().manual_seed(seed),
        )


class _Items(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Batches as the samples of a data set."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


class Loop:
    """PyTorch in memory."""

    def __init__(self, load: Load, seed: int, source: Any) -> None:
        """Makes the model; ``seed`` is that of its dense part. ``source`` gives the batches."""
        self.load, self.stretch = load, source
        torch.manual_seed(seed)
        self.model, self.optimizers = self._make()
        self.loader: Iterable[Any] = self.stretch
        self.losses: list[Any] = []
        self.timed: list[Timed] = []

    def round(self, batches: Sequence[Any]) -> None:
        """A timed pass over these batches."""
        self.stretch.batches = batches
        timed = Timed()
        with timed:
            self.losses += self._pass()
            timed.work += len(batches) * self.load.samples
        self.timed.append(timed)

    def forget_rounds(self) -> None:
        """Discards earlier rounds."""
        self.timed.clear()

    def found(self) -> dict[str, Any]:
        """Measurements of the rounds."""
        known = [one.wait_share for one in self.timed if one.wait_share is not None]
        return {
            "turns": [one.rate for one in self.timed],
            "seconds": sum(one.seconds for one in self.timed),
            "core_wait_share": max(known) if known else None,
        }

    def _pass(self) -> list[Any]:
        """The timed part: the losses of a pass over the loader."""
        return train(self.model, self.optimizers, self.loader, self.load.loss)

    def _make(self) -> tuple[Any, list[Any]]:
        place = InMemory(self.load.tables, self.load.values)
        model = self.load.model(place)
        return model, _optimizers(self.load, model, place.rows, torch.optim.Adagrad)


class OverStore(Loop):
    """A loop over a store: plain, with look-ahead, or with a pipeline around that."""

    def __init__(
        self,
        load: Load,
        seed: int,
        path: Path,
        memory_bytes: int,
        way: str,
        announce: bool | None,
        stack: contextlib.ExitStack,
        source: Any,
    ) -> None:
        """Opens the store, which is closed with the stack, and fills its cache."""
        self.store, self.memory_bytes = open_least(load, path, memory_bytes)
        stack.callback(self._close)
        super().__init__(load, seed, source)
        self.store.warm()
        if way in (LOOKAHEAD, PIPELINE, SCHEDULE):
            self.ahead = embedrock.LookaheadLoader(
                self.stretch,
                self.model,
                DEPTH,
                announce=announce,
                schedule="epoch" if way == SCHEDULE else None,
            )
            self.loader = self.ahead
        if way == PIPELINE:
            self.loader = embedrock.Pipeline(self.model, self.ahead)
        self.way = way
        self._before = self._counters()
        self._of_passes: list[dict[str, Any]] = []

    def round(self, batches: Sequence[Any]) -> None:
        """A timed pass, and what the loaders counted in it."""
        super().round(batches)
        passed = {} if self.way == PLAIN else dict(self.ahead.stats())
        if isinstance(self.loader, embedrock.Pipeline):
            passed |= total(self.loader.stats())
        self._of_passes.append(passed)

    def forget_rounds(self) -> None:
        """Discards earlier rounds."""
        super().forget_rounds()
        self._before = self._counters()
        self._of_passes.clear()

    def found(self) -> dict[str, Any]:
        """Measurements of the rounds, and the counters of the store, the window and the loaders in
        them."""
        after, before = self._counters(), self._before
        counted = {
            part: {name: value - before[part].get(name, 0) for name, value in one.items()}
            for part, one in after.items()
        }
        steps = len(self._of_passes) * self.load.steps
        loader: dict[str, Any] = {}
        for one in self._of_passes:
            for name, value in one.items():
                loader[name] = loader.get(name, 0) + value
        return {
            **super().found(),
            "pages_per_step": counted["store"]["pages_read"] / steps,
            "requests_per_step": counted["store"]["read_requests"] / steps,
            "bytes_read_per_step": counted["store"]["bytes_read"] / steps,
            "bytes_written_per_step": counted["store"]["bytes_written"] / steps,
            "waited_s": counted["time"]["reading"] + counted["window"]["wait_s"],
            "passed_over_share": loader.get("skipped", 0) / steps,
            "window": counted["window"],
            "loader": loader,
            "time": counted["time"],
        }

    def _make(self) -> tuple[Any, list[Any]]:
        model = self.load.model(InStore(self.load.tables, self.store))
        rows = [model] if self.load.trained else []
        return model, _optimizers(self.load, model, rows, embedrock.optim.Adagrad)

    def _counters(self) -> dict[str, dict[str, Any]]:
        stats = self.store.stats()
        window = total(self.store.window.stats())
        return {"store": total(stats), "time": total(stats["time"]), "window": window}

    def _close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedrock.UncommittedWarning)
            self.store.close()  # the next cell begins with the same rows


def _optimizers(load: Load, model: Any, rows: Any, kind: Any) -> list[Any]:
    """Adam for the dense part, Adagrad for the rows where they are trained."""
    dense = [one for one in _dense(model, rows) if one.requires_grad]
    eps = {} if load.eps is None else {"eps": load.eps}
    found: list[Any] = [torch.optim.Adam(dense, lr=load.dense_lr, **eps)] if dense else []
    if load.trained:
        trained = rows[0] if kind is embedrock.optim.Adagrad else rows
        found.append(kind(trained, lr=load.lr, **eps))
    return found


def _dense(model: Any, rows: Any) -> list[Any]:
    if rows and isinstance(rows[0], torch.nn.Parameter):
        return [one for one in model.parameters() if all(one is not other for other in rows)]
    return list(embedrock.nn.dense_parameters(model))


class Ways:
    """A load in memory and over stores."""

    def __init__(
        self,
        load: Load,
        seed: int,
        stores: Mapping[str, Path],
        memory: float,
        stack: contextlib.ExitStack,
        announce: bool | None = None,
        kinds: tuple[type[Loop], type[OverStore]] = (Loop, OverStore),
        source: Callable[[], Any] = Stretch,
    ) -> None:
        """Opens the store of each way, with ``memory`` per cent of the load's bytes. ``source``
        makes a loader for each."""
        in_memory, over_store = kinds
        self.load, self.memory = load, memory
        self.budget = int(load.bytes * memory / 100)
        self.twin = in_memory(load, seed, source())
        self.over = {
            way: over_store(load, seed, path, self.budget, way, announce, stack, source())
            for way, path in stores.items()
        }
        self.all: dict[str, Loop] = {TORCH: self.twin, **self.over}

    def rounds(self, stretches: Iterable[Sequence[Any]]) -> None:
        """A round for each stretch, of which the first does not count."""
        for number, batches in enumerate(stretches):
            self.round(batches, number)
            if number == 0:
                for way in self.all.values():
                    way.forget_rounds()

    def round(self, batches: Sequence[Any], number: int = 0) -> None:
        """A pass of each way; every other round begins with the last."""
        order = list(self.all.values())
        for way in order if number % 2 == 0 else reversed(order):
            way.round(batches)

    def losses(self) -> dict[str, torch.Tensor]:
        """Of every batch so far, by way."""
        return {way: torch.stack(one.losses) for way, one in self.all.items()}

    def unlike(self) -> int:
        """Number of losses of other ways over stores that differ from those of the first, to the
        bit."""
        losses = self.losses()
        first, *others = [losses[way] for way in self.over]
        return sum(int((other != first).sum()) for other in others)

    def found(self) -> dict[str, Any]:
        """Measurements of the rounds, and the memory."""
        least = max(one.memory_bytes for one in self.over.values())
        return {
            "memory": self.memory,
            "memory_bytes": least,
            "raised": least > self.budget,
            "samples": self.load.samples,
            "steps": self.load.steps,
            "ways": {way: one.found() for way, one in self.all.items()},
        }


def bound_of(plain: OverStore, batches: list[Any]) -> dict[str, Any]:
    """Least possible time of a recorded pass of the plain loop, and its limiting resource.

    The device needs the time that ``record`` reports, or its share if the loop loaded fewer rows
    than that best cache; the cores need the loop's time outside of the store, and that of copying
    each row once. With perfect overlap a pass takes the longer of the two.
    """
    with plain.store.record() as recording:
        plain.round(batches)
    plain.timed.pop()
    report = recording.report()
    steps = len(batches) * report["batches"] / recording.batches
    outside = report["seconds"] - report["time"]["verbs"]
    cores = outside + report["least"]["copying"]
    device = report["least"]["reading"]
    loads = report["optimal_rows_loaded"]
    if device is not None and loads > report["rows_loaded"]:  # the best cache began empty
        device *= report["rows_loaded"] / loads
    longest = max(cores, device or 0.0)
    return {
        "by": "device" if device is not None and device > cores else "cores",
        "samples_per_s": plain.load.samples * steps / longest,
        "device_ms_per_step": None if device is None else 1e3 * device / steps,
        "cores_ms_per_step": 1e3 * cores / steps,
        "outside_ms_per_step": 1e3 * outside / steps,
        "hit_rate": report["hit_rate"],
        "optimal_hit_rate": report["optimal_hit_rate"],
        "notes": report["notes"],
    }
