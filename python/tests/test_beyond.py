"""What a model needs beyond one machine: the arithmetic, and the page that is made from it."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
beyond: Any = importlib.import_module("beyond")


def fullest(ranks: int) -> int:
    """Buckets of the rank that has most, when the first ones have one more."""
    return max(1024 // ranks + (rank < 1024 % ranks) for rank in range(ranks))


def test_the_fewest_ranks_are_those_whose_fullest_has_room() -> None:
    for most in (1.0, 2.5, 4.0, 7.0, 26.9, 300.0, 512.0, 5000.0):
        ranks = beyond.ranks_for(1024.0, most)
        assert fullest(ranks) <= most
        assert ranks == 1 or fullest(ranks - 1) > most
    assert beyond.ranks_for(1024.0, 0.25) == 4096, "what does not fit is more ranks than buckets"


@pytest.mark.parametrize("storage", ["log", "lsm"])
@pytest.mark.parametrize("size", [3e11, 1e12, 1e13, 1e14])
def test_what_a_plan_says_fits(size: float, storage: str) -> None:
    model, machine = beyond.Model(size), beyond.Machine()
    found = beyond.plan(model, machine, storage)
    known = {name: one.value for name, one in beyond.measured().items()}
    share = fullest(found.ranks) / 1024
    in_log = 1.0 if storage == "log" else 0.1
    assert found.fullest == fullest(found.ranks)
    assert model.rows * share * known[f"disk_{storage}"] * in_log <= 2**32
    assert found.disk_bytes <= found.machines * machine.disks * 7.5e12 * 0.9
    assert found.memory_bytes == found.machines * 768 * 2**30
    used = found.index_bytes + found.cached * size + found.ranks * 2 * 2**30
    assert used == pytest.approx(found.memory_bytes) or found.cached == 1.0
    # Longer rows are fewer, and need fewer slots.
    longer = beyond.plan(replace(model, embedding_dim=512), machine, storage)
    assert longer.ranks <= found.ranks and longer.disk_bytes == found.disk_bytes


def test_a_number_whose_page_has_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beyond, "DOCS", tmp_path)
    (tmp_path / "choosing.md").write_text("| 0.04 of the rows | 2.5 |")
    pattern = r"0\.04 of the rows \| ([\d.]+)"
    assert beyond.of_page("choosing.md", pattern, "bytes", "x", "y").value == 2.5
    with pytest.raises(KeyError, match=r"choosing\.md has no .*from which .* has what it needs"):
        beyond.of_page("choosing.md", "nothing ([0-9])", "bytes", "what it needs", "y")
    with pytest.raises(KeyError, match="no machine of docs/results has the figure 'nothing'"):
        beyond.of_results("nothing", "s", "x")


def test_the_text_of_the_page_says_what_its_tables_are_made_from() -> None:
    page = " ".join((ROOT / "docs" / "beyond-one-machine.md").read_text().split())
    machine, model = beyond.Machine(), beyond.Model(1e12)
    for said in (
        f"rows of {model.embedding_dim} float32",
        f"{model.row_bytes} bytes, in tables",
        f"`{machine.name}` is rented: {machine.cores} cores",
        f"{machine.memory_bytes / 2**30:g} GiB of memory, {machine.disks} disks of 7.5 TB",
        f"{machine.network_bytes * 8 / 1e9:g} Gbit/s",
        f"{machine.process_bytes / 2**30:g} GiB beside its store",
        f"{machine.dollars_an_hour} dollars an hour",
        f"{beyond.HOURS} hours",
        f"{beyond.S3_DOLLARS} dollars a GB",
    ):
        assert said in page, said
    assert machine.fill == 0.9 and "filled to nine tenths" in page


def test_the_tables_can_be_had_for_a_model_and_a_price_of_ones_own() -> None:
    def cost(*options: str) -> float:
        script = [sys.executable, str(ROOT / "scripts" / "beyond.py"), "--tb", "50", *options]
        said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        (line,) = [one for one in said.splitlines() if "dollars a month**" in one]
        return float(line.split("|")[2].replace(",", ""))

    machines = math.ceil(50e12 * 2.6 / (8 * 7.5e12 * 0.9))
    assert cost("--dollars-an-hour", "1") == pytest.approx(machines * 730, rel=0.05)
    assert cost("--dollars-an-hour", "1", "--disk-tb", "1000") == pytest.approx(730, rel=0.05)
