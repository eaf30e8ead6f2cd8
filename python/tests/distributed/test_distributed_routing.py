"""The rank of each key, and its place in exchanges: arithmetic of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import embedrock
from embedrock.distributed.binding import owners_of, runs_of, table_digests
from embedrock.distributed.routing import Route, destinations, ids_of


@pytest.mark.parametrize("world", [2, 3, 255, 256, 257, 300, 1024])
def test_keys_go_by_rank_and_within_it_by_table_in_their_order(world: int) -> None:
    random = np.random.default_rng(world)
    owners = owners_of(runs_of(world))
    keys = [random.integers(0, 1 << 40, count).astype(np.uint64) for count in (900, 0, 300)]
    ranks = [destinations(some, owners, dense=i == 0) for i, some in enumerate(keys)]
    route = Route(keys, ranks, world)
    of_key = np.concatenate(ranks).tolist()
    expected = sorted(range(1200), key=lambda place: of_key[place])  # stable, as the way is
    assert route.order.tolist() == expected
    for gap in (0, 1):
        places = route.places(gap)
        assert places[expected].tolist() == [
            place + gap * of_key[key] for place, key in enumerate(expected)
        ]
    for table, some in enumerate(ranks):
        np.testing.assert_array_equal(route.counts[:, table], np.bincount(some, minlength=world))


def test_every_id_of_a_dense_table_is_counted_on_one_rank() -> None:
    for world in (1, 2, 3, 7):
        owners = owners_of(runs_of(world))
        for size in (1, 5, 1023, 1024, 1025, 3000):
            ranks = destinations(np.arange(size, dtype=np.uint64), owners, dense=True)
            counted = [ids_of(np.flatnonzero(owners == rank), size) for rank in range(world)]
            assert counted == np.bincount(ranks, minlength=world).tolist()


def test_tables_of_another_seed_are_others(tmp_path: Path) -> None:
    found = []
    for seed, rows in ((1, 100), (1, 9000), (2, 100)):
        with embedrock.open(tmp_path / f"{seed}-{rows}", "4MiB", seed=seed) as store:
            store.table("t", 4, expected_rows=rows)
            found.append(table_digests(store))
            store.commit(1)
    assert found[0] == found[1] != found[2]
