"""The cells of ``loops`` as Markdown tables, put between two marks of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedrock.errors import MisuseError
from embedrock_lab.bench.training.cells import LOOKAHEAD, PIPELINE, PLAIN, TORCH, Cell, rate, share

__all__ = ["BEGIN", "END", "markdown", "write_between"]

BEGIN = "<!-- the table of embedrock bench loops begins -->"
END = "<!-- and ends -->"
OVER_STORES = {PLAIN: "plain", LOOKAHEAD: "look-ahead", PIPELINE: "pipeline"}


def markdown(cells: Sequence[Cell]) -> str:
    """A table for each number of busy loops, with a line for each load and memory.

    >>> ways = {way: {"turns": [rate]} for way, rate in
    ...         [("torch", 200), ("plain", 100), ("lookahead", 150), ("pipeline", 120)]}
    >>> cell = {"load": "dlrm", "memory": 10, "busy": 2, "ways": ways, "raised": False}
    >>> cell |= {"bound": {"by": "cores", "samples_per_s": 180}}
    >>> lines = markdown([cell]).splitlines()
    >>> print(lines[0], lines[-1], sep="\\n")
    Beside 2 loops of another process:
    | `dlrm` | 10 % | 200 | 0.50 | 0.75 | 0.60 | cores | 0.83 |
    """
    tables = []
    for busy in sorted({cell["busy"] for cell in cells}):
        heads = ["training", "memory", "PyTorch, samples/s", *OVER_STORES.values()]
        lines = [heads := [*heads, "bound", "best ÷ bound"], ["---"] * len(heads)]
        lines += [_line(cell) for cell in cells if cell["busy"] == busy]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        tables.append(f"{_beside(busy)}:\n\n{table}")
    return "\n\n".join(tables)


def _beside(busy: int) -> str:
    if busy == 0:
        return "With nothing beside"
    return f"Beside {busy} loop{'s' if busy > 1 else ''} of another process"


def _line(cell: Cell) -> list[str]:
    best = max(rate(cell, way) for way in OVER_STORES)
    shares = [f"{share(cell, way):.2f}" for way in OVER_STORES]
    named = [f"`{cell['load']}`", _memory(cell), _rounded(rate(cell, TORCH))]
    bound = cell["bound"]
    return [*named, *shares, bound["by"], f"{best / bound['samples_per_s']:.2f}"]


def write_between(page: Path, text: str) -> None:
    """Replaces what stands between the two marks of a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MisuseError(f"{page} has not the lines {BEGIN!r} and {END!r} for the table")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _memory(cell: Cell) -> str:
    if not cell["raised"]:
        return f"{cell['memory']:g} %"
    return f"{100 * cell['memory_bytes'] / cell['bytes']:.0f} % (least)"


def _rounded(value: float) -> str:
    """Three digits, which is more than holds."""
    return f"{float(f'{value:.3g}'):,.0f}"
