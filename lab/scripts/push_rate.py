#!/usr/bin/env python3
"""How fast a push is, beside what the disk and the server can do alone.

    python lab/scripts/push_rate.py FOLDER [--rows N] [--s3] [--json]

Makes a store in FOLDER, pushes it to a folder beside it or, with --s3, to an S3 server on loopback
(versitygw, which the tests build), changes 1 % of its rows, pushes again, and pulls. The disk's
rate is that of one thread that reads the store's files in order, past the page cache; the server's
that of plain requests with as many bytes, as many at once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import embedrock
from embedrock import objects
from embedrock.objects.remote import Remote

DIM = 64
PORTION = 100_000
IN_FLIGHT = 8


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--s3", action="store_true", help="push to an S3 server on loopback")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True)
    stop: Callable[[], Any] = lambda: None  # noqa: E731
    options: dict[str, Any] | None = None
    url = f"file://{(folder / 'objects').absolute()}"
    try:
        if arguments.s3:
            sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
            from buckets3 import Bucket

            bucket = Bucket(folder)
            url, options, stop = bucket.url("model"), bucket.options, bucket.stop
        found = measured(folder, url, options, arguments.rows)
    finally:
        stop()
        shutil.rmtree(folder)
    if arguments.json:
        json.dump(found, sys.stdout, indent=2)
        print()
        return
    for name, value in found.items():
        print(f"{name:24} {value:,.3f}" if isinstance(value, float) else f"{name:24} {value:,}")


def measured(
    folder: Path, url: str, options: dict[str, Any] | None, rows: int
) -> dict[str, float | int]:
    """Results in MB/s, seconds and bytes."""
    store = embedrock.open(folder / "store", "512MiB")
    table = store.table("t", DIM, rows, optimizer="rowwise_adagrad", initializer=0.0)
    draw = np.random.default_rng(1)
    for begin in range(0, rows, PORTION):
        ids = np.arange(begin, min(begin + PORTION, rows))
        table.put(ids, draw.normal(size=(len(ids), DIM)).astype(np.float32))
    store.commit(1)
    disk = disk_rate(folder / "store")
    took, first = timed(lambda: objects.push(store, url, options=options, in_flight=IN_FLIGHT))
    server = server_rate(url, options, first["bytes"] // first["sent_pieces"], first["bytes"])
    changed = draw.choice(rows, rows // 100, replace=False)
    for begin in range(0, len(changed), PORTION):
        some = changed[begin : begin + PORTION]
        table.update(some, np.ones((len(some), DIM), np.float32), lr=0.1)
    store.commit(2)
    took_second, second = timed(lambda: objects.push(store, url, options=options))
    store.close()
    took_pull, pulled = timed(lambda: objects.pull(url, folder / "pulled", options=options))
    rate = first["bytes"] / took / 1e6
    return {
        "bytes": first["bytes"],
        "pieces": first["sent_pieces"],
        "disk_mb_s": disk,
        "server_mb_s": server,
        "push_mb_s": rate,
        "push_share_of_slower": rate / min(disk, server),
        "second_sent_bytes": second["sent_bytes"],
        "second_share": second["sent_bytes"] / second["bytes"],
        "second_s": took_second,
        "pull_mb_s": pulled["bytes"] / took_pull / 1e6,
    }


def timed(work: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """Seconds, and the result."""
    began = time.perf_counter()
    done = work()
    return time.perf_counter() - began, done


def disk_rate(store: Path) -> float:
    """MB/s of one thread that reads all files of rows in order."""
    os.sync()
    buffer = bytearray(4 << 20)
    total, took = 0, 0.0
    for path in sorted(store.glob("rows-*")):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while got := file.readinto(buffer):
                total += got
            took += time.perf_counter() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return total / took / 1e6


def server_rate(url: str, options: dict[str, Any] | None, size: int, total: int) -> float:
    """MB/s of plain requests that write objects of a size, as many at once as a push has."""
    remote = Remote(url.rstrip("/") + "-plain", options, make=True)
    content = np.random.default_rng(2).bytes(size)
    names = [f"{number:06d}" for number in range(total // size)]
    began = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(lambda name: remote.put(name, content), names))
    took = time.perf_counter() - began
    remote.delete(names)
    return len(names) * size / took / 1e6


if __name__ == "__main__":
    main()
