"""One trace, all layouts: what they take to make, and what held-out queries read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedrock_lab.bench.child import ChildError
from embedrock_lab.bench.place.counting import Counted, Counter
from embedrock_lab.bench.place.layouts import (
    HOMES,
    MTKAHYPAR,
    STRATEGIES,
    STRAWMEN,
    Layout,
    Maker,
    layout_name,
)
from embedrock_lab.bench.place.logs import Hyperedges

if TYPE_CHECKING:
    from embedrock_lab.bench.place import Options

__all__ = ["CACHES", "CANDIDATES", "CONDITIONS", "LEARN", "compared"]

LEARN = 0.8
"""Share of the queries that is learned from."""
CACHE, UNION = 0.1, 32
CONDITIONS = {"c0": (0.0, 1), "c10": (CACHE, 1), "c0_union": (0.0, UNION)}
CONDITIONS |= {"c10_union": (CACHE, UNION)}
"""Share of the rows that a cache holds, and queries that are served together."""
CACHES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""As in figure 12 of the MaxEmbed paper."""
CANDIDATES = (1, 2, 3, 5, 10, 16, 1 << 20)
"""Pages of a row that selection looks at, as in its figure 16; the last is all of them."""
SAMPLE_UNION = 4


def compared(
    every: Hyperedges,
    folder: Path,
    options: Options,
    notes: list[str],
    with_mtkahypar: bool,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], int]:
    """Results for a trace, and the number of wrong counts."""
    first = max(min(int(LEARN * every.queries), every.queries - 1), 1)
    learned = every.first(first)
    shares = sorted(share for share in options.replicate if share > 0)
    maker = Maker(learned, folder, options.rows_per_page, options.seed, options.threads)
    say("placing")
    layouts = {method: maker.home(method) for method in HOMES}
    if with_mtkahypar:
        try:
            layouts[MTKAHYPAR] = maker.mtkahypar(options.limit)
        except ChildError as error:
            notes.append(f"mtkahypar: {error}")
    for method in STRATEGIES if shares else ():
        say(f"replicas: {method}")
        made = maker.replicas(layouts["partition"], method, shares)
        layouts |= {layout_name(method, share): made[share] for share in shares}
    for method in STRAWMEN:
        say(f"replicas: {method}")
        for share in shares:
            layouts[layout_name(method, share)] = maker.strawman(method, share)
    say(f"serving {every.queries - first:,} queries from {len(layouts)} layouts")
    counter = Counter(every, first, options.rows_per_page)
    with ThreadPoolExecutor(options.threads) as pool:
        found = _counted(counter, pool, layouts, shares)
    known = np.diff(learned.offsets)
    facts = {
        "rows": every.num_rows,
        "learned": learned.queries,
        "served": every.queries - first,
        "pins": len(learned.rows),
        "length_mean": float(known.mean()),
    }
    return {**facts, "took": maker.took, **found}, counter.mismatches


def _counted(
    counter: Counter, pool: ThreadPoolExecutor, layouts: dict[str, Layout], shares: list[float]
) -> dict[str, Any]:
    """All conditions for all layouts; caches and candidates for those that the paper has."""
    list(pool.map(lambda one: _check(counter, one), layouts.values()))
    jobs = [(name, condition) for name in layouts for condition in CONDITIONS]

    def serve(job: tuple[str, str]) -> Counted:
        cache, union = CONDITIONS[job[1]]
        return counter.count(layouts[job[0]], cache, union)

    found: dict[str, Any] = {
        name: {"pages": layout.pages, "copies": len(layout.rows)}
        for name, layout in layouts.items()
    }
    hits: dict[str, set[int]] = {}
    for (name, condition), one in zip(jobs, pool.map(serve, jobs), strict=True):
        found[name][condition] = {
            "pages_per_request": one.pages_per_request,
            "rows_per_page": one.rows_per_page,
            "hit_share": one.hits / max(one.rows, 1),
        }
        if condition == "c0":
            found[name]["served"] = list(one.served)
        hits.setdefault(condition, set()).add(one.hits)
    # The content of a cache of rows does not depend on the pages that they come from.
    counter.mismatches += sum(len(one) != 1 for one in hits.values())
    most = [layout_name(kind, shares[-1]) for kind in STRATEGIES] if shares else []
    return {
        "layouts": found,
        "caches": _series(
            pool,
            ["shp", "partition", *most],
            CACHES,
            lambda name, cache: counter.count(layouts[name], cache, UNION),
        ),
        "candidates": _series(
            pool,
            most,
            CANDIDATES,
            lambda name, candidates: counter.count(layouts[name], candidates=candidates),
        ),
        "greedy": {
            name: counter.count(layouts[name], candidates=0).pages_per_request for name in most
        },
    }


def _check(counter: Counter, layout: Layout) -> None:
    for cache in (0.0, CACHE):
        for union in (1, SAMPLE_UNION):
            counter.check(layout, cache, union)


def _series(
    pool: ThreadPoolExecutor,
    names: list[str],
    settings: Iterable[Any],
    count: Callable[[str, Any], Counted],
) -> dict[str, dict[str, float]]:
    """Pages per request of layouts, by setting."""
    return {
        name: {
            f"{setting:g}": one.pages_per_request
            for setting, one in zip(
                settings, pool.map(lambda s, n=name: count(n, s), settings), strict=True
            )
        }
        for name in names
    }
