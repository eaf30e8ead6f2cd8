"""The pushes of a run, and removing old ones: all stores of one push stay or go together.

A manifest of a run is pruned before any push that it names. Of each store, all pushes stay from the
oldest one that a kept manifest names, including those of a concurrent push of the run.
"""

from __future__ import annotations

import builtins
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

from embedrock._arguments import Progress
from embedrock.objects import history
from embedrock.objects.manifest import PUSHES
from embedrock.objects.pruning import prune_store
from embedrock.objects.remote import Found, Remote
from embedrock.objects.runs.manifest import (
    PARTS,
    RUNS,
    RunManifest,
    encode,
    read_run,
    run_name,
    run_number,
    run_numbers,
)

__all__ = ["list_runs", "prune_runs"]


def list_runs(remote: Remote) -> builtins.list[dict[str, Any]]:
    """As :func:`embedrock.objects.list` says, of a run."""
    read = [history.whole_or_none(read_run, remote, found.name) for found in run_numbers(remote)]
    return [
        {
            "number": one.number,
            "step": one.step,
            "run": one.run,
            "ranks": one.world,
            "committed": max(store.committed for store in one.stores),
            "pushed": one.pushed,
            "by": one.by,
            "bytes": one.bytes,
            "sent_bytes": one.sent_bytes,
            "stores": {store.folder: store.number for store in one.stores},
        }
        for one in read
        if one is not None and one.pruned is None
    ]


def prune_runs(remote: Remote, keep: int, alone: bool, progress: Progress | None) -> dict[str, Any]:
    """As :func:`embedrock.objects.prune` says, of a run."""
    with history.announced(remote, f"prune by {history.whose()}") as own:
        now = own.since
        kept, damaged, older = _sorted(remote, run_numbers(remote), keep)
        for one in kept:
            remote.settle(run_name(one.number))
        pruned, tombs = _prune(remote, older, kept)
        result = dict.fromkeys(("removed_pieces", "removed_bytes", "waiting_bytes"), 0)
        names: dict[str, builtins.list[str]] = {"missing": [], "damaged": damaged}
        for store in kept[0].stores if kept else ():
            oldest = min(one.number_of(store.folder) for one in kept)
            place = remote.within(store.folder)
            told = prune_store(place, 1, alone, progress, oldest=oldest)
            for what in result:
                result[what] += told[what]
            for what, of in names.items():
                of.extend(f"{store.folder}/{name}" for name in told[what])
        age = timedelta(0) if alone else history.PRUNE_AGE
        week_old = [
            found.name
            for found in (*tombs, *remote.below(PARTS))
            if now - found.modified >= history.PRUNE_AGE
        ]
        cut_off = [
            found.name
            for found in remote.below(PUSHES)
            if now - found.modified >= age and own.name not in found.name
        ]
        remote.delete(week_old + cut_off)
        remote.remove_staged((RUNS, PARTS, PUSHES), now - age)
    return {"pruned": pruned, "kept": len(kept), **names, **result}


def _sorted(
    remote: Remote, there: builtins.list[Found], keep: int
) -> tuple[builtins.list[RunManifest], builtins.list[str], builtins.list[Found]]:
    """The last whole manifests, the names of damaged ones between and after these, and all before
    them."""
    kept: builtins.list[RunManifest] = []
    damaged = []
    at = len(there)
    while at and len(kept) < keep:
        at -= 1
        manifest = history.whole_or_none(read_run, remote, there[at].name)
        if manifest is None:
            damaged.append(there[at].name)
        elif manifest.pruned is None:
            kept.append(manifest)
    return kept, damaged, there[:at]


def _prune(
    remote: Remote, older: builtins.list[Found], kept: builtins.list[RunManifest]
) -> tuple[int, builtins.list[Found]]:
    """Prunes manifests; returns how many, and those that were pruned before. Their numbers stay
    taken for a while."""
    pruned, tombs = 0, []
    for found in older:
        manifest = history.whole_or_none(read_run, remote, found.name)
        if manifest is None:
            # Only the number of a damaged manifest is known.
            manifest = replace(kept[0], number=run_number(found.name) or 0)
        elif manifest.pruned is not None:
            tombs.append(found)
            continue
        gone = replace(manifest, stores=(), pruned=int(time.time()))
        remote.replace(found.name, encode(gone))
        pruned += 1
    return pruned, tombs
