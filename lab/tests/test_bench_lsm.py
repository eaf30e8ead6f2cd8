"""The bench of both storages, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embedrock_lab.commands.bench import main

WAITING = ["--rows", "60000", "--fill-memory", "2MiB", "--reads", "2", "--batch", "512"]
LOAD = ["--load-rows", "60000", "--warm-batches", "10", "--batches", "5", "--rounds", "2"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("bench")
    file = place / "lsm.json"
    small = [*WAITING, *LOAD, "--patience", "0"]
    assert main(["lsm", *small, "--dir", str(place), "--json", str(file)]) == 0
    assert [left.name for left in Path(place).iterdir()] == ["lsm.json"]
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_every_row_is_what_it_must_be_and_every_figure_is_there(report: dict[str, Any]) -> None:
    assert report["results"]["mismatches"] == 0
    assert len(report["figures"]) == 8
    assert all(value > 0 for value in report["figures"].values())


def test_an_lsm_has_less_index_than_a_log_and_reads_as_many_pages(report: dict[str, Any]) -> None:
    for kind in ("dense", "growing"):
        lsm, log = (report["results"][kind][one] for one in ("lsm", "log"))
        assert lsm["index_bytes_per_row"] < log["index_bytes_per_row"]
        assert lsm["pages_per_key"] < 2 * log["pages_per_key"]


def test_both_storages_write_their_rows_at_least_once(report: dict[str, Any]) -> None:
    sides = report["results"]["load"]
    assert sides["lsm"]["asked_bytes"] == sides["log"]["asked_bytes"]
    assert all(one["write_amplification"] >= 1 for one in sides.values())
    assert all(one["space_amplification"] >= 1 for one in sides.values())
