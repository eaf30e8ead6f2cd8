"""A system that announces its batches: its loop, and its timing.

The look-ahead window reads while the caller does something else, so the time must include
everything that a bench does: a batch takes from the end of the one before to its own end,
announcing included. All rows are verified afterwards: each must have been changed exactly as often
as it was used, and reading a wrong or old row once would break that for good. If batches do not
change all rows that they read, they are verified at once, within the time. The device is measured
before and after, while the window rests, and the trace goes on beyond the last batch that is timed,
so that the window has as much to do at its end as before.
"""

from __future__ import annotations

import resource
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock_lab.bench.replay.record import Record
from embedrock_lab.bench.replay.stores import Embedrock, gradients_of
from embedrock_lab.bench.replay.workload import MODES, STEP, wrong_rows
from embedrock_lab.measure.rows import ranges

__all__ = ["run_ahead"]

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]


def run_ahead(
    settings: dict[str, Any],
    values: Keys,
    offsets: Keys,
    batches: int,
    counts: npt.NDArray[np.uint16],
    room: Floats,
) -> dict[str, Any]:
    """Runs the batches, and announces all that the trace has.

    Only modes that read all their keys, and change all or none of them. ``counts`` are how often
    each row was changed, all 0; ``room`` is for the rows of the largest batch.
    """
    mode = MODES[settings["mode"]]
    changes = mode.reads < 1
    depth = int(settings["options"]["lookahead"])
    rows = int(settings["rows"])
    gradients = gradients_of(len(room) if mode.optimizer else 0, room.shape[1])
    store = Embedrock(settings, mode)
    store.pause()
    record = Record()
    numbers: list[int] = []
    wrong = verified = 0
    ahead: list[int] = []
    clock = time.perf_counter_ns()
    for batch in range(batches):
        if batch == batches // 3:
            store.begin_timed()
        while len(numbers) < min(batch + depth, len(offsets) - 1):
            coming = len(numbers)
            number = store.announce(values[offsets[coming] : offsets[coming + 1]])
            if number is None:
                break
            numbers.append(number)
        ahead.append(len(numbers) - batch)
        keys = values[offsets[batch] : offsets[batch + 1]]
        found = room[: len(keys)]
        began = time.perf_counter_ns()
        if batch < len(numbers):
            store.begin(numbers[batch])
        store.get(keys, found)
        get_ns = time.perf_counter_ns() - began
        if not changes:
            wrong += wrong_rows(found, keys.view(np.uint64), counts[keys], mode)
            verified += len(keys)
        elif mode.optimizer:
            store.update(keys, gradients[: len(keys)])
        else:
            found += STEP
            store.put(keys, found)
        if changes:
            counts[keys] += np.uint16(1)
        if batch < len(numbers):
            store.finish_batch(numbers[batch])
        end = time.perf_counter_ns()
        record.add(get_ns, end - clock - get_ns, 0, 0)
        clock = end
    store.end_timed()
    for some in ranges(rows, len(room)):
        found = room[: len(some)]
        store.get(some, found)
        wrong += wrong_rows(found, some.view(np.uint64), counts[some], mode)
    store.pause()
    answer = record.answer()
    answer.update(store.finish())
    answer["window"]["announced_ahead"] = float(np.mean(ahead[batches // 3 :]))
    answer["rows_verified"] = verified + rows
    answer["mismatches"] = wrong
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer
