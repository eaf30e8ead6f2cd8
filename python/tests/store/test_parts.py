"""The store of one rank by itself: it has not the rows of others, and says so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import embedrock
import ranks
import servers
from clusters import free_ports
from embedrock import PartWarning
from embedrock.cli import main
from embedrock.distributed import reshard

MEMORY = "4MiB"
PART = "buckets-0000-0511"


def train(rank: int, world: int, folder: str) -> list[str]:
    """Two commits, and an end and a beginning between them. Returns the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2):
            with embedrock.distributed.open(folder, MEMORY, reduction="sum") as shard:
                table = shard.table("t", 4, 2000, optimizer="sgd")
                table.update(np.arange(rank, 2000, world), np.ones((1000, 4), "f4"), lr=1.0)
                shard.commit(step)
    return [str(one.message) for one in caught if issubclass(one.category, PartWarning)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "run"
    assert ranks.run(2, train, str(folder)) == [[], []]  # training on all ranks gives no warning
    return folder


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartWarning)
        yield


@pytest.mark.parametrize("read_only", [True, False])
def test_opened_by_itself_it_warns(run: Path, read_only: bool) -> None:
    with pytest.warns(PartWarning, match=f"buckets 0-511 of 1,024.*reshard {run} NEW") as caught:
        store = embedrock.open(run / PART, MEMORY, read_only=read_only)
    assert [one.filename for one in caught] == [__file__]
    store.close()


def test_a_copy_of_it_warns_under_any_name(run: Path, tmp_path: Path) -> None:
    embedrock.copy(run / PART, tmp_path / "copy")
    with (
        pytest.warns(PartWarning, match="buckets 0-511"),
        embedrock.open(tmp_path / "copy", MEMORY) as store,
    ):
        state = store.state()
        store.commit(3, None, {**state, "dense": b"x" * (17 << 20)})
    with silent(), embedrock.open(tmp_path / "copy", MEMORY, read_only=True) as store:
        assert len(store.state()["dense"]) > 16 << 20  # too long to look into


def test_a_store_with_all_rows_does_not_warn(run: Path, tmp_path: Path) -> None:
    with silent():
        reshard(run, tmp_path / "one", 1, memory=MEMORY)
        with embedrock.open(tmp_path / "one" / "buckets-0000-1023", MEMORY) as store:
            store.commit(3, None, {"ranks": b"no JSON"})
        with embedrock.open(tmp_path / "one" / "buckets-0000-1023", MEMORY):
            pass


def test_a_server_of_it_needs_a_map(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It answered initial rows for the keys of other ranks."""
    assert main(["serve", str(run / PART), "--memory", MEMORY, "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err
    assert "buckets 0-511 of 1,024" in said and "--cluster MAP" in said
    assert 'buckets = "0-511"' in said and f"reshard {run} NEW" in said
    (mine, other), names = free_ports(2), ("a", "b")
    places = zip(names, (mine, other), ("0-511", "512-1023"), strict=True)
    (tmp_path / "map.toml").write_text(
        "\n".join(
            f'[[nodes]]\nid = "{name}"\naddress = "127.0.0.1:{port}"\nbuckets = "{buckets}"'
            for name, port, buckets in places
        )
    )
    listens = ["--listen", f"127.0.0.1:{mine}", "--cluster", str(tmp_path / "map.toml")]
    with servers.serving(run / PART, *listens, "--threads", "1"):
        remote = embedrock.connect(f"redis://127.0.0.1:{mine}", cluster=True)
        with pytest.warns(PartWarning), embedrock.open(run / PART, MEMORY, read_only=True) as store:
            np.testing.assert_array_equal(remote["t"].get([17]), store.table("t").get([17]))
        remote.close()
