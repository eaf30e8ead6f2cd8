"""Keys that are hashes: what a store says of them, and ids that are looked up as numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock import KeysWarning, cli, placement
from embedrock._made_keys import SAID, kinds_of
from embedrock.data.csv import Columns
from embedrock.trace import Trace
from trainings import options_of, train


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    rows = "".join(f"{k % 2},{k % 20}\n" for k in range(200))
    (folder / "log.csv").write_text("click,ip\n" + rows)
    given = {"epochs": 1, "columns": Columns("click", ("ip",))}
    assert train(options_of("csv", folder / "log.csv", folder / "s", given))["keys"] == "hash_keys"
    return folder / "s"


# An id that was looked up as a number read an initial row, and nothing said so.
def test_ids_in_place_of_hashes_are_told_once(store: Path) -> None:
    with embedrock.open(store, "4MiB", read_only=True) as opened:
        table = opened.table("ip")
        said = r"table 'ip' has none of the 2 keys .* first of them 7, .*hash_keys\(\['7'\]\)\) rea"
        with pytest.warns(KeysWarning, match=said) as caught:
            table.get([7, 8])
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table.get([7, 8])


@pytest.mark.parametrize("right_first", [True, False])
def test_keys_as_they_were_made_are_not_told(store: Path, right_first: bool) -> None:
    with embedrock.open(store, "4MiB", read_only=True) as opened, warnings.catch_warnings():
        warnings.simplefilter("error")
        table = opened.table("ip")
        if right_first:
            table.get(embedrock.hash_keys(["7", "none"]))
            table.get([7])
        else:
            table.get([])
            table.get([-1])


@pytest.mark.parametrize("right_first", [True, False])
def test_a_refresh_tells_nothing_again(tmp_path: Path, right_first: bool) -> None:
    path, meta = tmp_path / "s", {"keys": {"t": "hash_keys"}}
    with embedrock.open(path, "4MiB") as writer:
        writer.table("t", 4)
        writer.commit(1, meta=meta)
        with embedrock.open(path, "1MiB", read_only=True) as reader:
            table = reader.table("t")
            if right_first:
                table.get(embedrock.hash_keys(["7"]))
            else:
                with pytest.warns(KeysWarning, match="table 't' has none"):
                    table.get([7])
            writer.commit(2, meta=meta)
            assert reader.refresh() is not None
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                table.get([7])
                if not right_first:
                    reader.table("t").get([7])


def test_rows_with_small_keys_and_other_stores_are_not_told(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as opened:
        table = opened.table("t", 4)
        table.put([3], np.ones((1, 4), np.float32))
        opened.commit(1, meta={"keys": {"t": "hash_keys"}})
    with embedrock.open(tmp_path / "s", "4MiB") as opened, warnings.catch_warnings():
        warnings.simplefilter("error")
        opened.table("t").get([3, 4])
        opened.commit(2, meta={"keys": "odd"})
        assert kinds_of(opened.meta) == {}
    with embedrock.open(tmp_path / "s", "4MiB") as opened, warnings.catch_warnings():
        warnings.simplefilter("error")
        opened.table("t").get([5])


def test_the_command_says_how_keys_are_made(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", str(store)]) == 0
    assert f"keys of ip: {SAID['hash_keys']}" in capsys.readouterr().out


def test_a_frozen_copy_remembers(store: Path, tmp_path: Path) -> None:
    embedrock.freeze(store, tmp_path / "frozen")
    with (
        embedrock.open(tmp_path / "frozen", "4MiB", read_only=True) as opened,
        pytest.warns(KeysWarning, match="table 'ip' has none of the 1 keys"),
    ):
        opened.table("ip").get([7])


def test_a_plan_of_rows_that_are_not_there_is_told(store: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("1 2 3\n4 5\n")
    with pytest.warns(KeysWarning, match=r"none of 5 keys that the trace asks for.*keys=\"words\""):
        placement.place(Trace.load(log, table="ip"), store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        placement.place(Trace.load(log, table="ip", keys="words"), store=store)
