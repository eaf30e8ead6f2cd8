"""Frozen stores: the rows of their source, in the order of a plan, and what is written on top."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedrock
from embedrock import cli
from embedrock.errors import CorruptError, MisuseError, NotFoundError
from embedrock.placement import Plan, place
from embedrock.trace import Trace

ROWS, DIM = 3_000, 8
GROUP = 12
"""Rows that queries ask for together: those with equal remainders."""

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


def values_of(keys: Keys) -> Rows:
    return np.asarray((keys % 5_000)[:, None] + np.arange(DIM) / DIM, np.float32)


def grown(ids: Keys) -> Keys:
    """Keys of a growing table, all over their range."""
    return ids * 0x9E3779B97F4A7C1 - 2**62


def trained(path: Path, storage: Any = "log") -> Path:
    """A store with state of an optimizer, whose rows were updated."""
    with embedrock.open(path, memory="8MiB", page_bytes=1024) as store:
        dense = store.table("dense", DIM, ROWS + 100, optimizer="adagrad", storage=storage)
        growing = store.table(
            "growing", DIM, expected_rows=ROWS, optimizer="adagrad", storage=storage
        )
        for ids in np.array_split(np.arange(ROWS), 7):
            dense.put(ids, values_of(ids))
            growing.put(grown(ids), values_of(ids))
        store.commit(step=5, meta="trained", state={"model": b"dense part"})
    return path


def queries(seed: int, count: int) -> list[Keys]:
    """Queries of rows far apart that belong together, in order of no group."""
    rng = np.random.default_rng(seed)
    groups = ROWS // GROUP
    return [
        rng.permutation(np.arange(rng.integers(groups), ROWS, groups))[: rng.integers(4, GROUP)]
        for _ in range(count)
    ]


def trace_of(asked: list[Keys]) -> Trace:
    offsets = np.cumsum([0, *map(len, asked)])
    ids = np.concatenate(asked)
    return Trace({"dense": (ids, offsets), "growing": (grown(ids), offsets)})


def expect(store: embedrock.Store, ids: Keys) -> None:
    np.testing.assert_array_equal(store.table("dense").get(ids), values_of(ids))
    np.testing.assert_array_equal(store.table("growing").get(grown(ids)), values_of(ids))


@pytest.mark.parametrize("storage", ["log", "lsm"])
def test_a_frozen_store_has_the_rows_of_its_source_and_reads_fewer_pages(
    tmp_path: Path, storage: Any
) -> None:
    source = trained(tmp_path / "source", storage)
    plan = place(trace_of(queries(1, 2_000)), store=source, replicate=0.3)
    pages = {}
    for name, what in (("plain", None), ("placed", plan)):
        done = embedrock.freeze(source, tmp_path / name, plan=what, page_bytes=1024)
        assert done["rows"] == 2 * ROWS
        assert done["commit"]["step"] == 5
        assert done["error_max"] == 0
        assert done["placed"] == (0 if what is None else plan.num_rows)
        options: dict[str, Any] = {"memory": "2MiB", "read_only": True}
        with embedrock.open(tmp_path / name, **options) as served:
            assert served.meta == "trained" and served.state()["model"] == b"dense part"
            dense, growing = served.table("dense"), served.table("growing")
            assert dense.storage == growing.storage == "pages"
            assert len(dense) == len(growing) == ROWS
            before = served.stats()["pages_read"]
            for asked in queries(2, 200):
                np.testing.assert_array_equal(dense.get(asked), values_of(asked))
            pages[name] = served.stats()["pages_read"] - before
            # Many at once, with duplicates, unknown keys among them.
            ids = np.random.default_rng(3).integers(0, ROWS, 5_000)
            expect(served, ids)
            with embedrock.open(source, memory="8MiB", read_only=True) as first:
                for table in ("dense", "growing"):
                    unknown = np.array([ROWS + 7, 2, ROWS + 50])
                    np.testing.assert_array_equal(
                        served.table(table).get(unknown), first.table(table).get(unknown)
                    )
            assert not dense.contains([ROWS + 7])[0] and dense.contains([7])[0]
            found = np.concatenate([keys for keys, _ in growing.items()])
            assert set(found.tolist()) == set(grown(np.arange(ROWS)).tolist())
        assert embedrock.check(tmp_path / name)["problems"] == []
    assert pages["placed"] < 0.4 * pages["plain"]
    expect_source(source)


def expect_source(source: Path) -> None:
    with embedrock.open(source, memory="8MiB", read_only=True) as store:
        expect(store, np.arange(ROWS))


def test_threads_read_at_once_what_one_reads_alone(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    plan = place(trace_of(queries(1, 1_000)), store=source, replicate=0.5)
    embedrock.freeze(source, tmp_path / "served", plan=plan)
    failed: list[BaseException] = []
    with embedrock.open(tmp_path / "served", memory="2MiB", read_only=True) as served:

        def read(seed: int) -> None:
            try:
                for asked in queries(seed, 150):
                    expect(served, asked)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_what_is_written_on_top_hides_what_lies_below_and_is_folded_in(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    served = tmp_path / "served"
    plan = place(trace_of(queries(1, 1_000)), store=source, replicate=0.5)
    embedrock.freeze(source, served, plan=plan)
    reader = embedrock.open(served, memory="2MiB", read_only=True)
    expect(reader, np.arange(ROWS))
    changed, gone = np.arange(0, ROWS, 5), np.arange(1, ROWS, 7)

    def check(store: embedrock.Store) -> None:
        dense = store.table("dense")
        want = values_of(np.arange(ROWS))
        want[changed] = -1
        initial = dense.get(np.array([ROWS + 1]))
        assert not np.array_equal(initial[0], want[1])
        got = dense.get(np.arange(ROWS))
        there = np.ones(ROWS, bool)
        there[np.setdiff1d(gone, changed)] = False
        np.testing.assert_array_equal(got[there], want[there])
        np.testing.assert_array_equal(dense.contains(np.arange(ROWS)), there)
        np.testing.assert_array_equal(
            store.table("growing").get(grown(np.arange(ROWS))), values_of(np.arange(ROWS))
        )

    with embedrock.open(served, memory="4MiB") as store:
        dense = store.table("dense")
        dense.delete(gone)
        dense.put(changed, np.full((len(changed), DIM), -1, np.float32))
        check(store)
        store.commit(step=6)
        check(store)
    again = embedrock.freeze(served, plan=plan)
    assert again["commit"]["step"] == 6
    with embedrock.open(served, memory="4MiB", read_only=True) as store:
        check(store)
        # Nothing is left on top of the pages.
        rows = len(store.table("dense")) + len(store.table("growing"))
        assert store.stats()["classes"][0]["newest_copies"] == rows
    assert embedrock.check(served)["problems"] == []
    # The reader has what it had until it moves on.
    expect(reader, np.arange(ROWS))
    reader.refresh()
    check(reader)
    reader.close()
    # All commits are there that were.
    with embedrock.open(served, memory="4MiB", read_only=True) as store:
        assert [commit.step for commit in store.commits()] == [5, 6, 6]
    with embedrock.open(served, memory="4MiB", step=5, read_only=True) as before:
        expect(before, np.arange(ROWS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_to_the_type_that_is_asked_for(tmp_path: Path, dtype: Any) -> None:
    source = trained(tmp_path / "source")
    done = embedrock.freeze(source, tmp_path / "served", dtype=dtype, unknown="zeros")
    assert 0 < done["error_max"] <= 16
    with embedrock.open(tmp_path / "served", memory="2MiB", read_only=True) as served:
        got = served.table("dense").get(np.arange(ROWS))
        error = np.abs(got - values_of(np.arange(ROWS))).max()
        assert error == done["error_max"]
        np.testing.assert_array_equal(served.table("dense").get([ROWS + 1]), 0)


def test_rows_that_do_not_fit_into_memory_pass_through_a_file(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    plan = place(trace_of(queries(1, 500)), store=source, replicate=0.8)
    seen = []
    done = embedrock.freeze(
        source,
        tmp_path / "served",
        plan=plan,
        sort_bytes=1 << 17,
        page_bytes=1024,
        progress=lambda *counts: seen.append(counts),
    )
    assert done["rows"] == 2 * ROWS and seen[-1] == (2 * ROWS, 2 * ROWS)
    names = [one.name for one in (tmp_path / "served").iterdir()]
    assert not any("freeze" in name or "unfinished" in name for name in names)
    with embedrock.open(tmp_path / "served", memory="2MiB", read_only=True) as served:
        expect(served, np.random.default_rng(1).permutation(ROWS))


def test_what_cannot_be_frozen_is_named_and_the_source_is_untouched(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    plan = place(trace_of(queries(1, 100)), store=source)
    out = tmp_path / "served"
    with pytest.raises(NotFoundError, match="missing"):
        embedrock.freeze(tmp_path / "missing", out)
    with pytest.raises(MisuseError, match="no table with frozen pages"):
        embedrock.freeze(source)
    options: list[dict[str, Any]] = [
        {"step": 5},
        {"dtype": "float16"},
        {"unknown": "zeros"},
        {"page_bytes": 4096},
    ]
    for one in options:
        with pytest.raises(MisuseError, match=f"{next(iter(one))} is given without a destination"):
            embedrock.freeze(source, **one)
    with pytest.raises(MisuseError, match="rows a page"):
        embedrock.freeze(source, out, plan=plan, page_bytes=512)
    other = Trace({"other": (np.arange(9), np.array([0, 9]))})
    with pytest.raises(MisuseError, match="table 'other'"):
        embedrock.freeze(source, out, plan=place(other, rows_per_page=4))
    nameless = Trace({"": (np.arange(9), np.array([0, 9]))})
    with pytest.raises(MisuseError, match="does not say which table"):
        embedrock.freeze(source, out, plan=place(nameless, rows_per_page=4))
    with pytest.raises(MisuseError, match="candidates"):
        embedrock.freeze(source, out, candidates=17)
    with pytest.raises(MisuseError, match="unknown"):
        embedrock.freeze(source, out, unknown="mean")  # type: ignore[arg-type]

    def stop(done: int, _: int) -> None:
        if done > ROWS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedrock.freeze(source, out, plan=plan, page_bytes=1024, progress=stop)
    with pytest.raises(NotFoundError, match="not finished"):
        embedrock.open(out, memory="2MiB", create=False)
    # Once more into the same place.
    embedrock.freeze(source, out, plan=plan)
    with pytest.raises(MisuseError, match="holds a store"):
        embedrock.freeze(source, out, plan=plan)
    expect_source(source)


def test_each_row_class_has_the_pages_that_its_plan_needs(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "source", memory="16MiB") as store:
        tables = [store.table("narrow", 16, 5_000), store.table("wide", 1_024, 100)]
        for table in tables:
            table.put(np.arange(100), np.ones((100, table.embedding_dim), np.float32))
        store.commit(step=1)
    asked = np.arange(100).reshape(10, 10)
    offsets = np.arange(0, 101, 10)
    for names in (("narrow", "wide"), ("narrow",)):
        trace = Trace({name: (asked.ravel(), offsets) for name in names})
        plan = place(trace, store=tmp_path / "source")
        out = tmp_path / "-".join(names)
        embedrock.freeze(tmp_path / "source", out, plan=plan)
        with embedrock.open(out, memory="16MiB", read_only=True) as served:
            pages = {one["row_bytes"]: one["rows_per_page"] for one in served.stats()["classes"]}
            for name in ("narrow", "wide"):
                np.testing.assert_array_equal(served.table(name).get(np.arange(100)), 1)
        assert pages[64] < 2 * plan.groups[0].rows_per_page


def test_a_damaged_page_is_named_and_its_replicas_are_still_read(tmp_path: Path) -> None:
    source = trained(tmp_path / "source")
    served = tmp_path / "served"
    embedrock.freeze(source, served, page_bytes=1024)
    (file,) = [one for one in served.iterdir() if one.name.startswith("part-0-1")]
    with file.open("r+b") as opened:
        opened.seek(5 * 1024 + 200)
        byte = opened.read(1)
        opened.seek(5 * 1024 + 200)
        opened.write(bytes([byte[0] ^ 4]))
    problems = embedrock.check(served)["problems"]
    assert len(problems) == 1 and file.name in problems[0]["message"]
    bad = 0
    with embedrock.open(served, memory="2MiB", read_only=True) as store:
        for number in range(0, ROWS, 3):
            ids = np.arange(number, number + 3)
            try:
                np.testing.assert_array_equal(store.table("dense").get(ids), values_of(ids))
            except CorruptError as error:
                assert file.name in str(error)
                bad += 1
    assert 0 < bad < 40


def test_the_command_goes_from_a_log_of_queries_to_a_served_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = trained(tmp_path / "source")
    log = tmp_path / "log.txt"
    log.write_text("\n".join(" ".join(map(str, asked)) for asked in queries(1, 500)))

    def run(*arguments: object) -> str:
        status = cli.main([*map(str, arguments)])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out

    run("trace", log, "--table", "dense", "--out", "trace.npz")
    run("place", "trace.npz", "--store", source, "--replicate", "0.1", "--out", "plan.npz")
    said = run("freeze", source, "--plan", "plan.npz", "--out", "served")
    assert "6,000 rows" in said and "placed by the plan" in said
    done = json.loads(run("freeze", source, "--out", "plain", "--json"))
    assert done["rows"] == 2 * ROWS
    assert "pages" in run("info", "served")
    with embedrock.open(tmp_path / "served", memory="10%", read_only=True) as store:
        expect(store, np.arange(ROWS))
    assert Plan.load(tmp_path / "plan.npz").num_rows > 0
