"""One cell of ``models``: a model at one budget, trained or only asked, beside itself in memory.

It runs in a process of its own. Ways take turns over the same batches: PyTorch in memory, a plain
loop over a store, and one with look-ahead. They begin with the same rows and weights. After the
first batches losses and rows of the stores are compared with those in memory; later, last bits have
grown, and the quality on held-out samples is.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedrock.observe.trace import Trace
from embedrock.training.trainer import Trainer
from embedrock_lab.bench.loops.cell import bound_of
from embedrock_lab.bench.loops.load import Load
from embedrock_lab.bench.loops.names import LOOKAHEAD, PLAIN, TORCH
from embedrock_lab.bench.loops.places import fill
from embedrock_lab.bench.loops.ways import Loop, OverStore
from embedrock_lab.bench.models.data import Samples, keys_by_table
from embedrock_lab.bench.models.load import Settings, load, tensors
from embedrock_lab.measure import machine

__all__ = ["TOLERANCE", "ask", "prepare", "train"]

OVER_STORES = (PLAIN, LOOKAHEAD)
TOLERANCE = 1e-5
"""Of losses and rows of the first batches, between a store and memory."""


def prepare(settings: dict[str, Any], path: str) -> dict[str, Any]:
    """Writes a model's rows, for each way, and its keys as a trace. Runs in a child process."""
    given = Settings.of(settings)
    whole, data = load(given)
    for way in OVER_STORES:
        fill(whole, Path(path) / way)
    reading = replace(whole, trained=False)
    fill(reading, Path(path) / "asked")
    trace = _trace(whole, data)
    folder = Path(path) / "trace"
    folder.mkdir()
    return {
        "data": data.name,
        "tables": len(whole.tables),
        "rows": sum(one.rows for one in whole.tables.values()),
        "row_values": next(iter(whole.tables.values())).dim,
        "bytes": whole.bytes,
        "bytes_asked": reading.bytes,
        "distinct_per_batch": len(trace.values) / trace.batches,
        "batches": trace.batches,
        "trace": trace.save(folder),
    }


def train(settings: dict[str, Any], path: str, memory: float) -> dict[str, Any]:
    """Trains in every way, and compares. Runs in a child process."""
    given = Settings.of(settings)
    torch.set_num_threads(given.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # what is its default, said aloud
    whole, data = load(given)
    budget = int(whole.bytes * memory / 100)
    checked, *passes = _passes(whole, given)
    with contextlib.ExitStack() as stack:
        twin = Loop(whole, given.data.seed)
        over = {
            way: OverStore(whole, given.data.seed, Path(path) / way, budget, way, None, stack)
            for way in OVER_STORES
        }
        ways = {TORCH: twin, **over}
        _turn(ways, checked, 0)
        apart = _apart(whole, data, checked, twin, over)
        for number, batches in enumerate(passes[:-1]):
            _turn(ways, batches, number)
            if number == 0:
                _forget(ways)
        found = {way: one.found() for way, one in ways.items()}
        for way, one in ways.items():
            quality = Trainer(one.model, []).evaluate(data.test)
            found[way] |= {"auc": quality.auc, "log_loss": quality.log_loss}
        bits = _same_bits(over)
        bound = bound_of(over[PLAIN], passes[-1])  # it trains: nothing is measured behind it
        device = machine.device_facts(over[PLAIN].store)
        least = max(one.memory_bytes for one in over.values())
    return {
        "memory": memory,
        "memory_bytes": least,
        "raised": least > budget,
        "samples": whole.samples,
        "steps": whole.steps,
        "ways": found,
        "bound": bound,
        "device": device,
        **apart,
        "losses_unlike": bits,
        "mismatches": sum(apart.values()) + bits,
    }


def ask(settings: dict[str, Any], path: str, memory: float) -> dict[str, Any]:
    """Asks a model that nobody trains, in every way, and compares. Runs in a child process."""
    given = Settings.of(settings)
    torch.set_num_threads(given.threads)
    trained, _ = load(given)
    whole = replace(trained, trained=False)
    budget = int(whole.bytes * memory / 100)
    _, *passes = _passes(whole, given)
    with contextlib.ExitStack() as stack:
        asked, seed = Path(path) / "asked", given.data.seed
        over = {
            way: _AskedOverStore(whole, seed, asked, budget, way, None, stack)
            for way in OVER_STORES
        }
        ways = {TORCH: _Asked(whole, seed), **over}
        for number, batches in enumerate(passes[:-1]):
            _turn(ways, batches, number)
            if number == 0:
                _forget(ways)
        found = {way: one.found() for way, one in ways.items()}
        answers = {way: torch.stack(one.losses) for way, one in ways.items()}
        least = max(one.memory_bytes for one in over.values())
    apart = int(((answers[PLAIN] - answers[TORCH]).abs() > TOLERANCE).sum())
    bits = int((answers[PLAIN] != answers[LOOKAHEAD]).sum())
    return {
        "memory": memory,
        "memory_bytes": least,
        "raised": least > budget,
        "samples": whole.samples,
        "steps": whole.steps,
        "ways": found,
        "answers_apart": apart,
        "answers_unlike": bits,
        "mismatches": apart + bits,
    }


class _Asked(Loop):
    """A pass that only predicts; its losses are mean logits."""

    def _pass(self) -> list[Any]:
        self.model.eval()
        with torch.no_grad():
            return [self.model(*tensors(batch)).mean() for batch in self.loader]


class _AskedOverStore(_Asked, OverStore):
    """The same over a store."""


def _turn(ways: dict[str, Any], batches: list[Any], number: int) -> None:
    """A pass of each way; every other one begins with the last."""
    order = list(ways.values())
    for way in order if number % 2 == 0 else reversed(order):
        way.turn(batches)


def _forget(ways: dict[str, Any]) -> None:
    """What was before does not count."""
    for way in ways.values():
        way.forget_turns()


def _passes(whole: Load, given: Settings) -> list[list[Any]]:
    """Batches that are checked, that fill caches, of each turn, and that are recorded."""
    sizes = [given.checked_steps, given.first_steps, *[given.steps] * (given.turns + 1)]
    ends = [0, *itertools.accumulate(sizes)]
    return [whole.batches[begin:end] for begin, end in itertools.pairwise(ends)]


def _apart(
    whole: Load, data: Samples, batches: list[Any], twin: Loop, over: dict[str, OverStore]
) -> dict[str, int]:
    """How many losses and rows over the stores are not those in memory."""
    expected = torch.stack(twin.losses)
    losses = sum(
        int(((torch.stack(one.losses) - expected).abs() > TOLERANCE).sum()) for one in over.values()
    )
    used: dict[str, list[Any]] = {}
    for batch in batches:
        for table, some in keys_by_table(data.features, batch).items():
            used.setdefault(table, []).extend(some)
    rows = checked = 0
    for name, weight in zip(whole.tables, twin.model.embeddings.parameters(), strict=True):
        keys = np.unique(np.concatenate(used[name]))
        wanted = weight.detach().numpy()[keys]
        for one in over.values():
            unlike = np.abs(one.store.table(name).get(keys) - wanted) > TOLERANCE
            rows += int(unlike.any(axis=1).sum())
        checked += len(keys)
    if not checked:
        raise RuntimeError("the first batches have no keys: nothing was compared")
    return {"losses_apart": losses, "rows_apart": rows}


def _same_bits(over: dict[str, OverStore]) -> int:
    """How many losses differ between a plain loop and look-ahead."""
    plain, ahead = (torch.stack(over[way].losses) for way in OVER_STORES)
    return int((plain != ahead).sum())


def _trace(whole: Load, data: Samples) -> Trace:
    """The distinct keys of all batches, those of one table behind those of another."""
    firsts = dict(
        zip(
            whole.tables,
            itertools.accumulate([0, *(one.rows for one in whole.tables.values())]),
            strict=False,
        )
    )
    parts = [
        np.concatenate(
            [
                np.unique(np.concatenate(keys)) + firsts[table]
                for table, keys in keys_by_table(data.features, batch).items()
            ]
        )
        for batch in whole.batches
    ]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Trace(np.concatenate(parts).astype(np.uint64), offsets)
