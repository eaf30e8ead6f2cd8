"""A store with rows on persistent memory that earlier formats wrote still opens, with its rows.

``golden/store-pmem-1.tar.gz`` was written when regions had version 1, without checks of their
index, and journals left out that the region of a growing table is one part; its first journal file
is gone. It has a dense and a growing table with Adagrad, deleted rows among them. Its content was
recorded then.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import CorruptError
from places import TESTS

GOLDEN = TESTS / "golden" / "store-pmem-1.tar.gz"
# The version of a region, in its second word.
VERSION = slice(8, 16)

EXPECTED: dict[str, dict[str, Any]] = {
    "dense": {
        "rows": 111,
        "digest": 8_719_976_833_742_773_311,
        "keys": [10, 20, 30],
        "values": [
            "BD856595 BD72CFF0 BE5CB721 BE06BE0A 3D331BE6 39CD65C0",
            "BE32C714 BD1CCC52 BDB66C59 3E7E3158 3D97669D BD839EBD",
            "BE685D54 BDFAD5B8 3D645430 3E200E13 3E2D4B15 BE19B5FD",
        ],
        "state": [
            "40C25691 3F812214 3F712483 4024B9A9 3F056AA8 3F9B8CC3",
            "3F243C30 3F9AB329 3FC03A16 3F8F3E35 40A36FCA 3FB7E423",
            "40297055 3FE318B3 3D19C533 3E88357C 4093138D 3F949F2C",
        ],
    },
    "growing": {
        "rows": 282,
        "digest": 6_497_655_779_862_881_528,
        "keys": [83_036_733_440, 166_073_466_880, 249_110_200_320],
        "values": [
            "3C7128D8 3C38F4A3 BD184208 BD807E09 BD2114D0",
            "3DB3ABBC 3D35D06E BE2DB191 3E634304 BE2C7A04",
            "BDA37E80 BE6F500E BD54EF71 3E244BD2 BE93ECA2",
        ],
        "state": [
            "4042834D 3EDB6B30 3F975C33 3F40C8F7 405382BF",
            "40C0533E 4119DADA 411F26EC 410C47BE 40FA2995",
            "40FAC280 40FD53B4 40F84308 40F84056 40C93D29",
        ],
    },
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member)
            assert source is not None
            target = tmp_path / member.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(source.read())
    return tmp_path / "store-pmem-1"


def versions(path: Path) -> list[int]:
    regions = [path / "pmem-0", path / "pmem-1"]
    return [int.from_bytes(region.read_bytes()[VERSION], "little") for region in regions]


def bits(rows: list[str]) -> list[list[int]]:
    return [[int(word, 16) for word in row.split()] for row in rows]


def check_rows(store: embedrock.Store) -> None:
    assert list(store.tables) == list(EXPECTED)
    for name, expected in EXPECTED.items():
        table = store.table(name)
        assert (len(table), table.digest()) == (expected["rows"], expected["digest"])
        values, state = table.get(expected["keys"], state=True)
        assert values.view(np.uint32).tolist() == bits(expected["values"])
        assert state.view(np.uint32).tolist() == bits(expected["state"])


def test_a_reader_leaves_regions_as_they_are_and_a_writer_gives_them_checks(path: Path) -> None:
    assert embedrock.check(path)["problem_count"] == 0
    with embedrock.open(path, memory="4MiB", read_only=True) as store:
        assert (store.step, store.meta) == (10, {"note": 10})
        check_rows(store)
    assert versions(path) == [1, 1]
    with embedrock.open(path, memory="4MiB", create=False) as store:
        check_rows(store)
    assert versions(path) == [2, 2]
    assert embedrock.check(path)["problem_count"] == 0
    with embedrock.open(path, memory="4MiB", create=False) as store:
        check_rows(store)


def test_such_a_store_goes_on_and_knows_a_region_of_before(path: Path) -> None:
    older = (path / "pmem-1").read_bytes()
    with embedrock.open(path, memory="4MiB", create=False) as store:
        for step in range(11, 40):
            for name in EXPECTED:
                table = store.table(name)
                table.update([10, 20], np.ones((2, table.embedding_dim), np.float32), lr=0.1)
            store.commit(step, meta={"note": "m" * 20_000})
        digests = [table.digest() for table in store.tables.values()]
    with embedrock.open(path, memory="4MiB", create=False) as store:
        assert [table.digest() for table in store.tables.values()] == digests
    assert embedrock.check(path)["problem_count"] == 0
    (path / "pmem-1").write_bytes(older)
    with pytest.raises(CorruptError, match=r"'growing'.*is older than the store's last commit"):
        embedrock.open(path, memory="4MiB", create=False)
