"""The bench of layouts, small: a trace of somebody's, made logs, and counts that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedrock import _core
from embedrock.errors import MisuseError
from embedrock_lab.bench.place import figures, hypergraph
from embedrock_lab.bench.place.counting import recounted
from embedrock_lab.bench.place.layouts import Layout
from embedrock_lab.bench.place.logs import LOGS, Hyperedges
from embedrock_lab.bench.serve import communities
from embedrock_lab.commands.bench import main

FIGURES = [*figures.NAMES, "partition_bytes_per_pin", "partition_scaling"]
MTKAHYPAR = {"mtkahypar_pages", "mtkahypar_time"}
SHARES = ["--replicate", "0.2", "0.4"]
PNG_MAGIC = b"\x89PNG"


def report_of(place: Path, *arguments: object, status: int = 0) -> dict[str, Any]:
    file = place / "place.json"
    options = [*map(str, arguments), "--dir", str(place / "bench"), "--json", str(file)]
    assert main(["place", *options]) == status
    assert list((place / "bench").iterdir()) == []
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert bool(found["results"]["mismatches"]) is bool(status)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "clicks.npz"
    communities(2_000, 4_000, 8, seed=2).save(path)
    return path


@pytest.fixture(scope="module")
def made(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    place = tmp_path_factory.mktemp("place")
    png = place / "place.png"
    arguments = ["--trace", saved, *SHARES, "--pins", 20_000, 60_000, "--png", png]
    return report_of(place, *arguments), png


def test_every_figure_is_there(made: tuple[dict[str, Any], Path]) -> None:
    report, png = made
    assert sorted(report["figures"]) == sorted(FIGURES)
    wanted = {name: value for name, value in report["figures"].items() if name not in MTKAHYPAR}
    assert all(value > 0 for value in wanted.values())
    assert png.read_bytes().startswith(PNG_MAGIC)
    one = report["results"]["traces"]["clicks"]
    assert (one["learned"], one["served"]) == (3_200, 800)
    took = one["took"]["partition"]
    assert took["seconds"] > 0 and took["bytes"] > 0
    assert list(report["results"]["scaling"]) == ["20,000", "60,000"]


def test_layouts_that_learn_more_take_fewer_pages(made: tuple[dict[str, Any], Path]) -> None:
    report, _ = made
    one = report["results"]["traces"]["clicks"]
    layouts = one["layouts"]
    for condition in ("c0", "c10", "c0_union", "c10_union"):
        pages = {name: each[condition]["pages_per_request"] for name, each in layouts.items()}
        assert pages["identity"] > pages["partition"], condition
        # Replicas are chosen for single queries: 32 of these ask for most pages of this table.
        assert pages["0.4 residual"] < pages["partition"] * (1.02 if "union" in condition else 1)
        assert len({each[condition]["hit_share"] for each in layouts.values()}) == 1
        assert (layouts["partition"][condition]["hit_share"] > 0) is condition.startswith("c10")
    assert layouts["0.4 connectivity"]["copies"] > 1.3 * one["rows"]
    assert report["figures"]["shp_gain_c0"] == pytest.approx(
        layouts["identity"]["c0"]["pages_per_request"]
        / layouts["partition"]["c0"]["pages_per_request"]
    )
    by_cache = list(one["caches"]["partition"].values())
    assert by_cache == sorted(by_cache, reverse=True)
    few, *_, most = one["candidates"]["0.4 residual"].values()
    assert few > most >= 0.97 * one["greedy"]["0.4 residual"]


@pytest.mark.parametrize("wrong", ["pages", "served", "hits"])
def test_a_count_that_is_wrong_is_a_mismatch(
    wrong: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _core.serve_pages

    def planted(*arguments: Any, **options: Any) -> Any:
        requests, rows, hits, pages, served = right(*arguments, **options)
        if wrong == "pages":  # one page of each of the requests that it forgets to read
            return requests, rows, hits, pages - 1, served
        if wrong == "hits":
            return requests, rows, hits + 1, pages, served
        return requests, rows, hits, pages - 1, served - (np.arange(len(served)) == 1)

    monkeypatch.setattr(_core, "serve_pages", planted)
    found = report_of(tmp_path, "--trace", saved, "--replicate", "--pins", status=1)
    assert "were not what they should be" in found["notes"][0]


def test_plain_python_reads_what_the_engine_reads() -> None:
    rng = np.random.default_rng(4)
    pages = [rng.choice(60, 5, replace=False) for _ in range(40)] + list(
        np.arange(60).reshape(12, 5)
    )
    starts = np.arange(0, 5 * len(pages) + 1, 5, dtype=np.int64)
    layout = Layout(starts, np.concatenate(pages).astype(np.uint32))
    offsets = np.arange(0, 601, 6, dtype=np.int64)
    queries = Hyperedges(rng.integers(0, 60, 600).astype(np.uint32), offsets, 60)
    for cache, union, candidates in ((0, 1, 10), (7, 1, 2), (20, 8, 10), (60, 3, 1)):
        found = _core.serve_pages(
            queries.rows,
            queries.offsets,
            60,
            5,
            layout.starts,
            layout.rows,
            cache_rows=cache,
            queries_per_batch=union,
            candidates_max=candidates,
        )
        assert (found[3], found[2]) == recounted(queries, layout, cache, union, candidates)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def test_logs_of_a_folder_are_read_and_missing_ones_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sessions = [f"{i}\t{' '.join(map(str, rng.integers(5, 90, 4)))}\n" for i in range(40)]
    for name, lines in (("train", sessions[:30]), ("test", sessions[30:])):
        _write(tmp_path / "data" / "tmall" / f"{name}_sessions.txt.gz", "".join(lines))
    clicks = ["id,click,hour,C1,site\n"]
    clicks += [f"{i},0,1,{rng.integers(3)},{'' if i % 5 else 's' + str(i)}\n" for i in range(40)]
    _write(tmp_path / "data" / "avazu" / "train_10k.csv.gz", "".join(clicks))
    arguments = ["--data", tmp_path / "data", "--rows-per-page", 4, "--pins", "--replicate"]
    found = report_of(tmp_path, *arguments)
    traces = found["results"]["traces"]
    assert [(name, one["kind"]) for name, one in traces.items()] == [
        ("avazu", "clicks"),
        ("tmall", "sessions"),
    ]
    assert traces["avazu"]["rows"] == 3 + 8
    assert traces["tmall"]["learned"] == 32
    said = " ".join(found["notes"])
    for log in LOGS:
        assert (f"{log.name} was left out: there is no file" in said) is (log.name not in traces)
    assert found["figures"]["pipeline_gain"] is None

    _write(tmp_path / "data" / "tmall" / "test_sessions.txt.gz", "no ids\n")
    with pytest.raises(MisuseError, match=r"test_sessions\.txt\.gz: line 1 has no tab"):
        report_of(tmp_path, *arguments, "--logs", "tmall")


def test_without_logs_the_figures_say_what_they_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDROCK_DATA", raising=False)
    found = report_of(tmp_path, "--pins", 20_000, 40_000)
    assert found["figures"]["shp_gain_c0"] is None
    assert found["figures"]["partition_bytes_per_pin"] > 0
    assert any("--data FOLDER, or EMBEDROCK_DATA" in note for note in found["notes"])


def test_mtkahypar_gives_pages_of_all_rows(tmp_path: Path) -> None:
    if not hypergraph.is_installed():
        pytest.skip("mtkahypar is not installed")
    trace = communities(1_000, 2_000, 8, seed=5)
    learned = Hyperedges(trace.values.astype(np.uint32), trace.offsets, 1_000)
    partition, pages_of = hypergraph.blocks(learned, 8, seed=1, threads=1)
    starts, rows, _ = pages_of(partition())
    assert sorted(rows.tolist()) == list(range(1_000))
    assert np.diff(starts).max() <= 8


def test_blocks_that_are_too_large_give_rows_away() -> None:
    fitted, moved = hypergraph._fitted(np.array([0, 0, 0, 2, 0, 1]), 3, 2)
    assert fitted.tolist() == [0, 0, 1, 2, 2, 1] and moved == 2


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MisuseError, match="--queries is 3, expected 10 at least"):
        main(["place", "--queries", "3"])
    with pytest.raises(MisuseError, match="--replicate has 2, expected shares from 0 to 1"):
        main(["place", "--replicate", "2"])
