"""Plots of a report as SVG texts, drawn by matplotlib, which is optional.

Knows what a run's history looks like (`embedrock.training.history`) and nothing of HTML.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embedrock.report import points

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each run, the points of its history."""
Split = Mapping[str, Mapping[str, float]]
"""For each run, parts of a whole by name."""

Columns = Mapping[str, Sequence[Any]]
"""Of a step report, the values of each name by row."""

_WIDTH, _HEIGHT = 5.6, 3.2
_COLORS = "tab10"


def available() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def loss(runs: Runs) -> str:
    """Loss over steps."""
    return _lines(runs, _steps, lambda point: point["loss"], "step", "loss")


def speed(runs: Runs) -> str:
    """Samples per second over seconds of training."""
    return _lines(runs, _seconds, _samples_per_s, "seconds of training", "samples/s", zero=True)


def hit_rate(runs: Runs) -> str:
    """Hit rate over steps, of runs that have a store."""
    return _lines(_stored(runs), _steps, points.hit_rate, "step", "hit rate")


def pages(runs: Runs) -> str:
    """Pages read per step over steps, of runs that have a store."""
    return _lines(_stored(runs), _steps, _pages_per_step, "step", "pages read per step", zero=True)


def step_times(columns: Columns) -> str:
    """Milliseconds of a step by cause, over steps, one on the other."""
    causes = [name for name in columns if name.endswith("_s") and name != "seconds"]
    labels = [name.removesuffix("_s").replace("_", " ") for name in causes]
    figure, axes = _figure(_HEIGHT)
    heights = [_per_step(columns, name, 1e3) for name in causes]
    axes.stackplot(columns["step"], heights, labels=labels)
    axes.set_xlabel("step")
    axes.set_ylabel("ms per step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize="small")
    return _svg(figure)


def step_window(columns: Columns) -> str:
    """Batches in the look-ahead window over steps."""
    lines = {"window": columns["window_batches"]}
    return _step_lines(columns, lines, "announced batches", zero=True)


def step_pages(columns: Columns) -> str:
    """Pages read per step over steps, and those of them that were read ahead."""
    lines = {name: _per_step(columns, name) for name in ("pages", "pages_ahead")}
    return _step_lines(columns, lines, "pages read per step", zero=True)


def step_once(columns: Columns) -> str:
    """Share of the pages read ahead that their group of batches read once."""
    lines = {"read once in a group": columns["pages_once_share"]}
    return _step_lines(columns, lines, "share of pages")


def step_rates(columns: Columns) -> str:
    """Hit rate over steps, and that of the best cache that knows what the window knew."""
    lines = {"cache": columns["hit_rate"], "optimum": columns["optimal_hit_rate"]}
    return _step_lines(columns, lines, "hit rate")


def bars(values: Mapping[str, float], label: str) -> str:
    """One bar for each value."""
    figure, axes = _figure(1 + 0.4 * len(values))
    drawn = axes.barh(list(values), list(values.values()))
    axes.bar_label(drawn, [f"{value:.4f}" for value in values.values()], padding=3)
    low = min(values.values())
    axes.set_xlim(left=max(0.0, low - 0.1), right=max(values.values()) * 1.1)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return _svg(figure)


def split(parts: Split, label: str) -> str:
    """One bar for each run, its parts one after another."""
    figure, axes = _figure(1.4 + 0.4 * len(parts))
    left = dict.fromkeys(parts, 0.0)
    for name in dict.fromkeys(name for one in parts.values() for name in one):
        widths = [one.get(name, 0.0) for one in parts.values()]
        axes.barh(list(parts), widths, left=list(left.values()), label=name)
        left = {run: left[run] + width for run, width in zip(parts, widths, strict=True)}
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3, fontsize="small")
    return _svg(figure)


def _lines(
    runs: Runs,
    across: Callable[[Sequence[Mapping[str, Any]]], list[float]],
    up: Callable[[Any], float | None],
    x_label: str,
    y_label: str,
    zero: bool = False,
) -> str:
    figure, axes = _figure(_HEIGHT)
    for name, run in runs.items():
        found = [(x, up(point)) for x, point in zip(across(run), run, strict=True)]
        known = [(x, y) for x, y in found if y is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], label=name, linewidth=1.2)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if zero:
        axes.set_ylim(bottom=0)
    if runs:
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    return _svg(figure)


def _per_step(columns: Columns, name: str, factor: float = 1.0) -> list[float]:
    steps = columns["steps"]
    return [factor * value / count for value, count in zip(columns[name], steps, strict=True)]


def _step_lines(
    columns: Columns, lines: Mapping[str, Sequence[Any]], y_label: str, zero: bool = False
) -> str:
    rows = zip(*columns.values(), strict=True)
    points = [dict(zip(columns, row, strict=True)) for row in rows]
    drawn = {
        name.replace("_", " "): [{**point, "y": y} for point, y in zip(points, ys, strict=True)]
        for name, ys in lines.items()
    }
    return _lines(drawn, _step_numbers, lambda point: point["y"], "step", y_label, zero)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Any) -> str:
    """The `<svg>` element alone, without the XML around it that HTML has no use for."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _stored(runs: Runs) -> Runs:
    return {name: run for name, run in runs.items() if any("engine" in point for point in run)}


def _steps(run: Sequence[Mapping[str, Any]]) -> list[float]:
    return _summed(run, "steps")


def _step_numbers(run: Sequence[Mapping[str, Any]]) -> list[float]:
    return [point["step"] for point in run]


def _seconds(run: Sequence[Mapping[str, Any]]) -> list[float]:
    return _summed(run, "seconds")


def _summed(run: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    sums, total = [], 0.0
    for point in run:
        total += point[name]
        sums.append(total)
    return sums


def _samples_per_s(point: Mapping[str, Any]) -> float | None:
    return point["samples"] / point["seconds"] if point["seconds"] > 0 else None


def _pages_per_step(point: Mapping[str, Any]) -> float | None:
    return point["engine"]["pages_read"] / point["steps"] if "engine" in point else None
