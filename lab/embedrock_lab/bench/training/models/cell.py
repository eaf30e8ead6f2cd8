"""One cell of ``models``: a model at one budget, trained or only asked, beside itself in memory.

The ways are PyTorch in memory, a plain loop over a store, and one with look-ahead. After the first
batches losses and rows of the stores are compared with those in memory; later, last bits have
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
from embedrock_lab.bench.training.cells import LOOKAHEAD, PLAIN, TORCH
from embedrock_lab.bench.training.load import Load
from embedrock_lab.bench.training.loads.click_models import Settings, load, tensors
from embedrock_lab.bench.training.loads.samples import Samples, keys_by_table
from embedrock_lab.bench.training.places import fill
from embedrock_lab.bench.training.ways import Loop, OverStore, Ways, bound_of
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
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, made explicit
    whole, data = load(given)
    checked, *timed, recorded = _stretches(whole, given)
    stores = {way: Path(path) / way for way in OVER_STORES}
    with contextlib.ExitStack() as stack:
        ways = Ways(whole, given.data.seed, stores, memory, stack)
        ways.round(checked)
        apart = _apart(whole, data, checked, ways)
        ways.rounds(timed)
        found = ways.found()
        for way, one in ways.all.items():
            quality = Trainer(one.model, []).evaluate(data.test)
            found["ways"][way] |= {"auc": quality.auc, "log_loss": quality.log_loss}
        unlike = ways.unlike()
        bound = bound_of(ways.over[PLAIN], recorded)  # it trains: nothing is measured behind it
        device = machine.device_facts(ways.over[PLAIN].store)
    return {
        **found,
        "bound": bound,
        "device": device,
        **apart,
        "losses_unlike": unlike,
        "mismatches": sum(apart.values()) + unlike,
    }


def ask(settings: dict[str, Any], path: str, memory: float) -> dict[str, Any]:
    """Asks a model that nobody trains, in every way, and compares. Runs in a child process."""
    given = Settings.of(settings)
    torch.set_num_threads(given.threads)
    trained, _ = load(given)
    whole = replace(trained, trained=False)
    _, *timed, _ = _stretches(whole, given)
    stores = dict.fromkeys(OVER_STORES, Path(path) / "asked")
    with contextlib.ExitStack() as stack:
        kinds = (_Asked, _AskedOverStore)
        ways = Ways(whole, given.data.seed, stores, memory, stack, kinds=kinds)
        ways.rounds(timed)
        found, answers, unlike = ways.found(), ways.losses(), ways.unlike()
    apart = int(((answers[PLAIN] - answers[TORCH]).abs() > TOLERANCE).sum())
    return {
        **found,
        "answers_apart": apart,
        "answers_unlike": unlike,
        "mismatches": apart + unlike,
    }


class _Asked(Loop):
    """A pass that only predicts; its losses are mean logits."""

    def _pass(self) -> list[Any]:
        self.model.eval()
        with torch.no_grad():
            return [self.model(*tensors(batch)).mean() for batch in self.loader]


class _AskedOverStore(_Asked, OverStore):
    """The same over a store."""


def _stretches(whole: Load, given: Settings) -> list[list[Any]]:
    """Batches that are checked, that fill caches, of each round, and that are recorded."""
    sizes = [given.checked_steps, given.first_steps, *[given.steps] * (given.rounds + 1)]
    ends = [0, *itertools.accumulate(sizes)]
    return [whole.batches[begin:end] for begin, end in itertools.pairwise(ends)]


def _apart(whole: Load, data: Samples, batches: list[Any], ways: Ways) -> dict[str, int]:
    """Number of losses and rows over the stores that differ from those in memory."""
    found = ways.losses()
    losses = sum(int(((found[way] - found[TORCH]).abs() > TOLERANCE).sum()) for way in ways.over)
    used: dict[str, list[Any]] = {}
    for batch in batches:
        for table, some in keys_by_table(data.features, batch).items():
            used.setdefault(table, []).extend(some)
    rows = checked = 0
    for name, weight in zip(whole.tables, ways.twin.model.embeddings.parameters(), strict=True):
        keys = np.unique(np.concatenate(used[name]))
        wanted = weight.detach().numpy()[keys]
        for one in ways.over.values():
            unlike = np.abs(one.store.table(name).get(keys) - wanted) > TOLERANCE
            rows += int(unlike.any(axis=1).sum())
        checked += len(keys)
    if not checked:
        raise RuntimeError("the first batches have no keys: nothing was compared")
    return {"losses_apart": losses, "rows_apart": rows}


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
