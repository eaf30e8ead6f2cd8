"""Embedrock and PyTorch as systems, behind what the run loop asks of a store."""

from __future__ import annotations

import shutil
import statistics
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock_lab.bench.replay.workload import EPS, GRADIENT, LR, Mode
from embedrock_lab.measure import machine
from embedrock_lab.measure.rows import fill, ranges, resident_budget, values_of

__all__ = ["STORES", "Embedrock", "System", "Torch"]

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]

LOAD_ROWS = 1 << 18
DEVICE_BYTES, DEVICE_DEPTH = 4096, 64
"""Request size and depth of `device rate` (docs/benchmarks.md)."""

COUNTERS = ["hits", "rescued", "misses", "read_requests", "pages_read", "bytes_read"]
COUNTERS += ["bytes_written", "rows_written", "rows_moved", "evicted", "evicted_dirty"]
COUNTERS += ["read_wait_s", "rows_loaded"]
WINDOW_COUNTERS = ["batches", "refused", "skipped", "groups", "group_batches", "rows_loaded"]
WINDOW_COUNTERS += ["turned_away", "lost", "failed", "requests", "pages", "pages_again", "bytes"]
WINDOW_COUNTERS += ["wait_s", "planning_s", "reading_s", "read_wait_s"]
CLASS_FACTS = ["page_bytes", "rows_per_page", "read_depth", "cache_capacity", "resident_rows"]
"""Counters and facts of a store that a race reports."""


class System(Protocol):
    """A store in a race. Keys are distinct within a call."""

    def get(self, keys: Keys, out: Floats) -> None:
        """Reads rows."""

    def put(self, keys: Keys, rows: Floats) -> None:
        """Overwrites rows."""

    def update(self, keys: Keys, gradients: Floats) -> None:
        """One step of row-wise Adagrad."""

    def pause(self) -> None:
        """Called now and then between batches, outside the timed parts."""

    def begin_timed(self) -> None:
        """Called before the first batch that counts."""

    def finish(self) -> dict[str, Any]:
        """The store's statistics at the end; closes it."""


class Embedrock:
    """The engine as its users have it: through ``Table.get``, ``put`` and ``update``."""

    def __init__(self, settings: dict[str, Any], mode: Mode) -> None:
        """Opens the loaded store with the budget."""
        names = ("policy", "window_bytes", "window_group")
        options = {k: v for k, v in settings["options"].items() if k in names}
        machine.reset_peak_rss()
        self._rss_before = machine.rss_bytes()
        self._budget = int(settings["memory_bytes"])
        self._slice_s = float(settings["device_slice_s"])
        self._store = embedrock.open(settings["place"], self._budget, create=False, **options)
        self._table = self._store.table("rows")
        if settings["options"].get("warm"):
            self._store.warm()
        self._rates: list[float] = []
        self._own_rates: list[float] = []
        self._before: dict[str, Any] = self._store.stats()
        self._window_before: dict[str, Any] = {}
        self._after: dict[str, Any] | None = None
        self._window: dict[str, Any] = {}

    @staticmethod
    def load(settings: dict[str, Any], mode: Mode) -> dict[str, Any]:
        """Writes every row and commits."""
        rows, dim = int(settings["rows"]), int(settings["dim"])
        row_bytes = 4 * (dim + mode.state_words)
        budget = min(resident_budget(rows, row_bytes), machine.available_memory_bytes() // 2)
        options = {k: v for k, v in settings["options"].items() if k in ("page_bytes",)}
        shutil.rmtree(settings["place"], ignore_errors=True)
        with embedrock.open(settings["place"], budget, **options) as store:
            optimizer = "rowwise_adagrad" if mode.optimizer else "none"
            table = store.table("rows", dim, rows, optimizer=optimizer)
            fill(table, rows)
            store.commit(1)
            facts = store.stats()
        return {"disk_bytes": facts["disk_bytes"], "bytes_written": facts["bytes_written"]}

    def get(self, keys: Keys, out: Floats) -> None:
        """Reads rows."""
        self._table.get(keys, out=out)

    def put(self, keys: Keys, rows: Floats) -> None:
        """Overwrites rows."""
        self._table.put(keys, rows)

    def update(self, keys: Keys, gradients: Floats) -> None:
        """One step of row-wise Adagrad."""
        self._table.update(keys, gradients, lr=LR, eps=EPS)

    def announce(self, keys: Keys) -> int | None:
        """Says which rows a coming batch reads."""
        return self._store.window.announce({self._table: keys})

    def begin(self, number: int) -> None:
        """Waits until a batch was read ahead."""
        self._store.window.begin(number)

    def finish_batch(self, number: int) -> None:
        """A batch is done with."""
        self._store.window.finish(number)

    def pause(self) -> None:
        """Measures the device on the store's own pages, as the definition has it."""
        if not self._store.stats()["device"]["direct"]:
            return
        rate = self._store._core.device_rate
        self._rates.append(rate(self._slice_s, DEVICE_BYTES, DEVICE_DEPTH))
        self._own_rates.append(rate(self._slice_s, None, None))

    def begin_timed(self) -> None:
        """Counters count from here."""
        self._before = self._store.stats()
        self._window_before = self._store.window.stats()

    def end_timed(self) -> None:
        """Counters count up to here; the window forgets what is announced, and rests."""
        self._after, self._window = self._store.stats(), self._store.window.stats()
        self._store.window.clear()

    def finish(self) -> dict[str, Any]:
        """Counters of the timed part, memory, and the device's rate."""
        facts, before = self._after or self._store.stats(), self._before
        counted = {name: facts[name] - before[name] for name in COUNTERS}
        one = facts["classes"][0]
        answer: dict[str, Any] = {
            "counted": counted,
            "memory": machine.memory_facts(self._store, self._budget, self._rss_before),
            "store": {name: one[name] for name in CLASS_FACTS},
            "device": machine.device_facts(self._store),
            "device_rate": statistics.median(self._rates) if self._rates else None,
            "own_device_rate": statistics.median(self._own_rates) if self._own_rates else None,
            "version": embedrock.__version__,
        }
        if self._window:
            now, then = self._window, self._window_before
            answer["window"] = {name: now[name] - then[name] for name in WINDOW_COUNTERS}
            answer["window"] |= {name: now[name] for name in ("memory_bytes", "most_bytes")}
        self._store._core.close()
        return answer


class Torch:
    """``nn.EmbeddingBag`` with every row in memory: what a table that fits would give."""

    def __init__(self, settings: dict[str, Any], mode: Mode) -> None:
        """Fills the module; ``options["sparse"]`` chooses its gradient."""
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        rows, dim = int(settings["rows"]), int(settings["dim"])
        self._sparse = bool(settings["options"].get("sparse", True))
        weight = torch.empty(rows, dim)
        for keys in ranges(rows, LOAD_ROWS):
            weight[keys[0] : keys[-1] + 1] = torch.from_numpy(values_of(keys, dim))
        self._bag = torch.nn.EmbeddingBag.from_pretrained(
            weight, freeze=False, mode="sum", sparse=self._sparse
        )
        self._adagrad = torch.optim.Adagrad(self._bag.parameters(), lr=LR, eps=EPS)

    @staticmethod
    def load(settings: dict[str, Any], mode: Mode) -> dict[str, Any]:
        """Nothing lies on storage."""
        return {"disk_bytes": 0, "bytes_written": 0}

    def get(self, keys: Keys, out: Floats) -> None:
        """Reads rows as bags of one."""
        torch = self._torch
        with torch.no_grad():
            offsets = torch.arange(len(keys))
            torch.from_numpy(out).copy_(self._bag(torch.from_numpy(keys), offsets))

    def put(self, keys: Keys, rows: Floats) -> None:
        """Overwrites rows."""
        torch = self._torch
        with torch.no_grad():
            self._bag.weight.index_copy_(0, torch.from_numpy(keys), torch.from_numpy(rows))

    def update(self, keys: Keys, gradients: Floats) -> None:
        """A step of ``torch.optim.Adagrad``: element-wise, as torch has no other."""
        torch = self._torch
        index, rows = torch.from_numpy(keys), torch.from_numpy(gradients)
        weight = self._bag.weight
        if self._sparse:
            weight.grad = torch.sparse_coo_tensor(index[None], rows, weight.shape)
        else:
            weight.grad = torch.zeros_like(weight).index_copy_(0, index, rows)
        self._adagrad.step()

    def pause(self) -> None:
        """Nothing to do."""

    def begin_timed(self) -> None:
        """Nothing to do."""

    def finish(self) -> dict[str, Any]:
        """The memory that it takes."""
        held = self._bag.weight.numel() * 4 * (1 + (len(self._adagrad.state) > 0))
        return {"memory": {"rows_bytes": held}, "version": self._torch.__version__}


STORES: dict[str, type[Embedrock] | type[Torch]] = {"embedrock": Embedrock, "torch": Torch}


def gradients_of(keys: int, dim: int) -> Floats:
    """The constant gradient."""
    return np.full((keys, dim), GRADIENT, np.float32)
