"""The examples of the pages in docs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import embedrock
from places import ROOT

DOCS = ROOT / "docs"


def run_the_example_with(word: str, page: str = "lookahead.md") -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (example,) = [block for block in blocks if word in block]
    exec(compile(example, page, "exec"), {})


def test_the_example_of_both_destinations_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_the_example_with("out=rows")
    assert re.fullmatch(r"staleness up to [0-4]\n", capsys.readouterr().out)
    with embedrock.open(tmp_path / "ahead.store", memory="64MiB") as store:
        assert store.step == 200
        assert store.table("embeddings").contains(range(10_000)).sum() > 5000


def test_the_example_in_mlkvs_style_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_the_example_with("threading")
    said = capsys.readouterr().out
    assert re.fullmatch(r"200 batches, staleness up to [0-4]\n", said)
    with embedrock.open(tmp_path / "mlkv.store", memory="64MiB") as store:
        assert store.step == 200
        rows = store.table("embeddings").get(range(10_000))
        initial = store.table("other", 8).get(range(10_000))
        # Each step takes a fifth of a row's values away.
        assert abs(rows).mean() < 0.9 * abs(initial).mean()


def test_a_model_goes_in_and_out_and_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    run_the_example_with("weights.load", "models.md")
    said = capsys.readouterr().out
    assert said.startswith("largest difference ") and float(said.split()[-1]) < 1e-5
    assert (tmp_path / "items.safetensors").stat().st_size > 50_000 * 32 * 4


def test_a_reader_follows_the_trainer_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_the_example_with("refresh", "models.md")
    said = capsys.readouterr().out
    assert said == "step 2: 1.0 became 0.75\nstep 3: 0.75 became 0.5\n"
