"""The systems of ``recdb``, and how each is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedrock_lab.bench import child
from embedrock_lab.bench.replay import process
from embedrock_lab.bench.replay.recdb.summary import of_peer
from embedrock_lab.bench.replay.systems import absent_peers

__all__ = ["ROCKSDB", "SYSTEMS", "Setting", "System", "absent", "run"]

ROCKSDB = "rocksdb"
PEERS = (ROCKSDB, "rocksdb, not sorted")


@dataclass(frozen=True)
class System:
    """A store and what it has of RecDB's parts."""

    storage: str
    """``log``, ``lsm``, or that of the peers' program."""
    ahead: bool = True
    """Batches are announced."""
    sorted: bool = True
    """The rows of many batches are read together, each page once; else those of one batch are."""
    options: dict[str, str] = field(default_factory=dict)
    """Keyword arguments of ``embedrock.open``."""


PICKED = {"merge_picker": "score", "upkeep_scheduler": "off"}
PLAIN = {"merge_picker": "largest", "upkeep_scheduler": "off"}
SYSTEMS = {
    PEERS[1]: System(ROCKSDB, sorted=False),
    ROCKSDB: System(ROCKSDB),
    "log": System("log"),
    "lsm, not announced": System("lsm", ahead=False, sorted=False, options=PLAIN),
    "lsm": System("lsm", sorted=False, options=PLAIN),
    "+ sorter": System("lsm", options=PLAIN),
    "+ picker": System("lsm", options=PICKED),
    "+ gate": System("lsm", options=PICKED | {"upkeep_scheduler": "gate"}),
    "+ share": System("lsm", options=PICKED | {"upkeep_scheduler": "share"}),
}
"""By name. Each line from ``lsm`` on has one part more than the one above, the last two instead of
each other."""


@dataclass(frozen=True)
class Setting:
    """One load for all systems."""

    files: dict[str, str]
    """``values`` and ``offsets`` of the trace."""
    sizes: list[int]
    dim: int
    batches: int
    window: int
    ahead: int
    """Batches that ours announces."""
    compute_ns: int
    cache_bytes: int
    """Memory of RocksDB's caches; its buffers and what it works with are beside."""
    memory_bytes: int
    """Memory of ours, all of it."""


def absent(names: list[str], peers: Path) -> dict[str, str]:
    """Those that cannot take part, and why."""
    return absent_peers(peers, {name: ROCKSDB for name in names if name in PEERS})


def run(name: str, place: Path, setting: Setting, peers: Path) -> dict[str, Any]:
    """Fills a store of a system and trains on it."""
    store = place / "store"
    one = SYSTEMS[name]
    if name in PEERS:
        return _run_peer(store, setting, peers, one.sorted)
    filled = child.call(
        "embedrock_lab.bench.replay.recdb.ours:fill",
        store=str(store),
        storage=one.storage,
        sizes=setting.sizes,
        dim=setting.dim,
    )
    found: dict[str, Any] = child.call(
        "embedrock_lab.bench.replay.recdb.ours:train",
        store=str(store),
        **setting.files,
        sizes=setting.sizes,
        memory_bytes=setting.memory_bytes,
        window=setting.window,
        depth=setting.ahead if one.ahead else 0,
        compute_ns=setting.compute_ns,
        options={**one.options, "window_group": setting.window if one.sorted else 1},
    )
    return {**filled, **found}


def _run_peer(store: Path, setting: Setting, peers: Path, is_sorted: bool) -> dict[str, Any]:
    store.mkdir()
    settings = {
        "engine": ROCKSDB,
        "mode": "window",
        "dim": setting.dim,
        "rows": sum(setting.sizes),
        "place": str(store),
        "memory_bytes": setting.cache_bytes,
        "trace": setting.files,
        "batches": setting.batches,
        "window": {
            "batches": setting.window,
            "compute_ns": setting.compute_ns,
            "sorted": is_sorted,
        },
    }
    command = [str(peers)]
    loaded = process.load(command, settings)
    raw = process.run(command, settings, limited=False)
    return {"load_s": loaded["seconds"], **of_peer(raw, 4 * setting.dim)}
