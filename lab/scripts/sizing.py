"""Number of machines that a model needs, and the bounds of its training: the arithmetic of
`beyond.py`.

Measurements are read from their source: figures from `docs/results`, others by a pattern from a
page of `docs`. Only values that cannot be measured are in this file: the rented machine, its price,
the allowed fill of its disks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import results

DOCS = Path(__file__).parents[2] / "docs"
BUCKETS = 1024
"""Of every table, for ever (docs/formats/wire.md)."""
SLOTS = 2**32
"""Rows that the log of one row class of a store has places for (docs/formats/page.md)."""
STORAGES = ("log", "lsm")


class NoRoom(ValueError):
    """A model has no room, on so many machines or on any number of them; says what is short."""


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
        raise KeyError(
            f"docs/{page} has no {pattern!r}, from which lab/scripts/beyond.py has {what}"
        )
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
    """The rented machine, and its usable share."""

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
class Samples:
    """Requests of a sample. By default it has Criteo's shape, which was measured."""

    ids: float = 26
    distinct_share: float | None = None
    """Distinct rows of a batch of 1,024 samples, of its ids; None is the measured value."""
    hit_rate: float | None = None
    """Share of the distinct rows of a batch that are in memory; None if it is not known."""
    core_rate: float | None = None
    """Samples/s that a core computes; None is half of what a DLRM did on two cores."""

    @property
    def rows(self) -> float:
        """Distinct rows of a batch, for one of its samples."""
        share = self.distinct_share
        if share is None:
            share = measured()["distinct"].value / (1024 * Samples.ids)
        return self.ids * share


@dataclass(frozen=True)
class Layout:
    """Ranks on machines, as many on each, in order; the first 1,024 mod ranks of them have one
    bucket more than others, and a machine's ranks take its disks in turn."""

    machines: int
    ranks_a_machine: int

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.machines * self.ranks_a_machine

    def buckets(self, ranks: int, apart: int = 1) -> int:
        """Buckets of the first so many ranks, the fullest, or of each so many apart."""
        each, more = divmod(BUCKETS, self.ranks)
        return ranks * each + min(ranks, math.ceil(more / apart))

    def of_machine(self) -> int:
        """Buckets of the fullest machine."""
        return self.buckets(self.ranks_a_machine)

    def of_disk(self, disks: int) -> int:
        """Buckets of the fullest disk, if machines have so many."""
        return self.buckets(math.ceil(self.ranks_a_machine / disks), disks)


@dataclass(frozen=True)
class Needs:
    """Disk, slots and memory of a model in one kind of storage, all ranks together."""

    storage: str
    disk_bytes: float
    slots: float
    index_bytes: float

    @classmethod
    def of(cls, model: Model, storage: str) -> Needs:
        """By what was measured of that storage."""
        known = measured()
        grows = known[f"disk_{storage}"].value
        # The top of an lsm, a tenth of the rows, is a log.
        slots = model.rows * grows * (1.0 if storage == "log" else 0.1)
        index_bytes = model.rows * known[f"index_{storage}"].value
        return cls(storage, model.bytes * grows, slots, index_bytes)

    def ranks_for_disk(self, machine: Machine) -> int:
        """The fewest ranks of which each has room on a disk."""
        return ranks_for(self.disk_bytes, machine.disk_bytes * machine.fill)

    @property
    def ranks_for_slots(self) -> int:
        """The fewest ranks whose logs have slots for their rows."""
        return ranks_for(self.slots, SLOTS)

    def ranks(self, machine: Machine) -> int:
        """The fewest that do."""
        return max(self.ranks_for_disk(machine), self.ranks_for_slots)

    def left_bytes(self, machine: Machine, layout: Layout) -> float:
        """Memory of the fullest machine beside its indexes and processes."""
        index = self.index_bytes * layout.of_machine() / BUCKETS
        return machine.memory_bytes - index - layout.ranks_a_machine * machine.process_bytes

    def short(self, machine: Machine, layout: Layout) -> str:
        """Shortage of the fullest rank, disk or machine; empty if they have room."""
        on_disk = self.disk_bytes * layout.of_disk(machine.disks) / BUCKETS
        may = machine.disk_bytes * machine.fill
        if layout.ranks > BUCKETS:
            return f"it needs {layout.ranks:,} ranks, and there are {BUCKETS:,} buckets"
        if layout.ranks_a_machine > machine.cores:
            ranks = layout.ranks_a_machine
            return f"{ranks:,} ranks on a machine are more than its cores ({machine.cores})"
        if (slots := self.slots * layout.buckets(1) / BUCKETS) > SLOTS:
            return f"the fullest rank has {slots / 1e9:.3g} billion rows, and 4.29 billion slots"
        if on_disk > may:
            return (
                f"the fullest disk has {on_disk / 1e12:.3g} TB, "
                f"and {may / 1e12:.3g} TB may be filled"
            )
        if (left := self.left_bytes(machine, layout)) < 0:
            return (
                f"indexes and processes of the fullest machine take "
                f"{(machine.memory_bytes - left) / 1e9:.3g} GB of memory, "
                f"and it has {machine.memory_bytes / 1e9:.3g} GB"
            )
        return ""


@dataclass(frozen=True)
class Plan:
    """Needs of a model on machines of one kind."""

    needs: Needs
    ranks: int
    """The fewest that it can be divided into."""
    layout: Layout
    """The machines that are needed, or are there; their ranks are all that are started."""
    memory_bytes: float
    cached: float
    """Share of the rows of the fullest machine that its memory holds beside the indexes."""

    @property
    def fullest(self) -> int:
        """Buckets of the rank that has most of them, of the fewest ranks."""
        return math.ceil(BUCKETS / self.ranks)

    @property
    def machines(self) -> int:
        """Number of machines."""
        return self.layout.machines


def ranks_for(total: float, most_of_a_rank: float) -> int:
    """The fewest ranks whose fullest has at most so much, when whole buckets are divided.

    More than the 1,024 buckets where a bucket alone is too much.

    >>> ranks_for(1024.0, 300.0), ranks_for(1024.0, 2048.0), ranks_for(1024.0, 0.5)
    (4, 1, 2048)
    """
    buckets = int(most_of_a_rank / (total / BUCKETS))
    return math.ceil(BUCKETS / buckets) if buckets else math.ceil(total / most_of_a_rank)


def layouts(machines: int, ranks: int, machine: Machine) -> Iterator[Layout]:
    """Ways to start at least so many ranks, the best first: the fewest with one for each disk."""
    fewest = math.ceil(ranks / machines)
    most = max(fewest, min(machine.cores, BUCKETS // machines))
    for each in sorted(range(fewest, most + 1), key=lambda each: (each < machine.disks, each)):
        yield Layout(machines, each)


def plan(model: Model, machine: Machine, storage: str = "log", machines: int | None = None) -> Plan:
    """Ranks, machines and memory of a model whose rows are stored so.

    The machines are those that are given, or else the fewest that have room. Errors: NoRoom where
    they, or any number of them, have none.
    """
    needs = Needs.of(model, storage)
    ranks = needs.ranks(machine)
    short = f"it needs {ranks:,} ranks, and there are {BUCKETS:,} buckets"
    if ranks > BUCKETS:
        raise NoRoom(short)
    for count in range(1, BUCKETS + 1) if machines is None else [machines]:
        for number, layout in enumerate(layouts(count, ranks, machine)):
            lacks = needs.short(machine, layout)
            # The best of them says why; others may lack something else.
            short = short if number else lacks
            if not lacks:
                share = layout.of_machine() / BUCKETS
                cached = min(1.0, needs.left_bytes(machine, layout) / (model.bytes * share))
                memory = count * machine.memory_bytes
                return Plan(needs, ranks, layout, memory, cached)
    raise NoRoom(short)


def expected_hit_rate(cached: float) -> float:
    """Share of a batch's distinct rows that are in memory, if such a share of all rows is.

    On straight lines between what is known: nothing in memory, 10 % (measured with look-ahead), all
    of it. Rows that are used more are kept before others, so that it bends upwards between them,
    and the straight line is the careful answer.
    """
    known = measured()
    tenth = 1 - known["announced"].value / known["distinct"].value
    if cached <= 0.1:
        return tenth * cached / 0.1
    return tenth + (1 - tenth) * (cached - 0.1) / 0.9


def sent_a_step(model: Model, wire_bytes: int, samples: Samples | None = None) -> float:
    """Bytes that a rank sends for 1,024 samples, and receives, in the limit of many ranks: the ids
    of its distinct rows or those that it answers, their rows, and their gradients."""
    rows = 1024 * (samples or Samples()).rows
    return rows * (8 + 2 * model.embedding_dim * wire_bytes)


def commit_bytes_per_s() -> float:
    """Bytes of changed rows that a store makes durable in a second."""
    known = measured()
    rows, each, ms = (known[f"commit_{name}"].value for name in ("rows", "row", "ms"))
    return rows * each / (ms / 1e3)


def reads_a_sample(samples: Samples) -> dict[str, float]:
    """Rows that are read from disks for a sample, by how many are in memory: what is measured, the
    worst case, and the hit rate that is given."""
    known = measured()
    found = {
        label: samples.rows * known[name].value / known["distinct"].value
        for label, name in (
            ("10 % in memory, announced", "announced"),
            ("10 % in memory", "missed"),
            ("nothing in memory", "distinct"),
        )
    }
    if samples.hit_rate is not None:
        found[f"hit rate {samples.hit_rate * 100:g} %"] = samples.rows * (1 - samples.hit_rate)
    return found


def bounds(model: Model, machine: Machine, samples: Samples) -> dict[str, float]:
    """Samples/s at which the cores or the network of a machine are full."""
    a_core = samples.core_rate or measured()["computed"].value / 2
    return {
        "exchanging ids": measured()["exchanged"].value / samples.rows * machine.cores,
        "computing": a_core * machine.cores,
        "network": 1024 / sent_a_step(model, 4, samples) * machine.network_bytes,
    }


def speed(found: Plan, model: Model, machine: Machine, samples: Samples) -> tuple[float, str]:
    """Samples/s of all machines of a plan, and what bounds them. The fullest disk bounds reads."""
    hits = samples.hit_rate
    missed = samples.rows * (1 - (expected_hit_rate(found.cached) if hits is None else hits))
    each = bounds(model, machine, samples)
    if found.machines == 1:
        del each["network"]
    if found.layout.ranks == 1:
        del each["exchanging ids"]
    rates = {name: rate * found.machines for name, rate in each.items()}
    if missed > 0:
        share = found.layout.of_disk(machine.disks) / BUCKETS
        rates["reads"] = measured()["reads"].value / (missed * share)
    bound = min(rates, key=lambda name: rates[name])
    return rates[bound], bound


def rounded(value: float) -> float:
    """Two digits are all that such numbers are good for; what is counted stays as it is."""
    if isinstance(value, int):
        return value
    places = 1 - math.floor(math.log10(abs(value))) if value else 0
    return round(value, places)


def answer(
    model: Model,
    machine: Machine,
    samples: Samples,
    storage: str = "log",
    machines: int | None = None,
) -> str:
    """Speed of training on this number of machines, and its bound, in a line; or the reason why
    they have no room. The machines are the given ones, or else the fewest that have room."""
    what = f"{model.bytes / 1e12:g} TB, {storage}"
    try:
        found = plan(model, machine, storage, machines)
    except NoRoom as short:
        if machines is None:
            return f"{what}: no number of machines has room: {short}"
        try:
            enough = f"; {_machines(plan(model, machine, storage).machines)} would do"
        except NoRoom:
            enough = ""
        return f"{what}, {_machines(machines)}: no room: {short}{enough}"
    rate, bound = speed(found, model, machine, samples)
    return (
        f"{what}, {_machines(found.machines)}: {results.shown(rounded(rate))} samples/s, "
        f"bound by {bound}"
    )


def _machines(count: int) -> str:
    return f"{count:,} machine" + "s" * (count != 1)
