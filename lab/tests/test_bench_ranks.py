"""``bench ranks``: a small run of one rank and of two, whose rows are compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from embedrock_lab.bench.child import ChildError
from embedrock_lab.bench.ranks.exchanging import Exchanging
from embedrock_lab.bench.ranks.team import Team
from embedrock_lab.commands.bench import main

SMALL = ["--rows", "40000", "--dim", "8", "--batch", "64", "--steps", "3", "--rounds", "1"]
SMALL += ["--exchange-rows", "5000", "--exchange-dim", "4", "--exchange-batch", "256"]
SMALL += ["--exchange-large", "512", "--exchange-ids", "2048", "--patience", "0"]


def test_ranks_train_and_exchange_what_they_should(tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    assert main(["ranks", *SMALL, "--dir", str(tmp_path / "b"), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    figures, results = report["figures"], report["results"]
    assert results["mismatches"] == 0 and not [*(tmp_path / "b").iterdir()]
    assert all(value > 0 for value in figures.values()) and len(figures) == 9
    # Ids, rows and gradients of half of the distinct keys go to the other rank.
    sent, narrow = figures["ranks_step_bytes"], figures["ranks_step_bytes_bfloat16"]
    assert 0 < narrow < sent < 26 * 64 * (8 + 2 * 8 * 4) + 4096
    assert {*results["samples_per_s_of_a_core"]} == {*results["bytes_sent_a_step"], "one rank"}


class Wrong:
    """A store of one table that loses an update."""

    def __init__(self) -> None:
        self.rows, self.lost = np.zeros((100, 2), np.float32), False

    def table(self, *_: object, **__: object) -> Wrong:
        return self

    def put(self, keys: np.ndarray, rows: np.ndarray) -> None:
        self.rows[keys] = rows

    def get(self, keys: np.ndarray, out: np.ndarray | None = None) -> None:
        if out is not None:
            out[:] = self.rows[keys]

    def update(self, keys: np.ndarray, gradients: np.ndarray, *, lr: float) -> None:
        np.subtract.at(self.rows, keys[self.lost :], lr)


def test_an_update_that_is_lost_is_a_mismatch() -> None:
    store = Wrong()
    settings = {"rank": 0, "world": 1, "seed": 1}
    settings |= {"exchange_rows": 100, "exchange_dim": 2}
    one = Exchanging({"plain": store}, settings)
    assert one.round("plain", 50, 3)["mismatches"] == 0
    store.lost = True
    assert one.round("plain", 50, 3)["mismatches"] > 0


def test_a_rank_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ChildError, match="rank 0 of 1 ended"):
        Team(1, tmp_path, [0], {"seed": 1})
