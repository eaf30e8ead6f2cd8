"""Measurements of steps: seconds that add up, the engine's counters, the best cache's loads."""

from __future__ import annotations

import csv
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError
from embedrock.observe.key_sample import KeySample
from embedrock.observe.optimum import horizon_hits, optimal_hits
from embedrock.observe.step_report import CAUSES, StepReport
from embedrock.observe.trace import Trace

torch = pytest.importorskip("torch")

ROWS, DIM = 20_000, 16


@pytest.fixture
def store(tmp_path: Path):
    """Written rows, of which a part fits into memory."""
    with embedrock.open(tmp_path / "store", "64MiB") as opened:
        table = opened.table("rows", DIM, ROWS, optimizer="sgd")
        table.put(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
        opened.commit(0)
    with embedrock.open(tmp_path / "store", 1_100_000, create=False) as opened:
        yield opened
        opened.commit(1)


def zipf(steps: int, size: int = 300, seed: int = 0) -> list[Any]:
    random = np.random.default_rng(seed)
    return [(ROWS * random.random(size) ** 4).astype(np.int64) for _ in range(steps)]


def train(store: embedrock.Store, report: StepReport, batches: Any) -> None:
    table = store.table("rows")
    for keys in report.steps(batches):
        rows = table.get(keys)
        with report.updating():
            table.update(keys, np.ones_like(rows), lr=1e-3)


def ahead(store: embedrock.Store, batches: Any, depth: int = 64) -> Any:
    return embedrock.LookaheadLoader(
        batches, store, depth, keys_of=lambda keys: {"rows": keys}, announce=True
    )


def test_seconds_by_cause_add_up_and_counters_are_those_of_the_engine(
    store: embedrock.Store,
) -> None:
    before = store.stats()
    report = StepReport(store, steps_per_row=1)
    train(store, report, zipf(40))
    after = store.stats()
    rows = report.rows()
    assert [row["step"] for row in rows] == list(range(1, 41))
    for row in rows:
        assert sum(row[cause] for cause in CAUSES) == pytest.approx(row["seconds"], rel=1e-6)
        assert min(row[cause] for cause in CAUSES) >= 0
    total = report.totals()
    for name, engine in (("pages", "pages_read"), ("rows_loaded", "rows_loaded")):
        assert total[name] == sum(row[name] for row in rows) == after[engine] - before[engine]
    waited = after["read_wait_s"] - before["read_wait_s"]
    assert 0 < total["blocked_by_read_s"] <= waited * 1.0001
    assert total["updating_s"] > 0
    assert total["pages_ahead"] == total["window_batches"] == 0
    assert total["pages_once_share"] is None


def test_hit_rates_are_exact_while_all_keys_are_kept(store: embedrock.Store) -> None:
    batches = zipf(60)
    report = StepReport(store, steps_per_row=7)
    train(store, report, batches)
    total = report.totals()
    assert total["key_share"] == 1
    flat = np.concatenate(batches).view(np.uint64)
    trace = Trace(flat, np.arange(61) * 300).distinct()
    capacity = int(store.stats()["classes"][0]["cache_capacity"])
    assert total["distinct_rows"] == len(trace.values)
    assert total["optimal_rows_loaded"] == len(trace.values) - optimal_hits(trace, capacity).sum()
    assert total["hit_rate"] == pytest.approx(1 - total["rows_loaded"] / len(trace.values))
    assert total["hit_rate"] <= total["optimal_hit_rate"]
    rows = report.rows()
    assert [row["steps"] for row in rows] == [7] * 8 + [4]
    assert sum(row["distinct_rows"] for row in rows) == total["distinct_rows"]
    assert sum(row["optimal_rows_loaded"] for row in rows) == total["optimal_rows_loaded"]


@pytest.mark.alone
def test_with_look_ahead_window_and_hit_rate_against_its_optimum_are_seen(
    store: embedrock.Store,
) -> None:
    report = StepReport(store, steps_per_row=1)
    train(store, report, ahead(store, zipf(200)))
    total, rows = report.totals(), report.rows()
    window = store.window.stats()
    assert total["pages_ahead"] == window["pages"] > 0
    assert total["pages_once_share"] == 1 - window["pages_again"] / window["pages"]
    assert 4 < total["window_batches"] <= 66
    assert rows[-1]["window_batches"] == 1
    # Groups are read in bursts; a hit rate is that of the batches which they were read for.
    rates = [row["hit_rate"] for row in rows]
    assert max(rates) <= 1
    assert sorted(rates)[len(rates) // 10] > 0
    assert total["rows_loaded_for"] == pytest.approx(total["rows_loaded"], rel=0.01)
    assert 0.7 < total["hit_vs_optimum"] <= 1.02
    assert total["optimal_hit_rate"] >= total["hit_rate"] - 0.01


def test_rows_never_written_are_no_loads(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "new", "16MiB") as store:
        store.table("rows", DIM, ROWS, optimizer="sgd")
        report = StepReport(store)
        train(store, report, zipf(30))
        total = report.totals()
        store.commit(1)
    assert total["rows_loaded"] == total["optimal_rows_loaded"] == 0
    assert total["hit_rate"] == total["optimal_hit_rate"] == 1
    assert total["hit_vs_optimum"] is None


def test_a_full_sample_keeps_fewer_keys_and_says_nearly_the_same(store: embedrock.Store) -> None:
    batches = zipf(120, size=2000)
    found = []
    for key_bytes in (8 << 20, 200_000):
        report = StepReport(store, key_bytes=key_bytes)
        train(store, report, batches)
        found.append(report.totals())
        report.close()
    whole, sampled = found
    assert whole["key_share"] == 1
    assert 0.02 < sampled["key_share"] < 0.2
    assert sampled["distinct_rows"] == pytest.approx(whole["distinct_rows"], rel=0.1)
    assert sampled["optimal_hit_rate"] == pytest.approx(whole["optimal_hit_rate"], abs=0.03)


def test_rows_that_a_step_loads_twice_are_no_negative_hit_rate(store: embedrock.Store) -> None:
    """A step whose rows the memory does not hold until they are updated loads them again: the
    report of such a run had a hit rate of -47 %."""
    report = StepReport(store, steps_per_row=1)
    train(store, report, [np.arange(ROWS)] * 2)
    total = report.totals()
    assert total["rows_loaded"] > total["distinct_rows"] == 2 * ROWS
    rates = [row[name] for row in report.rows() for name in ("hit_rate", "optimal_hit_rate")]
    assert [total["hit_rate"], *rates][:2] == [0, 0]
    assert all(0 <= rate <= 1 for rate in rates)
    assert "-" not in str(report).splitlines()[-1].split()[-2]


def test_the_sample_of_a_long_run_has_keys_enough_to_say_something() -> None:
    """Steps took all of the memory, and the last key had to leave: distinct rows were chance."""
    random = np.random.default_rng(1)
    sample = KeySample(64 << 10)
    sample.running = True
    for _ in range(3000):
        sample.visited([("rows", random.integers(0, 1 << 30, 40).astype(np.uint64))])
        sample.end_step()
    found = sample.optimum([1000], None)
    assert len(found.distinct) == 3001
    assert found.distinct[-1] == pytest.approx(3000 * 40, rel=0.1)
    assert found.distinct[1500] == pytest.approx(1500 * 40, rel=0.1)
    noted = [*(keys.nbytes for keys, _ in sample._packed), *(one.nbytes for one in sample._steps)]
    assert sum(noted) <= 64 << 10


def test_a_key_is_the_same_row_whatever_tables_are_visited_beside_it() -> None:
    sample = KeySample(1 << 20)
    sample.class_of = {"one": 0, "two": 1}
    sample.running = True
    keys = np.arange(1000, dtype=np.uint64)
    sample.visited([("one", keys)])
    sample.visited([("one", keys), ("two", keys)])
    sample.end_step()
    found = sample.optimum([10_000, 10_000], None)
    assert found.distinct[-1] == found.loads[-1] == 2000


def test_the_optimum_of_a_sample_is_that_of_all_keys_by_class_and_with_joined_steps() -> None:
    random = np.random.default_rng(3)
    steps = [(5000 * random.random(200) ** 3).astype(np.uint64) for _ in range(1500)]
    sample = KeySample(64 << 20)
    sample.class_of = {"one": 0, "two": 1}
    sample.running = True
    for keys in steps:
        sample.visited([("one", keys), ("two", keys[:50])])
        sample.end_step()
    for horizon in (None, 64):
        both = sample.optimum([1600, 800], horizon)
        expected = 0
        for part, capacity in ((slice(None), 1600), (slice(50), 800)):
            some = [keys[part] for keys in steps]
            offsets = np.concatenate([[0], np.cumsum([len(keys) for keys in some])])
            trace = Trace(np.concatenate(some), offsets).distinct()
            hits = horizon_hits(trace, capacity, horizon or 1500)
            expected += int((np.diff(trace.offsets) - hits).sum())
        assert both.loads[-1] == pytest.approx(expected, rel=0.06)
        assert (np.diff(both.loads) >= 0).all()
        assert len(both.loads) == len(both.distinct) == 1501


def test_get_and_update_of_one_batch_are_one_use_and_what_other_tables_have_is_another() -> None:
    sample = KeySample(1 << 20)
    keys = np.array([5, 6, 5], np.uint64)
    sample.visited([("one", keys)])
    sample.running = True
    for _ in range(2):
        sample.visited([("one", keys)])
        sample.visited([("one", keys)])
        keys[:] = [7, 8, 9]
        sample.visited([("one", keys)])
        keys[:] = [5, 6, 5]
        sample.visited([("two", keys)])
        sample.end_step()
    assert np.diff(sample.optimum([100], None).distinct).tolist() == [7, 7]
    assert sample.optimum([100], None).loads.tolist() == [0, 7, 7]


def test_many_rows_become_few_with_the_same_sums(store: embedrock.Store) -> None:
    report = StepReport(store, steps_per_row=1, max_rows=10)
    train(store, report, zipf(37, size=20))
    train(store, report, zipf(16, size=20))
    rows = report.rows()
    assert len(rows) <= 10
    assert sum(row["steps"] for row in rows) == rows[-1]["step"] == 53
    assert sum(row["distinct_rows"] for row in rows) == report.totals()["distinct_rows"]


def test_rows_have_several_steps_where_reading_counters_would_cost_much(
    store: embedrock.Store,
) -> None:
    report = StepReport(store)
    train(store, report, zipf(400, size=2))
    total = report.totals()
    assert len(report.rows()) < total["steps"] == 400
    assert total["overhead_s"] <= 0.02 * total["seconds"]


def test_a_step_that_is_left_counts_when_it_has_updated(store: embedrock.Store) -> None:
    table = store.table("rows")
    for updates, counted in ((True, 3), (False, 2)):
        report = StepReport(store, step=100)
        for number, keys in enumerate(report.steps(zipf(9)), 1):
            rows = table.get(keys)
            if updates or number < 3:
                with report.updating():
                    table.update(keys, rows, lr=1e-3)
            if number == 3:
                break
        gc.collect()
        assert report.totals()["steps"] == counted
        assert report.rows()[-1]["step"] == 100 + counted


def model_of(store: embedrock.Store) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    bag = embedrock.nn.EmbeddingBag(
        ROWS, DIM, mode="sum", store=store, name="rows", optimizer="sgd"
    )
    model = torch.nn.Sequential(bag, torch.nn.Linear(DIM, 1))
    tables = embedrock.optim.SGD(model, lr=1e-3)
    return model, [tables, torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=1e-3)]


def test_steps_of_optimizers_are_updates_in_a_pipeline_too(store: embedrock.Store) -> None:
    model, optimizers = model_of(store)
    batches = [{"rows": torch.from_numpy(keys).view(-1, 3)} for keys in zipf(30)]
    for loader in (
        batches,
        embedrock.LookaheadLoader(batches, model),
        embedrock.Pipeline(model, embedrock.LookaheadLoader(batches, model)),
    ):
        report = StepReport(store, optimizers, steps_per_row=1)
        for batch in report.steps(loader):
            model(batch["rows"]).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with report.committing():
                store.commit(1)
        report.close()
        total = report.totals()
        assert total["steps"] == 30
        assert total["updating_s"] > 0 and total["committing_s"] > 0
        assert sum(total[cause] for cause in CAUSES) == pytest.approx(total["seconds"], rel=1e-6)
        assert total["distinct_rows"] == pytest.approx(
            sum(len(np.unique(keys)) for keys in zipf(30)), rel=0.01
        )
        assert len(store._listeners) == 0
        hooks = [len(one._optimizer_step_pre_hooks) for one in optimizers]
        assert hooks == [0, 0]


def test_waiting_for_rows_is_no_computing(store: embedrock.Store) -> None:
    held = threading.Event()
    report = StepReport(store, steps_per_row=1)

    class Slow:
        """A window whose batches are there only a while after they are begun."""

        def __iter__(self) -> Any:
            for keys in zipf(3):
                held.wait(0.02)
                yield keys

    train(store, report, Slow())
    assert all(row["drawing_s"] > 0.019 for row in report.rows())
    assert all(row["computing_s"] < row["drawing_s"] for row in report.rows())


def test_table_csv_and_json_have_the_rows(store: embedrock.Store, tmp_path: Path) -> None:
    report = StepReport(store, steps_per_row=1)
    assert str(report) == "no steps were measured"
    assert report.to_dict()["columns"] == {}
    train(store, report, ahead(store, zipf(50)))
    lines = str(report).splitlines()
    assert lines[0].split()[:2] == ["step", "ms/step"]
    assert [line.split()[0] for line in lines[1:]] == ["to"] * 10 + ["all"]
    report.to_csv(tmp_path / "steps.csv")
    with (tmp_path / "steps.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [int(row["step"]) for row in read] == list(range(1, 51))
    columns = report.to_dict()["columns"]
    assert [float(row["seconds"]) for row in read] == columns["seconds"]
    assert len(columns["optimal_hit_rate"]) == 50
    assert report.last()["step"] == 50


def test_a_report_that_is_gone_leaves_nothing_behind(store: embedrock.Store) -> None:
    _, optimizers = model_of(store)
    report = StepReport(store, optimizers)
    gone = weakref.ref(report)
    del report
    gc.collect()
    assert gone() is None
    assert not store._listeners
    assert not optimizers[0]._optimizer_step_pre_hooks


def test_unusable_arguments_are_named(store: embedrock.Store) -> None:
    for name, value in (("steps_per_row", 0), ("max_rows", 1), ("key_bytes", -1), ("step", -1)):
        with pytest.raises(MisuseError, match=f"{name} is {value}"):
            StepReport(store, **{name: value})
    with pytest.raises(MisuseError, match=r"store is a list, expected an embedrock\.Store"):
        StepReport([])  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="optimizers has 'adam', expected torch optimizers"):
        StepReport(store, ["adam"])
    one = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert len(StepReport(store, one)._hooks) == 2
    without = StepReport(store, key_bytes=0)
    train(store, without, zipf(3))
    assert without.totals()["hit_rate"] is None
