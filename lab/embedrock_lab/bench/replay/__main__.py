"""``python -m embedrock_lab.bench.replay load|run``: one system in a process of its own.

Settings come as one line of JSON on standard input. ``load`` fills the store. ``run`` reads the
trace, says ``ready``, waits for a line (meanwhile the parent limits its memory), opens the store,
runs batch after batch and prints what it measured as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np

from embedrock_lab.bench.replay.ahead import run_ahead
from embedrock_lab.bench.replay.record import Record
from embedrock_lab.bench.replay.stores import STORES, System, gradients_of
from embedrock_lab.bench.replay.workload import MODES, STEP, expected, wrong_rows

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
    if settings["options"].get("lookahead"):
        return run_ahead(settings, values, offsets, batches, counts, room)
    store: System = STORES[settings["engine"]](settings, mode)
    record = Record()
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


if __name__ == "__main__":
    sys.exit(main())
