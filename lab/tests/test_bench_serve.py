"""The bench of frozen stores, small: its own stores, and one of somebody's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError
from embedrock.trace import Trace
from embedrock_lab.bench import serving
from embedrock_lab.bench.serve import communities
from embedrock_lab.commands.bench import main

FIGURES = ["serve_pages_identity", "serve_pages_frequency", "serve_pages_partition"]
FIGURES += ["serve_pages_replicas", "serve_gain_c0", "serve_gain_c10", "serve_replicas_gain"]
FIGURES += ["greedy_gain"]
FIGURES += ["pipeline_throughput", "serve_p50_us", "serve_p99_us", "serve_device_share"]
FIGURES += ["selection_us", "serve_index_bytes", "serve_disk_mb"]
TIMING = ["--rounds", "1", "--slice", "0.02", "--patience", "0", "--page-bytes", "1024"]


def report_of(place: Path, *arguments: object) -> dict[str, Any]:
    file = place / "serve.json"
    options = [*map(str, arguments), *TIMING, "--dir", str(place / "bench")]
    assert main(["serve", *options, "--json", str(file)]) == 0
    assert list((place / "bench").iterdir()) == []
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert found["results"]["mismatches"] == 0
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    small = ["--rows", 6_000, "--queries", 10_000, "--dim", 16, "--served", 300, "--warm", 1_000]
    return report_of(tmp_path_factory.mktemp("serve"), *small, "--replicate", 0.1, 0.8)


def test_every_figure_is_there(made: dict[str, Any]) -> None:
    assert sorted(made["figures"]) == sorted(FIGURES)
    assert all(value > 0 for value in made["figures"].values())
    assert made["results"]["trace"]["learned"] == 8_000
    assert made["results"]["trace"]["served"] == 300


def test_rows_that_are_asked_together_and_their_replicas_take_fewer_pages(
    made: dict[str, Any],
) -> None:
    figures, results = made["figures"], made["results"]
    for cache in ("c0", "c10"):
        pages = {
            name: one["pages_per_request"]
            for name, one in results[f"counted_{cache}"]["single"].items()
        }
        assert pages["identity"] > pages["frequency"] > pages["partition"]
        assert figures[f"serve_gain_{cache}"] == pages["identity"] / pages["partition"]
        for kind in ("connectivity", "residual", "partitions"):
            order = [pages[name] for name in ("partition", *(f"{r} {kind}" for r in (0.1, 0.8)))]
            # Few replicas may cost the small cache as much as they save.
            assert order[1] < 1.01 * order[0] and order[2] < order[0], (kind, order)
    assert figures["serve_replicas_gain"] > 1
    # One pass reads about what greedy set cover does.
    assert 0.95 < figures["greedy_gain"] < 1.05
    stores, frozen = results["stores"], results["pages"]
    assert frozen["0.8 residual"] > 1.5 * frozen["partition"]
    assert stores["0.8 residual"]["disk_mb"] > 1.5 * stores["partition"]["disk_mb"]
    assert stores["0.8 residual"]["index_bytes_per_row"] > 4


def test_pages_are_those_that_the_plan_promises(tmp_path: Path) -> None:
    trace = communities(5_000, 3_000, 12, seed=3)
    learn, held = trace.split(0.8)
    held.save(tmp_path / "held.npz")
    learn.sample(0.01).save(tmp_path / "warm.npz")
    with embedrock.open(tmp_path / "source", "64MiB", page_bytes=1024) as store:
        table = store.table("rows", 16, 5_000, optimizer="none")
        table.put(np.arange(5_000), np.zeros((5_000, 16), np.float32))
        store.commit(0)
    plan = embedrock.placement.place(learn, store=tmp_path / "source", replicate=0.4)
    embedrock.freeze(tmp_path / "source", tmp_path / "store", plan=plan, page_bytes=1024)
    arguments: dict[str, Any] = {"stores": {"one": str(tmp_path / "store")}}
    arguments |= {"trace": str(tmp_path / "held.npz"), "warm": str(tmp_path / "warm.npz")}
    arguments |= {"union": 4, "cache": 0.1}
    arguments |= {
        "timed": ["one"],
        "choices": [],
        "threads": [1],
        "rounds": 1,
        "slice_s": 0.01,
        "patience": 0.0,
    }
    found = serving.serve(made=False, **arguments)
    assert found["mismatches"] == 0
    counted = found["counted"]["c0"]["one"]
    expected = plan.evaluate(held).pages
    # The smallest cache is not quite empty.
    assert 0.7 * expected < counted["single"]["pages_per_request"] <= 1.02 * expected
    assert counted["union"]["pages_per_request"] < 4 * counted["single"]["pages_per_request"]
    # Its rows are none that the bench has written: each that is read is counted.
    wrong = serving.serve(made=True, **arguments)["mismatches"]
    assert wrong >= 4 * held.keys


def test_a_store_of_somebodys_is_served_by_its_own_queries(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with embedrock.open(tmp_path / "trained", "64MiB", page_bytes=1024) as store:
        items = store.table("items", 16, 3_000, optimizer="none")
        users = store.table("users", 8, expected_rows=2_000, optimizer="none")
        items.put(np.arange(3_000), rng.random((3_000, 16), np.float32))
        users.put(np.arange(2_000) * 2**40, rng.random((2_000, 8), np.float32))
        store.commit(7)
    embedrock.freeze(tmp_path / "trained", tmp_path / "served", page_bytes=1024)
    ids, offsets = rng.integers(0, 3_000, 4_000), np.arange(0, 4_001, 10)
    # Every other query asks for no user, and one user has no row.
    user, of_user = rng.integers(0, 2_001, 200) * 2**40, np.arange(401) // 2
    trace = Trace({"items": (ids, offsets), "users": (user, of_user)})
    trace.save(tmp_path / "held.npz")
    options = ["--trace", tmp_path / "held.npz", "--warm", 100]
    found = report_of(tmp_path, tmp_path / "served", *options)
    assert {"serve_pages_c0", "serve_pages_c10", "serve_p50_us"} <= set(found["figures"])
    assert found["figures"]["serve_device_share"] is None
    assert any("too small to measure the device" in note for note in found["notes"])
    single = found["results"]["counted_c10"]["single"]["store"]
    assert single["rows_per_request"] == (2_000 + 100) / 200
    assert found["figures"]["serve_pages_c10"] <= found["figures"]["serve_pages_c0"] < 11


def test_requests_join_queries_and_leave_out_those_that_ask_for_nothing() -> None:
    trace = Trace({"a": ([1, 2, 3], [0, 2, 2, 2, 3]), "b": ([9], [0, 0, 1, 1, 1])})
    single = [[(name, keys.tolist()) for name, keys in one] for one in serving.requests_of(trace)]
    assert single == [[("a", [1, 2])], [("b", [9])], [("a", [3])]]
    union = serving.requests_of(trace, 3)
    assert [[(name, keys.tolist()) for name, keys in one] for one in union] == [
        [("a", [1, 2]), ("b", [9])],
        [("a", [3])],
    ]


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="--trace FILE"):
        main(["serve", str(tmp_path)])
    with embedrock.open(tmp_path / "store", "16MiB") as store:
        store.table("items", 4, 10)
        store.commit(0)
    (tmp_path / "held.txt").write_text("1 2\n3\n")
    with pytest.raises(MisuseError, match="does not name its table"):
        main(["serve", str(tmp_path / "store"), "--trace", str(tmp_path / "held.txt")])
    with pytest.raises(MisuseError, match="--cache is '10'"):
        main(["serve", "--cache", "10"])
