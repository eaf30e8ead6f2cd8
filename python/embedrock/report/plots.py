"""Plots of a report as SVG texts, drawn by matplotlib, which is optional.

Knows what a run's history looks like (`report.points`) and nothing of HTML but this: colours are
variables of the page's style sheet, so that a plot follows the page from light to dark, and each
plot has a title and a description for those who do not see it. A run has one colour on the whole
page, by its name, and so has a part of a step's time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from embedrock.report import points
from embedrock.report.text import significant

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""For each run, the points of its history."""
Split = Mapping[str, Mapping[str, float]]
"""For each run, parts of a whole by name."""

Columns = Mapping[str, Sequence[Any]]
"""Of a step report, the values of each name by row."""

_WIDTH, _HEIGHT = 5.6, 3.2
#: Colours that matplotlib writes and the page replaces: nobody would choose them.
_INK, _MUTED, _GRID = "#010101", "#020202", "#030303"
_VARIABLES = {_INK: "--ink", _MUTED: "--muted", _GRID: "--grid"}
_RUNS = [f"#0a0a0{place}" for place in range(6)]
_PARTS = [f"#0b0b0{place}" for place in range(8)]
_VARIABLES |= {color: f"--run{place}" for place, color in enumerate(_RUNS)}
_VARIABLES |= {color: f"--part{place}" for place, color in enumerate(_PARTS)}
RUN_COLORS, PART_COLORS = len(_RUNS), len(_PARTS)
#: Places among the colours. Names that mean the same on different pages have the same one, and so
#: has each part in all charts of a page.
_RUN_PLACES = {
    "Embedrock": 0, "out of core": 0, "training": 0, "cache": 0, "pages": 0,
    "plain torch": 1, "in memory": 1, "optimum": 3,
    "whole budget": 2,
    "look ahead": 3, "pages ahead": 3,
    "without fillers": 4,
}  # fmt: skip
_PART_PLACES = {
    "waiting for reads": 0, "blocked by read": 0,
    "computing": 1,
    "updating": 2,
    "batches and commits": 3, "drawing": 3,
    "committing": 4,
    "rows": 1, "lines": 3, "rest": 6,
    "cache": 1, "index": 2, "window": 0, "buffer": 4, "staging": 5,
}  # fmt: skip
_RC = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.left": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


def available() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def loss(runs: Runs) -> str:
    """Loss over steps."""
    return _lines("Loss", runs, _steps, lambda point: point["loss"], "step", "loss")


def speed(runs: Runs) -> str:
    """Samples per second over seconds of training."""
    return _lines(
        "Samples per second over time", runs, _seconds, _samples_per_s,
        "seconds of training", "samples/s", zero=True,
    )  # fmt: skip


def hit_rate(runs: Runs) -> str:
    """Hit rate over steps, of runs that have a store."""
    return _lines("Hit rate", _stored(runs), _steps, points.hit_rate, "step", "hit rate")


def pages(runs: Runs) -> str:
    """Pages read per step over steps, of runs that have a store."""
    return _lines(
        "Pages read", _stored(runs), _steps, _pages_per_step,
        "step", "pages read per step", zero=True,
    )  # fmt: skip


def step_times(columns: Columns) -> str:
    """Milliseconds of a step by cause, over steps, one on the other."""
    causes = [name for name in columns if name.endswith("_s") and name != "seconds"]
    labels = [name.removesuffix("_s").replace("_", " ") for name in causes]
    heights = [_per_step(columns, name, 1e3) for name in causes]
    means = {label: fmean(height) for label, height in zip(labels, heights, strict=True)}
    with _Drawing("Where the time of a step goes", _listed(means, "ms")) as drawing:
        colors = _colors(labels, _PARTS, _PART_PLACES)
        drawing.axes.stackplot(columns["step"], heights, labels=labels, colors=colors)
        drawing.label("step", "ms per step")
        drawing.legend(dict(zip(labels, colors, strict=True)))
    return drawing.svg


def step_window(columns: Columns) -> str:
    """Batches in the look-ahead window over steps."""
    lines = {"window": columns["window_batches"]}
    return _step_lines("Announced batches", columns, lines, "announced batches", zero=True)


def step_pages(columns: Columns) -> str:
    """Pages read per step over steps, and those of them that were read ahead."""
    lines = {name: _per_step(columns, name) for name in ("pages", "pages_ahead")}
    return _step_lines("Pages read", columns, lines, "pages read per step", zero=True)


def step_once(columns: Columns) -> str:
    """Share of the pages read ahead that their group of batches read once."""
    lines = {"read once in a group": columns["pages_once_share"]}
    return _step_lines("Pages read once", columns, lines, "share of pages")


def step_rates(columns: Columns) -> str:
    """Hit rate over steps, and that of the best cache that knows what the window knew."""
    lines = {"cache": columns["hit_rate"], "optimum": columns["optimal_hit_rate"]}
    return _step_lines("Hit rate beside the best possible", columns, lines, "hit rate")


def bars(title: str, values: Mapping[str, float], label: str) -> str:
    """One bar for each run, all from zero."""
    with _Drawing(title, _listed(values, label), 0.9 + 0.42 * len(values)) as drawing:
        axes, colors = drawing.axes, _colors(list(values), _RUNS, _RUN_PLACES)
        drawn = axes.barh(list(values), list(values.values()), color=colors, height=0.62)
        axes.bar_label(drawn, [significant(v, 4) for v in values.values()], padding=4, color=_INK)
        drawing.flat(max(values.values()) * 1.18, label)
    return drawing.svg


def split(title: str, parts: Split, label: str) -> str:
    """One bar for each run, its parts one after another."""
    said = "; ".join(f"{run}: {_listed(one, label)}" for run, one in parts.items())
    with _Drawing(title, said, 0.9 + 0.42 * len(parts)) as drawing:
        left = dict.fromkeys(parts, 0.0)
        names = list(dict.fromkeys(name for one in parts.values() for name in one))
        colors = dict(zip(names, _colors(names, _PARTS, _PART_PLACES), strict=True))
        for name, color in colors.items():
            widths = [one.get(name) or 0.0 for one in parts.values()]
            bar = drawing.axes.barh
            bar(list(parts), widths, left=list(left.values()), label=name, color=color, height=0.62)
            left = {run: left[run] + width for run, width in zip(parts, widths, strict=True)}
        whole = max(left.values(), default=0.0)
        for place, total in enumerate(left.values()):
            drawing.axes.text(total + 0.01 * whole, place, significant(total), va="center")
        drawing.flat(whole * 1.15 or 1.0, label)
        drawing.legend(colors)
    return drawing.svg


class _Drawing:
    """A figure while it is drawn; its `svg` once the block is left."""

    def __init__(self, title: str, said: str, height: float = _HEIGHT) -> None:
        self._title, self._said, self._height = title, said, height
        self._legend = ""
        self.svg = ""

    def __enter__(self) -> _Drawing:
        import matplotlib
        from matplotlib.figure import Figure

        self._context = matplotlib.rc_context(
            {**_RC, "svg.hashsalt": f"{self._title} {self._said}"}  # ids differ between plots
        )
        self._context.__enter__()
        self._figure = Figure(figsize=(_WIDTH, self._height), layout="constrained")
        self._figure.patch.set_alpha(0)
        self.axes: Any = self._figure.subplots()
        self.axes.patch.set_alpha(0)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                self.svg = self._written()
        finally:
            self._context.__exit__(*error)

    def label(self, across: str, up: str) -> None:
        """Names the axes: the one upwards above its end, where it reads without turning."""
        self.axes.set_xlabel(across)
        self._plain(self.axes.xaxis, self.axes.yaxis)
        self.axes.set_title(up, loc="left", fontsize=9, color=_MUTED)

    def flat(self, right: float, label: str) -> None:
        """Bars lie: the first one on top, values across."""
        self.axes.invert_yaxis()
        self.axes.set_xlim(0, right)
        self.axes.set_xlabel(label)
        self._plain(self.axes.xaxis)
        self.axes.grid(visible=False)
        self.axes.tick_params(axis="y", labelcolor=_INK)
        self.axes.locator_params(axis="x", nbins=6)

    @staticmethod
    def _plain(*axes: Any) -> None:
        """Numbers as they are everywhere on the page."""
        for axis in axes:
            axis.set_major_formatter(lambda value, _: significant(value, 4))

    def legend(self, colors: Mapping[str, str], styles: Sequence[str] = ("area",)) -> None:
        """The names of colours, above: text of the page, as large as all of it at any width."""
        named = enumerate(colors.items())
        entries = (
            f'<li class="{styles[place % len(styles)]}" '
            f'style="--key: var({_VARIABLES[color]})">{escape(name)}</li>'
            for place, (name, color) in named
        )
        self._legend = f'<ul class="key">{"".join(entries)}</ul>'

    def _written(self) -> str:
        """The `<svg>` element alone, in the page's colours and fonts, with words for it."""
        text = io.StringIO()
        self._figure.savefig(text, format="svg", metadata={"Date": None})
        whole = text.getvalue()
        whole = whole[whole.index("<svg") :]
        for color, variable in _VARIABLES.items():
            whole = whole.replace(color, f"var({variable})")
        whole = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", whole)
        whole = re.sub(r"<metadata>.*?</metadata>", "", whole, flags=re.DOTALL)
        whole = re.sub(r'<g id="[^"]*">', "<g>", whole)  # several plots share a page
        box = re.search(r'viewBox="[^"]*"', whole)
        opened = f'<svg role="img" xmlns:xlink="http://www.w3.org/1999/xlink" {box and box[0]}>'
        words = f"<title>{escape(self._title)}</title><desc>{escape(self._said)}</desc>"
        return self._legend + opened + words + whole[whole.index(">") + 1 :]


def _colors(names: Sequence[str], colors: Sequence[str], places: Mapping[str, int]) -> list[str]:
    """The colour of each name: its own, or one that no other of them has, while there are any."""
    taken = {places[name] for name in names if name in places}
    free = [place for place in range(len(colors)) if place not in taken] or list(range(len(colors)))
    found, given = [], 0
    for name in names:
        if name in places:
            found.append(colors[places[name]])
        else:
            found.append(colors[free[given % len(free)]])
            given += 1
    return found


def _listed(values: Mapping[str, float | None], unit: str) -> str:
    """In words, for who does not see the plot."""
    return ", ".join(
        f"{name} {significant(value)} {unit}" for name, value in values.items() if value is not None
    )


def _lines(
    title: str,
    runs: Runs,
    across: Callable[[Sequence[Mapping[str, Any]]], list[float]],
    up: Callable[[Any], float | None],
    x_label: str,
    y_label: str,
    zero: bool = False,
) -> str:
    known: dict[str, list[tuple[float, float]]] = {}
    for name, run in runs.items():
        found = [(x, up(point)) for x, point in zip(across(run), run, strict=True)]
        known[name] = [(x, y) for x, y in found if y is not None]
    said = "; ".join(
        f"{name} from {significant(line[0][1])} to {significant(line[-1][1])}, on average "
        f"{significant(fmean(y for _, y in line))}"
        for name, line in known.items()
        if line
    )
    with _Drawing(title, f"{y_label} over {x_label}. {said}") as drawing:
        colors = _colors(list(known), _RUNS, _RUN_PLACES)
        styles = ("-", (0, (4, 2)), (0, (1, 1.5)))
        for place, ((name, line), color) in enumerate(zip(known.items(), colors, strict=True)):
            xs, ys = [x for x, _ in line], [y for _, y in line]
            style = styles[place % len(styles)]  # lines that lie on each other stay apart
            drawing.axes.plot(xs, ys, label=name, color=color, linestyle=style)
        drawing.label(x_label, y_label)
        if zero:
            drawing.axes.set_ylim(bottom=0)
        if len(known) > 1:
            drawing.legend(dict(zip(known, colors, strict=True)), ("line", "dashes", "dots"))
    return drawing.svg


def _per_step(columns: Columns, name: str, factor: float = 1.0) -> list[float]:
    steps = columns["steps"]
    return [factor * value / count for value, count in zip(columns[name], steps, strict=True)]


def _step_lines(
    title: str,
    columns: Columns,
    lines: Mapping[str, Sequence[Any]],
    y_label: str,
    zero: bool = False,
) -> str:
    rows = zip(*columns.values(), strict=True)
    points = [dict(zip(columns, row, strict=True)) for row in rows]
    drawn = {
        name.replace("_", " "): [{**point, "y": y} for point, y in zip(points, ys, strict=True)]
        for name, ys in lines.items()
    }
    return _lines(title, drawn, _step_numbers, lambda point: point["y"], "step", y_label, zero)


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
