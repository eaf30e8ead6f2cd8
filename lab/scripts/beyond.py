"""The needs of a model of a given size, and its bounds: `docs/beyond-one-machine.md`.

`make pages` makes the tables of that page from this; `python lab/scripts/beyond.py --help` has
options for models, samples, machines and prices of yours. The arithmetic is in `sizing.py`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import results
from sizing import (
    BUCKETS,
    SLOTS,
    STORAGES,
    Machine,
    Model,
    Needs,
    NoRoom,
    Plan,
    Samples,
    answer,
    bounds,
    commit_bytes_per_s,
    measured,
    plan,
    reads_a_sample,
    rounded,
    sent_a_step,
)

HOURS = 730
"""Of a month."""
SIZES = (1e12, 1e13, 1e14)

Column = dict[str, float]
"""The cells of a size, by the label of their row; NaN where the model has no room."""


@dataclass(frozen=True)
class Case:
    """Input of the tables."""

    model: Model
    machine: Machine
    sizes: Sequence[float]
    samples: Samples
    machines: int | None = None
    """Number of machines; None for the fewest that have room."""

    def models(self) -> list[Model]:
        """The model in each size."""
        return [replace(self.model, bytes=size) for size in self.sizes]

    def plan(self, model: Model, storage: str = "log") -> Plan | None:
        """On the machines that there are, else on the fewest that have room; None if none have."""
        for machines in (self.machines, None):
            try:
                return plan(model, self.machine, storage, machines)
            except NoRoom:
                continue
        return None


def usual() -> Case:
    """The case on the page."""
    return Case(Model(SIZES[-1]), Machine(), SIZES, Samples())


def _constants(case: Case) -> str:
    rows = []
    for name, one in measured().items():
        rows.append([f"{results.shown(one.value)} {one.unit}", one.what, one.source])
        if name == "commit_ms":
            made = f"{commit_bytes_per_s() / 1e6:.0f} MB/s"
            rows.append([made, "of changed rows become durable", "the three above"])
    return results.table(["measured", "what", "where"], rows, numbers_from=3)


def _speed(case: Case) -> str:
    """A line for each size and storage."""
    lines = [
        answer(model, case.machine, case.samples, storage, case.machines)
        for model in case.models()
        for storage in STORAGES
    ]
    return "".join(f"{line}\n" for line in lines)


def _ranks(case: Case) -> str:
    def column(model: Model) -> Column:
        log = Needs.of(model, "log")
        lsm = Needs.of(model, "lsm")
        in_log, in_lsm = (case.plan(model, storage) for storage in STORAGES)
        return {
            "billion rows": model.rows / 1e9,
            "TB on disks, log": log.disk_bytes / 1e12,
            "ranks so that a disk holds one": log.ranks_for_disk(case.machine),
            "ranks so that their rows have slots": log.ranks_for_slots,
            "**ranks, log**": log.ranks(case.machine),
            "buckets of the fullest rank": math.ceil(BUCKETS / log.ranks(case.machine)),
            "**machines, log**": in_log.machines if in_log else math.nan,
            "ranks on each, log": in_log.layout.ranks_a_machine if in_log else math.nan,
            "TB on disks, lsm": lsm.disk_bytes / 1e12,
            "**ranks, lsm**": lsm.ranks(case.machine),
            "**machines, lsm**": in_lsm.machines if in_lsm else math.nan,
            "ranks on each, lsm": in_lsm.layout.ranks_a_machine if in_lsm else math.nan,
        }

    return _by_size(case, column)


def _memory(case: Case) -> str:
    def column(model: Model) -> Column:
        values: Column = {}
        for storage in STORAGES:
            found = case.plan(model, storage)
            values[f"GB of memory, {storage}"] = found.memory_bytes / 1e9 if found else math.nan
            values[f"of it index, {storage}"] = Needs.of(model, storage).index_bytes / 1e9
            cached = found.cached if found else math.nan
            values[f"% of the rows in memory, {storage}"] = cached * 100
        return values

    return _by_size(case, column)


def _reads(case: Case) -> str:
    rows = []
    for label, each in reads_a_sample(case.samples).items():
        a_disk = results.shown(rounded(measured()["reads"].value / each)) if each else "any number"
        rows.append([label, f"{each:.2f}", a_disk, f"{each * measured()['read_us'].value:.1f}"])
    return results.table(
        ["rows", "reads a sample", "samples/s of a disk", "µs of a core a sample"], rows
    )


def _network(case: Case) -> str:
    share = case.machine.network_bytes / case.machine.disks
    columns = []
    for wire in (4, 2):
        sent = sent_a_step(case.model, wire, case.samples)
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
    lines = zip(labels, zip(*columns, strict=True), strict=True)
    rows = [[label, *(_shown(one) for one in line)] for label, line in lines]
    return results.table(["a rank", "float32", "bfloat16"], rows)


def _bounds(case: Case) -> str:
    machine = case.machine
    on = {
        "computing": f"{machine.cores} cores",
        "exchanging ids": f"{machine.cores} cores",
        "network": f"{machine.network_bytes * 8 / 1e9:g} Gbit/s",
    }
    found = {
        f"reads, {label}": machine.disks * measured()["reads"].value / each
        for label, each in reads_a_sample(case.samples).items()
        if each
    }
    for name, rate in bounds(case.model, machine, case.samples).items():
        found[f"{name}, {on[name]}"] = rate
    ordered = sorted(found.items(), key=lambda one: one[1])
    rows = [[name, _shown(one)] for name, one in ordered]
    return results.table(["bound", "samples/s of a machine"], rows)


def _commit(case: Case) -> str:
    def column(model: Model) -> Column:
        found = case.plan(model)
        share = found.layout.of_disk(case.machine.disks) / BUCKETS if found else math.nan
        a_disk = model.bytes * share
        written = a_disk * 0.01 * measured()["written"].value
        opened = model.rows * share / 1e8 * measured()["reopen_s"].value
        return {
            "GB that a disk writes, 1 % of the rows changed": written / 1e9,
            "seconds that it takes": a_disk * 0.01 / commit_bytes_per_s(),
            "hours to write all rows once": a_disk / commit_bytes_per_s() / 3600,
            "seconds to open all stores of a disk after a kill": opened,
        }

    return _by_size(case, column)


def _cost(case: Case) -> str:
    def column(model: Model) -> Column:
        found = case.plan(model)
        machines = found.machines if found else math.nan
        month = machines * case.machine.dollars_an_hour * HOURS
        return {
            "machines": machines,
            "**dollars a month**": month,
            "dollars a month for a TB of rows": month / (model.bytes / 1e12),
            "dollars a month for a copy in object storage": model.bytes / 1e9 * S3_DOLLARS,
        }

    return _by_size(case, column)


S3_DOLLARS = 0.023
"""A GB for a month: S3 Standard, us-east-1, the first 50 TB, as of 2022-07."""


def _limits(case: Case) -> str:
    known = {name: one.value for name, one in measured().items()}
    store = SLOTS / known["disk_log"] * case.model.row_bytes
    a_disk = case.machine.disk_bytes * case.machine.fill
    rows: list[tuple[str, str, float]] = [
        ("a dense table of a log", "2^32 ids", SLOTS * case.model.row_bytes / 1e12),
        ("rows of one length in a log of one rank", "2^32 slots", store / 1e12),
        ("the same of all ranks", f"{BUCKETS:,} buckets", BUCKETS * store / 1e12),
        (
            f"one disk of {case.machine.disk_bytes / 1e12:g} TB a rank, lsm",
            f"{BUCKETS:,} buckets",
            BUCKETS * a_disk / known["disk_lsm"] / 1e12,
        ),
        (
            "the same, log, rows of many lengths",
            f"{BUCKETS:,} buckets",
            BUCKETS * a_disk / known["disk_log"] / 1e12,
        ),
    ]
    return results.table(
        ["what is full", "by", "TB of rows"],
        [[what, by, _shown(size)] for what, by, size in rows],
        numbers_from=2,
    )


def _by_size(case: Case, column: Callable[[Model], Column]) -> str:
    """A table with a column for each size; cells of what has no room are empty."""
    columns = [column(model) for model in case.models()]
    rows = [[label, *(_shown(one[label]) for one in columns)] for label in columns[0]]
    return results.table(["", *(f"{size / 1e12:g} TB" for size in case.sizes)], rows)


def _shown(value: float) -> str:
    return "" if math.isnan(value) else results.shown(rounded(value))


def _example() -> str:
    """Example of use on the page: a command, and the first lines that it prints."""
    command = "$ python lab/scripts/beyond.py " + EXAMPLE.replace(
        " --machines", " \\\n    --machines"
    )
    return f"```console\n{command}\nspeed\n{_speed(given(EXAMPLE.split()))}```\n"


EXAMPLE = (
    "--tb 2 --dim 32 --state-bytes 128 --machines 4 --cores 16 --memory-gib 64 "
    "--disks 1 --disk-tb 1.9 --gbit 10"
)

TABLES = {
    "speed": _speed,
    "ranks": _ranks,
    "memory": _memory,
    "reads": _reads,
    "network": _network,
    "bounds": _bounds,
    "commit": _commit,
    "cost": _cost,
    "limits": _limits,
    "constants": _constants,
}
"""In the order in which they are printed: what is asked for first, what it is made from last."""


def made(name: str) -> str:
    """The Markdown of one part of the page."""
    if name == "beyond_example":
        return _example()
    return TABLES[name.removeprefix("beyond_")](usual())


def whole(text: str, least: int = 1) -> int:
    """An option that counts something. Errors: ArgumentTypeError if it is less than that."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
    return int(text)


def number(text: str) -> float:
    """An option that measures something. Errors: ArgumentTypeError if it is not above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def share(text: str) -> float:
    """An option that is a share. Errors: ArgumentTypeError if it is not from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1, such as 0.95")
    return value


def given(arguments: Sequence[str] | None = None) -> Case:
    """The case that the options describe."""
    case = usual()
    machine, model, samples = case.machine, case.model, case.samples
    parser = argparse.ArgumentParser(
        description="What a model needs beyond one machine, and how fast it is trained.",
    )

    def add(option: str, kind: Callable[[str], float], default: float | None, about: str) -> None:
        shown = "" if default is None else f" ({default:g})"
        parser.add_argument(option, type=kind, default=default, help=about + shown)

    parser.add_argument(
        "--tb",
        type=number,
        nargs="+",
        default=[size / 1e12 for size in SIZES],
        help="TB of values and optimizer state, in one or several sizes (1 10 100)",
    )
    add("--dim", whole, model.embedding_dim, "values of a row")
    add("--value-bytes", whole, model.value_bytes, "2 or 4")
    add(
        "--state-bytes",
        partial(whole, least=0),
        model.state_bytes,
        "of a row; 4 is row-wise Adagrad, 0 is SGD",
    )
    add("--ids", number, samples.ids, "ids of a sample, of all tables together")
    add(
        "--distinct",
        share,
        None,
        "distinct ids of 1,024 samples as a share of all of them, 1 if none comes twice "
        f"({samples.rows / samples.ids:.2f}, Criteo's shape)",
    )
    add(
        "--hit-rate",
        share,
        None,
        "share of a batch's distinct rows that is in memory (estimated from the rows in memory)",
    )
    add(
        "--core-rate",
        number,
        None,
        f"samples/s that a core computes ({measured()['computed'].value / 2:g}, a DLRM)",
    )
    add(
        "--machines",
        whole,
        None,
        "machines that you have (the fewest that have room; tables show these, too, where the "
        "given ones have none)",
    )
    add("--cores", whole, machine.cores, "of a machine")
    add("--disks", whole, machine.disks, "of a machine")
    add("--disk-tb", number, machine.disk_bytes / 1e12, "of a disk")
    add("--memory-gib", number, machine.memory_bytes / 2**30, "of a machine")
    add("--gbit", number, machine.network_bytes * 8 / 1e9, "of a machine's network, per second")
    add("--dollars-an-hour", number, machine.dollars_an_hour, "of a machine")
    said = parser.parse_args(arguments)
    return Case(
        Model(said.tb[-1] * 1e12, said.dim, said.value_bytes, said.state_bytes),
        replace(
            machine,
            name="given",
            cores=said.cores,
            disks=said.disks,
            disk_bytes=said.disk_tb * 1e12,
            memory_bytes=said.memory_gib * 2**30,
            network_bytes=said.gbit * 1e9 / 8,
            dollars_an_hour=said.dollars_an_hour,
        ),
        [size * 1e12 for size in said.tb],
        Samples(said.ids, said.distinct, said.hit_rate, said.core_rate),
        said.machines,
    )


def main() -> None:
    """Prints every table for one model and one kind of machine."""
    case = given()
    for name, table in TABLES.items():
        print(f"{name}\n{table(case)}")


if __name__ == "__main__":
    main()
