"""Order of training: the partitions in memory in each state, and the buckets that it trains.

Pure functions: the same arguments give the same order. Invariant: every bucket with edges is
trained in exactly one state, and both of its partitions are in the buffer then.

*Source*: BETA: Mohoney et al., "Marius", OSDI 2021, section 4.1; COMET: Waleffe et al.,
"MariusGNN", EuroSys 2023, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ORDERS", "Plan", "beta", "beta_swaps", "comet", "least_swaps", "plan"]

ORDERS = ("beta", "comet", "random")
Bools = npt.NDArray[np.bool_]
States = list[tuple[int, ...]]
"""The partitions in the buffer, state after state, each sorted."""


def beta_swaps(partitions: int, buffer: int) -> int:
    """Swaps of BETA where every pair of partitions has edges, behind the first filling."""
    p, c = partitions, buffer
    if c >= p:
        return 0
    x = (p - c) // (c - 1)
    return (p - c) + (x + 1) * (p - c) - x * (x + 1) * (c - 1) // 2


def least_swaps(partitions: int, buffer: int) -> int:
    """No order has fewer swaps where every pair has edges: a swap brings ``buffer - 1`` pairs."""
    p, c = partitions, buffer
    if c >= p:
        return 0
    return -(-(p * (p - 1) // 2 - c * (c - 1) // 2) // (c - 1))


def beta(needed: Bools, buffer: int, order: Sequence[int]) -> States:
    """BETA: all but one of the buffer's partitions stay while others pass by in the last place;
    then others take their places.

    ``needed (P, P)`` says which pairs have edges, in one direction or the other, on its diagonal
    which partitions have any at all. A partition passes by only where it has edges with those that
    stay. Those with most edges among themselves come together, of equal ones as in ``order``.
    """
    left = needed | needed.T
    states: States = []
    held: list[int] = []

    def enter(state: list[int]) -> None:
        left[np.ix_(state, state)] = False
        states.append(tuple(sorted(state)))

    def chosen(beside: list[int], places: int) -> list[int]:
        """Partitions to load next: those with most edges among themselves and with those that
        stay."""
        found: list[int] = []
        while len(found) < places:
            pairs = left[:, [*beside, *found]].sum(1) * len(left) + left.sum(1)
            out = [p for p in order if pairs[p] and p not in beside and p not in found]
            if not out:
                break
            found.append(max(out, key=lambda partition: int(pairs[partition])))
        return found

    while left.any():
        # Held partitions that still have edges with others stay.
        kept = [partition for partition in held if left[partition].any()]
        over = [partition for partition in held if partition not in kept]
        if not held:
            held = chosen([], buffer)
            enter(held)
        else:
            for partition in chosen(kept, len(over)):
                held = [*(p for p in held if p != over[0]), partition]
                over.pop(0)
                enter(held)
        # Those with most pairs to come stay, and are done once the others have passed by.
        stay = sorted(held, key=lambda partition: -int(left[partition].sum()))[: buffer - 1]
        for partition in order:
            if partition in held or not left[partition, stay].any():
                continue
            held = [*stay, partition]
            enter(held)
    return states


def comet(needed: Bools, buffer: int, order: Sequence[int], logical: int) -> States:
    """COMET: BETA on groups of ``logical`` partitions each, which ``order`` draws."""
    groups = [list(order[at : at + logical]) for at in range(0, len(order), logical)]
    both = needed | needed.T
    pairs = np.array([[both[np.ix_(a, b)].any() for b in groups] for a in groups])
    # Partitions of one group meet whenever it is there.
    found = beta(pairs, max(buffer // logical, 2), range(len(groups)))
    return [tuple(sorted(p for group in state for p in groups[group])) for state in found]


@dataclass(frozen=True)
class Plan:
    """An epoch: its states, and what each of them trains."""

    states: States
    state_of: npt.NDArray[np.int32]
    """``(P + 1, P + 1)``: the state of the bucket of each pair of partitions, head's first; -1 of
    those without edges. The last partition is that of rows that are always there."""

    @property
    def entered(self) -> list[tuple[int, ...]]:
        """The partitions that come with each state."""
        before: Sequence[set[int]] = [set(), *map(set, self.states)]
        return [
            tuple(sorted(set(now) - then)) for now, then in zip(self.states, before, strict=False)
        ]

    @property
    def swaps(self) -> int:
        """Partitions that come after the first filling."""
        return sum(map(len, self.entered[1:]))


def plan(
    counts: npt.NDArray[np.int64],
    buffer: int,
    order: str,
    logical: int,
    random: np.random.Generator,
) -> Plan:
    """The epoch of a graph with ``counts (P + 1, P + 1)`` edges in its buckets."""
    partitions = len(counts) - 1
    edges = counts > 0
    needed = edges[:partitions, :partitions].copy()
    # Edges with a row that is always there need their other end once.
    once = edges[partitions, :partitions] | edges[:partitions, partitions]
    busy = once | needed.any(0) | needed.any(1)
    needed[np.diag_indices(partitions)] = busy
    drawn = [int(partition) for partition in random.permutation(partitions)]
    if order == "random" or buffer >= partitions:
        states = [tuple(range(partitions))]
    elif order == "beta":
        states = beta(needed, buffer, drawn)
    else:
        states = comet(needed, buffer, drawn, logical)
    if not states:
        states = [()]  # every edge is one between rows that are always there
    return Plan(states, _assigned(edges, states, order, random))


def _assigned(
    edges: Bools, states: States, order: str, random: np.random.Generator
) -> npt.NDArray[np.int32]:
    """The state of every bucket: the first that has it, for COMET one of those by chance."""
    side = len(edges)
    found = np.full((side, side), -1, np.int32)
    seen = np.zeros((side, side), np.int32)
    for number, state in enumerate(states):
        here = np.ix_([*state, side - 1], [*state, side - 1])
        seen[here] += 1
        if order == "comet":
            takes = random.random(seen[here].shape) * seen[here] < 1
        else:
            takes = seen[here] == 1
        found[here] = np.where(takes, np.int32(number), found[here])
    found[~edges] = -1
    return found
