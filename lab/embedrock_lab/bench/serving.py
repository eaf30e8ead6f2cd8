"""The separate process of ``bench serve``: read-only stores answer queries of a trace.

Counting sends every request once, from one thread, so that pages are the same in every run of the
same stores. Stores are timed in rounds. All rows are compared outside of the timed sections.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.errors import BudgetError, MisuseError
from embedrock.trace import Trace
from embedrock_lab.measure import machine
from embedrock_lab.measure.noise import Timed, interleave
from embedrock_lab.measure.rows import least_budget, mismatches

__all__ = ["CACHES", "LOADS", "Request", "capacity", "device_alone", "requests_of", "serve"]
__all__ += ["round_name", "with_cache"]

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Request = list[tuple[str, Keys]]
"""The keys of one query, or of several that are asked in one call, by the name of the table."""

CACHES = ("c0", "cache")
"""The smallest cache that works in all stores, and one that holds a share of the rows."""
LOADS = ("single", "union")
"""Queries one by one, and several together."""
TRIES = 6
"""Openings until the cache holds the wanted share of the rows."""
LEAST_BYTES = 4096
"""The least that is taken for bytes; it is refused with the budget that works."""
CHUNK_KEYS = 1 << 15
"""Keys that are asked for between two looks at the clock, whose rows are held until compared."""
PARTS = 50
"""Parts of a load whose median says what selection takes: others interrupt some of them."""
WARM_UNION = 32
"""Queries of a request while caches are filled."""
DEVICE = "device"


def requests_of(trace: Trace, union: int = 1) -> list[Request]:
    """Requests of ``union`` queries each, in their order; those that ask for nothing left out."""
    found = []
    for begin in range(0, trace.queries, union):
        end = min(begin + union, trace.queries)
        one = [
            (name, of_table.values[of_table.offsets[begin] : of_table.offsets[end]])
            for name, of_table in trace.tables.items()
        ]
        if one := [(name, keys) for name, keys in one if len(keys)]:
            found.append(one)
    return found


def serve(
    stores: dict[str, str],
    made: bool,
    trace: str,
    warm: str,
    union: int,
    cache: float,
    timed: list[str],
    choices: list[str],
    threads: list[int],
    rounds: int,
    slice_s: float,
    patience: float,
) -> dict[str, Any]:
    """Serves a trace from each store, with the smallest cache and with one for a share of rows.

    ``timed`` stores run in rounds, and that of ``choices`` which reads fewest pages. Rows of stores
    that were ``made`` for this are those of ``rows.values_of``. Runs in a child process.
    """
    held = Trace.load(trace)
    loads = dict(zip(LOADS, (requests_of(held), requests_of(held, union)), strict=True))
    before = requests_of(Trace.load(warm), WARM_UNION)
    expected = formula if made else _Copy(next(iter(stores.values())), [*before, *loads["single"]])
    answer: dict[str, Any] = {"counted": {}, "timed": {}, "cached_share": {}}
    answer |= {"noise": {}, "notes": []}
    first = loads[LOADS[0]][0]
    least = max(_least_share(path, first) for path in stores.values())
    for name, share in zip(CACHES, (least, max(cache, least)), strict=True):
        with contextlib.ExitStack() as stack:
            sides = {
                one: stack.enter_context(_Side(path, share, first, expected))
                for one, path in stores.items()
            }
            answer["cached_share"][name] = {one: side.cached_share for one, side in sides.items()}
            pool = stack.enter_context(ThreadPoolExecutor(max(threads)))
            for one in sides.values():
                one.warm(before)
            answer["counted"][name] = counted = {
                one: {load: side.count(asked) for load, asked in loads.items()}
                for one, side in sides.items()
            }
            best = _fewest(counted, choices)
            shown = {one: sides[one] for one in dict.fromkeys([*timed, *best])}
            answer["timed"][name], noise, notes = _time(
                shown, loads, threads, pool, rounds, slice_s, patience
            )
            answer["noise"] |= {f"{name}, {key}": value for key, value in noise.items()}
            answer["notes"] += [f"{name}, {note}" for note in notes]
            answer |= _facts(sides)
            answer["mismatches"] = answer.get("mismatches", 0) + sum(
                one.mismatches for one in sides.values()
            )
    return answer


def formula(_: str, keys: Keys, rows: Floats) -> int:
    """Number of rows that differ from those that the bench has written."""
    return mismatches(rows, keys)


class _Copy:
    """Rows of a store whose contents nobody knows: read before, in the order of keys."""

    def __init__(self, store: str, requests: Sequence[Request]) -> None:
        asked: dict[str, list[Keys]] = {}
        for request in requests:
            for name, keys in request:
                asked.setdefault(name, []).append(keys)
        self._rows: dict[str, tuple[Keys, Floats]] = {}
        with _reader(store, 0, requests[0]) as opened:
            for name, several in asked.items():
                keys = np.unique(np.concatenate(several))
                self._rows[name] = keys, opened.table(name).get(keys)

    def __call__(self, table: str, keys: Keys, rows: Floats) -> int:
        known, expected = self._rows[table]
        there = expected[np.searchsorted(known, keys)].view(np.uint32)
        return int((there != rows.view(np.uint32)).any(axis=1).sum())


class _Side(contextlib.AbstractContextManager["_Side"]):
    """A store that serves, and what it was found to do."""

    def __init__(
        self,
        path: str,
        share: float,
        first: Request,
        expected: Callable[[str, Keys, Floats], int],
    ) -> None:
        self.store = with_cache(path, share, first)
        self._tables = self.store.tables
        self._expected = expected
        self.mismatches = 0
        self._next = 0
        stats = self.store.stats()
        rows = _rows(self.store)
        self.cached_share = capacity(self.store) / rows
        self.disk_bytes = stats["disk_bytes"]
        self.index_bytes_per_row = sum(one["index_bytes"] for one in stats["classes"]) / rows
        self.rows_per_page = [one["rows_per_page"] for one in stats["classes"]]

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def ask(self, request: Request) -> list[Floats]:
        """The rows of a request."""
        if len(request) == 1:
            ((name, keys),) = request
            return [self._tables[name].get(keys)]
        return self.store.get([(self._tables[name], keys) for name, keys in request])

    def warm(self, requests: Sequence[Request]) -> None:
        """Requests that fill the cache and do not count."""
        for request in requests:
            self.check(request, self.ask(request))

    def check(self, request: Request, rows: Sequence[Floats]) -> None:
        """Compares all rows of an answer."""
        for (name, keys), found in zip(request, rows, strict=True):
            self.mismatches += self._expected(name, keys, found)

    def count(self, requests: Sequence[Request]) -> dict[str, float]:
        """Each request once: what was read for it."""
        first = before = self.store.stats()
        each, selection = -(-len(requests) // PARTS), []
        for begin in range(0, len(requests), each):
            for request in requests[begin : begin + each]:
                self.check(request, self.ask(request))
            after = self.store.stats()
            if pages := after["pages_read"] - before["pages_read"]:
                spent = after["time"]["selecting"] - before["time"]["selecting"]
                selection.append(1e6 * spent / pages)
            before = after
        new = {name: after[name] - first[name] for name in _COUNTS}
        count = len(requests)
        return {
            "pages_per_request": new["pages_read"] / count,
            "reads_per_request": new["read_requests"] / count,
            "rows_per_request": sum(len(k) for one in requests for _, k in one) / count,
            "missed_per_page": new["misses"] / max(new["pages_read"], 1),
            "hit_share": new["hits"] / max(new["hits"] + new["misses"], 1),
            "selection_us": statistics.median(selection) if selection else 0.0,
        }

    def round(
        self, requests: Sequence[Request], threads: int, pool: ThreadPoolExecutor, slice_s: float
    ) -> Timed:
        """Requests for a slice, each thread its own; the clock stands while rows are compared."""
        total = _Round()
        before = self.store.stats()["pages_read"]
        while total.seconds < slice_s:
            parts = [self._chunk(requests) for _ in range(threads)]
            done = list(pool.map(self._timed, parts))
            total.add([timed for timed, _, _ in done])
            for part, (_, took, answers) in zip(parts, done, strict=True):
                total.latencies += took
                for request, rows in zip(part, answers, strict=True):
                    self.check(request, rows)
        total.pages = self.store.stats()["pages_read"] - before
        return total

    def _timed(self, part: Sequence[Request]) -> tuple[Timed, list[float], list[list[Floats]]]:
        timed, latencies, answers = Timed(), [], []
        with timed:
            for request in part:
                begin = time.perf_counter()
                answers.append(self.ask(request))
                latencies.append(time.perf_counter() - begin)
        timed.work += len(part)
        return timed, latencies, answers

    def _chunk(self, requests: Sequence[Request]) -> list[Request]:
        """The next requests, from the first again after the last."""
        chunk: list[Request] = []
        keys = 0
        while keys < CHUNK_KEYS and len(chunk) < len(requests):
            chunk.append(requests[self._next % len(requests)])
            keys += sum(len(one) for _, one in chunk[-1])
            self._next += 1
        return chunk


_COUNTS = ("pages_read", "read_requests", "hits", "misses")


class _Round(Timed):
    """A round of several threads: its time is that of the slowest of each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies: list[float] = []
        self.pages = 0

    def add(self, threads: Sequence[Timed]) -> None:
        """Adds the results of threads that ran side by side."""
        self.seconds += max(one.seconds for one in threads)
        self.waited += max(one.waited for one in threads)
        self.work += sum(one.work for one in threads)
        self.known = all(one.known for one in threads)


def _fewest(counted: dict[str, Any], choices: Sequence[str]) -> list[str]:
    """That of the choices which reads fewest pages for unions of queries."""
    return sorted(choices, key=lambda one: counted[one]["union"]["pages_per_request"])[:1]


def round_name(load: str, threads: int) -> str:
    """Name of rounds with this number of threads in results."""
    return f"{load}, {threads} thread{'s' * (threads > 1)}"


def _time(
    sides: dict[str, _Side],
    loads: dict[str, list[Request]],
    threads: Sequence[int],
    pool: ThreadPoolExecutor,
    rounds: int,
    slice_s: float,
    patience: float,
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Lets the stores and the device run in rounds; (what was found, noise, notes)."""
    answer: dict[str, Any] = {}
    noise: dict[str, Any] = {}
    notes: list[str] = []
    names = list(sides)
    biggest = max(sides.values(), key=lambda one: one.disk_bytes).store
    device = [partial(device_alone, biggest, slice_s)]
    try:
        device_alone(biggest, slice_s / 100)
    except MisuseError as error:
        notes.append(f"the device's own rate is not known: {error}")
        device = []
    for load, count in itertools.product(loads, threads):
        timed = [partial(one.round, loads[load], count, pool, slice_s) for one in sides.values()]
        found = interleave([*timed, *device], rounds, patience)
        rate = found.rate(len(names)) if device else None
        named = round_name(load, count)
        answer[named] = {DEVICE: {"pages_per_s": rate}}
        for i, name in enumerate(names):
            one = _of_rounds([each[i] for each in found.counted], rate)
            one["rate_versus"] = {other: found.ratio(i, j) for j, other in enumerate(names)}
            answer[named][name] = one
        noise[named] = found.summary()
        notes += [f"{named}: {note}" for note in found.notes]
    return answer, noise, notes


def _of_rounds(timed: Sequence[Any], device_rate: float | None) -> dict[str, Any]:
    """Medians over rounds; quantiles over all requests of all rounds."""
    latencies = np.concatenate([one.latencies for one in timed])
    pages = statistics.median(one.pages / one.seconds for one in timed)
    return {
        "requests_per_s": statistics.median(one.rate for one in timed),
        "p50_us": 1e6 * float(np.quantile(latencies, 0.5)),
        "p99_us": 1e6 * float(np.quantile(latencies, 0.99)),
        "pages_per_s": pages,
        "device_share": None if device_rate is None else pages / device_rate,
        "requests": len(latencies),
    }


def device_alone(store: embedrock.Store, slice_s: float) -> Timed:
    """The device alone, on the pages of a store, with its page size and depth."""
    timed = Timed()
    with timed:
        rate = store._core.device_rate(slice_s, None, None)
    timed.work = rate * timed.seconds
    return timed


def _facts(sides: dict[str, _Side]) -> dict[str, Any]:
    return {
        "stores": {
            name: {
                "disk_mb": one.disk_bytes / 1e6,
                "index_bytes_per_row": one.index_bytes_per_row,
                "rows_per_page": one.rows_per_page,
            }
            for name, one in sides.items()
        },
        "device": machine.device_facts(next(iter(sides.values())).store),
    }


def _reader(path: str, budget: int, first: Request) -> embedrock.Store:
    """A reader with a budget in bytes, or with the smallest that works, if that is more."""
    while True:
        store = None
        try:
            store = embedrock.open(path, max(budget, LEAST_BYTES), create=False, read_only=True)
            for name, keys in first:
                store.table(name).get(keys)
        except BudgetError as error:
            if store is not None:
                store.close()
            least = least_budget(error)
            if least <= budget:
                raise
            budget = least
        else:
            return store


def _least_share(path: str, first: Request) -> float:
    """The share of rows that the cache holds with the smallest budget."""
    with _reader(path, 0, first) as store:
        return capacity(store) / _rows(store)


def with_cache(path: str, share: float, first: Request) -> embedrock.Store:
    """A reader whose cache has room for a share of the rows; opening is how to find out."""
    budget = 0
    for left in reversed(range(TRIES)):
        store = _reader(path, budget, first)
        stats = store.stats()
        wanted, found = int(share * _rows(store)), capacity(store)
        if abs(found - wanted) <= wanted // 100 + 32 or not left:
            break
        each = sum(one["cache_bytes"] for one in stats["classes"]) / max(found, 1)
        budget = stats["budget_bytes"] + int((wanted - found) * each)
        store.close()
    return store


def capacity(store: embedrock.Store) -> int:
    """Rows that its caches have room for."""
    return sum(int(one["cache_capacity"]) for one in store.stats()["classes"])


def _rows(store: embedrock.Store) -> int:
    return sum(len(table) for table in store.tables.values())
