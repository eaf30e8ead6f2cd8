"""The systems that replay a trace: ours, and those of the peers' program (``make peers``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.replay import process

__all__ = ["LOOKAHEAD", "OURS", "PEERS", "SYSTEMS", "Counted", "PeerOptions", "System"]
__all__ += ["absent_peers", "peer_seconds_of"]

LOOKAHEAD = 1024
"""Batches that are announced ahead, as far as the window holds them."""
BATCHES_MIN = 3
"""Of a run: the first third of them is not counted."""


@dataclass(frozen=True)
class System:
    """A store, and the options with which it runs."""

    engine: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ahead(self) -> bool:
        """Whether its batches are announced."""
        return "lookahead" in self.options


OURS = {
    "embedrock": System("embedrock"),
    "embedrock-warm": System("embedrock", {"warm": True}),
    "embedrock-ahead": System("embedrock", {"lookahead": LOOKAHEAD}),
    "embedrock-warm-ahead": System("embedrock", {"warm": True, "lookahead": LOOKAHEAD}),
    "embedrock-4k": System("embedrock", {"page_bytes": 4096}),
    "torch": System("torch", {"sparse": True}),
    "torch-dense": System("torch", {"sparse": False}),
}
"""Systems of this package."""
PEERS = {
    "rocksdb": System("rocksdb"),
    "rocksdb-1": System("rocksdb", {"threads": 1}),
    "lmdb": System("lmdb"),
    "lmdb-1": System("lmdb", {"threads": 1}),
    "mmap": System("mmap"),
    "swap": System("swap"),
    "faster": System("faster"),
}
"""Systems of the peers' program, whose README says what they are tuned to."""
SYSTEMS = {**OURS, **PEERS}


def peer_seconds_of(seconds: float) -> Any:
    """The option ``--peer-seconds`` with that default."""
    return option(seconds, "other stores stop after this long", metavar="S")


@dataclass(frozen=True, kw_only=True)
class PeerOptions(Common):
    """Options of benches that compare with other stores, each for at most so many seconds."""

    peers: Path = option(process.PEERS, "the program of `make peers`")
    peer_seconds: float = peer_seconds_of(20.0)
    png: Path | None = option(None, "draw the result to this file")


def absent_peers(program: Path, engines: dict[str, str]) -> dict[str, str]:
    """Those names of engines of the peers' program that cannot take part, and why."""
    if not engines:
        return {}
    if not program.exists():
        return {name: f"{program} is not built; `make peers` builds it" for name in engines}
    known = process.describe(program)
    unknown = {"available": False, "reason": "not in this build"}
    found = {name: known.get(engine, unknown) for name, engine in engines.items()}
    return {name: str(one["reason"]) for name, one in found.items() if not one["available"]}


class Counted:
    """The part of a run that counts: the last two thirds of its batches."""

    def __init__(self, raw: dict[str, Any], seconds_max: float) -> None:
        """Of what ``process.run`` answers. Errors: ``SystemFailed`` where there are too few."""
        self.raw, self.batches = raw, int(raw["batches"])
        if self.batches < BATCHES_MIN:
            raise process.SystemFailed(
                f"ran {self.batches} batches in {seconds_max:g} s, expected at least "
                f"{BATCHES_MIN}; give it longer with --peer-seconds"
            )
        self.begin = self.batches // 3
        self.get_ns = np.array(raw["get_ns"])
        self.batch_ns = self.get_ns + np.array(raw["put_ns"])

    def grown(self, name: str) -> int:
        """By how much a counter grew."""
        column = self.raw[name]
        return int(column[-1] - column[self.begin - 1])
