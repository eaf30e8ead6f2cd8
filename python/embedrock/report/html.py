"""A report as one HTML file that needs nothing else: tables, and plots where matplotlib is there.

It is made from the report's JSON alone. Runs are found by what they have: anything in `results`
with a `history` is a run, and those beside each other are compared in the same plots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from embedrock.report import plots
from embedrock.report.points import time_split

Json = Mapping[str, Any]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { padding: 0.15rem 0.8rem 0.15rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
figure { display: inline-block; margin: 0.5rem 1rem 0.5rem 0; vertical-align: top; }
figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; }
"""
_NO_PLOTS = "There are no plots: matplotlib is not installed. pip install matplotlib"


def render(whole: Json, title: str) -> str:
    """The document. `whole` is a report in the shape of `embedrock.report`."""
    groups = list(_groups(whole["results"], ""))
    body = [f"<h1>{escape(title)}</h1>"]
    body += _list(whole["notes"])
    if not plots.available():
        body.append(f"<p>{escape(_NO_PLOTS)}</p>")
    body += _table("Figures", ("figure", "value"), sorted(whole["figures"].items()))
    aucs = _aucs(whole["figures"])
    if aucs and plots.available():
        body.append(_plot("AUC", plots.bars(aucs, "AUC")))
    for name, runs in groups:
        body += _group(name, runs)
    for part in ("settings", "machine", "device"):
        body += _table(part.capitalize(), ("name", "value"), _flat(whole[part]))
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    )
    return "\n".join(
        [f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>', *body, "</body></html>\n"]
    )


def _groups(results: Json, name: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """(name, runs by name) of every place in the results that has runs."""
    runs = {k: v for k, v in results.items() if isinstance(v, Mapping) and v.get("history")}
    if runs:
        yield name or "runs", runs
    for key, value in results.items():
        if isinstance(value, Mapping) and key not in runs:
            yield from _groups(value, key)


def _group(name: str, runs: Mapping[str, Json]) -> list[str]:
    shown = {run.replace("_", " "): one for run, one in runs.items()}
    histories = {run: one["history"] for run, one in shown.items()}
    times = {
        run: {part.replace("_", " "): s for part, s in _time(shown[run], points).items()}
        for run, points in histories.items()
    }
    memory = {
        run: {part.removesuffix("_bytes"): size / 2**20 for part, size in sizes.items()}
        for run, one in shown.items()
        if (sizes := (one.get("engine") or {}).get("memory"))
    }
    causes = {
        run: {cause.replace("_", " "): seconds for cause, seconds in spent.items()}
        for run, one in shown.items()
        if (spent := (one.get("engine") or {}).get("time"))
    }
    body = [f"<h2>{escape(name.capitalize())}</h2>"]
    rows = [(run, *_row(histories[run], times[run])) for run in shown]
    header = ["run", "steps", "samples", "seconds", "samples/s", "last loss", "pages read"]
    header += dict.fromkeys(part for one in times.values() for part in one)
    body += _table("", header, rows)
    parts = list(dict.fromkeys(part for one in memory.values() for part in one))
    if memory:
        body += _table(
            "Memory in MiB",
            ("run", *parts),
            [(run, *(one.get(part) for part in parts)) for run, one in memory.items()],
        )
    if causes:
        names = list(dict.fromkeys(cause for one in causes.values() for cause in one))
        body += _table(
            "Seconds in the engine by cause, with evaluation, and the least that the device needs "
            "for the requests made",
            ("run", *names),
            [(run, *(one.get(cause) for cause in names)) for run, one in causes.items()],
        )
    if plots.available():
        body.append(_plot("Loss", plots.loss(histories)))
        body.append(_plot("Samples per second", plots.speed(histories)))
        if any("engine" in point for points in histories.values() for point in points):
            body.append(_plot("Hit rate", plots.hit_rate(histories)))
            body.append(_plot("Pages read", plots.pages(histories)))
        body.append(_plot("Where the time went", plots.split(times, "seconds")))
        if memory:
            body.append(_plot("How the budget is spent", plots.split(memory, "MiB")))
    for run, one in shown.items():
        if (one.get("step_report") or {}).get("columns"):
            body += _steps(run, one["step_report"])
    return body


def _time(run: Json, points: Sequence[Json]) -> dict[str, float]:
    """Seconds of a run by what they went into; a step report knows what the loop waited for."""
    found = (run.get("step_report") or {}).get("totals") or {}
    if not found.get("steps"):
        return time_split(points)
    return {
        "waiting_for_reads": found["blocked_by_read_s"],
        "computing": found["computing_s"],
        "updating": found["updating_s"],
        "batches_and_commits": found["drawing_s"] + found["committing_s"],
    }


def _steps(run: str, found: Json) -> list[str]:
    """The steps of a run: their sums, and how they went."""
    columns, totals = found["columns"], found["totals"]
    body = _table(f"Steps: {run}", ("of all steps", "value"), totals.items())
    if not plots.available():
        return body
    body.append(_plot("Where the time of a step went", plots.step_times(columns)))
    body.append(_plot("Pages read per step", plots.step_pages(columns)))
    if any(value for value in columns["window_batches"]):
        body.append(_plot("Look-ahead window", plots.step_window(columns)))
        body.append(_plot("Pages read once", plots.step_once(columns)))
    if any(value is not None for value in columns["hit_rate"]):
        body.append(_plot("Hit rate and that of the best cache", plots.step_rates(columns)))
    return body


def _row(points: Sequence[Json], time: Mapping[str, float]) -> tuple[Any, ...]:
    steps, samples, seconds = (
        sum(point[name] for point in points) for name in ("steps", "samples", "seconds")
    )
    stored = [point["engine"]["pages_read"] for point in points if "engine" in point]
    speed = samples / seconds if seconds else None
    pages_read = sum(stored) if stored else None
    return steps, samples, seconds, speed, points[-1]["loss"], pages_read, *time.values()


def _aucs(figures: Json) -> dict[str, float]:
    return {
        name.removeprefix("auc_").replace("_", " "): value
        for name, value in figures.items()
        if name.startswith("auc") and name != "auc_difference" and value is not None
    }


def _flat(values: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested values with the way to each."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _table(caption: str, header: Sequence[str], rows: Any) -> list[str]:
    lines = [f"<h2>{escape(caption)}</h2>"] if caption else []
    lines.append("<table><thead><tr>")
    lines += [f"<th>{escape(cell)}</th>" for cell in header]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>")
    return [*lines, "</tbody></table>"]


def _list(notes: Sequence[str]) -> list[str]:
    return ["<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"] if notes else []


def _plot(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def _text(value: Any) -> str:
    """A value for people: as many digits as matter."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
