"""Tables of measured figures, from one file per machine in `docs/results`.

`python lab/scripts/results.py docs/results/NAME.json REPORT.json ...` puts the figures of reports
that `embedrock bench --json` wrote into a machine's file, which it makes if there is none, and what
tables show of `bench recdb`, `bench place` and the benches of the gallery. `make pages` then brings
the tables of the pages up to date. A figure is a number, or the lowest and the highest of several
runs.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gallery

RESULTS = Path(__file__).parents[2] / "docs" / "results"


NOT_MEASURED = "Not measured so far on a machine of [results](results.md)."

RECDB_COLUMNS = ["step_ms", "blocked_share", "handing_share", "compute_share", "update_share"]
RECDB_COLUMNS += ["read_us_p50", "read_us_p99", "pages_per_window", "merges", "merge_s_mean"]
RECDB_COLUMNS += ["merge_s_max", "gc_efficiency", "write_amplification", "space_amplification"]


def made(name: str) -> str:
    """The Markdown of one table."""
    return TABLES[name]()


def machines() -> list[dict[str, Any]]:
    """Known facts of each machine, the one measured last first."""
    files = [path for path in RESULTS.glob("*.json") if path.name != "aims.json"]
    known = [json.loads(path.read_text()) for path in files]
    return sorted(known, key=lambda one: (one["measured"], one["name"]), reverse=True)


def aims() -> list[dict[str, Any]]:
    """Every figure in its order, with what it means, and the aim where there is one."""
    found: list[dict[str, Any]] = json.loads((RESULTS / "aims.json").read_text())
    return found


def newest(part: str) -> dict[str, Any]:
    """The machine that was measured last and has this part."""
    return next(machine for machine in machines() if part in machine)


def reached(value: Any, aim: str | None, wanted: float | None) -> str:
    """Whether an aim is reached: in all runs, in some, in none."""
    if aim is None or wanted is None or value is None:
        return ""
    values = value if isinstance(value, list) else [value]
    good = [one >= wanted if aim == ">=" else one <= wanted for one in values]
    return "yes" if all(good) else "some runs" if any(good) else "**no**"


def shown(value: Any) -> str:
    """A figure as people read it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(shown(one) for one in value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1) -> str:
    """A table whose columns are numbers from one on."""
    rule = ["---" if i < numbers_from else "---:" for i in range(len(head))]
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in [head, rule, *rows])


def _machines_table() -> str:
    return table(
        ["name", "machine", "4-KiB reads/s", "measured"],
        [
            [one["name"], one["machine"], shown(one["device_rate_4096_64"]), one["measured"]]
            for one in machines()
        ],
        numbers_from=2,
    )


def _figures_table() -> str:
    known = [machine for machine in machines() if machine["figures"]]
    rows = []
    for each in aims():
        aim, wanted = each["aim"], each["value"]
        values = [machine["figures"].get(each["figure"]) for machine in known]
        last = next((value for value in values if value is not None), None)
        sign = {">=": "≥ ", "<=": "≤ ", None: ""}[aim]
        goal = sign + shown(wanted)
        said = [f"`{each['figure']}`", each["meaning"], goal, reached(last, aim, wanted)]
        rows.append(said + [shown(value) for value in values])
    names = [machine["name"] for machine in known]
    return table(["figure", "what", "aim", "met", *names], rows, numbers_from=4)


def _race_table() -> str:
    columns = ["rows_per_s", "bytes_per_row", "cpu_us_per_row", "limit_share"]
    head = ["store", "distinct rows/s", "bytes read per row", "µs of processor", "`limit_share`"]
    rows = [[one["store"], *(shown(one.get(c)) for c in columns)] for one in newest("race")["race"]]
    return table(head, rows)


def _recdb_table() -> str:
    columns = {
        "step_ms": "ms of a step",
        "blocked_share": "waits for rows",
        "handing_share": "gets them",
        "compute_share": "computes",
        "update_share": "updates",
        "read_us_p50": "µs to read, P50",
        "read_us_p99": "P99",
        "pages_per_window": "pages per window",
    }
    return _of_recdb(columns)


def _recdb_merges_table() -> str:
    columns = {
        "merges": "merges",
        "merge_s_mean": "seconds of one",
        "merge_s_max": "of the longest",
        "gc_efficiency": "dropped ÷ rewritten",
        "write_amplification": "written ÷ changed",
        "space_amplification": "disk ÷ rows",
    }
    return _of_recdb(columns)


def _of_recdb(columns: dict[str, str]) -> str:
    known = newest("recdb")["recdb"]
    rows = [[one["store"], *(shown(one.get(column)) for column in columns)] for one in known]
    return table(["store", *columns.values()], rows)


def recdb_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Table entries for the contestants of a report of `bench recdb`."""
    found = []
    for name, one in report["results"]["contestants"].items():
        known = {column: one[column] for column in RECDB_COLUMNS if one.get(column) is not None}
        if known:
            numbers = {column: digits(value) for column, value in known.items()}
            found.append({"store": name, **numbers})
    return found


PLACE_LAYOUTS = ["random", "frequency", "shp", "partition", "mtkahypar"]
PLACE_KINDS = {"connectivity": "as MaxEmbed", "residual": "residual greedy"}
PLACE_KINDS |= {"rpp": "RPP", "fpr": "FPR"}


def place_of(report: dict[str, Any]) -> dict[str, Any]:
    """Table entries for a report of `bench place`."""
    logs, replicas = [], {}
    found = report["results"]["traces"]
    for name, one in found.items():
        layouts, took = one["layouts"], one["took"]

        def pages(layout: str, of: dict[str, Any] = layouts) -> dict[str, float]:
            return {c: of[layout][c]["pages_per_request"] for c in CONDITIONS}

        known = {"log": name, "pins": one["pins"], "rows": one["rows"]}
        for condition in ("c0", "c10"):
            known[f"pages_{condition}"] = digits(pages("identity")[condition])
            known |= {
                f"{layout}_{condition}": round(
                    pages("identity")[condition] / pages(layout)[condition], 3
                )
                for layout in PLACE_LAYOUTS
                if layout in layouts
            }
        for layout in ("shp", "partition", "mtkahypar", "0.8 residual", "0.8 connectivity"):
            if layout in took:
                known[f"seconds_{layout}"] = digits(took[layout]["seconds"])
                known[f"bytes_per_pin_{layout}"] = digits(took[layout]["bytes_per_pin"])
        logs.append(known)
    names = next(iter(found.values()))["layouts"] if found else {}
    for layout in (name for name in names if name.split()[-1] in PLACE_KINDS):
        replicas[layout] = {
            condition: round(statistics.median(_gains(found, condition, layout)), 3)
            for condition in CONDITIONS
        }
    scaling = report["results"]["scaling"]
    return {
        "logs": logs,
        "replicas": replicas,
        "scaling": [
            {"pins": pins, **{key: digits(one[key]) for key in SCALING}}
            for pins, one in scaling.items()
        ],
    }


CONDITIONS = ("c0", "c10", "c0_union", "c10_union")
SCALING = ("seconds", "cpu_seconds", "pins_per_cpu_s", "bytes_per_pin")


def _gains(found: dict[str, Any], condition: str, layout: str) -> list[float]:
    """Pages of the partition alone ÷ those of a layout, of each trace."""
    return [
        one["layouts"]["partition"][condition]["pages_per_request"]
        / one["layouts"][layout][condition]["pages_per_request"]
        for one in found.values()
    ]


def _place_table(condition: str) -> str:
    head = ["log", "pages in the order of keys", "random", "by frequency", "MaxEmbed's partition"]
    head += ["**partition**", "Mt-KaHyPar"]
    rows = [
        [one["log"], shown(one[f"pages_{condition}"])]
        + [shown(one.get(f"{layout}_{condition}")) for layout in PLACE_LAYOUTS]
        for one in newest("place")["place"]["logs"]
    ]
    return table(head, rows)


def _place_took_table() -> str:
    timed = {"shp": "as MaxEmbed", "partition": "ours", "mtkahypar": "Mt-KaHyPar"}
    timed |= {"0.8 connectivity": "connectivity", "0.8 residual": "residual"}
    head = ["log", "pins", "rows", *timed.values(), "bytes/pin, ours", "Mt-KaHyPar"]
    rows = [
        [one["log"], shown(one["pins"]), shown(one["rows"])]
        + [shown(one.get(f"seconds_{layout}")) for layout in timed]
        + [shown(one.get(f"bytes_per_pin_{layout}")) for layout in ("partition", "mtkahypar")]
        for one in newest("place")["place"]["logs"]
    ]
    return table(head, rows)


def _place_replicas_table() -> str:
    known = newest("place")["place"]["replicas"]
    head = ["replicas", "share", "no cache", "10 % cache", "unions, no cache", "unions, 10 % cache"]
    rows = []
    for kind, label in PLACE_KINDS.items():
        for layout, one in known.items():
            share, its = layout.split()
            if its == kind:
                rows.append([label, share, *(f"{one[c]:.3f}" for c in CONDITIONS)])
    return table(head, rows)


def _place_scaling_table() -> str:
    labels = ["seconds", "seconds of cores", "pins/s of a core", "bytes per pin"]
    rows = [
        [one["pins"], *(shown(one[key]) for key in SCALING)]
        for one in newest("place")["place"]["scaling"]
    ]
    return table(["pins", *labels], rows)


def digits(value: Any) -> Any:
    """A number with the digits that are worth showing."""
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1000 else round(float(f"{value:.3g}"), 4)


def _readme_table() -> str:
    rows = []
    for one in newest("race")["race"]:
        bold = "**" if one["store"].startswith("Embedrock,") else ""
        if not one["store"].endswith("one thread"):
            rows.append([f"{bold}{one[c]}{bold}" for c in ("store",)])
            rows[-1].append(f"{bold}{shown(one['rows_per_s'])}{bold}")
    return table(["store", "distinct rows per second"], rows)


def _memory_table() -> str:
    known = newest("memory")["memory"]
    lines = [name for name in known if name != "budget_percent"]
    head = ["thousand rows/s with memory for", *(f"{one} %" for one in known["budget_percent"])]
    return table(head, [[name, *(shown(value) for value in known[name])] for name in lines])


def _ycsb_table() -> str:
    sizes = [f"{keys}, {size} bytes" for keys in ("uniform", "Zipf") for size in (8, 64, 512)]
    known = newest("ycsb")["ycsb"]
    return table(["YCSB", *sizes], [[name, *map(shown, known[name])] for name in known])


def _pages_table() -> str:
    columns = ["accesses_per_s", "cpu_us", "bytes_per_access"]
    head = ["how", "accesses/s", "µs of processor", "bytes read per access"]
    rows = [[one["reads"], *(shown(one[c]) for c in columns)] for one in newest("pages")["pages"]]
    return table(head, rows)


def _gallery_of(family: str) -> list[tuple[dict[str, Any], list[list[Any]]]]:
    """Each machine that has lines of a table of the gallery, and head and lines."""
    found = [(one, gallery.cells(family, one.get("gallery", {}))) for one in machines()]
    return [(one, cells) for one, cells in found if len(cells) > 1]


def _gallery_table(family: str) -> str:
    """A table for each machine."""
    blocks = []
    for one, (head, *lines) in _gallery_of(family):
        rows = [[cell if isinstance(cell, str) else shown(cell) for cell in line] for line in lines]
        cells = table(head, rows, gallery.NUMBERS_FROM.get(family, 2))
        notes = "".join(f"* {note}\n" for note in one.get("gallery_notes", {}).get(family, []))
        blocks.append(f"On {one['name']}:\n\n{cells}" + (f"\n{notes}" if notes else ""))
    return "\n".join(blocks) or f"{NOT_MEASURED}\n"


def _gallery_machines() -> str:
    known = {one["name"]: one for family in gallery.COLUMNS for one, _ in _gallery_of(family)}
    return "".join(
        f"* {name}: {one['machine']}, {one['system']}; {one['measured']}\n"
        for name, one in known.items()
    )


def _parts_table() -> str:
    rows = [[part, shown(ns)] for part, ns in newest("parts_ns")["parts_ns"]]
    return table(["part", "ns of one"], rows)


def _optimizers_table() -> str:
    known = newest("optimizers_ns")["optimizers_ns"]
    head = ["a step on a row, ns", "32 float32", "128 float32"]
    return table(head, [[name, *map(shown, known[name])] for name in known])


TABLES = {
    "figures": _figures_table,
    **{f"gallery_{family}": partial(_gallery_table, family) for family in gallery.COLUMNS},
    "gallery_machines": _gallery_machines,
    "machines": _machines_table,
    "memory": _memory_table,
    "optimizers": _optimizers_table,
    "pages": _pages_table,
    "place": lambda: _place_table("c0"),
    "place_cached": lambda: _place_table("c10"),
    "place_replicas": _place_replicas_table,
    "place_scaling": _place_scaling_table,
    "place_took": _place_took_table,
    "parts": _parts_table,
    "race": _race_table,
    "readme": _readme_table,
    "recdb": _recdb_table,
    "recdb_merges": _recdb_merges_table,
    "ycsb": _ycsb_table,
}


def main() -> None:
    """Puts the figures of reports into a machine's file."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    file, *reports = (Path(argument) for argument in sys.argv[1:])
    machine: dict[str, Any] = {"name": file.stem, "measured": "", "machine": "", "figures": {}}
    machine["device_rate_4096_64"] = None
    if file.exists():
        machine = json.loads(file.read_text())
    names = {each["figure"] for each in aims()}
    for report in (json.loads(path.read_text()) for path in reports):
        figures = report["figures"]
        known = {name: one for name, one in figures.items() if name in names and one is not None}
        machine["figures"] |= {name: digits(one) for name, one in known.items()}
        if report.get("bench") == "recdb":
            machine["recdb"] = recdb_of(report)
        if report.get("bench") == "place":
            machine["place"] = place_of(report)
        if lines := gallery.lines_of(report):
            machine["gallery"] = gallery.merged(machine.get("gallery", {}), lines)
    file.write_text(json.dumps(machine, indent=1, ensure_ascii=False) + "\n")
    print(f"{file}: look at name, machine and date, then make pages")


if __name__ == "__main__":
    main()
