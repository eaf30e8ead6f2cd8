"""A report as one HTML file that needs nothing else: verdict, pictures, tables, caveats.

It is made from the report's JSON alone. The top of the page is `results.headline`: a sentence as
`verdict`, and `tiles` with `name`, `value` and `note`; without one, the first figures are shown.
Runs are recognized by their content: anything in `results` with a `history` is a run, and those
beside each other are compared in the same plots. `results.untimed` names places whose runs shared
the machine: their speeds are not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from embedrock.report import plots
from embedrock.report.points import time_split
from embedrock.report.style import SHEET
from embedrock.report.text import bytes_text, seconds_text, significant

Json = Mapping[str, Any]
Runs = Mapping[str, Json]

_NO_PLOTS = "There are no plots: matplotlib is not installed. pip install matplotlib"
_TILES_MAX = 4
_TILES = ("auc", "samples_per_s", "wait_share", "hit_rate", "log_loss", "step")
"""Figures that are shown large where nobody said which."""
_HIDDEN = ("headline", "untimed")


def render(whole: Json, title: str) -> str:
    """The document. `whole` is a report in the shape of `embedrock.report`."""
    results = whole["results"]
    groups = list(_groups(results, ""))
    untimed = results.get("untimed", ())
    body = ["<header>", f"<h1>{escape(title)}</h1>", *_first(whole), "</header>"]
    if not plots.available():
        body.append(f"<p>{escape(_NO_PLOTS)}</p>")
    else:
        for name, runs in groups:
            body += _pictures(name, runs, timed=name not in untimed)
    body.append("<h2>Figures and tables</h2>")
    body += _fold("All figures", _figures(whole["figures"]))
    for name, runs in groups:
        body += _fold(f"{_words(name).capitalize()}: runs", _tables(runs))
    for part in ("settings", "machine", "device"):
        body += _fold(part.capitalize(), _table(("name", "value"), _flat(whole[part])))
    if whole["notes"]:
        body += ["<h2>What to know of the figures</h2>", *_list(whole["notes"])]
    body.append(_footer(whole["machine"]))
    head = (
        f'<meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{SHEET}</style>"
    )
    return "\n".join(
        [
            f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body><main>',
            *body,
            "</main></body></html>\n",
        ]
    )


def _first(whole: Json) -> list[str]:
    """The sentence and the large figures."""
    said = whole["results"].get("headline") or {"tiles": _guessed(whole["figures"])}
    lines = []
    if said.get("verdict"):
        lines.append(f'<p class="verdict">{escape(said["verdict"])}</p>')
    lines.append('<dl class="tiles">')
    for tile in said["tiles"]:
        lines.append(
            f"<div><dt>{escape(tile['name'])}</dt>"
            f'<dd class="value">{escape(tile["value"])}</dd>'
            f'<dd class="note">{escape(tile.get("note", ""))}</dd></div>'
        )
    return [*lines, "</dl>"]


def _guessed(figures: Json) -> list[dict[str, str]]:
    """Tiles of the figures that most people look for, or of the first ones."""
    names = [name for name in _TILES if figures.get(name) is not None]
    names += [name for name, value in figures.items() if value is not None and name not in names]
    return [
        {"name": _words(_plain_name(name)), "value": _value(name, figures[name])}
        for name in names[:_TILES_MAX]
    ]


def _groups(results: Json, name: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """(name, runs by name) of every place in the results that has runs."""
    runs = {k: v for k, v in results.items() if isinstance(v, Mapping) and v.get("history")}
    if runs:
        yield name or "runs", runs
    for key, value in results.items():
        if isinstance(value, Mapping) and key not in runs and key not in _HIDDEN:
            yield from _groups(value, name if key == "contestants" and name else key)


def _pictures(name: str, runs: Runs, *, timed: bool) -> list[str]:
    """The common plots of runs, and a heading for all of them."""
    shown = {_words(run): one for run, one in runs.items()}
    histories = {run: one["history"] for run, one in shown.items()}
    stored = any("engine" in point for points in histories.values() for point in points)
    figures = []
    if timed:
        rates = {run: _rate(one) for run, one in shown.items()}
        known = {run: rate for run, rate in rates.items() if rate is not None}
        if len(known) > 1:
            turns = any(one.get("turns") for one in shown.values())
            drawn = plots.bars("Samples per second", known, "samples/s")
            figures.append(
                _plot("Samples per second", "median of the turns" if turns else "on average", drawn)
            )
        ends = _ends(histories, "seconds")
        figures.append(_plot("Samples per second over time", ends, plots.speed(histories)))
        figures.append(
            _plot(
                "Where a step's time goes",
                "milliseconds of a step, on average",
                plots.split("Where a step's time goes", _times(shown), "ms per step"),
            )
        )
    figures.append(_plot("Loss", _ends(histories, "steps"), plots.loss(histories)))
    memory = _memory(shown)
    if memory:
        figures.append(
            _plot(
                "Memory by part",
                "of the engine",
                plots.split("Memory by part", memory, "MiB"),
            )
        )
    watched = {run: one for run, one in shown.items() if _columns(one)}
    rated = [run for run, one in watched.items() if _any(_columns(one)["hit_rate"])]
    if stored and not rated:
        figures.append(_plot("Hit rate", "", plots.hit_rate(histories)))
    if stored and not watched:
        figures.append(_plot("Pages read", "", plots.pages(histories)))
    for run, one in watched.items():
        figures += _steps(run if len(watched) > 1 else "", _columns(one), timed)
    return [
        f"<h2>{escape(_words(name).capitalize())}</h2>",
        '<div class="plots">',
        *figures,
        "</div>",
    ]


def _ends(histories: Mapping[str, Sequence[Json]], name: str) -> str:
    """Why lines end apart, where they do: each with its run."""
    ends = {run: sum(point[name] for point in points) for run, points in histories.items()}
    if len(ends) < 2 or min(ends.values()) > 0.98 * max(ends.values()):
        return ""
    if name == "seconds":
        told = ", ".join(f"{run} trained for {seconds_text(end)}" for run, end in ends.items())
    else:
        told = ", ".join(f"{run} made {end:,.0f} steps" for run, end in ends.items())
    return f"a line ends with its run: {told}"


def _steps(run: str, columns: Json, timed: bool) -> list[str]:
    """Plots of the steps of a run."""
    figures = []
    if _any(columns["hit_rate"]):
        said = "optimum: the best cache that knows as much"
        figures.append(
            _plot("Hit rate beside the best possible", _of(run, said), plots.step_rates(columns))
        )
    if timed:
        figures.append(
            _plot("Where the time of a step goes", _of(run, ""), plots.step_times(columns))
        )
    figures.append(_plot("Pages read per step", _of(run, ""), plots.step_pages(columns)))
    if any(columns["window_batches"]):
        figures.append(_plot("Look-ahead window", _of(run, ""), plots.step_window(columns)))
        if _any(columns["pages_once_share"]):
            figures.append(_plot("Pages read once", _of(run, ""), plots.step_once(columns)))
    return figures


def _tables(runs: Runs) -> list[str]:
    """The same runs in figures."""
    shown = {_words(run): one for run, one in runs.items()}
    times = {run: _time(one) for run, one in shown.items()}
    names = list(dict.fromkeys(part for one in times.values() for part in one))
    rows = []
    for run, one in shown.items():
        seconds = (seconds_text(times[run].get(name)) for name in names)
        rows.append((run, *_row(one["history"]), *seconds))
    header = ["run", "steps", "samples", "time", "samples/s", "last loss", "pages read"]
    body = _table((*header, *map(_words, names)), rows)
    sizes = _sizes(shown)
    if sizes:
        body += _matrix("Memory of the engine", sizes, bytes_text)
    causes = _of_engine(shown, "time")
    if causes:
        caption = (
            "Time in the engine by cause, with evaluation, and the least that the device needs for "
            "the requests made"
        )
        body += _matrix(caption, causes, seconds_text)
    for run, one in shown.items():
        totals = (one.get("step_report") or {}).get("totals")
        if totals:
            body += _figures(totals, f"All steps of {run}")
    return body


def _matrix(caption: str, found: Runs, shown: Any) -> list[str]:
    """A row for each run, a column for each part."""
    parts = list(dict.fromkeys(part for one in found.values() for part in one))
    rows = [(run, *(shown(one.get(part)) for part in parts)) for run, one in found.items()]
    return _table(("run", *(_words(_plain_name(part)) for part in parts)), rows, caption)


def _columns(run: Json) -> Json:
    found: Json = (run.get("step_report") or {}).get("columns") or {}
    return found if found.get("step") else {}


def _rate(run: Json) -> float | None:
    """Samples per second: the median of turns, where there are turns."""
    if run.get("turns"):
        return float(median(turn["samples"] / turn["seconds"] for turn in run["turns"]))
    seconds = sum(point["seconds"] for point in run["history"])
    samples = sum(point["samples"] for point in run["history"])
    return float(samples / seconds) if seconds else None


def _of_engine(runs: Runs, name: str) -> dict[str, Json]:
    """A part of the engine's summary, of runs that have a store."""
    found = {run: (one.get("engine") or {}).get(name) for run, one in runs.items()}
    return {run: one for run, one in found.items() if one}


def _memory(runs: Runs) -> dict[str, dict[str, float]]:
    """MiB by part, of runs that have a store."""
    return {
        run: {_words(_plain_name(part)): size / 2**20 for part, size in sizes.items() if size}
        for run, sizes in _sizes(runs).items()
    }


def _sizes(runs: Runs) -> dict[str, Json]:
    """Bytes of memory by part: of the budget, or what an older report has of it."""
    found = _of_engine(runs, "memory") | _of_engine(runs, "budget")
    return {
        run: {part: size for part, size in sizes.items() if part.endswith("_bytes")}
        for run, sizes in found.items()
    }


def _times(runs: Runs) -> dict[str, dict[str, float]]:
    """Milliseconds of a step by what they went into."""
    found = {}
    for run, one in runs.items():
        steps = max(sum(point["steps"] for point in one["history"]), 1)
        found[run] = {_words(part): 1e3 * s / steps for part, s in _time(one).items()}
    return found


def _time(run: Json) -> dict[str, float]:
    """Seconds of a run by what they went into; a step report knows what the loop waited for."""
    found = (run.get("step_report") or {}).get("totals") or {}
    if not found.get("steps"):
        return time_split(run["history"])
    return {
        "waiting_for_reads": found["blocked_by_read_s"],
        "computing": found["computing_s"],
        "updating": found["updating_s"],
        "batches_and_commits": found["drawing_s"] + found["committing_s"],
    }


def _row(points: Sequence[Json]) -> tuple[str, ...]:
    steps, samples, seconds = (
        sum(point[name] for point in points) for name in ("steps", "samples", "seconds")
    )
    stored = [point["engine"]["pages_read"] for point in points if "engine" in point]
    speed = significant(samples / seconds) if seconds else "-"
    pages_read = f"{sum(stored):,}" if stored else "-"
    loss = significant(points[-1]["loss"], 5)
    return f"{steps:,}", f"{samples:,}", seconds_text(seconds), speed, loss, pages_read


def _figures(figures: Json, caption: str = "") -> list[str]:
    """In words and units, and what each is called in the JSON."""
    rows = [
        f'<tr><th scope="row">{escape(_words(_plain_name(name)))}</th>'
        f"<td>{escape(_value(name, value))}</td>"
        f'<td class="text"><code>{escape(name)}</code></td></tr>'
        for name, value in sorted(figures.items())
    ]
    return _framed(("figure", "value", "in the JSON"), rows, caption, words_last=True)


def _flat(values: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested values with the way to each; lists of records stay in the JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(isinstance(one, (Mapping, list)) for one in value):
            yield f"{prefix}{name}", f"{len(value)} entries, in the JSON"
        else:
            yield f"{prefix}{name}", _value(name, value)


def _value(name: str, value: Any) -> str:
    """A value for people, in the unit that its name ends with."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_value("", one) for one in value) or "-"
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if "_bytes" in name or name == "bytes":
        return bytes_text(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return seconds_text(value)
    if "_ms_" in name or name.endswith("_ms"):
        return f"{significant(value)} ms"
    if name.endswith(("_share", "hit_rate")):
        return f"{100 * value:.3g} %"
    if isinstance(value, int):
        return f"{value:,}"
    return significant(value, 5 if 1e-3 <= abs(value) < 1 else 3 if abs(value) < 1 else 4)


def _plain_name(name: str) -> str:
    """Without the unit, which the value has."""
    for unit in ("_bytes", "_s"):
        if name.endswith(unit) and not name.endswith("_per_s"):
            return name.removesuffix(unit)
    return name


def _words(name: str) -> str:
    return name.replace("_per_s", "/s").replace("_", " ")


def _any(values: Iterable[Any]) -> bool:
    return any(value is not None for value in values)


def _of(run: str, said: str) -> str:
    return "; ".join(part for part in (run, said) if part)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> list[str]:
    """Names of columns are header cells of columns, first cells those of their rows."""
    lines = []
    for first, *rest in rows:
        kind = ' class="text"' if len(header) == 2 else ""
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return _framed(header, lines, caption, words_last=len(header) == 2)


def _framed(
    header: Sequence[str], rows: Sequence[str], caption: str, *, words_last: bool
) -> list[str]:
    *others, last = (f'<th scope="col">{escape(cell)}</th>' for cell in header)
    if words_last:
        last = last.replace("<th ", '<th class="text" ', 1)
    cells = "".join([*others, last])
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"<thead><tr>{cells}</tr></thead>"
    return [
        '<div class="wide" tabindex="0">',
        f"<table>{said}{head}<tbody>",
        *rows,
        "</tbody></table></div>",
    ]


def _fold(title: str, content: Sequence[str]) -> list[str]:
    return [f"<details><summary>{escape(title)}</summary>", *content, "</details>"]


def _list(notes: Sequence[str]) -> list[str]:
    return ["<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]


def _plot(caption: str, said: str, svg: str) -> str:
    more = f"<span>{escape(said)}</span>" if said else ""
    return f"<figure><figcaption>{escape(caption)}{more}</figcaption>{svg}</figure>"


def _footer(machine: Json) -> str:
    facts = [
        f"Embedrock {(machine.get('versions') or {}).get('embedrock') or ''}".strip(),
        f"{machine['processor']}, {machine['cores']} cores",
        f"{bytes_text(machine['memory_bytes'])} of memory",
    ]
    return f"<footer>{escape(' · '.join(facts))}</footer>"
