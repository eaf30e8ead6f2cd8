"""One cell of ``loops``: a load at one budget beside so many busy loops, in all ways.

All begin with the same rows and see the same batches, so their losses have to be equal: bit for bit
over stores, nearly with PyTorch in memory, whose sums are made in another order.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import torch

from embedrock_lab.bench.training.busy import busy
from embedrock_lab.bench.training.cells import LOOKAHEAD, PIPELINE, PLAIN, TORCH
from embedrock_lab.bench.training.load import Load
from embedrock_lab.bench.training.places import fill
from embedrock_lab.bench.training.ways import Ways, bound_of
from embedrock_lab.measure import machine

__all__ = ["LOADS", "make", "measure", "prepare"]

LOADS = {
    "deepfm": "clicks:narrow",
    "deepfm_wide": "clicks:wide",
    "complex": "triples:load",
    "gru4rec": "sessions:load",
    "graphsage": "graphs:learnable",
    "features": "graphs:read_only",
    "dlrm": "criteo:load",
}
OVER_STORES = (PLAIN, LOOKAHEAD, PIPELINE)
TORCH_TOLERANCE = 0.02
"""Of the mean loss of the last round, between PyTorch in memory and a store."""


def make(name: str, seed: int, steps: int | None, rounds: int) -> Load:
    """The load of that name, with batches for so many rounds."""
    module, _, function = LOADS[name].partition(":")
    found = importlib.import_module(f"embedrock_lab.bench.training.loads.{module}")
    load: Load = getattr(found, function)(seed, steps, rounds)
    return load


def prepare(name: str, seed: int, path: str) -> dict[str, Any]:
    """Writes a load's rows, a store for each way. Runs in a child process."""
    load = make(name, seed, 1, 2)
    for way in OVER_STORES:
        fill(load, Path(path) / way)
    return {"bytes": load.bytes}


def measure(
    name: str,
    path: str,
    memory: float,
    loops: int,
    rounds: int,
    steps: int | None,
    seed: int,
    threads: int,
    first_steps: int,
    announce: bool | None,
) -> dict[str, Any]:
    """Trains in every way, and compares. Runs in a child process."""
    torch.set_num_threads(threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, made explicit
    load = make(name, seed, steps, 1)
    first = math.ceil(first_steps / load.steps)
    load = make(name, seed, steps, first + rounds + 1)  # the last one is recorded
    ends = [0, *range(first * load.steps, len(load.batches) + 1, load.steps)]
    *timed, recorded = [load.batches[start:end] for start, end in itertools.pairwise(ends)]
    stores = {way: Path(path) / way for way in OVER_STORES}
    with contextlib.ExitStack() as stack:
        ways = Ways(load, seed, stores, memory, stack, announce)
        with busy(loops):
            ways.rounds(timed)
            found, wrong = ways.found(), ways.unlike()
            last = {way: float(one[-load.steps :].mean()) for way, one in ways.losses().items()}
            bound = bound_of(ways.over[PLAIN], recorded)
        device = machine.device_facts(ways.over[PLAIN].store)
    apart = abs(last[PLAIN] - last[TORCH]) / abs(last[TORCH])
    return {
        **found,
        "load": name,
        "busy": loops,
        "bytes": load.bytes,
        "bound": bound,
        "loss": last[PLAIN],
        "loss_apart_from_torch": apart,
        "mismatches": wrong + (apart > TORCH_TOLERANCE),
        "device": device,
    }
