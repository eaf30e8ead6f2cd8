"""``pages``: random pages of a file, read directly, through a mapping, and by the engine.

The file is larger than what the page cache may hold: the reading process has so much memory for it
and no more, by a control group; where there is none, the cache is emptied before each slice. Each
access wants one row of 128 bytes of a uniform page.

* ``direct``: one ``preadv`` of the page with O_DIRECT, called from Python; ``mmap``: the file is
  mapped once, the row copied from there; ``mmap-random``: the same after ``madvise(MADV_RANDOM)``.
  The number behind is that of the threads.
* ``embedrock``: ``table.get`` of rows that are not in memory, the engine's own direct requests.

``mmap_ratio`` and ``mmap_random_ratio`` are the accesses per second of a mapping, with the threads
that suit it best, divided by the engine's. *Source*: SSDHashEmbed, table 6, but for the mapping,
which there is made for each row.
"""

from __future__ import annotations

import mmap
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock_lab.bench import child
from embedrock_lab.bench.common import Report, workspace
from embedrock_lab.bench.options import Common, option, patience_of
from embedrock_lab.bench.replay.limit import MemoryLimit
from embedrock_lab.measure import machine

__all__ = ["Options", "read", "run"]

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 4
ROW_BYTES = 128
CHUNK_PAGES = 4096
"""Pages that are written at a time."""
CALL_ROWS_MAX = 1024
CALL_S = 0.02
"""A thread looks at the clock after so many accesses, or fewer, where they would take longer."""
MAPPED_THREADS_MAX = 8
"""Of a mapping without advice: what more threads make the kernel read ahead at once may be more
than the page cache may hold."""
MODES = ("direct", "mmap", "mmap-random")
SLACK_BYTES = 8 << 20
"""Memory that a limited process may hold beside page cache."""

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    file_bytes: int = option(2 << 30, "bytes of the file")
    cache_bytes: int = option(256 << 20, "page cache it may hold")
    rows: int = option(4_000_000, "rows of the engine's table")
    threads: list[int] = option([1, 8, 32], "threads of each run")
    rounds: int = option(3, "rounds of each measurement")
    slice: float = option(2.0, "seconds of a slice", metavar="S")
    patience: float = patience_of(30.0)


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("pages", options)
    with workspace(options, options.file_bytes) as place:
        report.say(f"writing {options.file_bytes:,} bytes")
        _write(place / "pages", options.file_bytes // PAGE_BYTES)
        found = {
            name: _median(slices)
            for name, slices in _slices(report, options, place / "pages").items()
        }
    if not all(one.pop("limited") for one in found.values()):
        report.notes.append(
            "no control group can be made here: the page cache was emptied before each slice"
        )
    found["embedrock"] = _engine(report, options)
    report.results["mismatches"] += sum(int(one.pop("mismatches")) for one in found.values())
    report.results["modes"] = found
    ours = found["embedrock"]["accesses_per_s"]
    for figure, mode in (("mmap_ratio", "mmap"), ("mmap_random_ratio", "mmap-random")):
        rates = [one["accesses_per_s"] for name, one in found.items() if _mode_of(name) == mode]
        if rates:
            report.figure(figure, max(rates) / ours)
        else:
            report.missing(figure, f"{mode} did not run")
    return report.finish()


def _mode_of(name: str) -> str:
    return name.rpartition("-")[0]


def _slices(report: Report, options: Options, file: Path) -> dict[str, list[dict[str, Any]]]:
    """Measurements of each mode, by mode and threads; a slice whose process ended has a note."""
    slices: dict[str, list[dict[str, Any]]] = {}
    wanted = [(mode, threads) for mode in MODES for threads in options.threads]
    for number in range(options.rounds):
        for mode, threads in wanted:
            if mode == "mmap" and threads > MAPPED_THREADS_MAX:
                continue
            name = f"{mode}-{threads}"
            report.say(name)
            try:
                one = _read(file, options, mode, threads, seed=number)
            except child.ChildError as error:
                report.notes.append(f"{name}: {error}; by signal 9 if it met its memory limit")
                continue
            slices.setdefault(name, []).append(one)
    return slices


def _median(slices: list[dict[str, Any]]) -> dict[str, Any]:
    summed = {"mismatches": sum(one["mismatches"] for one in slices)}
    summed["rows_verified"] = sum(one["rows_verified"] for one in slices)
    rates = ("accesses_per_s", "cpu_us", "bytes_read_per_access")
    medians = {name: statistics.median(one[name] for one in slices) for name in rates}
    return {**medians, **summed, "limited": all(one["limited"] for one in slices)}


def _engine(report: Report, options: Options) -> dict[str, Any]:
    """The engine's reads of a table, by the functions of ``bench miss``."""
    shape: dict[str, Any] = {"rows": options.rows, "dim": 32}
    with workspace(options, 3 * options.rows * 152) as place:
        shape["store"] = str(place / "store")
        report.say(f"embedrock: loading {options.rows:,} rows")
        child.call("embedrock_lab.bench.miss:load", **shape, page_bytes=PAGE_BYTES)
        report.say("embedrock: reading")
        one = child.call(
            "embedrock_lab.bench.miss:measure",
            **shape,
            io="auto",
            merge_reads=False,
            resident=0.02,
            batch=65_536,
            rounds=options.rounds,
            slice_s=options.slice,
            patience_s=options.patience,
            seed=options.seed,
        )
    report.device = one["device"]
    report.notes += [note.replace("miss_ratio", "embedrock") for note in one["notes"]]
    report.results["device_rate_4096_64"] = one["device_rate_4096_64"]
    return {
        "accesses_per_s": one["requests_per_s"],
        "cpu_us": one["miss_cpu_us"],
        "bytes_read_per_access": one["request_bytes"],
        "mismatches": one["mismatches"],
    }


def _write(file: Path, pages: int) -> None:
    """Writes words numbered through the file; none of them stays in the page cache."""
    with file.open("wb", buffering=0) as out:
        for begin in range(0, pages, CHUNK_PAGES):
            end = min(begin + CHUNK_PAGES, pages)
            out.write(np.arange(begin * PAGE_WORDS, end * PAGE_WORDS).astype(np.uint32).tobytes())
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(file: Path, options: Options, mode: str, threads: int, seed: int) -> dict[str, Any]:
    limit = MemoryLimit.create("embedrock-pages")
    try:
        found: dict[str, Any] = child.call(
            f"{__name__}:read",
            file=str(file),
            mode=mode,
            threads=threads,
            slice_s=options.slice,
            cache_bytes=options.cache_bytes,
            group=None if limit is None else limit.place,
            seed=options.seed + seed,
        )
        return found
    finally:
        if limit is not None:
            limit.close()


def read(
    file: str,
    mode: str,
    threads: int,
    slice_s: float,
    cache_bytes: int,
    group: list[Any] | None,
    seed: int,
) -> dict[str, Any]:
    """Reads rows of uniform pages for a slice, and verifies each. Runs in a child process."""
    if group is not None:
        limit = MemoryLimit(Path(group[0]), int(group[1]))
        limit.add(os.getpid())
        limit.set_bytes(cache_bytes + SLACK_BYTES)
    flags = os.O_RDONLY | (os.O_DIRECT if mode == "direct" else 0)
    descriptor = os.open(file, flags)
    pages = os.fstat(descriptor).st_size // PAGE_BYTES
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    mapping = None if mode == "direct" else _mapped(descriptor, mode)
    readers = [
        _Reader(mapping or _direct(descriptor), pages, (seed, number)) for number in range(threads)
    ]
    if group is not None and mode != "direct":
        # The measured state begins once each new page pushes another one out.
        for begin in range(0, cache_bytes, CHUNK_PAGES * PAGE_BYTES):
            os.pread(descriptor, CHUNK_PAGES * PAGE_BYTES, begin)
    cpu, read_bytes, began = _cpu_seconds(), machine.bytes_read(), time.perf_counter()
    _all(readers, slice_s=slice_s)
    seconds = time.perf_counter() - began
    cpu, read_bytes = _cpu_seconds() - cpu, machine.bytes_read() - read_bytes
    accesses = sum(reader.accesses for reader in readers)
    verifying = sum(reader.verifying_cpu for reader in readers)
    os.close(descriptor)
    return {
        "accesses_per_s": accesses / seconds,
        "cpu_us": 1e6 * (cpu - verifying) / accesses,
        "bytes_read_per_access": read_bytes / accesses,
        "rows_verified": accesses,
        "mismatches": sum(reader.mismatches for reader in readers),
        "limited": group is not None,
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _all(readers: list[_Reader], slice_s: float) -> None:
    """Lets all readers read for so long."""
    running = [threading.Thread(target=reader.run, args=(slice_s,)) for reader in readers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


Access = Callable[[npt.NDArray[np.int64], Words], None]


def _direct(descriptor: int) -> Access:
    """Makes a function that copies row ``page % 32`` of each page to ``out (N, 32) uint32``, for
    one thread."""
    # Memory that O_DIRECT can write to begins at a page.
    buffer = mmap.mmap(-1, PAGE_BYTES)
    rows = np.frombuffer(buffer, np.uint32).reshape(-1, ROW_BYTES // 4)

    def direct(pages: npt.NDArray[np.int64], out: Words) -> None:
        for i, page in enumerate(pages.tolist()):
            if os.preadv(descriptor, [buffer], page * PAGE_BYTES) != PAGE_BYTES:
                raise OSError(f"page {page} was not read whole")
            out[i] = rows[page % len(rows)]

    return direct


def _mapped(descriptor: int, mode: str) -> Access:
    """The same through one mapping, for any number of threads."""
    mapping = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    if mode == "mmap-random":
        mapping.madvise(mmap.MADV_RANDOM)
    rows = np.frombuffer(mapping, np.dtype(f"V{ROW_BYTES}"))
    per_page = PAGE_BYTES // ROW_BYTES

    def mapped(pages: npt.NDArray[np.int64], out: Words) -> None:
        # NumPy copies without the interpreter's lock, so that threads wait for pages side by side.
        at = pages * per_page + pages % per_page
        rows.take(at, out=out.view(rows.dtype)[:, 0], mode="clip")

    return mapped


class _Reader:
    """One thread's accesses."""

    def __init__(self, access: Access, pages: int, seed: tuple[int, int]) -> None:
        self._access, self._pages = access, pages
        self._rng = np.random.default_rng(seed)
        self.accesses = self.mismatches = 0
        self.verifying_cpu = 0.0

    def run(self, slice_s: float) -> None:
        """Reads until the slice is over. The counts are those of this call."""
        self.accesses = self.mismatches = 0
        self.verifying_cpu = 0.0
        space = np.empty((CALL_ROWS_MAX, ROW_BYTES // 4), np.uint32)
        columns = np.arange(ROW_BYTES // 4)
        now, count = time.perf_counter(), 1
        end = now + slice_s
        while now < end:
            pages = self._rng.integers(0, self._pages, count)
            out = space[:count]
            out.fill(0)
            self._access(pages, out)
            began, now = now, time.perf_counter()
            if now - began < CALL_S / 2:
                count = min(2 * count, CALL_ROWS_MAX)
            before = time.thread_time()
            first = pages % (PAGE_BYTES // ROW_BYTES) * (ROW_BYTES // 4)
            expected = (pages * PAGE_WORDS + first)[:, None] + columns
            self.mismatches += int((out != expected.astype(np.uint32)).any(axis=1).sum())
            self.verifying_cpu += time.thread_time() - before
            self.accesses += len(pages)
