"""``bench models``: a small model at two budgets, what a twin is held to, and what is made."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from embedrock.errors import MisuseError
from embedrock.models.registry import kind_of
from embedrock_lab.bench import child
from embedrock_lab.bench.training.loads.click_models import Settings
from embedrock_lab.bench.training.loads.samples import MADE, Wanted, keys_by_table, samples_of
from embedrock_lab.bench.training.models import cell
from embedrock_lab.commands.bench import main

SMALL = ["--rows", "30000", "--dim", "8", "--batch", "64", "--steps", "4", "--turns", "1"]
SMALL += ["--first-steps", "4", "--checked-steps", "6", "--test-samples", "256"]


def wanted(**changed: Any) -> Wanted:
    settings: dict[str, Any] = {"criteo": MADE, "sessions": MADE, "rows": 30_000, "batch": 64}
    settings |= {"batches": 6, "test_samples": 128, "seed": 1}
    return Wanted(**{**settings, **changed})


def in_this_process(function: str, /, **arguments: Any) -> Any:
    """Replaces ``child.call``, without a second start of PyTorch."""
    module, _, name = function.partition(":")
    found = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    return json.loads(json.dumps(found))


def test_a_model_is_measured_with_every_share_of_memory_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "call", in_this_process)
    file = tmp_path / "models.json"
    command = ["models", "--models", "deepfm", "--memory", "67%", "--inference", "27", *SMALL]
    command += ["--peers", str(tmp_path / "absent"), "--peer-models", "deepfm"]
    assert main([*command, "--dir", str(tmp_path / "b"), "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    figures, results = report["figures"], report["results"]
    assert results["mismatches"] == 0 and not list((tmp_path / "b").iterdir())
    found, prepared = results["deepfm"], results["prepared"]["deepfm"]
    assert list(found["trained"]) == ["67 %"] and list(found["asked"]) == ["27 %"]
    for one in found["trained"].values():
        assert one["memory_bytes"] == int(one["memory"] / 100 * prepared["bytes"])
        assert one["plain_pages_per_sample"] > 0 and one["lookahead_bytes_read_per_sample"] > 0
        assert one["plain_auc"] == one["lookahead_auc"] == pytest.approx(one["torch_auc"], abs=1e-3)
        assert one["rocksdb_samples_per_s"] is None
    name = "speed_vs_memory_deepfm_67"
    assert figures[name] == found["trained"]["67 %"]["lookahead_vs_memory"] > 0
    assert figures[f"{name}_without_lookahead"] == found["trained"]["67 %"]["plain_vs_memory"]
    assert figures["inference_vs_memory_deepfm_27"] > 0 and figures["auc_gap_deepfm"] < 1e-3
    assert figures["speed_vs_memory_models_67"] is None
    assert any(note.startswith("rocksdb: ") and "make peers" in note for note in report["notes"])


def test_a_row_or_a_loss_that_is_not_the_twins_is_a_mismatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"steps": 3, "rounds": 1, "first_steps": 2, "checked_steps": 3, "threads": 1}
    settings = Settings("dien", 8, data=wanted(batches=11, batch=32), **counts)
    cell.prepare(settings.plain, str(tmp_path))
    same = cell.train(settings.plain, str(tmp_path), 60)
    assert same["mismatches"] == 0

    true_round = cell.OverStore.round

    def round(self: Any, batches: Any) -> None:
        if self.way == "plain" and not self.losses:  # a row that training has not changed so
            table = self.store.table("item")
            key = batches[0].feature_keys(0)[:1]
            table.put(key, table.get(key) + np.float32(1e-4))
        true_round(self, batches)

    monkeypatch.setattr(cell.OverStore, "round", round)
    other = cell.train(settings.plain, str(tmp_path), 60)
    assert other["rows_apart"] > 0 and other["losses_unlike"] > 0
    assert other["mismatches"] >= other["rows_apart"] + other["losses_unlike"]


def test_made_samples_are_the_same_for_the_same_seed_and_fit_the_model() -> None:
    for name, targets in (("dlrm", 1), ("mmoe", 2), ("dien", 1)):
        kind = kind_of(name)
        one, again = (samples_of(kind, wanted()) for _ in range(2))
        assert len(one.train) == 6 and all(len(batch) == 64 for batch in one.train)
        assert sum(map(len, one.test)) == 128 and len(one.targets) == targets
        for batch, other in zip(one.train, again.train, strict=True):
            assert np.array_equal(batch.keys, other.keys)
            assert np.array_equal(batch.labels, other.labels)
            shape = (64, targets) if targets > 1 else (64,)
            assert batch.labels.shape == shape and 0 < batch.labels.mean() < 1
        rows = {one.table or one.name: one.num_embeddings for one in one.features}
        for table, keys in keys_by_table(one.features, one.train[0]).items():
            every = np.concatenate(keys)
            assert every.min() >= 0 and every.max() < rows[table]


def test_a_log_is_read_again_until_there_are_enough_batches(tmp_path: Path) -> None:
    file = tmp_path / "sessions.txt"
    lines = [f"{n}\t{n % 7} {n % 5 + 10} {n % 3 + 20}" for n in range(40)]
    file.write_text("\n".join(lines) + "\n")
    found = samples_of(kind_of("dien"), wanted(sessions=str(file), batch=24, batches=5))
    # 72 samples are trained on: three batches an epoch.
    assert len(found.train) == 5 and {len(batch) for batch in found.train} == {24}
    assert sum(map(len, found.test)) == 8
    assert {one.num_embeddings for one in found.features} == {15}
    with pytest.raises(MisuseError, match="--batch is 100, expected 72"):
        samples_of(kind_of("dien"), wanted(sessions=str(file), batch=100))


@pytest.mark.parametrize("given", [["--memory", "0"], ["--inference", "a lot"]])
def test_a_share_of_memory_that_is_none_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["models", *given])
    assert "is no share in per cent" in capsys.readouterr().err
