"""Ranks of `torch.distributed` for tests: processes that run one function together.

They are children of a process that has imported PyTorch (`withtorch`), one thread each, over gloo
and a file. Put many checks into one function: the group of two ranks is there within a tenth of a
second, but not for nothing.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import withtorch

_TESTS = Path(__file__).parent


def run(world: int, function: Callable[..., Any], *arguments: Any, limit: float = 120) -> list[Any]:
    """Results of `function(rank, world, *arguments)` on all ranks, within `limit` seconds.

    The function must be importable from a module of these tests; it and its arguments are pickled.
    When it is called, there is a process group of gloo, with the same time limit. Fails with the
    traceback of each rank that has one, and the ranks' standard error.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        return _run(world, function, arguments, limit, Path(folder))


def _run(
    world: int, function: Callable[..., Any], arguments: Any, limit: float, folder: Path
) -> list[Any]:
    module = sys.modules[function.__module__]
    name = Path(str(module.__file__)).stem
    request = folder / "request"
    request.write_bytes(pickle.dumps((world, name, function.__name__, arguments, limit)))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(_TESTS), *sys.path]),
    }
    processes, errors = [], []
    for rank in range(world):
        told = (folder / f"stderr-{rank}").open("w+")
        words = [str(_TESTS / "ranks.py"), str(request), str(rank)]
        processes.append(withtorch.Process(words, env=environment, errors=told))
        errors.append(told)
    end = time.monotonic() + limit
    try:
        for process in processes:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    found, said = [], []
    for rank, told in enumerate(errors):
        told.seek(0)
        text = told.read()
        told.close()
        result = folder / f"result-{rank}"
        if result.exists():
            found.append(pickle.loads(result.read_bytes()))
        else:
            status = processes[rank].returncode
            said.append(f"---- rank {rank} of {world} ended with {status}\n{text}")
    assert not said, "\n" + "\n".join(said)
    return found


def main(request: str, rank: int) -> None:
    """One rank."""
    import datetime

    import torch
    import torch.distributed as dist

    folder = Path(request).parent
    world, module, name, arguments, limit = pickle.loads(Path(request).read_bytes())
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=limit),
        )
        found = getattr(importlib.import_module(module), name)(rank, world, *arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # At once: what waits for other ranks would keep this one, and its error, back.
        os._exit(1)
    written = folder / f"writing-{rank}"
    written.write_bytes(pickle.dumps(found))
    written.rename(folder / f"result-{rank}")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
