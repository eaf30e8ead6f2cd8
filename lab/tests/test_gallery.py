"""The gallery: what a machine's file keeps of reports, and the tables made from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def gallery() -> Any:
    spec = importlib.util.spec_from_file_location("gallery", SCRIPTS / "gallery.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recommend(recall: float, memory: str = "25%") -> dict[str, Any]:
    loops = {
        "store": {"samples_per_s": 50.0, "recall": recall},
        "in memory": {"samples_per_s": 200.0, "recall": 0.3},
    }
    results = {"data": "made", "users": 10, "items": 5, "loops": loops}
    settings = {"memory": memory, "epochs": 3}
    return {"bench": "recommend", "results": results, "settings": settings}


def models(rocksdb: float | None) -> dict[str, Any]:
    cell = {"torch_samples_per_s": 2000.0, "plain_vs_memory": 0.5, "lookahead_vs_memory": 0.75}
    trained = {**cell, "lookahead_auc": 0.71, "torch_auc": 0.72, "plain_pages_per_sample": 1.0}
    trained["rocksdb_samples_per_s"] = rocksdb
    results = {
        "prepared": {"dlrm": {"data": "criteo-shaped", "rows": 1000}},
        "dlrm": {"trained": {"10 %": trained, "67 %": trained}, "asked": {"27 %": cell}},
        "mismatches": 0,
    }
    return {"bench": "models", "results": results}


def test_a_report_takes_the_place_of_the_lines_that_it_is_about(gallery: Any) -> None:
    first = gallery.lines_of(recommend(0.1))
    known = gallery.merged(first, gallery.lines_of(recommend(0.2, "10%")))
    known = gallery.merged(known, gallery.lines_of(recommend(0.3)))
    assert [(one["memory"], one["recall"]) for one in known["retrieval"]] == [
        ("25 %", 0.3),
        ("10 %", 0.2),
    ]
    assert gallery.lines_of({"bench": "race", "results": {}}) == {}


def test_a_table_has_the_columns_that_a_line_has(gallery: Any) -> None:
    head, *lines = gallery.cells("retrieval", gallery.lines_of(recommend(0.1)))
    assert head[:2] == ["model", "data"] and lines[0][2:4] == [15, "25 %"]
    assert lines[0][-1] == "`bench recommend --epochs 3`" and 0.25 in lines[0]
    head, *lines = gallery.cells("clicks", gallery.lines_of(models(None)))
    assert [line[:4] for line in lines] == [
        ["DLRM", "in Criteo's shape", 1000, memory] for memory in ("67 %", "10 %")
    ]
    assert lines[0][head.index("AUC")] == 0.71
    assert gallery.cells("stores", gallery.lines_of(models(None))) == [[]]
    head, *lines = gallery.cells("stores", gallery.lines_of(models(500.0)))
    assert head[-1] == "RocksDB" and lines[0][-1] == 0.25
    assert len(gallery.cells("asked", gallery.lines_of(models(None)))) == 2


def test_speed_is_no_graph(gallery: Any) -> None:
    speed = {"steps_per_s": 1.0, "steps_per_s_in_memory": 2.0}
    cora = {"accuracy_gat": 0.8, "accuracy_gat_in_memory": 0.81, "gat_misses": 3}
    report = {"bench": "gnn", "results": {"mismatches": 0, "graph-cora": cora, "speed": speed}}
    report |= {"settings": {"memory": 10.0, "nodes": 20}, "figures": {"speed_vs_memory_gnn": 0.9}}
    head, *lines = gallery.cells("graphs", gallery.lines_of(report))
    assert [line[:3] for line in lines] == [
        ["GAT", "nodes, accuracy", "cora"],
        ["GraphSAGE", "steps per second", "made, 20 nodes"],
    ]
    assert lines[0][head.index("quality")] == 0.8 and 0.9 in lines[1]


def test_an_epoch_by_partitions_is_set_beside_the_loop_in_memory(gallery: Any) -> None:
    passes = {"passes": 4.0, "passes_beta": 4.0, "passes_least": 3.5}
    part = {"edges_per_s": 500.0, "bytes_read": 2e9, **passes}
    results = {"power": {"memory": {"edges_per_s": 1000.0}, "25": part}, "mismatches": 0}
    settings = {"power_entities": 70, "power_edges": 900, "memory": "10%"}
    report = {"bench": "kge", "results": results, "settings": settings}
    _, line = gallery.cells("partitions", gallery.lines_of(report))
    assert line[2:] == [70, 900, "25 %", 1000, 0.5, 4.0, 4.0, 3.5, 2.0]
