"""One piece of a demo, in the child process that `children.py` started for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embedrock.errors import EmbedrockError
from embedrock.report.progress import JsonLines, Sink
from embedrock_lab.demo.paths import (
    EMBEDROCK,
    OUT_OF_CORE,
    SYSTEMS,
    WHOLE_AHEAD,
    WHOLE_BUDGET,
    store_path,
)
from embedrock_lab.demo.settings import DemoSettings, Settings, ShapedSettings


def out_of_core(settings: DemoSettings, sink: Sink) -> dict[str, Any]:
    """The budget that the demo is about."""
    return _on_storage(settings, OUT_OF_CORE, settings.memory, False, sink)


def whole_budget(settings: DemoSettings, sink: Sink) -> dict[str, Any]:
    """The same with a budget for all rows: must give the same bits."""
    return _on_storage(settings, WHOLE_BUDGET, "100%", False, sink)


def without_fillers(settings: DemoSettings, sink: Sink) -> dict[str, Any]:
    """The same without the keys that occur once. Only its AUC matters, which no budget changes."""
    return _on_storage(settings, "without fillers", "100%", True, sink)


def in_memory(settings: DemoSettings, sink: Sink) -> dict[str, Any]:
    """Plain PyTorch."""
    from embedrock_lab.demo import runs

    _use_threads(settings)
    return runs.in_memory(settings, "in memory", settings.dataset(), sink)


def memory(settings: Settings, sink: Sink) -> dict[str, Any]:
    """The engine's memory, without PyTorch in the process: of the demo on real data in a store of
    its own, of the other one in that of the system out of core, which has all rows."""
    from embedrock_lab.demo import replay

    shaped = isinstance(settings, ShapedSettings)
    name = "replay"
    if shaped:
        there = (n for n in (OUT_OF_CORE, EMBEDROCK) if store_path(settings, n).exists())
        name = next(there, OUT_OF_CORE)
    commits = 1 if shaped else settings.recipe.epochs
    return replay.replay(settings, settings.dataset(), name, commits, sink)


def _comparison(name: str) -> Callable[[Any, JsonLines], dict[str, Any]]:
    """One side of the comparison of speeds, told by lines on standard input what to do."""

    def run(settings: Settings, sink: JsonLines) -> dict[str, Any]:
        from embedrock_lab.demo import system

        return system.serve(settings, name, sink, sys.stdin)

    return run


def _on_storage(
    settings: DemoSettings, name: str, budget: str, filtered: bool, sink: Sink
) -> dict[str, Any]:
    from embedrock_lab.demo import runs

    _use_threads(settings)
    dataset = settings.dataset()
    used = dataset.without_fillers() if filtered else dataset
    return runs.on_storage(settings, name, budget, used, sink)


def _use_threads(settings: Settings) -> None:
    import torch

    torch.set_num_threads(settings.threads)


_PIECES: dict[str, Callable[[Any, JsonLines], dict[str, Any]]] = {
    piece.__name__: piece
    for piece in (out_of_core, whole_budget, without_fillers, in_memory, memory)
}
_PIECES |= {f"comparison: {name}": _comparison(name) for name in (*SYSTEMS, WHOLE_AHEAD, EMBEDROCK)}


def main(name: str, settings_path: str) -> int:
    """Runs the piece; its result, or its error, is the last line on standard output."""
    settings = Settings.load(Path(settings_path))
    sink = JsonLines()
    try:
        result = _PIECES[name](settings, sink)
    except EmbedrockError as error:
        sink.send({"error": str(error)})
        return 1
    except KeyboardInterrupt:
        return 130
    sink.send({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
