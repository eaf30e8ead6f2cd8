"""The training loop of ``prefetch``, in a process of its own.

Each step has the rows of its batch, computes, and updates them. Reading goes ahead in two ways: up
to ``bound`` batches into arrays of the loop, with a permit each, and up to ``depth`` batches into
the store's window. Computing is waiting, as for an accelerator; meanwhile rows are verified.

A row is ``base of its key + place + version``, in whole numbers, and an update adds 1: what was
read tells which updates it has, so the staleness of every row is measured and not believed.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.ahead.permits import Permit
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed
from embedrock_lab.measure.rows import ranges

__all__ = ["fill", "measure"]

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]

BASE_MAX = 8_000_009
"""Prime; below half of what float32 counts in whole numbers."""
LOAD_ROWS = 1 << 16
LOAD_CACHE_BYTES = 64 << 20
CHECKED_AFTER = 20_000
"""Rows that are compared with the number of their updates when the loop has ended."""


def fill(store: str, rows: int, dim: int) -> None:
    """Writes every row and commits. Runs in a child process."""
    with embedrock.open(store, rows * 4 + LOAD_CACHE_BYTES) as opened:
        table = opened.table("rows", dim, rows, optimizer="sgd")
        for keys in ranges(rows, LOAD_ROWS):
            values = _base(keys)[:, None] + np.arange(dim, dtype=np.float32)
            table.put(keys, values, reset_state=True)
        opened.commit(0)


def measure(
    store: str,
    values: str,
    offsets: str,
    memory_bytes: int,
    bound: int,
    depth: int,
    compute_s: float,
) -> dict[str, Any]:
    """Trains over the batches; a quarter first and an eighth last do not count. Runs in a child
    process."""
    with embedrock.open(store, memory_bytes, create=False) as opened:
        loop = _Loop(opened, np.fromfile(values, "<i8"), np.fromfile(offsets, "<i8"), bound, depth)
        batches = len(loop.offsets) - 1
        begin, end = batches // 4, batches - batches // 8
        opened.warm()
        timed = Timed()
        for step in range(begin):
            loop.step(step, compute_s)
        loop.restart()
        with timed:
            for step in range(begin, end):
                loop.step(step, compute_s)
        found = loop.found(end - begin, timed)
        found["mismatches"] = loop.wrong + loop.wrong_now(end)
        found["device"] = machine.device_facts(opened)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedrock.UncommittedWarning)
            opened.close()  # the next setting begins with the same rows
    return found


class _Loop:
    """A loop's state between steps."""

    def __init__(
        self, store: embedrock.Store, keys: Keys, offsets: Keys, bound: int, depth: int
    ) -> None:
        self.store, self.table = store, store.table("rows")
        self.keys, self.offsets, self.bound, self.depth = keys, offsets, bound, depth
        self.permits = store.permits(bound)
        dim, most = self.table.embedding_dim, int(np.diff(offsets).max())
        self.arrays = [np.empty((most, dim), np.float32) for _ in range(bound + 1)]
        self.gradients = np.full((most, dim), -1, np.float32)
        self.places = np.arange(dim, dtype=np.float32)
        self.applied = np.zeros(int(keys.max()) + 1, np.int32)
        self.numbers: list[int | None] = []
        self.reading: deque[tuple[Permit, embedrock.ahead.Prefetch[Floats]]] = deque()
        self.full = False
        self.wrong = self.staleness_max = 0
        self.waited = self.updated = self.verified = 0.0
        self.ahead: list[int] = []
        self.before = store.stats()

    def restart(self) -> None:
        """Discards earlier measurements."""
        self.waited = self.updated = self.verified = 0.0
        self.ahead.clear()
        self.before = self.store.stats()

    def step(self, step: int, compute_s: float) -> None:
        """One batch from its reading to its update."""
        keys = self._keys(step)
        clock = time.perf_counter()
        self._announce(step)
        permit, rows = self._rows(step)
        arrived = time.perf_counter()
        self._verify(keys, rows)
        verified = time.perf_counter()
        time.sleep(max(0.0, arrived + compute_s - verified))
        computed = time.perf_counter()
        self.table.update(keys, self.gradients[: len(keys)], lr=1.0)
        self.applied[keys] += 1
        permit.release()
        number = self.numbers[step] if step < len(self.numbers) else None
        if number is not None:
            self.store.window.finish(number)
        self.waited += arrived - clock
        self.verified += verified - arrived
        self.updated += time.perf_counter() - computed

    def found(self, steps: int, timed: Timed) -> dict[str, Any]:
        """Measurements of the steps that count."""
        after, before = self.store.stats(), self.before
        window = self.store.window.stats()
        permits = self.permits.stats()
        rows = int(np.diff(self.offsets).sum() / (len(self.offsets) - 1) * steps)
        return {
            "steps_per_s": steps / timed.seconds,
            "rows_per_s": rows / timed.seconds,
            "wait_share": self.waited / timed.seconds,
            "update_share": self.updated / timed.seconds,
            "verify_share": self.verified / timed.seconds,
            "pages_per_step": (after["pages_read"] - before["pages_read"]) / steps,
            "requests_per_step": (after["read_requests"] - before["read_requests"]) / steps,
            "rows_per_step": rows / steps,
            "staleness_max": self.staleness_max,
            "permitted_max": permits["staleness_max"],
            "permit_wait_s": permits["wait_s"],
            "array_bytes": sum(array.nbytes for array in self.arrays[: self.bound + 1]),
            "announced_ahead": float(np.mean(self.ahead)) if self.depth else 0.0,
            "window_bytes": window["memory_bytes"],
            "cache_rows": after["classes"][0]["cache_capacity"],
            "core_wait_share": timed.wait_share,
        }

    def wrong_now(self, steps: int) -> int:
        """Number of the last used rows that do not have exactly the updates that they were
        given."""
        used = np.unique(self.keys[: self.offsets[steps]])[-CHECKED_AFTER:]
        rows = self.table.get(used)
        return int((rows != self._expected(used, self.applied[used])).any(axis=1).sum())

    def _announce(self, step: int) -> None:
        batches = len(self.offsets) - 1
        while self.depth and len(self.numbers) < min(step + self.depth, batches):
            coming = self._keys(len(self.numbers))
            number = self.store.window.announce({self.table: coming})
            if number is None:
                break
            self.numbers.append(number)
        if len(self.numbers) <= step and self.depth:
            self.numbers.append(None)  # it is too late to announce this one
        self.ahead.append(len(self.numbers) - step)

    def _rows(self, step: int) -> tuple[Permit, Floats]:
        """The batch's rows, and its permit."""
        if not self.bound:
            keys, number = self._keys(step), self._number(step)
            permit = self.permits.acquire({self.table: keys})
            if number is not None:
                self.store.window.begin(number)
            return permit, self.table.get(keys, out=self.arrays[0][: len(keys)])
        last = min(step + self.bound, len(self.offsets) - 2)
        for coming in range(step + len(self.reading), last + 1):
            keys = self._keys(coming)
            room = self.arrays[coming % len(self.arrays)][: len(keys)]
            permit = self.permits.acquire({self.table: keys})
            read = self.table.lookahead(keys, room, announced=self._number(coming))
            self.reading.append((permit, read))
        permit, read = self.reading.popleft()
        return permit, read.wait()

    def _verify(self, keys: Keys, rows: Floats) -> None:
        """Compares rows with what they may be, and notes how stale they are."""
        version = rows[:, 0] - _base(keys)
        missing = self.applied[keys] - version
        wrong = ((rows - rows[:, :1]) != self.places).any(axis=1)
        wrong |= (missing < 0) | (missing > self.bound)
        self.wrong += int(wrong.sum())
        self.staleness_max = max(self.staleness_max, int(missing.max(initial=0)))

    def _expected(self, keys: Keys, versions: npt.NDArray[np.int32]) -> Floats:
        expected: Floats = (_base(keys) + versions)[:, None].astype(np.float32) + self.places
        return expected

    def _keys(self, batch: int) -> Keys:
        return self.keys[self.offsets[batch] : self.offsets[batch + 1]]

    def _number(self, batch: int) -> int | None:
        return self.numbers[batch] if batch < len(self.numbers) else None


def _base(keys: Keys) -> Floats:
    base: Floats = (keys * 97 % BASE_MAX).astype(np.float32)
    return base
