"""The cells of ``loops`` as one Markdown table, put between two marks of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedrock.bench.loops.figures import Cell, rate, share
from embedrock.bench.loops.names import LOOKAHEAD, PIPELINE, PLAIN, TORCH
from embedrock.errors import MisuseError

__all__ = ["BEGIN", "END", "markdown", "write_between"]

BEGIN = "<!-- the table of embedrock bench loops begins -->"
END = "<!-- and ends -->"
OVER_STORES = {PLAIN: "plain", LOOKAHEAD: "look-ahead", PIPELINE: "pipeline"}


def markdown(cells: Sequence[Cell]) -> str:
    """A line for each load and memory, columns for the ways beside so many busy loops.

    >>> ways = {way: {"turns": [turn]} for way, turn in
    ...         [("torch", 200), ("plain", 100), ("lookahead", 150), ("pipeline", 120)]}
    >>> cell = {"load": "dlrm", "memory": 10, "busy": 0, "ways": ways, "raised": False}
    >>> cell |= {"bound": {"by": "cores", "samples_per_s": 180}}
    >>> print(markdown([cell]).splitlines()[-1])
    | `dlrm` | 10 % | 200 | 0.50 | 0.75 | 0.60 | cores | 0.83 |
    """
    loops = sorted({cell["busy"] for cell in cells})
    heads = ["training", "memory", "PyTorch, samples/s"]
    for busy in loops:
        heads += [f"{name}{f', {busy} busy' if busy else ''}" for name in OVER_STORES.values()]
    lines = [heads := [*heads, "bound", "best ÷ bound"], ["---"] * len(heads)]
    places = dict.fromkeys((cell["load"], cell["memory"]) for cell in cells)
    for load, memory in places:
        alike = {
            cell["busy"]: cell for cell in cells if (cell["load"], cell["memory"]) == (load, memory)
        }
        first = alike[min(alike)]
        line = [f"`{load}`", _memory(first), _rounded(rate(first, TORCH))]
        for busy in loops:
            line += [f"{share(alike[busy], w):.2f}" if busy in alike else "" for w in OVER_STORES]
        best = max(rate(first, way) for way in OVER_STORES)
        bound = first["bound"]
        lines.append([*line, bound["by"], f"{best / bound['samples_per_s']:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_between(page: Path, text: str) -> None:
    """Replaces what stands between the two marks of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MisuseError(f"{page} has not the lines {BEGIN!r} and {END!r} for the table")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _memory(cell: Cell) -> str:
    if not cell["raised"]:
        return f"{cell['memory']:g} %"
    return f"{100 * cell['memory_bytes'] / cell['bytes']:.0f} % (least)"


def _rounded(value: float) -> str:
    """Three digits, which is more than holds."""
    return f"{float(f'{value:.3g}'):,.0f}"
