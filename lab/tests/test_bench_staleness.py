"""``bench staleness`` on a made log: figures are there, and bits are equal."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from embedrock_lab.bench import staleness


def test_the_sweep_trains_at_every_bound_and_bits_are_equal(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    for name, samples in (("train.tsv.gz", 3000), ("test.tsv.gz", 200)):
        fields = 10 + random.zipf(1.5, (samples, 3)) % 90
        labels = random.integers(0, 2, (samples, 1))
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.write("label\tcity\tsite\tslot\n")
            np.savetxt(file, np.hstack([labels, fields]), "%d", "\t")
    small: dict[str, Any] = {
        "rows": 40_000,
        "batch": 256,
        "rounds": 1,
        "patience": 0.0,
        "samples": 60,
    }
    small |= {"memory": "4MiB", "device_latency": 0.1, "dir": tmp_path}
    report = staleness.run(staleness.Options(logs=["ipinyou"], ipinyou=tmp_path, **small))
    figures = report["figures"]
    assert figures["bits_equal"] == 1.0
    assert report["results"]["mismatches"] == 0
    assert {f"bookkeeping_{skew}" for skew in ("uniform", "skewed")} < set(figures)
    assert all(value is not None and math.isfinite(value) for value in figures.values())
    sweep = report["results"]["sweep_ipinyou"]
    assert list(sweep) == ["no pipeline", *(f"bound {b}" for b in (0, 1, 4, 16, 80, "inf"))]
    assert sweep["bound 0"]["auc"] == sweep["no pipeline"]["auc"]
    assert sweep["bound 0"]["staleness_max"] == 0
    assert sweep["bound inf"]["staleness_max"] > 1
