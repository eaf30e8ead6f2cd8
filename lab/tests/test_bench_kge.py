"""``bench kge``: a small run on a generated graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from embedrock_lab.bench.training.kge import ring
from embedrock_lab.commands.bench import main


def test_both_loops_rank_alike_and_what_is_not_given_is_said(tmp_path: Path) -> None:
    file = tmp_path / "kge.json"
    small = ["--ring-entities", "600", "--epochs", "4", "--dim", "16", "--negatives", "32"]
    small += ["--batch", "256", "--models", "distmult", "rotate", "--test-triples", "100"]
    small += ["--graphs", "ring", "wn18rr"]
    assert main(["kge", *small, "--dir", str(tmp_path / "b"), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    figures, results = report["figures"], report["results"]
    assert figures["mrr_ring_distmult"] > 0.03  # by chance it is 0.01
    for model in ("distmult", "rotate"):
        assert abs(figures[f"mrr_gap_ring_{model}"]) < 0.005
        both = results[f"ring_{model}"]
        assert both["store"]["loss"] == pytest.approx(both["in memory"]["loss"], abs=1e-4)
        assert both["store"]["queries"] == 200
    assert figures["mrr_wn18rr_rotate"] is None
    assert "mrr_wn18rr_rotate: no data: pass --data" in report["notes"]
    assert results["mismatches"] == 0


def test_a_ring_is_the_same_for_the_same_seed_and_has_no_triple_twice() -> None:
    one, again = ring(100, 3), ring(100, 3)
    assert np.array_equal(one.train, again.train)
    every = np.concatenate(one.known())
    assert len(np.unique(every, axis=0)) == len(every)
    assert len(one.test) == len(one.valid) > 0


def test_the_speed_by_partitions_is_set_beside_that_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "kge.json"
    small = ["--graphs", "power", "--power-entities", "20000", "--power-edges", "20000"]
    small += ["--power-dim", "8", "--power-batch", "2000", "--power-negatives", "16"]
    assert main(["kge", *small, "--dir", str(tmp_path / "b"), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    figures, results = report["figures"], report["results"]
    assert results["mismatches"] == 0
    assert results["power"]["memory"]["bytes_read"] == 0
    for share in (10, 25):
        assert figures[f"speed_vs_memory_kge_{share}"] > 0
        assert figures[f"passes_kge_{share}"] <= 1.1
        one = results["power"][str(share)]
        assert one["announced"] > one["buffer"] and one["rows_ahead"] > 0
