"""The race: its traces, its optimum, and small runs with real stores."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from embedrock.errors import MisuseError
from embedrock.observe.optimum import frequent_hits, optimal_hits
from embedrock.observe.trace import Trace, load
from embedrock_lab.bench.replay.limit import MemoryLimit
from embedrock_lab.bench.replay.trace import synthetic
from embedrock_lab.bench.replay.workload import MODES, expected, wrong_rows
from embedrock_lab.commands.bench import main


def trace_of(*batches: list[int]) -> Trace:
    offsets = np.cumsum([0, *map(len, batches)])
    keys = list(itertools.chain.from_iterable(batches))
    return Trace(np.array(keys, np.uint64), offsets.astype(np.int64))


def best_hits(batches: list[list[int]], capacity: int) -> int:
    """The most hits of any choice of rows to keep, by trying all."""
    kept: dict[frozenset[int], int] = {frozenset(): 0}
    for batch in batches:
        after: dict[frozenset[int], int] = {}
        for rows, hits in kept.items():
            now = hits + len(rows.intersection(batch))
            candidates = sorted(rows.union(batch))
            for size in range(min(capacity, len(candidates)) + 1):
                for choice in itertools.combinations(candidates, size):
                    key = frozenset(choice)
                    after[key] = max(after.get(key, -1), now)
        kept = after
    return max(kept.values())


@pytest.mark.parametrize("seed", range(12))
def test_nobody_hits_more_often_than_the_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [sorted({int(key) for key in rng.integers(0, 6, 3)}) for _ in range(7)]
    capacity = 1 + seed % 3
    found = optimal_hits(trace_of(*batches), capacity)
    assert found.sum() == best_hits(batches, capacity)


def test_hits_of_frequent_rows_are_no_more_than_the_optimum_and_equal_without_a_bound() -> None:
    trace = synthetic(500, 0.9, 60, 64, seed=3).distinct()
    for capacity in (20, 100, 500):
        frequent, optimal = frequent_hits(trace, capacity), optimal_hits(trace, capacity)
        assert 0 < frequent.sum() <= optimal.sum()
    assert (frequent == optimal).all()


def test_draws_have_the_skew_that_was_asked_for() -> None:
    trace = synthetic(1000, 1.05, 50, 1000, seed=7)
    counts = np.sort(np.bincount(trace.values.astype(np.int64), minlength=1000))[::-1]
    weights = np.arange(1, 1001) ** -1.05
    assert abs(counts[0] / counts.sum() - weights[0] / weights.sum()) < 0.01
    assert abs(counts[:100].sum() / counts.sum() - weights[:100].sum() / weights.sum()) < 0.01
    uniform = synthetic(1000, 0, 50, 1000, seed=7)
    assert np.bincount(uniform.values.astype(np.int64), minlength=1000).min() > 10


def save(file: Path, **arrays: object) -> Path:
    np.savez(file, **{name: np.asarray(array) for name, array in arrays.items()})
    return file


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": [1, 2]}, "no array 'offsets'"),
        ({"values": [1, 2], "offsets": [0]}, "there are no batches"),
        ({"values": [1, 2], "offsets": []}, "offsets is float64"),
        ({"values": [1, 2, 3], "offsets": [0, 2, 1]}, r"offsets\[1\] = 2 is followed by 1"),
        ({"values": [1, 2], "offsets": [0, 0, 2]}, "every batch has at least one key"),
        ({"values": [1, 2], "offsets": [0, 3]}, "at most the 2 values"),
        ({"values": [0.5, 2], "offsets": [0, 2]}, "values is float64"),
        ({"values": [[1, 2]], "offsets": [0, 1]}, r"shape \(1, 2\)"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_by_name(
    tmp_path: Path, arrays: dict[str, object], message: str
) -> None:
    with pytest.raises(MisuseError, match=message):
        load(save(tmp_path / "trace.npz", **arrays))


def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "trace.npz"
    file.write_text("no archive")
    with pytest.raises(MisuseError, match=r"trace\.npz cannot be read"):
        load(file)


def test_any_64_bit_keys_are_renumbered(tmp_path: Path) -> None:
    values = np.array([2**64 - 1, 5, 2**63, 5], np.uint64)
    trace = load(save(tmp_path / "trace.npz", values=values, offsets=np.array([0, 2, 4])))
    assert trace.values.tolist() == values.tolist()
    dense, rows = trace.dense()
    assert (dense.values.tolist(), rows) == ([2, 0, 1, 0], 3)
    signed = load(save(tmp_path / "signed.npz", values=[-1, 5], offsets=[0, 2]))
    assert signed.values.tolist() == [2**64 - 1, 5]


def test_rows_of_other_versions_are_wrong() -> None:
    keys = np.arange(5, dtype=np.uint64)
    for name in ("train", "update"):
        counts = np.array([0, 1, 2, 700, 701], np.uint16)
        rows = expected(keys, counts, 4, MODES[name])
        assert wrong_rows(rows, keys, counts, MODES[name]) == 0
        assert wrong_rows(rows, keys, counts + np.uint16(1), MODES[name]) == 5


def test_a_limited_group_is_made_and_removed() -> None:
    limit = MemoryLimit.create("embedrock-test")
    if limit is None:
        pytest.skip("this process may make no control group")
    limit.set_bytes(64 << 20)
    assert limit.used_bytes() >= 0 and limit.anonymous_bytes() >= 0
    limit.close()
    assert MemoryLimit.create("embedrock-test") is not None


SMALL = ["--rows", "20000", "--dim", "8", "--batches", "30", "--batch", "256", "--patience", "0"]
SMALL += ["--device-slice", "0.05"]


@pytest.mark.parametrize("mode", ["train", "update", "read", "ycsb-a", "ycsb-f"])
def test_small_races_verify_every_row(tmp_path: Path, mode: str) -> None:
    report = tmp_path / "report.json"
    arguments = ["race", *SMALL, "--memory", "100", "--mode", mode, "--dir", str(tmp_path)]
    ours = ["embedrock"]
    ours += ["torch"] if mode in ("train", "update") else []
    ours += ["embedrock-warm-ahead"] if mode in ("train", "update", "read") else []
    arguments += ["--engines", ",".join([*ours, "rocksdb"]), "--peers", str(tmp_path / "none")]
    assert main([*arguments, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    engines = found["results"]["engines"]
    assert found["results"]["mismatches"] == 0
    for name in ours:
        assert engines[name]["batches"] == 30
        assert engines[name]["rows_verified"] > 0
        assert engines[name]["unique_rows_per_s"] > 0
    assert found["figures"]["vs_rocksdb"] is None
    assert any("make peers" in note for note in found["notes"])


def test_a_trace_of_ones_own_is_replayed_and_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**64, 3000, dtype=np.uint64)[rng.integers(0, 3000, 6000)]
    file = save(tmp_path / "own.npz", values=values, offsets=np.arange(0, 6001, 200))
    report, picture = tmp_path / "report.json", tmp_path / "race.png"
    arguments = ["race", *SMALL, "--trace", str(file), "--dir", str(tmp_path)]
    arguments += ["--memory", "400", "--dim", "64"]
    arguments += ["--engines", "embedrock", "--png", str(picture), "--json", str(report)]
    assert main(arguments) == 0
    found = json.loads(report.read_text())["results"]
    assert found["workload"]["rows"] == len(np.unique(values))
    assert found["engines"]["embedrock"]["batches"] == 30
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_engine_without_enough_memory_is_reported_and_the_next_runs(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"
    arguments = ["race", *SMALL, "--memory", "1", "--dir", str(tmp_path)]
    arguments += ["--engines", "embedrock,embedrock-4k", "--json", str(report)]
    assert main(arguments) == 0
    found = json.loads(report.read_text())
    engines = found["results"]["engines"]
    assert "memory=" in engines["embedrock"]["failed"]
    assert "memory=" in engines["embedrock-4k"]["failed"]
    assert found["figures"]["limit_share"] is None


def test_an_engine_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no system 'sqlite'"):
        main(["race", *SMALL, "--engines", "sqlite", "--dir", str(tmp_path)])
