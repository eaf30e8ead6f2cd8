"""``ranks``: what it costs that ranks share the tables.

All ranks are processes of this machine, which exchange over its loopback, on as many cores as there
are ranks, with one thread of PyTorch each. All rows are in memory.

``exchange_ids_per_s`` is how many ids a rank gets rows for and sends gradients of in a second: two
ranks, batches of 4,096 uniform ids of a table with 16 float32, a get and an update with SGD for
each; ``exchange_ids_per_s_26624`` the same with batches of 26,624 ids, which 1,024 samples of
Criteo have. Every row is compared with what it must be.

``ranks_share`` is training: a DLRM in Criteo's shape, 26 tables with 64 float32 and row-wise
Adagrad, 1,024 samples a rank, its dense part in ``DistributedDataParallel``: samples/s of two ranks
÷ 2 ÷ those of one rank with a store of its own and one core. ``ranks_share_lookahead`` is the same
with the ids of 32 batches exchanged ahead, ``ranks_share_bfloat16`` with bfloat16 on the wire,
``ranks_share_cpu`` that of samples for a second of processor time, whoever else has the cores.
``ranks_share_apart`` is what ``DistributedDataParallel`` leaves alone: each rank has all tables to
itself, and no id or row is exchanged.
``ranks_step_bytes`` and ``ranks_step_bytes_bfloat16`` are what a rank sends the other for a batch.
After training the ranks have to hold the same dense parameters, and to read the same rows, which
are those of their owners.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.ranks.team import Team
from embedrock_lab.measure.noise import Rounds, Timed, interleave

__all__ = ["Options", "run"]

RANKS = 2
FIGURES = [
    "exchange_ids_per_s",
    "exchange_ids_per_s_26624",
    "ranks_share",
    "ranks_share_lookahead",
    "ranks_share_bfloat16",
]
FIGURES += ["ranks_share_apart", "ranks_share_cpu", "ranks_step_bytes", "ranks_step_bytes_bfloat16"]
MEMORY_BYTES = 3 << 30
"""Three processes with PyTorch, and their rows."""
ONE, TWO, AHEAD, NARROW = "one rank", "two ranks", "two, look-ahead", "two, bfloat16"
APART = "two, tables apart"
WAYS = {ONE: "plain", TWO: "plain", AHEAD: "ahead", NARROW: "narrow", APART: "apart"}


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    rows: int = option(1_000_000, "of all 26 tables")
    dim: int = option(64, "values of these rows")
    batch: int = option(1024, "samples of a rank's batch")
    steps: int = option(24, "batches of a round")
    rounds: int = option(5, "rounds of each way")
    exchange_rows: int = option(1_000_000, "of the table of uniform ids")
    exchange_dim: int = option(16, "values of these rows")
    exchange_batch: int = option(4096, "ids of a batch")
    exchange_large: int = option(26 * 1024, "ids of a large one")
    exchange_ids: int = option(1_000_000, "of a round")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("ranks", options)
    if import_torch(report, FIGURES, MEMORY_BYTES) is None:
        return report.finish()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS:
        report.notes.append(f"{RANKS} ranks share {len(cores)} core: shares mean nothing")
    settings = {
        name: getattr(options, name)
        for name in ("rows", "dim", "batch", "seed", "exchange_rows", "exchange_dim")
    }
    row_bytes = 4 * (options.dim + 1) * options.rows
    row_bytes += 4 * options.exchange_dim * options.exchange_rows
    with workspace(options, 8 * row_bytes) as place:
        report.say("starting one rank, and two")
        with (
            Team(1, Path(place), cores, settings) as one,
            Team(2, Path(place), cores, settings) as two,
        ):
            _exchange(report, options, one, two)
            _training(report, options, one, two)
    return report.finish()


def _exchange(report: Report, options: Options, one: Team, two: Team) -> None:
    """Ids of a table that all ranks ask for."""
    ways = {ONE: (one, "plain"), TWO: (two, "plain"), NARROW: (two, "narrow")}
    for figure, batch in (
        ("exchange_ids_per_s", options.exchange_batch),
        ("exchange_ids_per_s_26624", options.exchange_large),
    ):
        report.say(f"exchanging {batch:,} ids at a time")
        steps = max(2, options.exchange_ids // batch)

        def timed(
            team: Team, way: str, batch: int = batch, steps: int = steps
        ) -> Callable[[], Timed]:
            return lambda: _together(
                report, team.ask("exchange", way=way, batch=batch, steps=steps)
            )

        for team, way in ways.values():
            timed(team, way)()  # buffers and caches as they will be
        rounds = interleave(
            [timed(*way) for way in ways.values()], options.rounds, options.patience
        )
        report.rounds(figure, rounds)
        rates = {name: rounds.rate(i) / ways[name][0].size for i, name in enumerate(ways)}
        report.figure(figure, rates[TWO])
        found = report.results.setdefault("ids_per_s_of_a_rank", {})
        found[f"{batch:,} ids"] = {name: round(rate) for name, rate in rates.items()}
        per_cpu = {name: round(_per_cpu_second(rounds, i)) for i, name in enumerate(ways)}
        report.results.setdefault("ids_per_cpu_s", {})[f"{batch:,} ids"] = per_cpu


def _training(report: Report, options: Options, one: Team, two: Team) -> None:
    """A model in Criteo's shape."""
    report.say("training")
    teams = {name: one if name == ONE else two for name in WAYS}
    sent: dict[str, float] = {}

    def timed(name: str) -> Callable[[], Timed]:
        def go() -> Timed:
            answers = teams[name].ask("train", way=WAYS[name], steps=options.steps)
            sent[name] = answers[0]["bytes_sent"] / options.steps
            return _together(report, answers)

        return go

    for name in WAYS:
        timed(name)()
    rounds = interleave([timed(name) for name in WAYS], options.rounds, options.patience)
    report.rounds("ranks_share", rounds)
    for i, (figure, name) in enumerate(
        {
            "ranks_share": TWO,
            "ranks_share_lookahead": AHEAD,
            "ranks_share_bfloat16": NARROW,
            "ranks_share_apart": APART,
        }.items(),
        start=1,
    ):
        report.figure(figure, rounds.ratio(i, 0) / RANKS)
        report.results.setdefault("bytes_sent_a_step", {})[name] = round(sent[name])
    report.figure("ranks_step_bytes", sent[TWO])
    report.figure("ranks_step_bytes_bfloat16", sent[NARROW])
    report.results["samples_per_s_of_a_core"] = {
        name: round(rounds.rate(i) / teams[name].size) for i, name in enumerate(WAYS)
    }
    per_cpu = {name: _per_cpu_second(rounds, i) for i, name in enumerate(WAYS)}
    report.results["samples_per_cpu_s"] = {name: round(one) for name, one in per_cpu.items()}
    report.figure("ranks_share_cpu", per_cpu[TWO] / per_cpu[ONE])
    answers = two.ask("compare")
    report.results["mismatches"] += sum(answer["mismatches"] for answer in answers)
    for what in ("dense", "rows"):
        differ = len({answer[what] for answer in answers}) > 1
        report.results["mismatches"] += differ
        if differ:
            report.notes.append(f"the ranks do not have the same {what}")


class _Together(Timed):
    """A round of all ranks: the time of the one that took longest, the work of all."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.seconds = max(answer["seconds"] for answer in answers)
        self.waited = max(answer["waited"] for answer in answers)
        self.known = all(answer["known"] for answer in answers)
        self.work = sum(answer["work"] for answer in answers)
        self.cpu_seconds = sum(answer["cpu_seconds"] for answer in answers)


def _together(report: Report, answers: list[dict[str, Any]]) -> Timed:
    report.results["mismatches"] += sum(answer["mismatches"] for answer in answers)
    return _Together(answers)


def _per_cpu_second(rounds: Rounds, system: int) -> float:
    """Work of all ranks for a second of a core that any of their threads used."""
    timed = [one[system] for one in rounds.counted]
    rates = [one.work / one.cpu_seconds for one in timed if isinstance(one, _Together)]
    return float(statistics.median(rates))
