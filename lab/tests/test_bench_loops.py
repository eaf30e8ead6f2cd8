"""``bench loops``: small cells, what counts as held, and that it goes on from earlier reports."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from embedrock.errors import MisuseError
from embedrock_lab.bench.training.loops import figures, table
from embedrock_lab.commands.bench import main

STORES = ("plain", "lookahead", "pipeline")


def cell_of(
    plain: list[float],
    ahead: list[float],
    *,
    load: str = "deepfm",
    memory: float = 30,
    busy: int = 0,
) -> dict[str, Any]:
    rates = {"torch": [200.0] * len(plain), "plain": plain, "lookahead": ahead, "pipeline": plain}
    ways = {way: {"turns": one} for way, one in rates.items()}
    bound = {"by": "device", "samples_per_s": 100.0}
    cell: dict[str, Any] = {"load": load, "memory": memory, "busy": busy, "ways": ways}
    return cell | {"bound": bound, "raised": False, "memory_bytes": 1, "bytes": 4}


def test_what_is_slower_by_less_than_its_turns_differ_counts_as_held() -> None:
    noisy, steady = [80.0, 100.0, 120.0], [99.0, 100.0, 101.0]
    assert figures.held_ratio([70, 85, 100], noisy) == 0.9
    assert figures.held_ratio([84, 85, 86], steady) == 0.85
    assert figures.held_ratio([90, 95, 100], noisy) > 0.9, "a ratio above the bar stays as it is"


def test_a_way_that_is_unsteady_by_itself_is_not_excused() -> None:
    # Look-ahead beside a busy core: a round as fast as the plain loop, two at a tenth of it.
    assert figures.held_ratio([10, 12, 100], [99, 100, 101]) == 0.12
    # Nor is a steady one, where only the plain loop has a bad round.
    assert figures.held_ratio([59, 60, 61], [30, 100, 101]) < 0.7


def test_the_smallest_cell_counts_with_the_rule_and_without() -> None:
    cells = [
        cell_of([80, 100, 120], [70, 85, 100]),
        cell_of([99, 100, 101], [94, 95, 96], memory=130),
        cell_of([99, 100, 101], [188, 190, 192], busy=2),
    ]
    found = figures.of_cells(cells)
    assert found["lookahead_min"] == 0.9
    assert found["lookahead_min_unexcused"] == 0.85
    assert found["pipeline_min"] == 1
    assert found["lookahead_130"] == pytest.approx(0.95)
    assert found["resident_vs_torch"] == pytest.approx(0.5)
    assert found["deepfm_30"] == pytest.approx(0.5)
    assert found["deepfm_30_lookahead"] == pytest.approx(0.425), "with nothing beside"
    assert figures.of_cells([]) == {}


def test_there_is_a_table_for_each_number_of_busy_loops(tmp_path: Path) -> None:
    quiet, beside = cell_of([50.0], [75.0]), cell_of([20.0], [30.0], busy=2)
    alone = cell_of([180.0], [190.0], memory=130) | {"raised": True}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_between(page, table.markdown([quiet, beside, alone]))
    lines = page.read_text().splitlines()
    assert (lines[:2], lines[-2:]) == (["before", table.BEGIN], [table.END, "after"])
    text = [line for line in lines if line.endswith(":")]
    assert text == ["With nothing beside:", "Beside 2 loops of another process:"]
    rows = [[f.strip() for f in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert rows[0][3:6] == ["plain", "look-ahead", "pipeline"]
    assert rows[2][1:] == ["30 %", "200", "0.25", "0.38", "0.25", "device", "0.75"]
    assert rows[3][1] == "25 % (least)"
    assert rows[6][1:6] == ["30 %", "200", "0.10", "0.15", "0.10"] and len(rows) == 7
    page.write_text("no marks")
    with pytest.raises(MisuseError, match="has not the lines"):
        table.write_between(page, "")


def test_loops_beside_a_training_compute_until_it_ends() -> None:
    from embedrock_lab.bench.training.busy import NICE, busy

    def children() -> list[int]:
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [int(one) for one in listed]

    before = set(children())
    with busy(2):
        loops = [one for one in children() if one not in before]
        assert len(loops) == 2
        for one in loops:
            nice = int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[16])
            assert nice == min(NICE + os.nice(0), 19)
        ticks = [_ticks(one) for one in loops]
        begin = time.monotonic()
        while any(_ticks(one) == was for one, was in zip(loops, ticks, strict=True)):
            assert time.monotonic() - begin < 60, "a loop does not compute"
    assert set(children()) == before


def _ticks(process: int) -> int:
    """Processor time that it had."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11])


def test_small_cells_have_equal_losses_and_every_rate(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report, png = tmp_path / "report.json", tmp_path / "plot.png"
    small = ["--steps", "6", "--first-steps", "6", "--turns", "1", "--announce-all"]
    small += ["--dir", str(tmp_path / "bench")]
    command = ["loops", "--loads", "deepfm", "--memory", "2,40", "--busy", "0", *small]
    assert main([*command, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    assert not list((tmp_path / "bench").iterdir())
    cells = found["results"]["deepfm"]
    assert list(cells) == ["2 %, 0 busy", "40 %, 0 busy"]
    least, larger = cells.values()
    assert least["raised"] and least["memory_bytes"] > 0.02 * least["bytes"]
    assert any("least that works" in note for note in found["notes"])
    assert not larger["raised"] and larger["memory_bytes"] == int(0.4 * larger["bytes"])
    for cell in cells.values():
        assert [len(one["turns"]) for one in cell["ways"].values()] == [1, 1, 1, 1]
        assert all(cell["ways"][way]["pages_per_step"] > 0 for way in STORES)
        assert cell["bound"]["by"] in ("device", "cores") and cell["bound_share"] > 0
        assert cell["loss_apart_from_torch"] < 0.01
    ahead = larger["ways"]["lookahead"]
    assert ahead["loader"]["handed_out"] == 6 and ahead["passed_over_share"] == 0
    assert larger["ways"]["plain"]["passed_over_share"] == 0
    figured = found["figures"]
    assert figured["deepfm_40"] == pytest.approx(
        larger["plain_samples_per_s"] / larger["torch_samples_per_s"]
    )

    command = ["loops", "--loads", "deepfm,features", "--memory", "40", "--busy", "0", *small]
    both = tmp_path / "both.json"
    more = ["--from", str(report), "--png", str(png), "--json", str(both)]
    assert main([*command, *more]) == 0
    again = json.loads(both.read_text())["results"]
    assert again["deepfm"]["40 %, 0 busy"] == larger, "taken from the report, not measured again"
    features = again["features"]["40 %, 0 busy"]
    assert features["ways"]["pipeline"]["pages_per_step"] > 0 and again["mismatches"] == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_loss_that_differs_between_ways_fails_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from embedrock_lab.bench.training.loops import cell
    from embedrock_lab.bench.training.ways import OverStore

    cell.prepare("graphsage", 1, str(tmp_path))
    arguments = {"memory": 40, "loops": 0, "rounds": 1, "steps": 3, "seed": 1, "threads": 1}
    arguments |= {"first_steps": 3, "announce": True}
    same = cell.measure("graphsage", str(tmp_path), **arguments)
    assert same["mismatches"] == 0

    true_round = OverStore.round

    def round(self: OverStore, batches: Any) -> None:
        true_round(self, batches)
        if self.way == "lookahead":
            self.losses[-1] = self.losses[-1] + 1e-3

    monkeypatch.setattr(OverStore, "round", round)
    assert cell.measure("graphsage", str(tmp_path), **arguments)["mismatches"] == 2


def test_a_load_that_is_unknown_is_refused_with_those_that_are() -> None:
    with pytest.raises(MisuseError, match=r"has \['dlmr'\], expected some of deepfm"):
        main(["loops", "--loads", "dlmr"])
