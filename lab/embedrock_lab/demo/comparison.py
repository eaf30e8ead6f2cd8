"""The comparison of speeds: systems run in rounds, and the bounds of the one out of core.

Each system is a child process that keeps its tables, trained so far, while others train: the
machine belongs to one of them at a time. The median over rounds counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from embedrock.report.counters import Counters
from embedrock.report.progress import Sink
from embedrock_lab.demo import children, stores
from embedrock_lab.demo.paths import LOOK_AHEAD, OUT_OF_CORE, PLAIN_TORCH, SYSTEMS
from embedrock_lab.demo.settings import Settings
from embedrock_lab.measure.noise import Rounds, Timed, interleave

_PATIENCE_S_MAX = 60.0
"""Time limit of repeating disturbed rounds: that of getting ready, but at most this."""

Result = dict[str, Any]


class Answered(Timed):
    """Timings of a child, in the form that rounds are made of."""

    def __init__(self, answer: Result) -> None:
        """Takes the child's answer."""
        super().__init__()
        self.answer = answer
        self.work = float(answer["samples"])
        self.seconds = answer["seconds"]
        self.known = answer["core_wait_s"] is not None
        self.waited = answer["core_wait_s"] or 0.0


@dataclass
class Comparison:
    """Results of a comparison: for each system, in the order of `names`, rounds and a result."""

    names: list[str]
    rounds: Rounds
    results: dict[str, Result]

    def answers(self, name: str) -> list[Result]:
        """Answers of a system in the rounds that count."""
        place = self.names.index(name)
        timed = (one[place] for one in self.rounds.counted)
        return [one.answer for one in timed if isinstance(one, Answered)]

    def counted(self, name: str) -> Counters:
        """Counters of the engine in them."""
        total = Counters()
        for one in self.answers(name):
            total = total + Counters.from_dict(one["engine"])
        return total

    def rate(self, name: str) -> float:
        """The median of samples per second."""
        return self.rounds.rate(self.names.index(name))

    def same_losses(self, one: str, two: str) -> bool:
        """Whether two systems had the same loss, to the bit, at every step."""
        first, second = (np.array(self.results[name]["losses"]) for name in (one, two))
        return bool(first.tobytes() == second.tobytes())


def compare(
    settings: Settings,
    names: Sequence[str],
    path: Path,
    sink: Sink,
    *,
    until: float | None = None,
) -> Comparison:
    """Lets the named systems write their rows, all at once, and then run in rounds.

    All of them have pages of one size, which is measured before. `path` gets their settings. No
    round but the first begins after `until`, in seconds of `perf_counter`.
    Errors: ChildError with what a system said.
    """
    begun = perf_counter()
    replace(settings, page_bytes=stores.measured_page_bytes(settings)).save(path)
    with children.children([f"comparison: {name}" for name in names], path, sink) as started:
        children.together(started, children.Child.answer)

        for child in started:
            child.tell("warm up")
            child.answer()

        def round(child: children.Child) -> Timed:
            child.tell("round")
            return Answered(child.answer())

        patience_s = min(perf_counter() - begun, _PATIENCE_S_MAX)
        limit_s = None if until is None else until - perf_counter()
        rounds = interleave(
            [partial(round, child) for child in started], settings.rounds, patience_s, limit_s
        )
        results = {}
        for name, child in zip(names, started, strict=True):
            child.tell("finish")
            results[name] = child.result()
    return Comparison(list(names), rounds, results)


def figures(comparison: Comparison, ratio: str, row_wise: bool) -> Result:
    """The figures of a comparison; `ratio` is the name of the main one.

    It is the ratio of the system that looks ahead; that of the system that does not is beside it.
    With row-wise state PyTorch's tables are another optimizer's and the ratio is to embedrock with
    a budget for all rows alone. Figures of systems that did not run are None.
    """
    names = comparison.names
    found: Result = {ratio: None, f"{ratio}_without_lookahead": None}
    found |= {
        f"contest_samples_per_s_{name.replace(' ', '_')}": (
            comparison.rate(name) if name in names else None
        )
        for name in SYSTEMS
    }
    stored = (LOOK_AHEAD, OUT_OF_CORE)
    others = [n for n in names if n not in stored and not (row_wise and n == PLAIN_TORCH)]
    rounds = comparison.answers(OUT_OF_CORE)
    found |= {
        "contest_commit_s": _median(rounds, "commit_s"),
        "device_requests_per_s": _median(rounds, "device_requests_per_s"),
        "device_requests_per_s_own_unit": _median(rounds, "device_requests_per_s_own_unit"),
        "compute_ms_per_batch": None,
    }
    fastest = max(others, key=comparison.rate) if others else None
    if fastest is not None:
        seconds = [round["seconds"] / round["steps"] for round in comparison.answers(fastest)]
        found["compute_ms_per_batch"] = 1e3 * statistics.median(seconds)
    for name, prefix in ((OUT_OF_CORE, "contest"), (LOOK_AHEAD, "lookahead")):
        if name in names:
            found |= _of_one(comparison, name, prefix, found)
    if fastest is not None:
        for name, figure in ((LOOK_AHEAD, ratio), (OUT_OF_CORE, f"{ratio}_without_lookahead")):
            if name in names:
                found[figure] = comparison.rounds.ratio(names.index(name), names.index(fastest))
    return found


def _of_one(comparison: Comparison, name: str, prefix: str, found: Result) -> Result:
    """Device reads of a system out of core, and the speed that they allow."""
    counted, rounds = comparison.counted(name), comparison.answers(name)
    steps = sum(round["steps"] for round in rounds)
    waited = counted.read_wait_s + sum(round["window_wait_s"] for round in rounds)
    requests = counted.read_requests / steps
    one: Result = {
        f"{prefix}_hit_rate": counted.hit_rate,
        f"{prefix}_requests_per_batch": requests,
        f"{prefix}_pages_per_batch": counted.pages_read / steps,
        f"{prefix}_bytes_written_per_batch": counted.bytes_written / steps,
        f"{prefix}_wait_share": waited / sum(round["seconds"] for round in rounds),
        f"{prefix}_device_ms_per_batch": None,
        f"{prefix}_bound": None,
        f"{prefix}_device_bound": None,
    }
    device, compute = _device_ms(rounds, counted, steps), found["compute_ms_per_batch"]
    one[f"{prefix}_device_ms_per_batch"] = device
    if device is not None and compute is not None:
        one[f"{prefix}_device_bound"] = int(device > compute)
        one[f"{prefix}_bound"] = min(compute / device, 1.0) if device > 0 else 1.0
    return one


def _device_ms(rounds: Sequence[Result], counted: Counters, steps: int) -> float | None:
    """The device's minimum time for the reads of a step, of the size that they had."""
    costs = [round["device_least_s"] for round in rounds]
    if any(cost is None for cost in costs):
        return None
    return 1e3 * float(sum(costs)) / steps


def notes(comparison: Comparison, found: Result, ratio: str, row_wise: bool) -> list[str]:
    """Notes for readers of the figures."""
    rounds = comparison.answers(OUT_OF_CORE)
    said = [
        f"{ratio}: {len(rounds)} rounds of {rounds[0]['steps']} steps each; medians. In a round "
        f"one system follows another, each in a process that keeps its tables. All rows were "
        f"written and committed before, the cache was warm; making batches, a commit after each "
        f"round ({found['contest_commit_s']:.2f} s) and evaluation are not in the time. With "
        f"look-ahead announcing is in it, and the window rests while others train."
    ]
    said += [f"{ratio}: {note}" for note in comparison.rounds.notes]
    if row_wise:
        said.append(
            f"{ratio} is to embedrock with a budget of 100 % alone: PyTorch has no row-wise Adagrad"
        )
    compute = found["compute_ms_per_batch"]
    for prefix, how in (("contest", "without look-ahead"), ("lookahead", "with look-ahead")):
        device = found.get(f"{prefix}_device_ms_per_batch")
        if device is None or compute is None:
            continue
        verdict = "device-bound" if found[f"{prefix}_device_bound"] else "not device-bound"
        said.append(
            f"{how}: {verdict}. The {found[f'{prefix}_requests_per_batch']:,.0f} requests of a "
            f"batch take the device {device:.1f} ms at best, the rest of a step takes "
            f"{compute:.1f} ms in memory. With every read hidden the ratio could be "
            f"{found[f'{prefix}_bound']:.2f}, with none hidden {compute / (compute + device):.2f}."
        )
    return said


def describe(comparison: Comparison) -> Result:
    """Everything else that was measured, for `results` of a report."""
    return {
        "rounds": comparison.rounds.summary(),
        "contestants": {
            name: {"turns": comparison.answers(name), **comparison.results[name]}
            for name in comparison.names
        },
    }


def rows(found: Result, ratio: str) -> Iterator[tuple[str, ...]]:
    """Lines for a terminal: name, then a cell for each system."""
    yield "", *SYSTEMS
    yield (
        "samples/s",
        *(
            _shown(found[f"contest_samples_per_s_{name.replace(' ', '_')}"], ",.0f")
            for name in SYSTEMS
        ),
    )
    without = found[f"{ratio}_without_lookahead"]
    yield ratio, _shown(found[ratio], ".3f"), _shown(without, ".3f"), "", ""
    for label, name, how in (
        ("hit rate", "hit_rate", ".1%"),
        ("pages read per batch", "pages_per_batch", ",.0f"),
        ("requests per batch", "requests_per_batch", ",.0f"),
        ("bytes written per batch", "bytes_written_per_batch", ",.0f"),
        ("waiting for reads", "wait_share", ".0%"),
        ("share possible, reads hidden", "bound", ".2f"),
    ):
        cells = (_shown(found.get(f"{prefix}_{name}"), how) for prefix in ("lookahead", "contest"))
        yield label, *cells, "", ""
    yield "device, 4-KiB reads/s", "", _shown(found["device_requests_per_s"], ",.0f"), "", ""


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _median(rounds: Sequence[Result], name: str) -> float | None:
    known = [round[name] for round in rounds if round[name] is not None]
    return statistics.median(known) if known else None
