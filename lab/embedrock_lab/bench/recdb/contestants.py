"""Who takes part in ``recdb``, and how each is run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import embedrock
from embedrock_lab.bench import child
from embedrock_lab.bench.race import process
from embedrock_lab.bench.recdb.summary import of_peer

__all__ = ["CONTESTANTS", "ROCKSDB", "Contestant", "Setting", "absent", "run"]

ROCKSDB = "rocksdb"
PEERS = (ROCKSDB, "rocksdb, not sorted")


@dataclass(frozen=True)
class Contestant:
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
CONTESTANTS = {
    PEERS[1]: Contestant(ROCKSDB, sorted=False),
    ROCKSDB: Contestant(ROCKSDB),
    "log": Contestant("log"),
    "lsm, not announced": Contestant("lsm", ahead=False, sorted=False, options=PLAIN),
    "lsm": Contestant("lsm", sorted=False, options=PLAIN),
    "+ sorter": Contestant("lsm", options=PLAIN),
    "+ picker": Contestant("lsm", options=PICKED),
    "+ gate": Contestant("lsm", options=PICKED | {"upkeep_scheduler": "gate"}),
    "+ share": Contestant("lsm", options=PICKED | {"upkeep_scheduler": "share"}),
}
"""By name. Each line from ``lsm`` on has one part more than the one above, the last two instead of
each other."""
NEEDED = {"+ picker": "merge_picker", "+ gate": "upkeep_scheduler", "+ share": "upkeep_scheduler"}
"""Arguments of ``embedrock.open`` without which a contestant is none."""


@dataclass(frozen=True)
class Setting:
    """One load for all contestants."""

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


def absent(name: str, peers: Path) -> str | None:
    """Why a contestant cannot take part, if so."""
    if name in PEERS:
        if not peers.exists():
            return f"{peers} is not built; `make peers` builds it"
        one = process.describe(peers).get(ROCKSDB, {"available": False, "reason": "not built in"})
        return None if one["available"] else str(one["reason"])
    needed = NEEDED.get(name)
    if needed is not None and needed not in _known():
        return f"embedrock.open has no argument {needed}"
    return None


def run(name: str, place: Path, setting: Setting, peers: Path) -> dict[str, Any]:
    """Fills a store of a contestant and trains on it."""
    store = place / "store"
    one = CONTESTANTS[name]
    if name in PEERS:
        return _run_peer(store, setting, peers, one.sorted)
    filled = child.call(
        "embedrock_lab.bench.recdb.ours:fill",
        store=str(store),
        storage=one.storage,
        sizes=setting.sizes,
        dim=setting.dim,
    )
    known = _known()
    options: dict[str, Any] = {k: v for k, v in one.options.items() if k in known}
    options["window_group"] = setting.window if one.sorted else 1
    found: dict[str, Any] = child.call(
        "embedrock_lab.bench.recdb.ours:train",
        store=str(store),
        **setting.files,
        sizes=setting.sizes,
        memory_bytes=setting.memory_bytes,
        window=setting.window,
        depth=setting.ahead if one.ahead else 0,
        compute_ns=setting.compute_ns,
        options=options,
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


def _known() -> set[str]:
    return set(inspect.signature(embedrock.open).parameters)
