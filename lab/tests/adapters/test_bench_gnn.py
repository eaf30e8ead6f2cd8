"""``bench gnn`` at its smallest: the model from a store is the model in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from embedrock_lab.bench.training import gnn  # noqa: E402


def test_models_from_a_store_are_those_in_memory(tmp_path: Path) -> None:
    small = {"nodes": 2000, "dim": 16, "epochs": 3, "link_epochs": 2, "edges": 1500, "steps": 2}
    figures = gnn.run(gnn.Options(**small, rounds=1, patience=0.0, dir=tmp_path))["figures"]
    for name in ("accuracy_graphsage", "accuracy_gat", "link_auc"):
        assert figures[name] == pytest.approx(figures[f"{name}_in_memory"], abs=1e-3)
    assert figures["accuracy_graphsage"] > 0.3 and figures["speed_vs_memory_gnn"] > 0
