"""One cell of ``loops``: a load at one budget beside so many busy loops, all ways in turns.

It runs in a process of its own, with every way in it; while one trains the others rest. All begin
with the same rows and see the same batches, so their losses have to be equal: bit for bit over
stores, nearly with PyTorch in memory, whose sums are made in another order.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import torch

from embedrock_lab.bench.loops.busy import busy
from embedrock_lab.bench.loops.load import Load
from embedrock_lab.bench.loops.names import LOOKAHEAD, PIPELINE, PLAIN, TORCH
from embedrock_lab.bench.loops.places import fill
from embedrock_lab.bench.loops.ways import Loop, OverStore
from embedrock_lab.measure import machine

__all__ = ["LOADS", "bound_of", "make", "measure", "prepare"]

LOADS = {
    "deepfm": "clicks:narrow",
    "deepfm_wide": "clicks:wide",
    "complex": "triples:load",
    "gru4rec": "sessions:load",
    "graphsage": "graphs:learnable",
    "features": "graphs:read_only",
    "dlrm": "criteo:load",
}
TORCH_TOLERANCE = 0.02
"""Of the mean loss of the last turn, between PyTorch in memory and a store."""


def make(name: str, seed: int, steps: int | None, turns: int) -> Load:
    """The load of that name, with batches for so many turns."""
    module, _, function = LOADS[name].partition(":")
    found = importlib.import_module(f"embedrock_lab.bench.loops.{module}")
    load: Load = getattr(found, function)(seed, steps, turns)
    return load


def prepare(name: str, seed: int, path: str) -> dict[str, Any]:
    """Writes a load's rows, a store for each way. Runs in a child process."""
    load = make(name, seed, 1, 2)
    for way in (PLAIN, LOOKAHEAD, PIPELINE):
        fill(load, Path(path) / way)
    return {"bytes": load.bytes}


def measure(
    name: str,
    path: str,
    memory: float,
    loops: int,
    turns: int,
    steps: int | None,
    seed: int,
    threads: int,
    first_steps: int,
    announce: bool | None,
) -> dict[str, Any]:
    """Trains in every way, and compares. Runs in a child process."""
    torch.set_num_threads(threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # what is its default, said aloud
    load = make(name, seed, steps, 1)
    first = math.ceil(first_steps / load.steps)
    load = make(name, seed, steps, first + turns + 1)  # the last one is recorded
    budget = int(load.bytes * memory / 100)
    ends = [0, *range(first * load.steps, len(load.batches) + 1, load.steps)]
    passes = [load.batches[start:end] for start, end in itertools.pairwise(ends)]
    with contextlib.ExitStack() as stack:
        ways: dict[str, Loop] = {TORCH: Loop(load, seed)}
        over = {
            way: OverStore(load, seed, Path(path) / way, budget, way, announce, stack)
            for way in (PLAIN, LOOKAHEAD, PIPELINE)
        }
        ways.update(over)
        with busy(loops):
            for number, batches in enumerate(passes[:-1]):
                order = list(ways.values())
                for way in order if number % 2 == 0 else reversed(order):
                    way.turn(batches)
                    if number == 0:
                        way.forget_turns()
            found = {way: one.found() for way, one in ways.items()}
            bound = bound_of(over[PLAIN], passes[-1])
        device = machine.device_facts(over[PLAIN].store)
        least = max(one.memory_bytes for one in over.values())
        losses = {way: torch.stack(one.losses) for way, one in ways.items()}
    of_plain = losses[PLAIN][: len(losses[LOOKAHEAD])]
    wrong = sum(int((losses[way] != of_plain).sum()) for way in (LOOKAHEAD, PIPELINE))
    last = {way: float(one[-load.steps :].mean()) for way, one in losses.items()}
    last[PLAIN] = float(of_plain[-load.steps :].mean())
    apart = abs(last[PLAIN] - last[TORCH]) / abs(last[TORCH])
    return {
        "load": name,
        "memory": memory,
        "busy": loops,
        "samples": load.samples,
        "steps": load.steps,
        "bytes": load.bytes,
        "memory_bytes": least,
        "raised": least > budget,
        "ways": found,
        "bound": bound,
        "loss": last[PLAIN],
        "loss_apart_from_torch": apart,
        "mismatches": wrong + (apart > TORCH_TOLERANCE),
        "device": device,
    }


def bound_of(plain: OverStore, batches: list[Any]) -> dict[str, Any]:
    """What a recorded pass of the plain loop could have taken at least, and what bounds it.

    The device needs the time that ``record`` names, or its share where the loop loaded fewer rows
    than that best cache; the cores what the loop spent outside of the store and copying each row
    once. With perfect overlap a pass takes the longer of the two.
    """
    with plain.store.record() as recording:
        plain.turn(batches)
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
