"""The tables of docs/gallery.md, from reports of the benches that train models to the end.

Of each report a machine's file keeps what the tables show, by family. A report that is given again
takes the place of its lines; the others stay.
"""

from __future__ import annotations

from typing import Any

TITLES = {"dlrm": "DLRM", "dcn_v2": "DCN-v2", "deepfm": "DeepFM", "pnn": "PNN", "mmoe": "MMoE"}
TITLES |= {"wide_deep": "Wide & Deep", "dien": "DIEN", "transe": "TransE", "rotate": "RotatE"}
TITLES |= {"distmult": "DistMult", "complex": "ComplEx", "graphsage": "GraphSAGE", "gat": "GAT"}
DATA = {"power": "power law, made"}
DATA |= {"criteo-shaped": "in Criteo's shape", "sessions": "made sessions", "made": "made"}
STORES = {"rocksdb": "RocksDB", "faster": "FASTER", "swap": "swap", "lmdb": "LMDB"}

Line = dict[str, Any]


def lines_of(report: dict[str, Any]) -> dict[str, list[Line]]:
    """The gallery's lines of a report, by family; none for benches that it does not show."""
    families = {"models": _clicks, "kge": _knowledge, "gnn": _graphs, "recommend": _retrieval}
    found = families.get(report.get("bench", ""))
    return {} if found is None else found(report)


def merged(old: dict[str, list[Line]], new: dict[str, list[Line]]) -> dict[str, list[Line]]:
    """The lines of both; where they are about the same, the new ones."""
    found = dict(old)
    for family, lines in new.items():
        known = {_about(line): line for line in found.get(family, [])}
        found[family] = list({**known, **{_about(line): line for line in lines}}.values())
    return found


def _about(line: Line) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("model", "data", "memory", "task"))


def _clicks(report: dict[str, Any]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {"clicks": [], "asked": []}
    for model in TITLES.keys() & report["results"].keys():
        one = report["results"][model]
        prepared = report["results"]["prepared"][model]
        named = {"model": model, "data": prepared["data"], "rows": prepared["rows"]}
        named["command"] = f"bench models --models {model}"
        for memory, cell in one["trained"].items():
            line = named | {"memory": memory, "in_memory": cell["torch_samples_per_s"]}
            line |= {name: cell[f"{name}_vs_memory"] for name in ("plain", "lookahead")}
            line |= {"auc": cell["lookahead_auc"], "auc_in_memory": cell["torch_auc"]}
            line["pages"] = cell["plain_pages_per_sample"]
            rates = {name: cell.get(f"{name}_samples_per_s") for name in STORES}
            line |= {name: rate / line["in_memory"] for name, rate in rates.items() if rate}
            found["clicks"].append(_rounded(line))
        for memory, cell in one["asked"].items():
            line = named | {"memory": memory, "in_memory": cell["torch_samples_per_s"]}
            line |= {name: cell[f"{name}_vs_memory"] for name in ("plain", "lookahead")}
            found["asked"].append(_rounded(line))
    order = list(TITLES)
    for lines in found.values():
        lines.sort(key=lambda line: (order.index(line["model"]), -float(line["memory"].split()[0])))
    return found


def _knowledge(report: dict[str, Any]) -> dict[str, list[Line]]:
    settings, lines = report["settings"], []
    for name, one in report["results"].items():
        graph, _, model = name.rpartition("_")
        if model not in TITLES or not isinstance(one, dict) or "store" not in one:
            continue
        store, twin = one["store"], one["in memory"]
        options = [f"--{key} {settings[key]}" for key in ("epochs", "dim") if settings.get(key)]
        command = f"--graphs {graph} --models {model} {' '.join(options)}"
        lines.append(
            _rounded(
                {
                    "model": model,
                    "data": graph,
                    "rows": store.get("entities"),
                    "memory": str(settings["memory"]).replace("%", " %"),
                    "in_memory": twin["triples_per_s"],
                    "lookahead": store["triples_per_s"] / twin["triples_per_s"],
                    "mrr": store["mrr"],
                    "mrr_in_memory": twin["mrr"],
                    "published": one.get("published", {}).get("mrr"),
                    "command": command.strip(),
                }
            )
        )
    return {"knowledge": lines, "partitions": _partitions(report)}


def _partitions(report: dict[str, Any]) -> list[Line]:
    settings, power = report["settings"], report["results"].get("power")
    if power is None:
        return []
    lines = []
    for share, one in power.items():
        if share == "memory":
            continue
        line = {"model": "distmult", "data": "power", "rows": settings["power_entities"]}
        line["edges"] = settings["power_edges"]
        line |= {"memory": f"{share} %", "in_memory": power["memory"]["edges_per_s"]}
        line |= {"lookahead": one["edges_per_s"] / power["memory"]["edges_per_s"]}
        line |= {name: one[name] for name in ("passes", "passes_beta", "passes_least")}
        line["gigabytes"] = one["bytes_read"] / 1e9
        lines.append(_rounded(line))
    return lines


def _graphs(report: dict[str, Any]) -> dict[str, list[Line]]:
    lines, memory = [], f"{report['settings']['memory']:g} %"
    for name, one in report["results"].items():
        if name == "speed" or not isinstance(one, dict):
            continue
        graph = name.removeprefix("graph-")
        given = "" if name == "made" else f" --graph DIR/{name}"
        for key, value in one.items():
            if f"{key}_in_memory" not in one:
                continue
            links = key.startswith("link")
            lines.append(
                _rounded(
                    {
                        "model": "graphsage" if links else key.removeprefix("accuracy_"),
                        "task": "edges, AUC" if links else "nodes, accuracy",
                        "data": graph,
                        "memory": memory,
                        "quality": value,
                        "quality_in_memory": one[f"{key}_in_memory"],
                        "command": f"bench gnn{given}",
                    }
                )
            )
    speed = report["results"].get("speed")
    if speed is not None:
        lines.append(
            _rounded(
                {
                    "model": "graphsage",
                    "task": "steps per second",
                    "data": f"made, {report['settings']['nodes']:,} nodes",
                    "memory": memory,
                    "lookahead": report["figures"]["speed_vs_memory_gnn"],
                    "in_memory": speed["steps_per_s_in_memory"],
                    "command": f"bench gnn --nodes {report['settings']['nodes']}",
                }
            )
        )
    return {"graphs": lines}


def _retrieval(report: dict[str, Any]) -> dict[str, list[Line]]:
    results, loops = report["results"], report["results"]["loops"]
    store, twin = loops["store"], loops["in memory"]
    given = "" if results["data"] == "made" else " --data DIR"
    line = {
        "model": "matrix factorization, BPR",
        "data": results["data"],
        "rows": results["users"] + results["items"],
        "memory": str(report["settings"]["memory"]).replace("%", " %"),
        "in_memory": twin["samples_per_s"],
        "lookahead": store["samples_per_s"] / twin["samples_per_s"],
        "recall": store["recall"],
        "recall_in_memory": twin["recall"],
        "command": f"bench recommend{given} --epochs {report['settings']['epochs']}",
    }
    return {"retrieval": [_rounded(line)]}


QUALITY = ("auc", "mrr", "quality", "recall", "published")


def _rounded(line: Line) -> Line:
    """Four digits behind the point for qualities, three digits for the rest; rows are counted."""
    return {
        name: round(value, 4)
        if name.startswith(QUALITY) and value is not None
        else round(value)
        if isinstance(value, float) and abs(value) >= 1000
        else float(f"{value:.3g}")
        if isinstance(value, float)
        else value
        for name, value in line.items()
    }


COLUMNS = {
    "clicks": {
        "model": "model",
        "data": "data",
        "rows": "rows",
        "memory": "memory",
        "in_memory": "samples/s in memory",
        "plain": "plain",
        "lookahead": "look-ahead",
        "auc": "AUC",
        "auc_in_memory": "in memory",
        "pages": "pages/sample",
    },
    "asked": {
        "model": "model",
        "data": "data",
        "rows": "rows",
        "memory": "memory",
        "in_memory": "samples/s in memory",
        "plain": "plain ÷ memory",
        "lookahead": "look-ahead ÷ memory",
        "command": "`embedrock …`",
    },
    "stores": {
        "model": "model",
        "memory": "memory",
        "plain": "Embedrock",
        "lookahead": "with look-ahead",
        **STORES,
    },
    "retrieval": {
        "model": "model",
        "data": "data",
        "rows": "rows",
        "memory": "memory",
        "in_memory": "samples/s in memory",
        "lookahead": "look-ahead ÷ memory",
        "recall": "Recall@20",
        "recall_in_memory": "in memory",
        "command": "`embedrock …`",
    },
    "knowledge": {
        "model": "model",
        "data": "data",
        "rows": "rows",
        "memory": "memory",
        "in_memory": "triples/s in memory",
        "lookahead": "look-ahead ÷ memory",
        "mrr": "MRR",
        "mrr_in_memory": "in memory",
        "published": "published",
        "command": "`embedrock bench kge …`",
    },
    "partitions": {
        "model": "model",
        "data": "data",
        "rows": "rows",
        "edges": "edges",
        "memory": "memory",
        "in_memory": "edges/s in memory",
        "lookahead": "÷ memory",
        "passes": "passes",
        "passes_beta": "BETA",
        "passes_least": "at least",
        "gigabytes": "GB read",
    },
    "graphs": {
        "model": "model",
        "task": "task",
        "data": "data",
        "memory": "memory",
        "in_memory": "steps/s in memory",
        "lookahead": "look-ahead ÷ memory",
        "quality": "quality",
        "quality_in_memory": "in memory",
        "command": "`embedrock …`",
    },
}
"""The columns of each table."""
NUMBERS_FROM = {"graphs": 3}
"""The first column of numbers; the second elsewhere."""


def cells(family: str, gallery: dict[str, list[Line]]) -> list[list[Any]]:
    """Head and lines of a table. ``stores`` are the click models that ran over other stores, too.

    Columns that no line has are left out.
    """
    lines = gallery.get("clicks" if family == "stores" else family, [])
    if family == "stores":
        lines = [line for line in lines if any(name in line for name in STORES)]
    columns = {
        name: head
        for name, head in COLUMNS[family].items()
        if any(line.get(name) is not None for line in lines)
    }
    return [list(columns.values()), *([_shown(line, name) for name in columns] for line in lines)]


def _shown(line: Line, name: str) -> Any:
    value = line.get(name)
    if name == "command":
        return f"`{value}`"
    if name == "model":
        return TITLES.get(value, value)
    return DATA.get(value, value) if name == "data" else value
