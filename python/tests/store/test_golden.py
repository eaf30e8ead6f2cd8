"""Stores that earlier formats wrote still open, read the same and go on.

``golden/store-1.tar.gz`` was written when all formats were at version 1 and rows were float32: two
commits of a dense table with Adagrad, a growing one with Adam by row and one with row-wise Adagrad,
deleted rows among them. Its content was recorded then.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from places import TESTS

GOLDEN = TESTS / "golden"

EXPECTED: dict[str, dict[str, Any]] = {
    "dense": {
        "rows": 102,
        "digest": 13_007_450_525_419_539_463,
        "keys": [8, 10, 15],
        "values": [
            "3F025EBC BE662EE6 BF1641CC BE4131CF 3E770058 BD3119C0",
            "BEBC61E0 3E6C2A2A 3E9850B2 BEB7A697 BE4A1232 3EBBFF67",
            "BEDBD614 BE9BC9DB BEFE758B 3EBF02FD 3D5E33E0 3EEC8F7B",
        ],
        "state": [
            "3F692DD2 3E814B0B 402FE0F8 3FBDAE66 3E00A3A8 4095730A",
            "3FA9C361 3E0F30A4 3EA2BDEB 3E1F31AA 3F2D4759 4034624D",
            "3FE8CB9D 3F3D752D 3E22A70C 3DD25830 3E211405 3F229AC5",
        ],
        "initial": [
            "BE4EF631 3ED221D4 BD04A389 3E8E21FA 3EDAD0BA 3DCBC74A",
        ],
    },
    "growing": {
        "rows": 80,
        "digest": 8_034_009_330_661_060_399,
        "keys": [
            -4_199_133_619_244_158_980,
            -3_684_992_710_662_136_535,
            -3_543_014_368_331_432_340,
        ],
        "values": [
            "3E4C52EB BD1CB41C 3D200734 3E3DE78F 3D0EE576",
            "3D9CA7E8 3D59B632 3DA63F5C 3CC361E8 BE61744C",
            "BC896A10 BE244FB4 3DCFEFAC 3DAE5004 BDC211A2",
        ],
        "state": [
            "BD11223E BCAED0D7 BD13158B BD0AC42A BE77A783 "
            "3903A617 383F00E5 390735FE 38F0B371 3BBFAA24 00000001",
            "BDAD1E66 3D42EA52 BD0498B2 3E8BBBBD 3E3CAAA9 "
            "3A3B5029 396D732B 38DBC5D5 3BF41150 3B5E782A 00000001",
            "BCFDB230 BD72CCEA BC814CC2 BD4521E6 BD8FA9B8 "
            "38C9215A 39B839A5 37D0FB08 3972E1E7 3A00FE7A 00000001",
        ],
        "initial": [
            "3DA761DA 3C97664A BDED6DBD BD532141 BD705253",
        ],
    },
    "rowwise": {
        "rows": 29,
        "digest": 14_012_710_858_605_998_729,
        "keys": [1, 3, 4],
        "values": [
            "3E442656 3E8AFAD4 3EC00C76 3E875FB0",
            "3ED3CC48 3E145358 3F08A8DA 3E23C51A",
            "3E139D20 3E9B1D22 3EAF8467 3EC37F31",
        ],
        "state": [
            "3FA6AE8E",
            "40854975",
            "3F269EE6",
        ],
        "initial": [
            "3ED3CC48 3E145358 3F08A8DA 3E23C51A",
        ],
    },
}
# Of a deleted or never written key of each table.
UNWRITTEN = {"dense": 2, "growing": 2, "rowwise": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "store-1.tar.gz") as archive:
        for member in archive.getmembers():
            if member.isfile():
                source = archive.extractfile(member)
                assert source is not None
                target = tmp_path / member.name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(source.read())
    return tmp_path / "store-1"


def bits(rows: list[str]) -> list[list[int]]:
    return [[int(word, 16) for word in row.split()] for row in rows]


def test_a_store_of_version_1_has_the_rows_that_it_was_left_with(path: Path) -> None:
    assert embedrock.check(path)["problem_count"] == 0
    with embedrock.open(path, memory="4MiB", create=False) as store:
        assert (store.step, store.meta, store.state()) == (2, {"note": 2}, {"dense": b"\2" * 5})
        assert list(store.tables) == list(EXPECTED)
        for name, expected in EXPECTED.items():
            table = store.table(name)
            assert (len(table), table.digest()) == (expected["rows"], expected["digest"])
            assert table.dtype == "float32"
            values, state = table.get(expected["keys"], state=True)
            assert values.view(np.uint32).tolist() == bits(expected["values"])
            assert state.view(np.uint32).tolist() == bits(expected["state"])
            initial = table.get([UNWRITTEN[name]])
            assert initial.view(np.uint32).tolist() == bits(expected["initial"])
    with embedrock.open(path, memory="4MiB", create=False, step=1) as store:
        assert store.meta == {"note": 1}


def test_a_store_of_version_1_goes_on(path: Path) -> None:
    with embedrock.open(path, memory="4MiB", create=False, check_disk=False) as store:
        for name in EXPECTED:
            table = store.table(name)
            table.update(np.arange(5), np.ones((5, table.embedding_dim), np.float32), lr=0.1)
        store.commit(3)
        digests = [table.digest() for table in store.tables.values()]
    with embedrock.open(path, memory="4MiB", create=False) as store:
        assert [table.digest() for table in store.tables.values()] == digests
    assert embedrock.check(path)["problem_count"] == 0
