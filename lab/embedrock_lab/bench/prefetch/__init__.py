"""``prefetch``: reading within the bound of staleness, and looking ahead beyond it.

A loop with permits of a bound b reads up to b batches into arrays of its own while it computes
(``table.lookahead(keys, out=array)``). Three ways: into arrays alone; with the same batches
announced, so that the store keeps their rows until they are updated (``held``); with ``--depth``
batches announced, so that it reads beyond the bound too. Counted are samples per second, the share
of the time in which the loop waits for rows, pages, and the largest staleness of the rows it got.

``prefetch_speedup_<load>`` is the best rate with arrays alone ÷ that of reading each batch when it
is used; ``held_speedup_<load>`` the same with rows held; ``lookahead_speedup_<load>`` with
``--depth`` batches announced, at bound 0, ``both_speedup_<load>`` at the best bound.
``lookahead_gain_<bound>_<load>`` is the rate with them ÷ with rows held, at one bound: MLKV finds
it large at low bounds and small at high ones.

Loads: samples in the shape of Criteo's log, such a log itself, and triples of a knowledge graph
with negatives. The accelerator is simulated: computing takes ``--compute-ms`` of nobody's time.

*Source*: MLKV's Fig. 9.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock.errors import MisuseError
from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.plots import pyplot_or_note, save
from embedrock_lab.bench.prefetch.loads import Load, criteo_log, criteo_shaped, triples
from embedrock_lab.measure.noise import WAIT_SHARE_MAX

__all__ = ["Options", "run"]

BOUNDS = [0, 1, 4, 16]
DEPTH = 256
LOADS = ("criteo_shaped", "criteo", "triples")
HELD = "held"
ALL_BOUNDS = [0, 1, 2, 4, 16, 64]
ALL_DEPTHS = [4, 16, 64]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    loads: list[str] = option(list(LOADS), "what is read", choices=list(LOADS))
    rows: int = option(1_000_000, "of the Criteo-shaped load")
    samples: int = option(1024, "of a batch")
    batches: int = option(240, "of each run, at most")
    memory: float = option(10.0, "per cent of the rows' bytes")
    compute_ms: float = option(20.0, "of each batch")
    bounds: list[int] | None = option(None, "of staleness")
    depth: int = option(DEPTH, "batches announced")
    rounds: int = option(1, "of all settings; medians count")
    criteo: Path | None = option(None, "a log, in time order", metavar="FILE")
    triples: Path | None = option(None, "head, relation, tail", metavar="FILE")
    png: Path | None = option(None, "also plot the rates", metavar="FILE")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("prefetch", options)
    everything = options.all
    bounds = options.bounds or (ALL_BOUNDS if everything else BOUNDS)
    if min(bounds) != 0:
        raise MisuseError(f"--bounds are {bounds}, expected 0 among them, to compare with")
    depths = ALL_DEPTHS if everything else []
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for load in _loads(report, options):
        with workspace(options, 4 * load.rows * (4 * load.dim + 16)) as place:
            found[load.name] = _measure(report, options, place, load, bounds, depths)
        _figures(report, load.name, found[load.name], bounds, options.depth)
    report.results.update(found)
    if options.png is not None:
        _save_plot(options.png, found, bounds, [*depths, options.depth], report.notes)
    return report.finish()


def _loads(report: Report, options: Options) -> Iterator[Load]:
    for name in options.loads:
        if name == "criteo_shaped":
            yield criteo_shaped(options.rows, options.samples, options.batches, options.seed)
        elif name == "criteo" and options.criteo is not None:
            yield criteo_log(options.criteo, options.samples)
        elif name == "triples" and options.triples is not None:
            yield triples(options.triples, options.samples, options.seed)
        else:
            report.missing(f"both_speedup_{name}", f"no data: pass --{name}")


def _measure(
    report: Report,
    options: Options,
    place: Path,
    load: Load,
    bounds: list[int],
    depths: list[int],
) -> dict[str, dict[str, Any]]:
    memory_bytes = int(load.rows * 4 * load.dim * options.memory / 100)
    store = str(place / "store")
    trace = load.trace.first(min(options.batches, load.trace.batches))
    files = trace.save(place)
    report.say(f"{load.name}: writing {load.rows:,} rows of {4 * load.dim} bytes")
    child.call("embedrock_lab.bench.prefetch.loop:fill", store=store, rows=load.rows, dim=load.dim)
    settings: list[tuple[int, int, str]] = []
    for bound in bounds:
        held = (bound, bound + 1, _label(bound, HELD))
        settings += [(bound, 0, _label(bound)), held]
        settings.append((bound, options.depth, _label(bound, options.depth)))
    settings += [(0, depth, _label(0, depth)) for depth in depths if depth != options.depth]
    ran: dict[str, list[dict[str, Any]]] = {label: [] for _, _, label in settings}
    for _ in range(options.rounds):
        for bound, depth, label in settings:
            one = child.call(
                "embedrock_lab.bench.prefetch.loop:measure",
                store=store,
                **files,
                memory_bytes=memory_bytes,
                bound=bound,
                depth=depth,
                compute_s=options.compute_ms / 1e3,
            )
            report.device = one.pop("device")
            report.results["mismatches"] += one.pop("mismatches")
            ran[label].append({"samples_per_s": one.pop("steps_per_s") * load.samples, **one})
            report.say(
                f"{load.name}: {label}: {ran[label][-1]['samples_per_s']:,.0f} samples/s, waits "
                f"{one['wait_share']:.0%} of the time"
            )
    found = {label: _median(runs) for label, runs in ran.items()}
    for label, one in found.items():
        if (one["core_wait_share"] or 0) > WAIT_SHARE_MAX:
            report.notes.append(
                f"{load.name}: {label}: the loop waited for a core {one['core_wait_share']:.0%} of "
                f"the time"
            )
    return found


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    middle = statistics.median_low(one["samples_per_s"] for one in runs)
    return next(one for one in runs if one["samples_per_s"] == middle)


def _label(bound: int, ahead: int | str = 0) -> str:
    """Name of a setting."""
    beside = f", {HELD}" if ahead == HELD else f", depth {ahead}" if ahead else ""
    return f"bound {bound}{beside}"


def _figures(
    report: Report, name: str, found: dict[str, dict[str, Any]], bounds: list[int], depth: int
) -> None:
    def rate(bound: int, ahead: int | str) -> float:
        return float(found[_label(bound, ahead)]["samples_per_s"])

    alone, relaxed = rate(0, 0), [bound for bound in bounds if bound]
    report.figure(f"lookahead_speedup_{name}", rate(0, depth) / alone)
    if relaxed:
        for figure, ahead in (("prefetch", 0), (HELD, HELD), ("both", depth)):
            best = max(rate(bound, ahead) for bound in relaxed)
            report.figure(f"{figure}_speedup_{name}", best / alone)
    for bound in bounds:
        report.figure(f"lookahead_gain_{bound}_{name}", rate(bound, depth) / rate(bound, HELD))


def _save_plot(
    file: Path,
    found: dict[str, dict[str, dict[str, Any]]],
    bounds: list[int],
    depths: list[int],
    notes: list[str],
) -> None:
    """Writes a PNG: rates over the bound with and without look-ahead, as MLKV's Fig. 9; and over
    the batches announced at bound 0."""
    pyplot = pyplot_or_note(notes)
    if pyplot is None:
        return
    depth, depths = depths[-1], sorted(set(depths))
    columns = 2 if len(depths) > 1 else 1
    figure, panels = pyplot.subplots(
        len(found),
        columns,
        figsize=(4.8 * columns, 3.4 * len(found)),
        layout="constrained",
        squeeze=False,
    )
    for (name, one), row in zip(found.items(), panels, strict=True):
        lines: list[tuple[int | str, str]] = [(0, "into arrays alone"), (HELD, "their rows held")]
        for ahead, label in [*lines, (depth, f"{depth} announced to the store")]:
            rates = [one[_label(bound, ahead)]["samples_per_s"] / 1e3 for bound in bounds]
            row[0].plot(range(len(bounds)), rates, marker="o", label=label)
        row[0].set_xticks(range(len(bounds)), [str(bound) for bound in bounds])
        row[0].set_xlabel("staleness bound = batches read into arrays")
        row[0].legend(loc="lower right")
        if columns == 2:
            rates = [one[_label(0, d)]["samples_per_s"] / 1e3 for d in [0, *depths]]
            row[1].plot(range(len(rates)), rates, marker="o", color="tab:orange")
            row[1].set_xticks(range(len(rates)), [str(d) for d in [0, *depths]])
            row[1].set_xlabel("batches announced to the store, bound 0")
        for axes in row:
            axes.set_title(name.replace("_", " "))
            axes.set_ylabel("thousand samples/s")
            axes.set_ylim(bottom=0)
    save(pyplot, figure, file)
