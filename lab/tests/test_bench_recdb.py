"""``bench recdb``: what it counts from a trace, and a small run of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedrock.errors import MisuseError
from embedrock.observe.trace import Trace
from embedrock_lab.bench.replay.recdb import ours
from embedrock_lab.bench.replay.recdb.load import Load, criteo_log, criteo_shaped
from embedrock_lab.bench.replay.recdb.model import pages_by_count
from embedrock_lab.bench.replay.recdb.summary import of_peer, summary
from embedrock_lab.commands.bench import main

OURS = ["lsm", "+ sorter"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("bench")
    file, png = place / "recdb.json", place / "recdb.png"
    small = ["--rows", "20000", "--window", "16", "--windows", "3", "--warm-windows", "1"]
    small += ["--memory", "10", "--compute-ms", "0.2", "--contestants", "rocksdb", *OURS]
    small += ["--peers", str(place / "none"), "--png", str(png)]
    assert main(["recdb", *small, "--dir", str(place), "--json", str(file)]) == 0
    assert {left.name for left in place.iterdir()} == {file.name, png.name}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_every_row_is_what_it_must_be_and_shares_are_of_the_step(report: dict[str, Any]) -> None:
    assert report["results"]["mismatches"] == 0
    for name in OURS:
        one = report["results"]["contestants"][name]
        shares = [one[f"{part}_share"] for part in ("blocked", "handing", "compute", "update")]
        assert sum(shares) == pytest.approx(1)
        assert one["step_ms"] * shares[2] >= 0.2
        assert one["pages_per_window"] > 0
        assert one["space_amplification"] >= 1
        assert len(one["space_amplification_at"]) == 4
        assert len(one["write_amplification_at"]) == 2


def test_without_peers_figures_are_null_and_say_why(report: dict[str, Any]) -> None:
    figures, notes = report["figures"], "\n".join(report["notes"])
    assert figures["recdb_vs_rocksdb"] is None
    assert "recdb_vs_rocksdb: rocksdb: " in notes and "make peers" in notes
    assert figures["recdb_picker_gc"] is None
    assert "recdb_picker_gc: + picker: did not take part" in notes
    assert report["results"]["contestants"]["rocksdb"].keys() == {"absent"}


def test_the_sorter_may_read_batches_together_and_its_pages_are_compared(
    report: dict[str, Any],
) -> None:
    figures, ran = report["figures"], report["results"]["contestants"]
    assert report["results"]["whole"] == "+ sorter"
    # The number of batches read together depends on the time that the window's threads get, except
    # here. Groups count when they begin, batches when they are read: one may be of a group before.
    assert ran["lsm"].get("batches_per_group", 1) <= 2
    ratio = ran["+ sorter"]["pages_per_window"] / ran["lsm"]["pages_per_window"]
    assert figures["recdb_sorter_pages"] == pytest.approx(ratio - 1)
    assert figures["recdb_blocked"] == ran["+ sorter"]["blocked_share"]
    for pages in report["results"]["pages_by_count"].values():
        assert 0 < pages["pages_sorted"] < pages["pages_in_request_order"]
        assert pages["loaded_once_in_request_order"] < 1


def test_merges_are_counted_as_the_engine_counts_them() -> None:
    counted = {"merges": 3, "seconds": 0.5, "seconds_max": 0.25, "rows_outdated": 70}
    counted |= {"rows_taken": 100, "rows_copied": 900, "latency": 2.0, "put_off": 4}
    merges = ours._merges(counted)
    assert (merges["count"], merges["rows_dropped"], merges["rows_written"]) == (3, 70, 1000)


def test_rows_of_a_wrong_number_of_updates_are_counted(tmp_path: Path) -> None:
    store, sizes = str(tmp_path / "store"), [30, 50]
    ours.fill(store, "lsm", sizes, 4)
    load = _load([[1, 40], [40, 41]], 80)
    files = load.trace.save(tmp_path)
    settings: dict[str, Any] = {"memory_bytes": 1 << 20, "window": 1, "depth": 2, "compute_ns": 0}
    settings |= {"options": {}, "sizes": sizes, "store": store, **files}
    assert ours.train(**settings)["mismatches"] == 0
    # The commit of the first run has one update of row 1 and two of row 40: each is wrong where
    # it is read, and again at the end.
    assert ours.train(**settings)["mismatches"] == 4 + 3


def test_pages_of_each_order_are_those_counted_by_hand() -> None:
    # Pages of 4 rows. In the first window 0, 8 and 12 are used most.
    first = [[0, 8, 12], [0, 8, 12, 5]]
    # Batch by batch: pages 0, 2; 0, 3; 1. Sorted: 4 pages.
    second = [[0, 9], [1, 12], [6]]
    load = _load([*first, [], *second], 16)
    found = pages_by_count(load, 3, 1, 100, 4, 3 / 7)
    every = found["every"]
    assert every["rows"] == 5
    assert every["pages_in_request_order"] == 5
    assert every["pages_sorted"] == 4
    assert every["loaded_once_in_request_order"] == 3 / 4
    assert every["loads_max_in_request_order"] == 2
    # Hot: 0, 8, 12 in one page. Cold: 1 is the first of all, 6 the sixth, 9 the eighth.
    assert (every["hot_rows"], every["pages_hot_apart"]) == (2, 1 + 2)
    # The cache has what the first window used: 1, 6 and 9 are missed.
    missed = found["missed"]
    assert (missed["rows"], missed["pages_in_request_order"], missed["pages_sorted"]) == (3, 3, 3)
    assert (missed["hot_rows"], missed["pages_hot_apart"]) == (0, 2)
    # One that holds three rows keeps 0 and 12, which come next, and 8, which was used most.
    assert pages_by_count(load, 3, 1, 3, 4, 0.0)["missed"]["rows"] == 3
    assert pages_by_count(load, 3, 1, 1, 4, 0.0)["missed"]["rows"] == 4


def test_a_load_has_a_table_for_each_field(tmp_path: Path) -> None:
    shaped = criteo_shaped(30_000, 16, 4, seed=1)
    assert (len(shaped.sizes), shaped.rows, shaped.trace.batches) == (26, 30_000, 4)
    firsts = np.cumsum([0, *shaped.sizes])
    for batch in shaped.lookups:
        of_table, _ = np.histogram(batch, firsts)
        assert (of_table == 16).all(), "a look-up of every sample in every table"
    for distinct, batch in zip(shaped.trace, shaped.lookups, strict=True):
        assert distinct.tolist() == sorted(set(batch.tolist()))
    file = tmp_path / "log.txt"
    lines = []
    for sample in range(70):
        tokens = [f"{(sample % (field + 1)):08x}" for field in range(26)]
        lines.append("\t".join(["1", *["3"] * 13, *tokens]))
    file.write_text("\n".join(lines) + "\n")
    log = criteo_log(file, 32, 2)
    assert (log.sizes, log.trace.batches) == (list(range(1, 27)), 2)
    with pytest.raises(MisuseError, match="has 70 samples, expected 96"):
        criteo_log(file, 32, 3)


def test_the_windows_of_a_peer_are_summed_up_as_ours_are() -> None:
    def counted(blocks: int, rows_in: int) -> dict[str, Any]:
        merges = {"count": rows_in // 100, "seconds": rows_in / 100, "seconds_max": 3.0}
        merges |= {"rows_in": rows_in, "rows_out": rows_in * 4 // 5}
        written = {"flushed_bytes": 1000 * blocks, "compact_written_bytes": 2000 * blocks}
        return {"blocks_read": blocks, **written, "stall_us": 0, "disk_bytes": 80, "merges": merges}

    raw: dict[str, Any] = {
        "get_ns": [9, 9, 1_000_000, 3_000_000],
        "blocked_ns": [9, 9, 0, 1_000_000],
        "compute_ns": [9, 9, 2_000_000, 2_000_000],
        "put_ns": [9, 9, 1_000_000, 1_000_000],
        "windows": [counted(0, 0), counted(10, 0), counted(16, 200)],
        "wait_ns": [0, 0, 0, 0],
        "mismatches": 0,
        "memory": {},
        "peak_rss_bytes": 1,
        "version": "1",
        "settings": {},
    }
    found = summary(of_peer(raw, 8), window=2, warm=1, rows=5)
    assert (found["step_ms"], found["compute_share"]) == (5, 0.4)
    assert (found["blocked_share"], found["handing_share"]) == (0.1, 0.3)
    assert (found["pages_per_window"], found["pages_loaded_once"]) == (6, None)
    assert (found["merges"], found["merge_s_mean"], found["merge_s_max"]) == (2, 1, 3)
    assert found["gc_efficiency"] == 40 / 160
    assert (found["write_amplification"], found["space_amplification"]) == (3, 2)


def _load(batches: list[list[int]], rows: int) -> Load:
    values = np.array([key for batch in batches for key in batch], np.uint64)
    offsets = np.cumsum([0, *map(len, batches)])
    trace = Trace(values, offsets)
    return Load(trace, trace, [rows])
