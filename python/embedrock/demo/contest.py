"""The comparison of speeds: contestants take turns, and what bounds the one out of core.

Each contestant is a child process that keeps its tables, trained so far, while others have their
turn: the machine belongs to one of them at a time. What counts is the median over turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from embedrock.bench.noise import Rounds, Timed, interleave
from embedrock.demo import children
from embedrock.demo.paths import OUT_OF_CORE, PLAIN_TORCH, WHOLE_BUDGET
from embedrock.demo.settings import Settings
from embedrock.progress import Sink
from embedrock.training.engine import Counters

_PATIENCE_S_MAX = 60.0
"""How long turns that others disturbed are repeated: as long as it took to get ready, at most."""

Result = dict[str, Any]


class Turn(Timed):
    """A turn that a child has timed, in the form that rounds are made of."""

    def __init__(self, answer: Result) -> None:
        """What the child answered."""
        super().__init__()
        self.answer = answer
        self.work = float(answer["samples"])
        self.seconds = answer["seconds"]
        self.known = answer["core_wait_s"] is not None
        self.waited = answer["core_wait_s"] or 0.0


@dataclass
class Contest:
    """What came of it: for each contestant, in the order of `names`, turns and a result."""

    names: list[str]
    rounds: Rounds
    results: dict[str, Result]

    def turns(self, name: str) -> list[Result]:
        """The turns of a contestant that count."""
        place = self.names.index(name)
        return [
            turn.answer
            for one in self.rounds.counted
            for turn in [one[place]]
            if isinstance(turn, Turn)
        ]

    def counted(self, name: str) -> Counters:
        """What the engine counted in them."""
        total = Counters()
        for turn in self.turns(name):
            total = total + Counters.from_dict(turn["engine"])
        return total

    def rate(self, name: str) -> float:
        """The median of samples per second."""
        return self.rounds.rate(self.names.index(name))

    def same_losses(self, one: str, two: str) -> bool:
        """Whether two contestants had the same loss, to the bit, at every step."""
        first, second = (np.array(self.results[name]["losses"]) for name in (one, two))
        return bool(first.tobytes() == second.tobytes())


def hold(settings: Settings, names: Sequence[str], path: Path, sink: Sink) -> Contest:
    """Lets the named contestants write their rows, all at once, and then take turns.

    Errors: ChildError with what a contestant said.
    """
    begun = perf_counter()
    with children.children([f"contest: {name}" for name in names], path, sink) as started:
        children.together(started, children.Child.answer)

        for child in started:
            child.tell("warm up")
            child.answer()

        def turn(child: children.Child) -> Timed:
            child.tell("turn")
            return Turn(child.answer())

        patience_s = min(perf_counter() - begun, _PATIENCE_S_MAX)
        rounds = interleave(
            [partial(turn, child) for child in started], settings.rounds, patience_s
        )
        results = {}
        for name, child in zip(names, started, strict=True):
            child.tell("finish")
            results[name] = child.result()
    return Contest(list(names), rounds, results)


def figures(contest: Contest, ratio: str, row_wise: bool) -> Result:
    """The figures of a contest; `ratio` is the name of that which they are about.

    With row-wise state PyTorch's tables are another optimizer's and the ratio is to embedrock with
    a budget for all rows alone. What did not run is None.
    """
    names = contest.names
    rates = {
        f"contest_samples_per_s_{name.replace(' ', '_')}": (
            contest.rate(name) if name in names else None
        )
        for name in (OUT_OF_CORE, WHOLE_BUDGET, PLAIN_TORCH)
    }
    others = [n for n in names if n != OUT_OF_CORE and not (row_wise and n == PLAIN_TORCH)]
    counted, turns = contest.counted(OUT_OF_CORE), contest.turns(OUT_OF_CORE)
    steps = sum(turn["steps"] for turn in turns)
    found: Result = {ratio: None, **rates}
    found |= {
        "contest_hit_rate": counted.hit_rate,
        "contest_requests_per_batch": counted.read_requests / steps,
        "contest_pages_per_batch": counted.pages_read / steps,
        "contest_bytes_written_per_batch": counted.bytes_written / steps,
        "contest_wait_share": counted.read_wait_s / sum(turn["seconds"] for turn in turns),
        "contest_commit_s": _median(turns, "commit_s"),
        "device_requests_per_s": _median(turns, "device_requests_per_s"),
        "device_requests_per_s_own_unit": _median(turns, "device_requests_per_s_own_unit"),
        "device_ms_per_batch": None,
        "compute_ms_per_batch": None,
        "contest_bound": None,
        "device_bound": None,
    }
    unit_rate = found["device_requests_per_s_own_unit"]
    if unit_rate is not None:
        found["device_ms_per_batch"] = 1e3 * found["contest_requests_per_batch"] / unit_rate
    if not others:
        return found
    fastest = max(others, key=contest.rate)
    found[ratio] = contest.rounds.ratio(names.index(OUT_OF_CORE), names.index(fastest))
    best = contest.turns(fastest)
    seconds = [turn["seconds"] / turn["steps"] for turn in best]
    compute = found["compute_ms_per_batch"] = 1e3 * statistics.median(seconds)
    device = found["device_ms_per_batch"]
    if device is not None:
        found["device_bound"] = int(device > compute)
        found["contest_bound"] = min(compute / device, 1.0) if device > 0 else 1.0
    return found


def notes(contest: Contest, found: Result, ratio: str, row_wise: bool) -> list[str]:
    """What a reader of the figures must know."""
    turns = contest.turns(OUT_OF_CORE)
    said = [
        f"{ratio}: {len(turns)} turns of {turns[0]['steps']} steps each, contestants in turn, each "
        f"in a process that keeps its tables; medians. All rows were written and committed before, "
        f"the cache was warm; making batches, a commit after each turn "
        f"({found['contest_commit_s']:.2f} s) and evaluation are not in the time."
    ]
    said += [f"{ratio}: {note}" for note in contest.rounds.notes]
    if row_wise:
        said.append(
            f"{ratio} is to embedrock with a budget of 100 % alone: PyTorch has no row-wise Adagrad"
        )
    device, compute = found["device_ms_per_batch"], found["compute_ms_per_batch"]
    if device is None or compute is None:
        return said
    requests = f"the {found['contest_requests_per_batch']:,.0f} requests of a batch"
    verdict = "device-bound" if found["device_bound"] else "not device-bound"
    said.append(
        f"{verdict}: {requests} take the device {device:.1f} ms at best, the rest of a step takes "
        f"{compute:.1f} ms in memory. With every read hidden {ratio} could be "
        f"{found['contest_bound']:.2f}, with none hidden {compute / (compute + device):.2f}."
    )
    return said


def describe(contest: Contest) -> Result:
    """Everything else that was measured, for `results` of a report."""
    return {
        "rounds": contest.rounds.summary(),
        "contestants": {
            name: {"turns": contest.turns(name), **contest.results[name]} for name in contest.names
        },
    }


def rows(found: Result, ratio: str) -> Iterator[tuple[str, ...]]:
    """Lines for a terminal: name, out of core, whole budget, plain torch."""
    yield "", OUT_OF_CORE, WHOLE_BUDGET, PLAIN_TORCH
    yield (
        "samples/s",
        *(
            _shown(found[f"contest_samples_per_s_{name.replace(' ', '_')}"], ",.0f")
            for name in (OUT_OF_CORE, WHOLE_BUDGET, PLAIN_TORCH)
        ),
    )
    yield ratio, _shown(found[ratio], ".3f"), "", ""
    for label, name, how in (
        ("hit rate", "contest_hit_rate", ".1%"),
        ("pages read per batch", "contest_pages_per_batch", ",.0f"),
        ("bytes written per batch", "contest_bytes_written_per_batch", ",.0f"),
        ("device, 4-KiB reads/s", "device_requests_per_s", ",.0f"),
        ("waiting for reads", "contest_wait_share", ".0%"),
    ):
        yield label, _shown(found[name], how), "", ""


def _shown(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _median(turns: Sequence[Result], name: str) -> float | None:
    known = [turn[name] for turn in turns if turn[name] is not None]
    return statistics.median(known) if known else None
