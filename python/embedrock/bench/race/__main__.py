"""``python -m embedrock.bench.race load|run``: one contestant in a process of its own.

Settings come as one line of JSON on standard input. ``load`` fills the store. ``run`` reads the
trace, says ``ready``, waits for a line (meanwhile the parent limits its memory), opens the store,
runs batch after batch and prints what it measured as one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.bench.race.stores import STORES, Contestant, gradients_of
from embedrock.bench.race.workload import MODES, STEP, expected, wrong_rows

PAUSES = 4
"""Pauses in the timed part, in which a store may measure its device."""


def main() -> int:
    """Runs the command."""
    command = sys.argv[1]
    settings = json.loads(sys.stdin.readline())
    store, mode = STORES[settings["engine"]], MODES[settings["mode"]]
    if command == "load":
        begin = time.monotonic()
        answer = store.load(settings, mode)
        answer["seconds"] = time.monotonic() - begin
    else:
        answer = _run(settings)
    # A text stream without a buffer (python -u) may write a part of a long line only.
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(json.dumps(answer).encode() + b"\n")
    return 0


def _run(settings: dict[str, Any]) -> dict[str, Any]:
    mode = MODES[settings["mode"]]
    files, dim = settings["trace"], int(settings["dim"])
    values = np.fromfile(files["values"], "<u8").view(np.int64)
    offsets = np.fromfile(files["offsets"], "<i8")
    batches = min(int(settings["batches"]) or len(offsets) - 1, len(offsets) - 1)
    counts = np.full(int(settings["rows"]), 0, np.uint16)
    room = np.full((int(np.diff(offsets).max()), dim), 0, np.float32)
    gradients = gradients_of(len(room) if mode.optimizer else 0, dim)
    wrong_rows(room, np.zeros(len(room), np.uint64), np.zeros(len(room), np.uint16), mode)
    print("ready", flush=True)
    sys.stdin.readline()
    store: Contestant = STORES[settings["engine"]](settings, mode)
    record = _Record()
    timed_from = batches // 3
    pauses = {timed_from + (batches - timed_from) * i // (PAUSES - 1) for i in range(PAUSES)}
    began = time.monotonic()
    paused = 0.0
    for batch in range(batches):
        if batch == timed_from:
            store.begin_timed()
        if batch in pauses:
            before = time.monotonic()
            store.pause()
            paused += time.monotonic() - before
            record.restart()
        keys = values[offsets[batch] : offsets[batch + 1]]
        reads = mode.read_only(len(keys))
        written = keys[reads:]
        read = keys[:reads] if mode.blind else keys
        rows = room[: len(read)]
        clock = time.perf_counter_ns()
        if len(read):
            store.get(read, rows)
        get_ns = time.perf_counter_ns() - clock
        wrong = wrong_rows(rows, read.view(np.uint64), counts[read], mode)
        if mode.blind:
            new = expected(written.view(np.uint64), counts[written] + np.uint16(1), dim, mode)
        clock = time.perf_counter_ns()
        if len(written):
            if mode.optimizer:
                store.update(written, gradients[: len(written)])
            elif mode.blind:
                store.put(written, new)
            else:
                changed = rows[reads:]
                changed += STEP
                store.put(written, changed)
        put_ns = time.perf_counter_ns() - clock
        counts[written] += np.uint16(1)
        record.add(get_ns, put_ns, len(read), wrong)
        if time.monotonic() - began - paused > float(settings["seconds_max"]):
            break
    store.pause()
    answer = record.answer()
    answer.update(store.finish())
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


class _Record:
    """Measurements of each batch; what pauses use is left out."""

    def __init__(self) -> None:
        self._columns: dict[str, list[int]] = {
            name: []
            for name in ("get_ns", "put_ns", "cpu_ns", "read_bytes", "write_bytes", "wait_ns")
        }
        self._verified = self._wrong = 0
        self._totals = [0, 0, 0, 0]
        self._last = _usage()

    def restart(self) -> None:
        """What was used since the last batch does not count."""
        self._last = _usage()

    def add(self, get_ns: int, put_ns: int, verified: int, wrong: int) -> None:
        """Notes a batch."""
        usage = _usage()
        for i, (before, after) in enumerate(zip(self._last, usage, strict=True)):
            self._totals[i] += after - before
        self._last = usage
        noted = (get_ns, put_ns, *self._totals)
        for column, value in zip(self._columns.values(), noted, strict=True):
            column.append(value)
        self._verified += verified
        self._wrong += wrong

    def answer(self) -> dict[str, Any]:
        """Everything noted."""
        return {
            "batches": len(self._columns["get_ns"]),
            **self._columns,
            "rows_verified": self._verified,
            "mismatches": self._wrong,
        }


def _usage() -> tuple[int, int, int, int]:
    """Processor time, bytes read and written on the device, time without a core; so far."""
    times = os.times()
    moved = {"read_bytes": 0, "write_bytes": 0}
    try:
        for line in Path("/proc/self/io").read_text().splitlines():
            name, value = line.split(": ")
            if name in moved:
                moved[name] = int(value)
        wait = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        wait = 0
    cpu = int((times.user + times.system) * 1e9)
    return cpu, moved["read_bytes"], moved["write_bytes"], wait


if __name__ == "__main__":
    sys.exit(main())
