"""``bench prefetch``: what it reads, that it finds wrong and stale rows, and a small run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError
from embedrock_lab.bench.prefetch import loads, loop
from embedrock_lab.commands.bench import main


def test_a_batch_of_triples_has_both_ends_and_the_negatives_of_its_chunks(tmp_path: Path) -> None:
    file = tmp_path / "triples.tsv.gz"
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(f"{head}\tr\t{head + 1000}\n" for head in range(600))
    load = loads.triples(file, 512, seed=3)
    assert (load.rows, load.dim, load.trace.batches) == (1200, 400, 1)
    (ids,) = list(load.trace)
    assert len(np.unique(ids)) == len(ids) > 1024, "512 heads, 512 tails, negatives among others"
    assert len(ids) <= 1024 + 2 * loads.NEGATIVES
    with pytest.raises(MisuseError, match="has 600 triples, expected 1024"):
        loads.triples(file, 1024, seed=3)
    file.write_bytes(gzip.compress(b"1 2\n"))
    with pytest.raises(MisuseError, match="no list of triples"):
        loads.triples(file, 512, seed=3)


def test_a_log_becomes_one_table_of_its_tokens(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    lines = []
    for sample in range(100):
        numbers = [str(sample % 7)] * 13
        tokens = [f"{(sample % (field + 1)):08x}" for field in range(26)]
        lines.append("\t".join(["1", *numbers, *tokens]))
    file.write_text("\n".join(lines) + "\n")
    load = loads.criteo_log(file, 30)
    assert load.rows == sum(range(1, 27))
    assert load.trace.batches == 3
    assert [len(batch) for batch in load.trace] == [load.rows] * 3
    shaped = loads.criteo_shaped(30_000, 16, 4, seed=1)
    assert (shaped.rows, shaped.trace.batches) == (30_000, 4)
    assert all(26 <= len(batch) <= 16 * 26 for batch in shaped.trace)


def test_wrong_rows_and_rows_that_are_too_stale_are_counted(tmp_path: Path) -> None:
    loop.fill(str(tmp_path / "store"), 1000, 8)
    keys, offsets = np.arange(20), np.array([0, 10, 20])
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        one = loop._Loop(store, keys, offsets, bound=2, depth=0)
        rows = one.table.get(keys)
        one._verify(keys, rows)
        assert (one.wrong, one.staleness_max) == (0, 0)
        one.applied[[3, 4]] = 2  # updates that the rows lack
        one._verify(keys, rows)
        assert (one.wrong, one.staleness_max) == (0, 2)
        one.applied[5] = 3
        one._verify(keys, rows)
        assert one.wrong == 1
        one.applied[:] = 0
        rows[7, 3] += 1  # half of an update
        rows[8] += 1  # one that nobody made
        rows[[0, 1]] = rows[[1, 0]]
        one.wrong = 0
        one._verify(keys, rows)
        assert one.wrong == 4
        assert one.wrong_now(2) == 0
        one.applied[2] = 1
        assert one.wrong_now(2) == 1


def test_a_small_run_verifies_rows_and_keeps_to_its_bounds(tmp_path: Path) -> None:
    report, png = tmp_path / "report.json", tmp_path / "plot.png"
    command = ["prefetch", "--rows", "40000", "--samples", "32", "--batches", "32"]
    command += ["--memory", "40", "--compute-ms", "1", "--bounds", "0", "2", "--depth", "8"]
    command += ["--dir", str(tmp_path / "bench"), "--json", str(report), "--png", str(png)]
    assert main(command) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    runs = found["results"]["criteo_shaped"]
    assert list(runs) == [
        f"bound {bound}{ahead}" for bound in (0, 2) for ahead in ("", ", held", ", depth 8")
    ]
    for name, one in runs.items():
        bound = int(name.split()[1].rstrip(","))
        assert one["staleness_max"] <= one["permitted_max"] <= bound
        assert one["samples_per_s"] > 0 and 0 < one["wait_share"] < 1
        assert (one["announced_ahead"] > 0) == ("," in name)
        assert (one["array_bytes"] > 0) and one["cache_rows"] > 0
    assert runs["bound 2"]["staleness_max"] > 0
    figures = found["figures"]
    assert figures["both_speedup_triples"] is None and figures["both_speedup_criteo"] is None
    assert figures["lookahead_speedup_criteo_shaped"] == pytest.approx(
        runs["bound 0, depth 8"]["samples_per_s"] / runs["bound 0"]["samples_per_s"]
    )
    assert png.read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "bench").iterdir())
