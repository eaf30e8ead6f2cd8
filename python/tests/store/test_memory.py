"""The memory budget as users give it: slips, per cent of small tables, the machine's memory."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import withtorch
from embedrock import _memory
from embedrock.errors import BudgetError, BudgetWarning, LockedError, MisuseError

ROWS = np.arange(200)


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """Warnings of budgets in the block."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    assert all(warning.filename == __file__ for warning in caught)
    messages += [str(w.message) for w in caught if issubclass(w.category, BudgetWarning)]


# The first try on data of one's own ended in a BudgetError out of the first forward: a tenth of a
# small table is less than buffers take.
def test_per_cent_of_a_small_table_are_at_least_what_works(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    digests = []
    for memory in ("10%", "4MiB"):
        with told() as messages, embedrock.open(tmp_path / memory, memory) as store:
            one = store.table("t", 8, num_embeddings=1000, optimizer="adagrad")
            one.put(ROWS, rows)
            for _ in range(3):
                one.update(ROWS, rows, lr=0.1)
            other = store.table("u", 16, num_embeddings=1000)
            other.get(ROWS)
            store.commit(1)
            stats = store.stats()
            digests.append(one.digest())
        if memory == "10%":
            (message,) = messages
            assert 'memory="10%" is 6.25 KiB of these tables, less than the minimum' in message
            # In the grammar of sizes, and no less than what is taken.
            named = message.split('at least memory="')[1].split('"')[0]
            taken = int(message.split(f'"{named}" (')[1].split(" bytes")[0].replace(",", ""))
            assert named.endswith("KiB") and 0 <= float(named[:-3]) * 1024 - taken < 103
            assert 0 < taken < stats["budget_bytes"], "said of the first table"
            assert stats["asked_bytes"] == (1000 * 64 + 1000 * 68) // 10
            assert stats["asked_bytes"] < stats["budget_bytes"] < 2 << 20
            assert stats["memory"]["cache_bytes"] > 0
        else:
            assert messages == [] and stats["asked_bytes"] == stats["budget_bytes"] == 4 << 20
    assert digests[0] == digests[1]


def test_per_cent_that_work_are_what_was_asked_for(tmp_path: Path) -> None:
    with told() as messages, embedrock.open(tmp_path / "s", check_disk=False) as store:
        store.table("t", 64, num_embeddings=200_000, optimizer="adagrad").get(ROWS)
        stats = store.stats()
    assert messages == []
    assert stats["asked_bytes"] == stats["budget_bytes"] == 200_000 * 512 // 10


def test_the_parts_of_a_budget_sum_up_to_it(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "2MiB", check_disk=False) as store:
        store.table("t", 64, num_embeddings=9000).get(ROWS)
        store.table("u", 16, expected_rows=9000).put(ROWS, np.ones((200, 16), np.float32))
        store.commit(1)
        stats = store.stats()
    parts = dict(stats["budget"])
    share = parts.pop("rows_share")
    assert sum(parts.values()) == stats["budget_bytes"] == 2 << 20
    classes = stats["classes"]
    rows = sum(one["cache_capacity"] * one["row_bytes"] for one in classes)
    assert parts["rows_bytes"] == rows and share == rows / (2 << 20) > 0.3
    assert rows + parts["lines_bytes"] == stats["memory"]["cache_bytes"]
    spent = {"rows_bytes", "lines_bytes", "rest_bytes"} ^ parts.keys()
    assert {name: parts[name] for name in spent} == {
        name: size for name, size in stats["memory"].items() if name != "cache_bytes"
    }


def test_a_store_that_is_opened_again_says_it_at_the_open(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        store.table("t", 8, num_embeddings=1000).put(ROWS, np.ones((200, 8), np.float32))
        store.commit(1)
    with told() as messages, embedrock.open(tmp_path / "s") as store:
        assert len(messages) == 0 and store.table("t").get([1]).sum() == 8
    assert len(messages) == 1 and "less than the minimum" in messages[0]


# "10" was ten bytes, and 0.1 nothing that works either.
@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("10", "memory is '10', 10 bytes, with which no store works; did you mean \"10%\"?"),
        (10, 'did you mean "10%"?'),
        (np.int64(33), 'did you mean "33%"?'),
        ("0.1", 'did you mean "10%"?'),
        (0.1, 'did you mean "10%"?'),
        (0.25, 'did you mean "25%"?'),
        (512, 'did you mean "512MiB"?'),
        (" 2048 ", 'did you mean "2048MiB"?'),
        ("3KiB", "3,072 bytes, with which no store works; give more"),
        ("2kb", "2,000 bytes, with which no store works; give more"),
        (0, "expected 1 or more"),
        (-5, "expected 1 or more"),
        (2.5, "expected bytes"),
        (None, "expected bytes"),
    ],
)
def test_a_share_without_its_sign_is_refused(tmp_path: Path, memory: Any, said: str) -> None:
    with pytest.raises(MisuseError) as caught:
        embedrock.open(tmp_path / "s", memory)
    assert said in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_more_than_the_machine_has_is_warned_of(tmp_path: Path) -> None:
    there = _memory.machine_bytes()
    assert there is not None and there > 1 << 28
    for memory in (there + (1 << 30), f"{there // 1000**3 + 2}GB", f"{there / 2**30 + 1:.1f}g"):
        with told() as messages, embedrock.open(tmp_path / "s", memory):
            pass
        (message,) = messages
        assert f"memory is {memory} and this machine has" in message
    with told() as messages, embedrock.open(tmp_path / "s", there // 2):
        pass
    assert messages == []


# It named bytes to those who had given KiB.
@pytest.mark.parametrize("given", ["512KiB", "600kb", "0.5m", str(512 << 10), 512 << 10])
def test_a_budget_that_works_is_named_as_it_was_given(tmp_path: Path, given: Any) -> None:
    def use(memory: Any) -> None:
        with embedrock.open(tmp_path / "s", memory, check_disk=False, page_bytes=4096) as store:
            store.table("t", 64, num_embeddings=1_000_000).get([1])

    with pytest.raises(BudgetError, match="give at least memory=") as caught:
        use(given)
    named = str(caught.value).rsplit("memory=", 1)[1]
    if isinstance(given, str) and not given.isdigit():
        assert named.startswith('"') and named.endswith('B"')
        assert ("i" in named) is (given != "600kb")
        use(named.strip('"'))
    else:
        assert named.isdigit()
        use(int(named))


def test_an_index_that_outgrew_per_cent_is_answered_in_per_cent(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "10%", check_disk=False) as store:
        table = store.table("t", 4, expected_rows=1000)
        keys = np.arange(1 << 16)
        with pytest.raises(BudgetError, match=r'reopen with at least memory="[0-9.]+%"'):
            for start in range(0, 1 << 24, 1 << 16):
                table.put(keys + start, np.ones((1 << 16, 4), np.float32))


def test_the_command_answers_in_its_own_options(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i},{i % 7}" for i in range(300_000)]
    (tmp_path / "a.csv").write_text("\n".join(["y,a,b", *lines]))
    command = ["-m", "embedrock", "train", "--data", "a.csv", "--format", "csv"]
    command += ["--label", "y", "--categorical", "a,b", "--store", "s", "--memory", "128KiB"]
    done = withtorch.run(command, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "give at least --memory " in line and "KiB" in line and "memory=" not in line


# Half of the newest rows take memory that an opening without the share had not planned for.
def test_a_store_opens_with_the_share_of_its_newest_rows_that_its_commit_has(
    tmp_path: Path,
) -> None:
    def bytes_of_index(**options: Any) -> int:
        # The size of pages that a busy device is found to like best is another.
        with embedrock.open(tmp_path / "s", "4MiB", page_bytes=4096, **options) as store:
            store.table("t", 8, num_embeddings=100_000, storage="lsm")
            store.commit((store.step or 0) + 1)
        try:
            embedrock.open(tmp_path / "s", 640_000).close()
        except BudgetError as error:
            return int(str(error).split("memory=")[-1])
        return 0

    assert bytes_of_index() == 0
    large = bytes_of_index(top_share=0.5)
    assert large > 640_000
    assert bytes_of_index() == large
    assert bytes_of_index(top_share=0.1) == 0


# A reader said so at its first verb, when a writer of the same store had been refused at once.
def test_too_little_memory_is_told_to_readers_when_they_open(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "8MiB", page_bytes=4096) as store:
        store.commit(1)
        embedrock.open(tmp_path / "s", 10_000, read_only=True).close()  # it has no table yet
        store.table("t", 16, num_embeddings=100_000)
        store.commit(2)
    with pytest.raises(BudgetError, match="give at least memory=") as caught:
        embedrock.open(tmp_path / "s", 10_000, read_only=True)
    with pytest.raises(BudgetError, match="give at least memory="):
        embedrock.open(tmp_path / "s", 10_000, read_only=True, step=2)
    assert not [name for name in (tmp_path / "s").iterdir() if "hold" in name.name]
    least = int(str(caught.value).rsplit("memory=", 1)[1])
    with embedrock.open(tmp_path / "s", least, read_only=True) as reader:
        assert reader.table("t").get([1]).shape == (1, 16)


# The default is per cent, which a growing table without expected_rows gives no bytes.
def test_readers_look_at_commits_of_a_store_whose_tables_grow(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "8MiB") as store:
        store.table("words", 16)
        store.commit(1, meta={"loss": 0.5})
    with embedrock.open(tmp_path / "s", read_only=True) as reader:
        assert [(each.step, each.meta) for each in reader.commits()] == [(1, {"loss": 0.5})]
        assert list(reader.tables) == ["words"]
        with pytest.raises(BudgetError, match="give expected_rows=, or memory in bytes"):
            reader.table("words").get([1])
    with pytest.raises(BudgetError, match="give at least memory="):
        embedrock.open(tmp_path / "s", "10kb", read_only=True)


SIZES: dict[str, Any] = {
    "max_disk_bytes": "64MiB",
    "max_held_bytes": "0.5G",
    "page_bytes": "4k",
    "segment_bytes": "1 MiB",
    "window_bytes": "512KiB",
}


def test_all_sizes_of_a_store_are_written_as_memory_is(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "8MiB", **SIZES) as store:
        assert store.stats()["max_disk_bytes"] == 64 << 20
        in_bytes = dict(zip(SIZES, (64 << 20, 1 << 29, 4096, 1 << 20, 512 << 10), strict=True))
        assert embedrock.open(tmp_path / "s", 8 << 20, **in_bytes) is store
        with pytest.raises(LockedError, match="max_disk_bytes"):
            embedrock.open(tmp_path / "s", "8MiB", **{**SIZES, "max_disk_bytes": "64MB"})


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("given", ["lots", "10%", "2 XB", "-1", "1e9", "9" * 400, "", b"1G", 2.5])
def test_a_size_that_is_none_is_refused_by_its_name(tmp_path: Path, name: str, given: Any) -> None:
    with pytest.raises(MisuseError, match=rf"^{name} is .*, expected"):
        embedrock.open(tmp_path / "s", "8MiB", **{name: given})
    assert not (tmp_path / "s").exists()


def test_sizes_elsewhere_are_written_as_memory_is(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "8MiB") as store:
        with store.record("1k") as recording:
            assert recording.running
        with pytest.raises(MisuseError, match="max_bytes is 'much', expected bytes, \"512MB\""):
            store.record("much")
        with pytest.raises(MisuseError, match="key_bytes is 'much', expected bytes"):
            embedrock.StepReport(store, key_bytes="much")
    with pytest.raises(MisuseError, match="segment_bytes is 0, expected 1 or more"):
        embedrock.follow.LogWriter(tmp_path / "log", segment_bytes="0.1")
