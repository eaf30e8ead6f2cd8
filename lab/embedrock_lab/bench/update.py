"""``update``: optimizer steps on rows that are in memory.

``update_ratio`` is ``table.update(keys, gradients)`` with row-wise Adagrad divided by the step of
``torch.optim.Adagrad`` (element-wise: PyTorch has no row-wise one) on a prebuilt uncoalesced sparse
gradient; ``update_ratio_adam`` is Adam by the table's step against ``torch.optim.SparseAdam``. Both
sides sum the gradients of equal keys themselves. One thread each, uniform keys, batches of 65,536.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import embedrock
from embedrock_lab.bench import steps
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.measure.machine import device_facts
from embedrock_lab.measure.noise import Timed, interleave
from embedrock_lab.measure.rows import Keys, open_resident, ranges, values_of

__all__ = ["Options", "run"]

FIGURES = {"rowwise_adagrad": "update_ratio", "adam": "update_ratio_adam"}
LR = 0.05
EPS = {"rowwise_adagrad": 1e-10, "adam": 1e-8}
CALLS = 2
"""Batches of a system before the other goes on."""
GRADIENTS = 4
"""Different arrays of gradients, used one after another."""


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(10_000_000, "rows of the table")
    dim: int = option(32, "float32 values per row")
    batch: int = option(65_536, "keys of a batch")
    rounds: int = option(20, "rounds of each measurement")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("update", options)
    for optimizer in FIGURES:
        _one(report, options, optimizer)
    report.notes.append(
        "update_ratio compares row-wise Adagrad (4 bytes of state per row) with torch.optim.Adagrad"
        f" ({4 * options.dim} bytes)"
    )
    return report.finish()


def _one(report: Report, options: Options, optimizer: str) -> None:
    rows, dim, figure = options.rows, options.dim, FIGURES[optimizer]
    words = 1 if optimizer == "rowwise_adagrad" else 2 * dim
    with workspace(options, 4 * rows * (4 * (dim + words) + 20)) as place:
        report.say(f"filling {rows:,} rows of {dim} float32 with {optimizer}")
        store, table = open_resident(place / "store", rows, dim, optimizer)
        with store:
            report.device = device_facts(store)
            tensors = 3 if optimizer == "adam" else 2
            torch = import_torch(report, [figure], (tensors + 1) * 4 * rows * dim)
            if torch is not None:
                bench = _Bench(report, options, table, torch)
                report.say(f"against torch.optim.{type(bench.theirs).__name__}")
                report.figure(figure, bench.ratio(figure))
                report.say("verifying every row that was updated")
                bench.verify()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", embedrock.UncommittedWarning)
                store.close()


class _Bench:
    """One table, one torch parameter with the same rows, and a list of what was done to both."""

    def __init__(
        self, report: Report, options: Options, table: embedrock.Table, torch: Any
    ) -> None:
        self.report, self.options, self.table, self.torch = report, options, table, torch
        rows, dim = options.rows, options.dim
        self.kind = table.optimizer["kind"]
        self.rng = np.random.default_rng(options.seed)
        shape = (GRADIENTS, options.batch, dim)
        self.gradients = self.rng.standard_normal(shape, np.float32) * np.float32(0.01)
        self.weight = torch.nn.Parameter(torch.empty(rows, dim))
        for keys in ranges(rows, 1 << 18):
            part = self.weight.data[int(keys[0]) : int(keys[-1]) + 1]
            part.copy_(torch.from_numpy(values_of(keys, dim)))
        make = torch.optim.SparseAdam if self.kind == "adam" else torch.optim.Adagrad
        self.theirs = make([self.weight], lr=LR, eps=EPS[self.kind])
        self.done: list[tuple[Keys, int]] = []

    def ratio(self, figure: str) -> float:
        pending: list[list[tuple[Keys, int]]] = [[], []]

        def next_batches(side: int) -> list[tuple[Keys, int]]:
            """Both sides do the same batches in the same order, whoever comes first in a round."""
            if not pending[side]:
                new = []
                for _ in range(CALLS):
                    keys = self.rng.integers(0, self.options.rows, self.options.batch)
                    new.append((keys, len(self.done) % GRADIENTS))
                    self.done.append(new[-1])
                pending[0], pending[1] = list(new), list(new)
            mine, pending[side] = pending[side], []
            return mine

        found = interleave(
            [lambda: self.engine(next_batches(0)), lambda: self.reference(next_batches(1))],
            self.options.rounds,
            self.options.patience,
        )
        self.report.rounds(figure, found)
        self.report.results[self.kind] = {
            "row_bytes": self.table.row_bytes,
            "rows_per_s": found.rate(0),
            "torch_rows_per_s": found.rate(1),
        }
        return found.ratio(0, 1)

    def engine(self, batches: list[tuple[Keys, int]]) -> Timed:
        timed = Timed()
        for keys, which in batches:
            gradients = self.gradients[which]
            with timed:
                self.table.update(keys, gradients, lr=LR, eps=EPS[self.kind])
            timed.work += len(keys)
        return timed

    def reference(self, batches: list[tuple[Keys, int]]) -> Timed:
        timed = Timed()
        for keys, which in batches:
            indices = self.torch.from_numpy(keys)[None]
            values = self.torch.from_numpy(self.gradients[which])
            self.weight.grad = self.torch.sparse_coo_tensor(
                indices, values, self.weight.shape, check_invariants=False
            )
            with timed:
                self.theirs.step()
            timed.work += len(keys)
        return timed

    def verify(self) -> None:
        """Counts rows that are not what the optimizer makes of them, bit for bit.

        PyTorch's Adam rounds otherwise in places; how far it is away goes to the results.
        """
        touched = np.unique(np.concatenate([keys for keys, _ in self.done]))
        values = values_of(touched, self.options.dim)
        state = np.zeros((len(touched), self.table.state_words), np.float32)
        for step, (keys, which) in enumerate(self.done, 1):
            distinct, inverse = embedrock.distinct(keys)
            sums = np.zeros((len(distinct), self.options.dim), np.float32)
            np.add.at(sums, inverse, self.gradients[which])
            at = np.searchsorted(touched, distinct.astype(np.int64))
            if self.kind == "adam":
                values[at], state[at] = steps.adam(values[at], state[at], sums, LR, step)
            else:
                values[at], state[at] = steps.row_wise_adagrad(values[at], state[at], sums, LR)
        found_values, found_state = self.table.get(touched, state=True)
        wrong = (found_values != values).any(axis=1) | (found_state != state).any(axis=1)
        self.report.results["mismatches"] += int(wrong.sum())
        result = self.report.results[self.kind]
        result["rows_verified"] = len(touched)
        if self.kind == "adam":
            theirs = self.weight.data[self.torch.from_numpy(touched)].numpy()
            result["difference_from_torch_max"] = float(np.abs(theirs - found_values).max())
