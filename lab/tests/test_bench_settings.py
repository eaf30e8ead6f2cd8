"""Benches that repeat one measurement over many settings, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embedrock_lab.bench.common import render
from embedrock_lab.bench.growth import excess
from embedrock_lab.commands.bench import main

PNG_MAGIC = b"\x89PNG"


def report_of(place: Path, name: str, *arguments: str) -> dict[str, Any]:
    """The report of a bench, which leaves nothing else behind but its plot."""
    file, png = place / f"{name}.json", place / f"{name}.png"
    options = ["--dir", str(place), "--json", str(file), "--png", str(png)]
    assert main([name, *arguments, *options]) == 0
    assert {left.name for left in place.iterdir()} <= {file.name, png.name}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert found["results"]["mismatches"] == 0
    assert png.read_bytes().startswith(PNG_MAGIC)
    return found


def test_growth_compares_costs_with_reads(tmp_path: Path) -> None:
    sizes = ["--rows", "60000", "120000", "--batches", "6", "--batch", "512"]
    found = report_of(tmp_path, "growth", *sizes)
    rows = found["results"]["rows"]
    assert list(rows) == ["60,000", "120,000"]
    for one in rows.values():
        assert one["resident_rows"] == one["capacity_rows"]
        assert 0 < one["requests_per_row"] < 1
        assert one["cpu_us_per_row"] > 0
    # The rows are doubled once, so the line through both sizes is the ratio of their costs.
    small, large = (one["cpu_us_per_row"] / one["requests_per_row"] for one in rows.values())
    assert found["figures"]["growth_excess_cpu"] == pytest.approx(large / small)


def test_a_cost_that_grows_with_the_reads_is_no_excess() -> None:
    def sizes(power: float) -> dict[int, dict[str, float]]:
        return {
            rows: {"cpu": reads * rows**power, "requests_per_row": reads}
            for rows, reads in ((1_000, 0.1), (2_000, 0.4), (4_000, 0.5))
        }

    assert excess(sizes(0.0), "cpu") == pytest.approx(1.0)
    assert excess(sizes(1.0), "cpu") == pytest.approx(2.0)
    assert excess(sizes(2.0), "cpu") == pytest.approx(4.0)


def test_the_device_is_measured_at_every_size_and_depth(tmp_path: Path) -> None:
    found = report_of(tmp_path, "device", "--rows", "60000", "--rounds", "1", "--slice", "0.01")
    rates = found["results"]["requests_per_s"]
    assert found["figures"]["device_rate_4096_64"] == rates["4096 bytes"]["depth 64"] > 0
    assert all(len(by_depth) == 7 for by_depth in rates.values())
    chosen = found["results"]["chosen"]
    assert chosen["page_bytes"] in (512, 1024, 2048, 4096, 8192, 16_384)
    assert chosen["read_depth"] in (16, 32, 64, 128)
    assert len(chosen["measured_at_creation"]) == len(rates)


def test_ycsb_runs_every_setting_and_names_what_is_missing(tmp_path: Path) -> None:
    small = ["--bytes", "3000000", "--row-bytes", "64", "--batches", "12", "--batch", "512"]
    absent = ["--peers", str(tmp_path / "absent"), "--memory", "100"]
    modes = ["--modes", "ycsb-a", "ycsb-c", "--skews", "zipf"]
    found = report_of(tmp_path, "ycsb", *small, *absent, *modes)
    rates = found["results"]["unique_rows_per_s"]
    assert list(rates) == ["ycsb-a, zipf", "ycsb-c, zipf"]
    assert all(one["64 bytes"]["embedrock"] > 0 for one in rates.values())
    lines = [line.split() for line in render(found).splitlines()]
    said = [line for line in lines if line[:1] == ["embedrock"]]
    assert len(said) == 2 and all(len(line) == 2 for line in said), "a table of rates for each"
    assert found["figures"] == {
        "ycsb_a_zipf_64_vs_rocksdb": None,
        "ycsb_c_zipf_64_vs_rocksdb": None,
    }
    assert any("make peers" in note for note in found["notes"])


def test_shares_of_memory_are_compared_with_everything_in_memory(tmp_path: Path) -> None:
    small = ["--rows", "60000", "--batches", "12", "--batch", "512", "--shares", "53"]
    engines = {"share": "embedrock-warm", "ahead_share": "embedrock-warm-ahead"}
    found = report_of(tmp_path, "memory", *small, "--engines", ",".join(engines.values()))
    rates, figures = found["results"]["unique_rows_per_s"], found["figures"]
    for name in ("train", "read"):
        whole = rates[name]["100 %"]
        assert list(whole) == list(engines.values())
        for share, engine in engines.items():
            expected = rates[name]["53 %"][engine] / max(whole.values())
            assert figures[f"{name}_{share}_53"] == pytest.approx(expected)
