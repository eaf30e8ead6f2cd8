"""The bench of write amplification, small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock_lab.bench import write
from embedrock_lab.bench.zipf import Zipf
from embedrock_lab.commands.bench import main

SMALL = ["--rows", "30000", "--batch", "256", "--times", "1.5", "--memory", "1MiB"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    place = tmp_path_factory.mktemp("bench")
    file = place / "write.json"
    share = ["--live-share", "0.4"]
    assert main(["write", *SMALL, *share, "--dir", str(place), "--json", str(file)]) == 0
    assert [left.name for left in place.iterdir()] == ["write.json"]
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_causes_add_up_to_the_figure(report: dict) -> None:
    found = report["results"]
    assert report["figures"]["write_amplification"] == pytest.approx(
        sum(found["by_cause"].values()), rel=0.01
    )
    assert found["by_cause"]["rows"] == 1
    assert found["by_cause"]["moved"] == found["moved_per_row"] >= 0


def test_the_disk_bound_is_held_and_every_row_verified(report: dict) -> None:
    found = report["results"]
    assert found["disk_bytes_max"] <= found["disk_bytes_allowed"] == int(30000 * 132 / 0.4)
    assert found["mismatches"] == 0
    assert found["rows_verified"] == 30000
    assert found["commits"] > 10


def test_the_curve_ends_where_enough_was_written(report: dict) -> None:
    curve = report["results"]["curve"]
    assert len(curve) == write.POINTS
    assert float(list(curve)[-1]) >= 1.5
    assert min(curve.values()) > 1


def test_a_row_with_a_wrong_bit_is_found(tmp_path: Path) -> None:
    rows, place = 3000, tmp_path / "store"
    write.load(str(place), rows, 8, 0.01)
    counts = np.zeros(rows, np.uint32)
    keys = np.array([5, 9, 11])
    gradients = np.full((3, 8), write.GRADIENT, np.float32)
    with embedrock.open(place, "8MiB") as store:
        table = store.table("rows")
        table.update(keys, gradients, lr=write.LR)
        table.update(keys[:1], gradients[:1], lr=write.LR)
        store.commit(2)
    counts[keys] = 1
    counts[5] = 2
    np.save(tmp_path / "counts.npy", counts)
    assert write.verify(str(place), str(tmp_path / "counts.npy")) == 0
    counts[9] = 0
    counts[11] = 2
    np.save(tmp_path / "counts.npy", counts)
    assert write.verify(str(place), str(tmp_path / "counts.npy")) == 2


def test_popular_keys_come_more_often_and_batches_repeat_none() -> None:
    drawn = Zipf(1000, 0.9, seed=3).draw(50_000)
    counts = np.sort(np.bincount(drawn, minlength=1000))[::-1]
    weights = np.arange(1, 1001) ** -0.9
    assert counts[0] / 50_000 == pytest.approx(weights[0] / weights.sum(), rel=0.1)
    batch = Zipf(1000, 0.9, seed=3).distinct(500)
    assert len(np.unique(batch)) == len(batch) < 500
    assert (Zipf(1000, 0.9, seed=3).distinct(500) == batch).all()
