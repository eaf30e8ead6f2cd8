"""Needs of a model beyond one machine: the arithmetic, and the page that is made from it."""

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
sys.path.insert(0, str(ROOT / "lab" / "scripts"))
beyond: Any = importlib.import_module("beyond")
sizing: Any = importlib.import_module("sizing")


def fullest(ranks: int) -> int:
    """Buckets of the rank that has most, when the first ones have one more."""
    return max(1024 // ranks + (rank < 1024 % ranks) for rank in range(ranks))


def buckets_of(ranks: int) -> list[int]:
    """Buckets of each rank, as `embedrock.distributed` divides them."""
    return [1024 // ranks + (rank < 1024 % ranks) for rank in range(ranks)]


def test_the_fewest_ranks_are_those_whose_fullest_has_room() -> None:
    for most in (1.0, 2.5, 4.0, 7.0, 26.9, 300.0, 512.0, 5000.0):
        ranks = sizing.ranks_for(1024.0, most)
        assert fullest(ranks) <= most
        assert ranks == 1 or fullest(ranks - 1) > most
    assert sizing.ranks_for(1024.0, 0.25) == 4096, "what does not fit is more ranks than buckets"


def test_the_fullest_machine_and_disk_are_those_that_counting_finds() -> None:
    for machines, each in [
        (1, 3),
        (4, 2),
        (5, 52),
        (6, 43),
        (7, 8),
        (3, 11),
        (1, 12),
        (1, 1),
        (128, 8),
    ]:
        layout = sizing.Layout(machines, each)
        buckets = buckets_of(layout.ranks)
        on_machines = [buckets[at * each : at * each + each] for at in range(machines)]
        assert layout.of_machine() == max(sum(ranks) for ranks in on_machines)
        for disks in (1, 2, 3, 8):
            on_disks = [sum(ranks[disk::disks]) for ranks in on_machines for disk in range(disks)]
            assert layout.of_disk(disks) == max(on_disks)


@pytest.mark.parametrize("storage", ["log", "lsm"])
@pytest.mark.parametrize("size", [3e11, 1e12, 1e13, 1e14])
def test_what_a_plan_says_fits(size: float, storage: str) -> None:
    model, machine = sizing.Model(size), sizing.Machine()
    found = sizing.plan(model, machine, storage)
    known = {name: one.value for name, one in sizing.measured().items()}
    each = found.layout.ranks_a_machine
    buckets = buckets_of(found.layout.ranks)
    first = buckets[:each]
    in_log = 1.0 if storage == "log" else 0.1
    assert found.layout.ranks >= found.ranks and found.fullest == fullest(found.ranks)
    assert model.rows * fullest(found.ranks) / 1024 * known[f"disk_{storage}"] * in_log <= 2**32
    assert sum(first[::8]) / 1024 * found.needs.disk_bytes <= 7.5e12 * 0.9
    assert found.memory_bytes == found.machines * 768 * 2**30
    share = sum(first) / 1024
    used = share * (found.needs.index_bytes + found.cached * size) + each * 2 * 2**30
    assert used == pytest.approx(768 * 2**30) or found.cached == 1.0
    if found.machines > 1:
        with pytest.raises(sizing.NoRoom):
            sizing.plan(model, machine, storage, found.machines - 1)
    # Longer rows are fewer, and need fewer slots.
    longer = sizing.plan(replace(model, embedding_dim=512), machine, storage)
    assert longer.ranks <= found.ranks and longer.needs.disk_bytes == found.needs.disk_bytes


def test_no_disk_is_filled_by_two_ranks_where_only_one_has_room() -> None:
    # By hand: 2.6 bytes on disk a byte of rows, and five ranks for their slots. Two on one disk
    # would have 410 of 1,024 buckets, 2.08 TB; eight ranks have two each, 256 buckets, 1.3 TB.
    model = sizing.Model(2e12, 32, 4, 128)
    machine = sizing.Machine(disks=1, disk_bytes=1.9e12, memory_bytes=64 * 2**30)
    found = sizing.plan(model, machine)
    assert (found.ranks, found.machines, found.layout.ranks_a_machine) == (5, 4, 2)
    assert found.layout.of_disk(1) * found.needs.disk_bytes / 1024 == pytest.approx(1.3e12)
    # 100 TB, 256 ranks and more on five machines: seven ranks of four buckets on a disk.
    with pytest.raises(sizing.NoRoom, match=r"fullest disk has 7\.11 TB, and 6\.75 TB may be"):
        sizing.plan(sizing.Model(1e14), sizing.Machine(), machines=5)


KNOWN = {
    "reads": 1000.0,
    "distinct": 2048.0,
    "missed": 1024.0,
    "announced": 512.0,
    "computed": 200.0,
    "exchanged": 4000.0,
    "disk_log": 2.0,
    "index_log": 4.0,
}
"""Round figures in place of the measured ones: two distinct rows a sample, 100 samples/s a core."""

MODEL = sizing.Model(1.024e12, 60, 4, 16)
"""4 billion rows of 256 bytes; on disk a bucket of a log has 2 GB."""
MACHINE = sizing.Machine(
    cores=4,
    disks=2,
    disk_bytes=1e12,
    memory_bytes=100e9,
    process_bytes=1e9,
    network_bytes=1e9,
)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    known = dict(KNOWN)
    monkeypatch.setattr(
        sizing,
        "measured",
        lambda: {name: sizing.Measured(value, "", "", "") for name, value in known.items()},
    )
    return known


@pytest.mark.usefixtures("by_hand")
def test_memory_of_the_fullest_machine_is_counted() -> None:
    # 900 GB of a disk are 450 buckets, so three ranks; two machines start two each, 256 buckets.
    found = sizing.plan(MODEL, MACHINE)
    assert (found.ranks, found.machines, found.layout.ranks_a_machine) == (3, 2, 2)
    # Half of 16 GB of index and two processes leave 90 GB for 512 GB of rows.
    assert found.cached == pytest.approx(90 / 512)
    assert sizing.plan(MODEL, MACHINE, machines=8).cached == pytest.approx((100 - 2 - 2) / 128)
    # 10 GB are just enough for half of the index and two processes, and less is not.
    assert sizing.plan(MODEL, replace(MACHINE, memory_bytes=10e9)).cached == 0
    small = replace(MACHINE, memory_bytes=9.9e9)
    assert sizing.plan(MODEL, small).machines == 3
    with pytest.raises(sizing.NoRoom, match=r"take 10 GB of memory, and it has 9\.9 GB"):
        sizing.plan(MODEL, small, machines=2)
    with pytest.raises(sizing.NoRoom, match=r"2 ranks on a machine are more than its cores \(1\)"):
        sizing.plan(MODEL, replace(MACHINE, cores=1, disk_bytes=1e13), machines=1)


def test_a_model_beyond_the_buckets_has_room_nowhere() -> None:
    said = sizing.answer(sizing.Model(5e14), sizing.Machine(), sizing.Samples())
    assert said.startswith("500 TB, log: no number of machines has room: it needs 1,165 ranks, and")
    (line,) = [one for one in beyond.made("beyond_limits").splitlines() if "of all ranks" in one]
    assert "440" in line, "the page says where that is"


@pytest.mark.usefixtures("by_hand")
def test_ids_and_hit_rates_say_how_many_rows_a_sample_reads() -> None:
    assert sizing.Samples().rows == 2.0
    assert sizing.Samples(ids=52).rows == 4.0, "as repeated as what was measured"
    assert sizing.Samples(ids=10, distinct_share=1.0).rows == 10.0
    reads = sizing.reads_a_sample(sizing.Samples(ids=52, hit_rate=0.75))
    assert reads == {
        "10 % in memory, announced": 1.0,
        "10 % in memory": 2.0,
        "nothing in memory": 4.0,
        "hit rate 75 %": 1.0,
    }
    # Of 2,048 rows of a batch 512 are read where a tenth of all rows is in memory.
    for cached, rate in [(0.0, 0.0), (0.05, 0.375), (0.1, 0.75), (0.55, 0.875), (1.0, 1.0)]:
        assert sizing.expected_hit_rate(cached) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("changed", "reads", "hit_rate", "rate", "bound"),
    [
        # Two machines of four cores: 100 samples/s each.
        ({}, 1000.0, 0.9, 800.0, "computing"),
        # A quarter of 0.2 reads a sample is of the fullest disk.
        ({}, 10.0, 0.9, 200.0, "reads"),
        ({}, 10.0, 1.0, 800.0, "computing"),
        # 90 of 512 GB in memory: 0.75 + 0.25 x (0.1758 - 0.1) / 0.9 of the rows, so 0.458 reads.
        ({}, 10.0, None, 10 / (0.25 * 2 * (0.25 - 0.25 * (90 / 512 - 0.1) / 0.9)), "reads"),
        # Two rows a sample, each of 8 + 2 x 240 bytes: 976, and each machine sends 9,760 a second.
        ({"network_bytes": 9760.0}, 1000.0, 0.9, 20.0, "network"),
    ],
)
def test_the_speed_of_machines_is_what_bounds_first(
    by_hand: dict[str, float],
    changed: dict[str, float],
    reads: float,
    hit_rate: float | None,
    rate: float,
    bound: str,
) -> None:
    by_hand["reads"] = reads
    machine = replace(MACHINE, **changed)
    found = sizing.plan(MODEL, machine)
    samples = sizing.Samples(hit_rate=hit_rate)
    assert sizing.speed(found, MODEL, machine, samples) == (pytest.approx(rate), bound)
    said = sizing.answer(MODEL, machine, samples)
    shown = f"{float(f'{rate:.2g}'):g}"
    assert said == f"1.024 TB, log, 2 machines: {shown} samples/s, bound by {bound}"


def test_exchanging_bounds_ranks_and_not_one_rank(by_hand: dict[str, float]) -> None:
    by_hand["exchanged"] = 20.0
    # Two rows a sample: 10 samples/s of a core, 80 of eight.
    found = sizing.plan(MODEL, MACHINE)
    samples = sizing.Samples(hit_rate=1.0)
    assert sizing.speed(found, MODEL, MACHINE, samples) == (80.0, "exchanging ids")
    small = replace(MODEL, bytes=1e9)
    alone = replace(MACHINE, disks=1, network_bytes=1.0)
    found = sizing.plan(small, alone)
    assert found.layout.ranks == 1
    assert sizing.speed(found, small, alone, samples) == (400.0, "computing")


def test_a_number_whose_page_has_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "DOCS", tmp_path)
    (tmp_path / "choosing.md").write_text("| 0.04 of the rows | 2.5 |")
    pattern = r"0\.04 of the rows \| ([\d.]+)"
    assert sizing.of_page("choosing.md", pattern, "bytes", "x", "y").value == 2.5
    with pytest.raises(KeyError, match=r"choosing\.md has no .*from which .* has what it needs"):
        sizing.of_page("choosing.md", "nothing ([0-9])", "bytes", "what it needs", "y")
    with pytest.raises(KeyError, match="no machine of docs/results has the figure 'nothing'"):
        sizing.of_results("nothing", "s", "x")


def test_the_text_of_the_page_says_what_its_tables_are_made_from() -> None:
    page = " ".join((ROOT / "docs" / "beyond-one-machine.md").read_text().split())
    machine, model = sizing.Machine(), sizing.Model(1e12)
    for said in (
        f"rows of {model.embedding_dim} float32",
        f"{model.row_bytes} bytes, in tables",
        f"`{machine.name}` is rented: {machine.cores} cores",
        f"{machine.memory_bytes / 2**30:g} GiB of memory, {machine.disks} disks of 7.5 TB",
        f"{machine.network_bytes * 8 / 1e9:g} Gbit/s",
        f"{machine.process_bytes / 2**30:g} GiB beside its store",
        f"{machine.dollars_an_hour} dollars an hour",
        f"{beyond.HOURS} hours",
        f"{beyond.S3_DOLLARS} dollars per GB",
    ):
        assert said in page, said
    assert machine.fill == 0.9 and "filled to nine tenths" in page


def test_the_tables_can_be_had_for_a_model_and_a_price_of_ones_own() -> None:
    def cost(*options: str) -> float:
        script = [
            sys.executable,
            str(ROOT / "lab" / "scripts" / "beyond.py"),
            "--tb",
            "50",
            *options,
        ]
        said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        (line,) = [one for one in said.splitlines() if "dollars a month**" in one]
        return float(line.split("|")[2].replace(",", ""))

    machines = math.ceil(50e12 * 2.6 / (8 * 7.5e12 * 0.9))
    assert cost("--dollars-an-hour", "1") == pytest.approx(machines * 730, rel=0.05)
    # On larger disks memory decides: an index of 773 GB and 128 processes are more than 825 GB.
    assert cost("--dollars-an-hour", "1", "--disk-tb", "1000") == pytest.approx(1460, rel=0.05)


def test_options_are_the_case_that_the_tables_are_made_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--tb 2 --machines 4 --cores 16 --ids 40 --distinct 0.5 --hit-rate 0.8 --core-rate 50"
    case = beyond.given(options.split())
    assert (case.machines, case.machine.cores) == (4, 16)
    assert case.samples == sizing.Samples(40.0, 0.5, 0.8, 50.0) and case.samples.rows == 20.0
    assert "| computing, 16 cores | 800 |" in beyond.TABLES["bounds"](case)
    assert "| hit rate 80 % | 4.00 |" in beyond.TABLES["reads"](case)
    usual = beyond.given([])
    for name, table in beyond.TABLES.items():
        assert table(usual) == beyond.made(f"beyond_{name}"), "without options it is the page"
    for options, said in {
        "--hit-rate 95": "--hit-rate: 95 is not from 0 to 1, such as 0.95",
        "--machines 0": "--machines: 0 is not a whole number of 1 or more",
        "--cores 2.5": "--cores: 2.5 is not a whole number of 1 or more",
        "--ids many": "--ids: many is not a number above 0",
    }.items():
        with pytest.raises(SystemExit):
            beyond.given(options.split())
        assert said in capsys.readouterr().err


def test_machines_that_have_no_room_are_told_how_many_have() -> None:
    # By hand, for the machines of the page's example: 7.2 TB of an lsm on four disks is 1.8 TB.
    case = beyond.given(beyond.EXAMPLE.split())
    log, lsm = beyond.TABLES["speed"](case).splitlines()
    assert log.startswith("2 TB, log, 4 machines: ") and " samples/s, bound by " in log
    assert lsm == (
        "2 TB, lsm, 4 machines: no room: the fullest disk has 1.8 TB, and 1.71 TB may be filled; "
        "5 machines would do"
    )
    assert "| **machines, lsm** | 5 |" in beyond.TABLES["ranks"](case)
    nowhere = beyond.given(["--tb", "500", "--machines", "9"])
    assert "| **machines, log** | |" in beyond.TABLES["ranks"](nowhere), "cells without a number"
