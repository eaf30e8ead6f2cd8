"""Batches announced with a schedule: the same bits from fewer pages; what does not fit is named."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock.ahead import BatchSchedule
from embedrock.errors import MisuseError


@pytest.mark.alone
def test_a_schedule_changes_no_bit_and_fewer_pages_are_read(tmp_path: Path) -> None:
    rows, stretch, epochs, batches = 60_000, 8, 3, 64
    random = np.random.default_rng(3)
    samples = random.integers(0, rows, (batches * 60, 5))
    steps = [
        np.unique(samples[part])
        for _ in range(epochs)
        for part in np.array_split(random.permutation(len(samples)), batches)
    ]
    later: dict[int, int] = {}
    uses: list[list[int]] = []
    for at in reversed(range(len(steps))):
        now = at // stretch
        uses.insert(0, [later[key] - now if key in later else -1 for key in steps[at].tolist()])
        later.update((key, now) for key in steps[at].tolist())

    def train(path: Path, scheduled: bool) -> tuple[int, int, dict[str, object]]:
        with embedrock.open(path, "2MiB", page_bytes=4096, segment_bytes=65536) as store:
            table = store.table("t", 32, num_embeddings=rows, optimizer="sgd")
            numbers: list[int] = []
            announced = 0
            for at, keys in enumerate(steps):
                while len(numbers) < min(len(steps), at + 24):
                    place = BatchSchedule(
                        len(numbers) // stretch,
                        stretch,
                        2 * batches // stretch,
                        {"t": uses[len(numbers)]},
                    )
                    batch = {"t": steps[len(numbers)]}
                    number = store.window.announce(batch, schedule=place if scheduled else None)
                    if number is None and len(numbers) > at:
                        break
                    if number is not None:
                        numbers.append(number)
                        announced += len(steps[len(numbers) - 1])
                until = time.monotonic() + 60
                while store.window.stats()["distinct"] < announced:
                    assert time.monotonic() < until, store.window.stats()
                    time.sleep(0.001)  # until the window has looked at all that is announced
                store.window.begin(numbers[at])
                values = table.get(keys)
                table.update(keys, values / 8 + 0.01, lr=0.1)
                store.window.finish(numbers[at])
            pages = store.stats()["pages_read"]
            store.commit(1)
            return table.digest(), pages, store.window.stats()

    plain, pages, _ = train(tmp_path / "plain", scheduled=False)
    digest, fewer, window = train(tmp_path / "scheduled", scheduled=True)
    assert digest == plain
    assert window["schedule_right"] > 1000 and window["schedule_wrong"] == 0, window
    assert pages > 1000 and fewer < pages / 2, (fewer, pages, window)


def test_a_schedule_that_does_not_fit_its_batch_is_named(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "4MiB") as store:
        store.table("t", 4, num_embeddings=100_000, optimizer="sgd")

        def announce(**change: object) -> int | None:
            place = {"stretch": 0, "stretch_batches": 8, "furthest": 4, "next_use": {"t": [0, -1]}}
            schedule = BatchSchedule(**{**place, **change})  # type: ignore[arg-type]
            return store.window.announce({"t": [1, 2]}, schedule=schedule)

        with pytest.raises(MisuseError, match=r"expected a whole number for each of its 2 keys"):
            announce(next_use={"t": [1, 2, 3]})
        with pytest.raises(MisuseError, match=r"next_use says nothing of table 't'"):
            announce(next_use={})
        with pytest.raises(MisuseError, match=r"stretch_batches is 0, expected 1 or more"):
            announce(stretch_batches=0)
        with pytest.raises(
            MisuseError, match=r"furthest is 4294967296, expected less than 2\*\*32"
        ):
            announce(furthest=2**32)
        with pytest.raises(MisuseError, match=r"next_use is a list, expected \{table: stretches"):
            announce(next_use=[0, 1])
        for odd in ([[1], [2, 3]], "ab", [0.5, 1.0], None, [2**70, 1], ["a", "b"], [True, False]):
            with pytest.raises(MisuseError, match="next_use"):
                announce(next_use={"t": odd})
        with pytest.raises(MisuseError, match="schedule is a dict, expected"):
            store.window.announce({"t": [1, 2]}, schedule={})  # type: ignore[arg-type]
        assert announce() == 1
        assert announce(next_use={"t": [100_000, -7]}) == 2
