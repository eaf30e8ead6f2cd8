"""The bench of orders in which rows are written, small; its model by cases that one can count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError
from embedrock.trace import Trace
from embedrock_lab.bench.arrival import model, stored
from embedrock_lab.bench.arrival.model import Load, Plan, Rows, Settings
from embedrock_lab.bench.serve import communities
from embedrock_lab.commands.bench import main

RANKS = ["rank_flush", "rank_clean", "rank_both", "rank_gathered", "rank_kept"]
PAIRS = 2048
SETTINGS = Settings(rows_per_page=8, cache=0.05, commits=0)


def report_of(place: Path, *arguments: object) -> dict[str, Any]:
    file = place / "arrival.json"
    options = [*map(str, arguments), "--dir", str(place / "bench"), "--page-bytes", "1024"]
    assert main(["arrival", *options, "--dim", "28", "--json", str(file)]) == 0
    assert list((place / "bench").iterdir()) == []
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_every_figure_is_there_and_every_row_was_right(tmp_path: Path) -> None:
    found = report_of(tmp_path, "--rows", 6_000, "--queries", 3_000, "--batch", 16)
    assert sorted(found["figures"]) == sorted(["arrival_saved", *RANKS])
    assert all(0 < found["figures"][name] < 2 for name in RANKS)
    assert found["results"]["mismatches"] == 0
    of_store = found["results"]["made"]["store"]
    assert of_store["arrival"]["pages"] < of_store["identity"]["pages"]
    counted = {one["rows"] for one in found["results"]["made"]["model"].values()}
    assert len(counted) == 1, "the order of writing decides where rows are, not which are read"


def test_traces_of_several_tables_and_epochs(tmp_path: Path) -> None:
    one, other = (communities(2_000, 500, 6, seed).values for seed in (1, 2))
    keys = min(len(one), len(other)) // 4 * 4
    offsets = np.arange(0, keys + 1, 4)
    trace = Trace({"a": (one[:keys], offsets), "b": (other[:keys], offsets)})
    trace.save(tmp_path / "two.npz")
    found = report_of(tmp_path, "--trace", tmp_path / "two.npz", "--epochs", 2, "--batch", 8)
    assert found["results"]["mismatches"] == 0
    assert found["results"]["two"]["store"]["arrival"]["rows"] > 0


def test_queries_whose_rows_are_all_in_memory_have_no_figures(tmp_path: Path) -> None:
    found = report_of(tmp_path, "--rows", 40, "--queries", 50, "--length", 2, "--cache", 200)
    assert set(found["figures"].values()) == {None}
    assert any(note.startswith("rank_both: a trace read no page") for note in found["notes"])


def pairs(rounds: int) -> Load:
    """Queries of two rows that are far apart by number, in another order each round."""
    random = np.random.default_rng(1)
    first = np.concatenate([random.permutation(PAIRS) for _ in range(rounds)])
    rows = np.stack([first, first + PAIRS], axis=1).reshape(-1)
    return Load(rows, np.arange(0, len(rows) + 1, 2), 2 * PAIRS, batch=1)


def together() -> Rows:
    """A rank for which the two rows of a query are neighbours."""
    row = np.arange(2 * PAIRS)
    rank: Rows = row % PAIRS * 2 + row // PAIRS
    return rank


def test_rows_that_arrive_together_are_read_together_once_they_are_written_in_that_order() -> None:
    load = pairs(4)
    # A commit after each eighth of what memory holds.
    often = replace(SETTINGS, commits=len(load.rows) // 25)
    arrival = model.pages_of_training(load, often)
    identity = model.pages_of_training(load, replace(often, flushes="identity"))
    assert arrival.rows == identity.rows > 1.9
    assert arrival.pages < 1.3 and identity.pages > 1.6


def test_rank_counts_where_it_is_asked_for_and_from_its_plan_on() -> None:
    load = pairs(3)
    arrival = model.pages_of_training(load, SETTINGS)
    plan = Plan(0, together())
    assert model.pages_of_training(load, SETTINGS, [plan]) == arrival
    ranked = replace(SETTINGS, flushes="rank", cleans="rank", buffer=0.5)
    arrival = model.pages_of_training(load, replace(SETTINGS, buffer=0.5))
    assert model.pages_of_training(load, ranked, [Plan(3 * PAIRS, plan.rank)]) == arrival
    # The order of a plan that numbers rows as they are.
    identity = replace(ranked, flushes="identity", cleans="identity")
    found = model.pages_of_training(load, ranked, [Plan(0, np.arange(2 * PAIRS))])
    assert found == model.pages_of_training(load, identity)
    assert found.pages > arrival.pages


@pytest.mark.parametrize("bench", ["arrival", "place"])
def test_traces_that_results_could_not_tell_apart_are_refused(tmp_path: Path, bench: str) -> None:
    files = [str(tmp_path / "clicks.01.npz"), str(tmp_path / "clicks.02.npz")]
    with pytest.raises(
        MisuseError, match=r"clicks.01.npz and .* expected names that differ before"
    ):
        main([bench, "--trace", *files])


def test_a_rank_that_is_kept_is_a_page_for_each_query() -> None:
    load = pairs(2)
    rows = model.pages_of_training(load, SETTINGS).rows
    kept = model.pages_when_kept(load, SETTINGS, [Plan(0, together())])
    assert kept.rows == rows
    assert rows / 2 <= kept.pages <= 1 < rows
    apart = model.pages_when_kept(load, SETTINGS, [Plan(0, np.arange(2 * PAIRS))])
    assert apart.pages == rows


def test_a_log_has_each_row_once_whatever_was_cleaned() -> None:
    load = pairs(3)
    training = model._Training(load, replace(SETTINGS, cleans="rank", gathered=4))
    training.rank = together()
    for batch in load.batches():
        training.train(batch)
    training.commit()
    slots = training.log.slot
    assert training.moved > 0
    assert (slots >= 0).all() and len(np.unique(slots)) == len(slots)
    assert training.log._live.sum() == len(slots)
    owners = training.log._owner.reshape(-1)
    assert (owners[slots] == np.arange(len(slots))).all()


@pytest.mark.parametrize("trained", [0, 1])
def test_a_row_that_is_not_what_was_trained_is_counted(tmp_path: Path, trained: int) -> None:
    with embedrock.open(tmp_path / "store", "1MiB") as store:
        table = store.table("t", 4, 10, optimizer="sgd", initializer=0.0)
        keys, rows = np.arange(3, dtype=np.uint64), np.arange(3)
        occurred = np.full(10, 1 - trained)
        if trained:
            table.update(keys[:1], np.ones((1, 4), np.float32), lr=1.0)
        wrong = stored._step(store, [(table, keys, rows)], occurred, 4)
        assert wrong == (1 if trained else 3)
        store.commit(0)
