"""Logs are read as by earlier versions: keys, labels, numbers, positions.

``golden/keys-2.json`` has the results of version 0.1.0 for the logs of `goldenlogs`; runs on CSV
and on Parquet that stopped after seven steps of twenty are in ``golden/runs-2.tar.gz``, with their
data. Keys and positions are those of the rules 2 of `data.csv`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
import goldenlogs
from embedrock.data import Position
from embedrock.data.csv import Columns
from embedrock.data.formats import parts_of
from embedrock.data.streamed import Mark, Scan, StreamedDataset
from places import TESTS
from trainings import digests, options_of, train

GOLDEN = TESTS / "golden"
EXPECTED = json.loads((GOLDEN / "keys-2.json").read_text())


def is_as_before(found: Iterable[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for batch, before in zip(found, expected, strict=True):
        assert (batch["keys"], batch["labels"]) == (before["keys"], before["labels"])
        assert batch["next"] == before["next"]
        # Logarithms differ by machine in their last bits.
        np.testing.assert_allclose(batch["dense"], before["dense"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rules", [2, 3])
@pytest.mark.parametrize("name", ["criteo", "avazu", "comma", "tab", "semicolon"])
def test_texts_are_read_as_before(tmp_path: Path, name: str, rules: int) -> None:
    is_as_before(goldenlogs.read(goldenlogs.write(tmp_path)[name], rules), EXPECTED[name])


def test_every_type_of_parquet_is_read_as_before(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    is_as_before(goldenlogs.read(goldenlogs.write_parquet(tmp_path), 2), EXPECTED["parquet"])


@pytest.mark.parametrize(("name", "data"), [("csv", "log.csv.gz"), ("parquet", "log")])
def test_a_run_that_stopped_goes_on(tmp_path: Path, name: str, data: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow")
    with tarfile.open(GOLDEN / "runs-2.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    columns = Columns("click", ("user", "app"), ("price",))
    given = {"batch_size": 36, "columns": columns, "memory": "4MiB"}
    options = options_of("csv", tmp_path / data, tmp_path / f"{name}.store", given)
    whole = train(options_of("csv", tmp_path / data, tmp_path / "whole", given))
    with embedrock.open(options.store, "4MiB", read_only=True) as store:
        meta = store.meta
    assert meta["rules"] == 2 and meta["position"]["batch"] == 7

    parts = parts_of("csv", options.files(), columns, 2)
    scan = Scan(**{**meta["scan"], "marks": [Mark(**mark) for mark in meta["scan"]["marks"]]})
    log = StreamedDataset(parts[0].path, parts[0].kind, more=parts[1:], scan=scan)
    rest = [*log.train_batches(36, Position(**meta["position"]))]
    every = [*log.train_batches(36, Position())]
    assert len(rest) == 3 and all(
        one.keys.tolist() == other.keys.tolist() for one, other in zip(rest, every[7:], strict=True)
    )
    resumed = train(options_of("csv", tmp_path / data, options.store, {**given, "resume": True}))
    assert (resumed["step"], resumed["test_samples"]) == (20, 40)
    assert (whole["step"], whole["test_samples"]) == (20, 40)
    assert digests(options.store).keys() == digests(tmp_path / "whole").keys()
    with embedrock.open(options.store, "4MiB", read_only=True) as store:
        assert store.meta["rules"] == 2
