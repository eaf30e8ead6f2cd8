"""What a model of so many bytes needs, and what bounds it: `docs/beyond-one-machine.md`.

`make pages` makes the tables of that page from this; `python scripts/beyond.py --help` has options
for models, machines and prices of yours. What was measured is read from where it stands: figures
from `docs/results`, others by a pattern from a page of `docs`. Only what nobody can measure here is
written down in this file: the machine that is rented, its price, how full its disks may get.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import results

DOCS = Path(__file__).parents[1] / "docs"
BUCKETS = 1024
"""Of every table, for ever (docs/formats/wire.md)."""
SLOTS = 2**32
"""Rows that the log of one row class of a store has places for (docs/formats/page.md)."""
HOURS = 730
"""Of a month."""
SIZES = (1e12, 1e13, 1e14)

Sizes = Sequence[float]


@dataclass(frozen=True)
class Measured:
    """A number that was measured, and where it is written down."""

    value: float
    unit: str
    what: str
    source: str


def of_page(page: str, pattern: str, unit: str, what: str, title: str) -> Measured:
    """The number that a page has where the pattern's group is. Errors: KeyError if it has none."""
    found = re.search(pattern, (DOCS / page).read_text(), re.DOTALL)
    if found is None:
        raise KeyError(f"docs/{page} has no {pattern!r}, from which scripts/beyond.py has {what}")
    return Measured(float(found[1].replace(",", "")), unit, what, f"[{title}]({page})")


def of_results(figure: str, unit: str, what: str, worst: Callable[..., Any] = min) -> Measured:
    """A figure of the machine that was measured last; of a range its worse end."""
    for machine in results.machines():
        value = machine["figures"].get(figure, machine.get(figure))
        if value is not None:
            value = worst(value) if isinstance(value, list) else value
            return Measured(value, unit, what, f"[results](results.md), {machine['name']}")
    raise KeyError(f"no machine of docs/results has the figure {figure!r}")


@cache
def measured() -> dict[str, Measured]:
    """Everything that was measured, by name."""
    lsm, trained = "storages.md", "decisions/0015-what-bounds-training.md"
    made = "decisions/0010-commits-beside-verbs.md"
    return {
        "reads": of_results("device_rate_4096_64", "reads/s", "of one disk, 4 KiB, at random"),
        "read_us": of_results("miss_cpu_us", "µs", "of a core for a read", max),
        "index_log": of_page(
            lsm, r"per row of a dense table \| ([\d.]+)", "bytes", "of index a row, log", "storages"
        ),
        "index_lsm": of_page(
            lsm,
            r"per row of a dense table \| [\d.]+ \| ([\d.]+)",
            "bytes",
            "of index a row, lsm",
            "storages",
        ),
        "disk_log": of_page(
            "choosing.md",
            r"\n\| 0\.04 of the rows \| ([\d.]+)",
            "bytes",
            "on disk a byte of rows, log, 4 % written between two commits",
            "choosing",
        ),
        "disk_lsm": of_page(
            lsm,
            r"bytes on disk ÷ bytes of rows, under updates \| [\d.]+ \| ([\d.]+)",
            "bytes",
            "on disk a byte of rows, lsm",
            "storages",
        ),
        "commit_rows": of_page(
            made, r"commit --rows ([\d,]+)", "rows", "changed, of a commit", "decision 10"
        ),
        "commit_row": of_page(made, r"(\d+)-byte rows, all", "bytes", "a row of it", "decision 10"),
        "commit_ms": of_page(
            made, r"\| `wait=True` \| (\d+) ms", "ms", "that it took", "decision 10"
        ),
        "written": of_results("commit_bytes_ratio", "bytes", "written for a byte of changed rows"),
        "reopen_s": of_results("reopen_s_per_100m", "s", "to open 100 million rows after a kill"),
        "distinct": of_page(
            trained,
            r"of its ([\d,]+) rows\. With",
            "rows",
            "distinct, of 1,024 samples",
            "decision 15",
        ),
        "missed": of_page(
            trained,
            r"\| requests \| (\d+) \|",
            "reads",
            "of 1,024 samples, 10 % of the rows in memory",
            "decision 15",
        ),
        "announced": of_page(
            trained, r"530 to (\d+) requests", "reads", "the same, announced", "decision 15"
        ),
        "computed": of_page(
            trained,
            r"([\d,]+)\s+samples/s with look-ahead, 19,000",
            "samples/s",
            "of a DLRM on two cores",
            "decision 15",
        ),
        "exchanged": of_results(
            "exchange_ids_per_s_26624", "ids/s", "that a rank gets and updates, on a core"
        ),
    }


@dataclass(frozen=True)
class Machine:
    """What is rented, and what of it may be used."""

    name: str = "i3en.24xlarge"
    cores: int = 96
    disks: int = 8
    disk_bytes: float = 7.5e12
    memory_bytes: float = 768 * 2**30
    network_bytes: float = 100e9 / 8
    dollars_an_hour: float = 10.848
    """List price in us-east-1 of 2026-01-19, as karpenter's tables have it."""
    fill: float = 0.9
    """Share of a disk that is used at most."""
    process_bytes: float = 2 * 2**30
    """A rank takes so much beside the memory of its store: PyTorch, the dense part, batches."""

    @property
    def usable_bytes(self) -> float:
        """Bytes of all its disks that are used at most."""
        return self.disks * self.disk_bytes * self.fill


@dataclass(frozen=True)
class Model:
    """The tables: how many bytes their rows have, and how many one row has."""

    bytes: float
    embedding_dim: int = 64
    value_bytes: int = 4
    state_bytes: int = 4
    """A word of row-wise Adagrad."""

    @property
    def row_bytes(self) -> int:
        """Values and optimizer state of a row."""
        return self.embedding_dim * self.value_bytes + self.state_bytes

    @property
    def rows(self) -> float:
        """Rows of all tables."""
        return self.bytes / self.row_bytes


@dataclass(frozen=True)
class Plan:
    """What a model needs on machines of one kind."""

    disk_bytes: float
    ranks_for_disk: int
    ranks_for_slots: int
    ranks: int
    machines: int
    index_bytes: float
    memory_bytes: float
    cached: float
    """Share of the rows that memory holds beside the indexes."""

    @property
    def fullest(self) -> int:
        """Buckets of the rank that has most of them."""
        return math.ceil(BUCKETS / self.ranks)


def ranks_for(total: float, most_of_a_rank: float) -> int:
    """The fewest ranks whose fullest has at most so much, when whole buckets are divided.

    More than the 1,024 buckets where a bucket alone is too much.

    >>> ranks_for(1024.0, 300.0), ranks_for(1024.0, 2048.0), ranks_for(1024.0, 0.5)
    (4, 1, 2048)
    """
    buckets = int(most_of_a_rank / (total / BUCKETS))
    return math.ceil(BUCKETS / buckets) if buckets else math.ceil(total / most_of_a_rank)


def plan(model: Model, machine: Machine, storage: str = "log") -> Plan:
    """Ranks, machines and memory of a model whose rows are stored so."""
    known = {name: one.value for name, one in measured().items()}
    grows = known[f"disk_{storage}"]
    disk_bytes = model.bytes * grows
    for_disk = ranks_for(disk_bytes, machine.disk_bytes * machine.fill)
    # The top of an lsm, a tenth of the rows, is a log.
    slots = model.rows * grows * (1.0 if storage == "log" else 0.1)
    for_slots = ranks_for(slots, SLOTS)
    ranks = max(for_disk, for_slots)
    machines = math.ceil(max(for_disk / machine.disks, disk_bytes / machine.usable_bytes))
    index_bytes = model.rows * known[f"index_{storage}"]
    memory = machines * machine.memory_bytes
    left = memory - index_bytes - ranks * machine.process_bytes
    cached = min(1.0, left / model.bytes)
    return Plan(disk_bytes, for_disk, for_slots, ranks, machines, index_bytes, memory, cached)


def sent_a_step(model: Model, wire_bytes: int) -> float:
    """Bytes that a rank sends for 1,024 samples, and receives, in the limit of many ranks: the ids
    of its distinct rows or those that it answers, their rows, and their gradients."""
    return measured()["distinct"].value * (8 + 2 * model.embedding_dim * wire_bytes)


def commit_bytes_per_s() -> float:
    """Bytes of changed rows that a store makes durable in a second."""
    known = measured()
    rows, each, ms = (known[f"commit_{name}"].value for name in ("rows", "row", "ms"))
    return rows * each / (ms / 1e3)


def _constants(model: Model, machine: Machine, sizes: Sizes) -> str:
    rows = []
    for name, one in measured().items():
        rows.append([f"{results.shown(one.value)} {one.unit}", one.what, one.source])
        if name == "commit_ms":
            made = f"{commit_bytes_per_s() / 1e6:.0f} MB/s"
            rows.append([made, "of changed rows become durable", "the three above"])
    return results.table(["measured", "what", "where"], rows, numbers_from=3)


def _ranks(model: Model, machine: Machine, sizes: Sizes) -> str:
    columns = []
    for size in sizes:
        log, lsm = (plan(replace(model, bytes=size), machine, kind) for kind in ("log", "lsm"))
        columns.append(
            [
                model_rows(model, size) / 1e9,
                log.disk_bytes / 1e12,
                log.ranks_for_disk,
                log.ranks_for_slots,
                log.ranks,
                log.fullest,
                log.machines,
                lsm.disk_bytes / 1e12,
                lsm.ranks,
                lsm.machines,
            ]
        )
    labels = ["billion rows", "TB on disks, log", "ranks so that a disk holds one"]
    labels += [
        "ranks so that their rows have slots",
        "**ranks, log**",
        "buckets of the fullest rank",
    ]
    labels += ["**machines, log**", "TB on disks, lsm", "**ranks, lsm**", "**machines, lsm**"]
    return _by_size(labels, sizes, columns)


def _memory(model: Model, machine: Machine, sizes: Sizes) -> str:
    columns = []
    for size in sizes:
        log, lsm = (plan(replace(model, bytes=size), machine, kind) for kind in ("log", "lsm"))
        columns.append(
            [
                log.memory_bytes / 1e9,
                log.index_bytes / 1e9,
                log.cached * 100,
                lsm.memory_bytes / 1e9,
                lsm.index_bytes / 1e9,
                lsm.cached * 100,
            ]
        )
    labels = ["GB of memory, log", "of it index", "% of the rows in memory"]
    labels += ["GB of memory, lsm", "of it index", "% of the rows in memory"]
    return _by_size(labels, sizes, columns)


def _reads(model: Model, machine: Machine, sizes: Sizes) -> str:
    known = {name: one.value for name, one in measured().items()}
    rows = []
    for label, reads in (
        ("10 % in memory, announced", known["announced"]),
        ("10 % in memory", known["missed"]),
        ("nothing in memory", known["distinct"]),
    ):
        each = reads / 1024
        rows.append(
            [
                label,
                f"{each:.2f}",
                results.shown(_rounded(known["reads"] / each)),
                f"{each * known['read_us']:.1f}",
            ]
        )
    return results.table(
        ["rows", "reads a sample", "samples/s of a disk", "µs of a core a sample"], rows
    )


def _network(model: Model, machine: Machine, sizes: Sizes) -> str:
    share = machine.network_bytes / machine.disks
    columns = []
    for wire in (4, 2):
        sent = sent_a_step(model, wire)
        columns.append(
            [
                sent / 1e6,
                sent / share * 1e3,
                1024 / sent * share,
                sent / (10e9 / 8) * 1e3,
                1024 / sent * 10e9 / 8,
            ]
        )
    labels = ["MB sent, and received, for 1,024 samples", f"ms on {share * 8 / 1e9:g} Gbit/s"]
    labels += ["samples/s", "ms on 10 Gbit/s", "samples/s"]
    rows = [
        [label, *(results.shown(_rounded(one)) for one in line)]
        for label, line in _turned(labels, columns)
    ]
    return results.table(["a rank", "float32", "bfloat16"], rows)


def _bounds(model: Model, machine: Machine, sizes: Sizes) -> str:
    known = {name: one.value for name, one in measured().items()}
    reads = machine.disks * known["reads"] * 1024
    bounds = {
        "reads, nothing in memory": reads / known["distinct"],
        "reads, 10 % in memory": reads / known["missed"],
        "reads, 10 % in memory, announced": reads / known["announced"],
        f"exchanging ids, {machine.cores} cores": (
            known["exchanged"] * 1024 / known["distinct"] * machine.cores
        ),
        f"computing, {machine.cores} cores": known["computed"] / 2 * machine.cores,
        f"network, {machine.network_bytes * 8 / 1e9:g} Gbit/s": (
            1024 / sent_a_step(model, 4) * machine.network_bytes
        ),
    }
    ordered = sorted(bounds.items(), key=lambda one: one[1])
    rows = [[name, results.shown(_rounded(one))] for name, one in ordered]
    return results.table(["bound", "samples/s of a machine"], rows)


def _commit(model: Model, machine: Machine, sizes: Sizes) -> str:
    columns = []
    for size in sizes:
        one = plan(replace(model, bytes=size), machine)
        disks = one.machines * machine.disks
        a_disk = size / disks
        columns.append(
            [
                a_disk * 0.01 * measured()["written"].value / 1e9,
                a_disk * 0.01 / commit_bytes_per_s(),
                a_disk / commit_bytes_per_s() / 3600,
                model_rows(model, size) / disks / 1e8 * measured()["reopen_s"].value,
            ]
        )
    labels = ["GB that a disk writes, 1 % of the rows changed", "seconds that it takes"]
    labels += ["hours to write all rows once", "seconds to open all stores of a disk after a kill"]
    return _by_size(labels, sizes, columns)


def _cost(model: Model, machine: Machine, sizes: Sizes) -> str:
    columns = []
    for size in sizes:
        log = plan(replace(model, bytes=size), machine)
        month = log.machines * machine.dollars_an_hour * HOURS
        columns.append([log.machines, month, month / (size / 1e12), size / 1e9 * S3_DOLLARS])
    labels = ["machines", "**dollars a month**", "dollars a month for a TB of rows"]
    labels += ["dollars a month for a copy in object storage"]
    return _by_size(labels, sizes, columns)


S3_DOLLARS = 0.023
"""A GB for a month: S3 Standard, us-east-1, the first 50 TB, as of 2022-07."""


def _limits(model: Model, machine: Machine, sizes: Sizes) -> str:
    known = {name: one.value for name, one in measured().items()}
    store = SLOTS / known["disk_log"] * model.row_bytes
    a_disk = machine.disk_bytes * machine.fill
    rows = [
        ["a dense table of a log", "2^32 ids", SLOTS * model.row_bytes / 1e12],
        ["rows of one length in a log of one rank", "2^32 slots", store / 1e12],
        ["the same of all ranks", f"{BUCKETS:,} buckets", BUCKETS * store / 1e12],
        [
            f"one disk of {machine.disk_bytes / 1e12:g} TB a rank, lsm",
            f"{BUCKETS:,} buckets",
            BUCKETS * a_disk / known["disk_lsm"] / 1e12,
        ],
        [
            "the same, log, rows of many lengths",
            f"{BUCKETS:,} buckets",
            BUCKETS * a_disk / known["disk_log"] / 1e12,
        ],
    ]
    return results.table(
        ["what is full", "by", "TB of rows"],
        [[what, by, results.shown(_rounded(size))] for what, by, size in rows],
        numbers_from=2,
    )


def model_rows(model: Model, size: float) -> float:
    """Rows of the model at that size."""
    return replace(model, bytes=size).rows


def _by_size(labels: list[str], sizes: Sizes, columns: list[list[float]]) -> str:
    rows = [
        [label, *(results.shown(_rounded(one)) for one in line)]
        for label, line in _turned(labels, columns)
    ]
    return results.table(["", *(f"{size / 1e12:g} TB" for size in sizes)], rows)


def _turned(labels: list[str], columns: list[list[float]]) -> list[tuple[str, tuple[float, ...]]]:
    return list(zip(labels, zip(*columns, strict=True), strict=True))


def _rounded(value: float) -> float:
    """Two digits are all that such numbers are good for; what is counted stays as it is."""
    if isinstance(value, int):
        return value
    places = 1 - math.floor(math.log10(abs(value))) if value else 0
    return round(value, places)


TABLES = {
    "beyond_constants": _constants,
    "beyond_ranks": _ranks,
    "beyond_memory": _memory,
    "beyond_reads": _reads,
    "beyond_network": _network,
    "beyond_bounds": _bounds,
    "beyond_commit": _commit,
    "beyond_cost": _cost,
    "beyond_limits": _limits,
}


def made(name: str) -> str:
    """The Markdown of one table of the page."""
    return TABLES[name](Model(SIZES[-1]), Machine(), SIZES)


def main() -> None:
    """Prints every table for one model and one kind of machine."""
    machine, model = Machine(), Model(SIZES[-1])
    parser = argparse.ArgumentParser(description="What a model needs beyond one machine.")
    parser.add_argument(
        "--tb",
        type=float,
        nargs="+",
        default=[size / 1e12 for size in SIZES],
        help="TB of values and optimizer state, in one or several sizes",
    )
    parser.add_argument("--dim", type=int, default=model.embedding_dim, help="(%(default)s)")
    parser.add_argument("--value-bytes", type=int, default=model.value_bytes, help="2 or 4 (4)")
    parser.add_argument(
        "--state-bytes",
        type=int,
        default=model.state_bytes,
        help="optimizer state of a row (4: row-wise Adagrad)",
    )
    parser.add_argument("--disks", type=int, default=machine.disks, help="of a machine (8)")
    parser.add_argument("--disk-tb", type=float, default=machine.disk_bytes / 1e12, help="(7.5)")
    parser.add_argument(
        "--memory-gib", type=float, default=machine.memory_bytes / 2**30, help="of a machine (768)"
    )
    parser.add_argument(
        "--gbit",
        type=float,
        default=machine.network_bytes * 8 / 1e9,
        help="of a machine's network, per second (100)",
    )
    parser.add_argument(
        "--dollars-an-hour",
        type=float,
        default=machine.dollars_an_hour,
        help="of a machine (%(default)s)",
    )
    given = parser.parse_args()
    model = Model(given.tb[-1] * 1e12, given.dim, given.value_bytes, given.state_bytes)
    machine = replace(
        machine,
        name="given",
        disks=given.disks,
        disk_bytes=given.disk_tb * 1e12,
        memory_bytes=given.memory_gib * 2**30,
        network_bytes=given.gbit * 1e9 / 8,
        dollars_an_hour=given.dollars_an_hour,
    )
    sizes = [size * 1e12 for size in given.tb]
    for name, table in TABLES.items():
        print(f"{name.removeprefix('beyond_')}\n{table(model, machine, sizes)}")


if __name__ == "__main__":
    main()
