"""The storage of a table: where it is given, kept, refused and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock import cli
from embedrock.errors import MismatchError, MisuseError

DIM = 4


def test_a_table_is_a_log_unless_it_is_told_otherwise(store: embedrock.Store) -> None:
    made = [store.table("said", DIM, storage="log"), store.table("unsaid", DIM)]
    assert [table.storage for table in made] == ["log", "log"]
    assert [table.storage for table in store.tables.values()] == ["log", "log"]
    assert store.table("said", DIM).storage == store.table("unsaid").storage == "log"
    assert [of_class["storage"] for of_class in store.stats()["classes"]] == ["log"]


def test_a_table_keeps_its_storage(store: embedrock.Store) -> None:
    store.table("t", DIM)
    with pytest.raises(MismatchError, match="stored storage is log, asked lsm"):
        store.table("t", DIM, storage="lsm")


def test_an_unknown_storage_names_the_known_ones(store: embedrock.Store, tmp_path: Path) -> None:
    for wrong in ("tape", "LSM", "", 1):
        with pytest.raises(MisuseError, match=r"storage is .*, expected 'log', 'lsm' or 'pmem'"):
            store.table("t", DIM, storage=wrong)  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match=r"storage is .*, expected 'log', 'lsm' or 'pmem'"):
            embedrock.copy(store.path, tmp_path / "to", storage=wrong)  # type: ignore[arg-type]
    assert not store.tables
    assert not (tmp_path / "to").exists()
    said = 'storage is "tape"; expected "log", "lsm", "pages" or "pmem"'
    with pytest.raises(MisuseError, match=said):
        embedrock._core.copy(store.path, tmp_path / "to", "64MiB", storage="tape")


def collection(store: embedrock.Store, storage: Any) -> embedrock.Table:
    config = embedrock.nn.EmbeddingBagConfig("t", DIM, storage=storage)
    (table,) = embedrock.nn.EmbeddingBagCollection([config], store=store).tables
    return table


MODULES: dict[str, Callable[[embedrock.Store, Any], embedrock.Table]] = {
    "Embedding": lambda store, storage: (
        embedrock.nn.Embedding(None, DIM, store=store, name="t", storage=storage).table
    ),
    "EmbeddingBag": lambda store, storage: (
        embedrock.nn.EmbeddingBag(None, DIM, store=store, name="t", storage=storage).table
    ),
    "EmbeddingBagCollection": collection,
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_modules_hand_the_storage_to_their_tables(
    store: embedrock.Store, make: Callable[[embedrock.Store, Any], embedrock.Table]
) -> None:
    pytest.importorskip("torch")
    assert make(store, None).storage == "log"
    assert make(store, "log").storage == "log"
    with pytest.raises(MismatchError, match="stored storage is log, asked lsm"):
        make(store, "lsm")


def test_a_copy_has_the_storage_that_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with embedrock.open(tmp_path / "from", "64MiB") as store:
        table = store.table("t", DIM)
        table.put(np.arange(100), np.ones((100, DIM), np.float32))
        store.commit(1)
        digest = table.digest()
    embedrock.copy(tmp_path / "from", tmp_path / "kept")
    embedrock.copy(tmp_path / "from", tmp_path / "asked", storage="log")
    command = ["copy", str(tmp_path / "from"), str(tmp_path / "command"), "--storage", "log"]
    assert cli.main(command) == 0
    for name in ("kept", "asked", "command"):
        with embedrock.open(tmp_path / name, "64MiB", read_only=True) as store:
            assert store.table("t").storage == "log"
            assert store.table("t").digest() == digest
    with pytest.raises(SystemExit):
        cli.main([*command[:3], "--storage", "tape"])
    said = capsys.readouterr().err
    assert "tape" in said and "log" in said and "lsm" in said


def test_info_shows_the_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with embedrock.open(tmp_path / "s", "64MiB") as store:
        store.table("t", DIM)
        store.commit(1)
    assert cli.main(["info", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["t"]["storage"] == "log"
    assert cli.main(["info", str(tmp_path / "s")]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines()[2:5:2])
    assert (head[5], row[5]) == ("storage", "log")
