"""The machine of a benchmark, and its load from other processes."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import embedrock

__all__ = ["available_memory_bytes", "bytes_read", "bytes_written", "core_wait_share"]
__all__ += ["device_facts", "forget_pages", "machine_facts", "memory_facts", "memory_limit"]
__all__ += ["peak_rss_bytes", "reset_peak_rss", "rss_bytes", "steal_share"]


def machine_facts() -> dict[str, Any]:
    """Processor, memory, kernel and versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _kib_of(Path("/proc/meminfo"), "MemTotal"),
        "memory_available_bytes": available_memory_bytes(),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "huge_pages": _first_line(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "embedrock": embedrock.__version__,
    }


def device_facts(store: embedrock.Store) -> dict[str, Any]:
    """The device under an open store and how the store reaches it."""
    facts: dict[str, Any] = dict(store.stats()["device"])
    mount, source, kind = _mount_of(store.path)
    facts.update(mount=mount, source=source, file_system=kind)
    facts["disk_bytes"] = shutil.disk_usage(store.path).total
    return facts


def available_memory_bytes() -> int:
    """Memory that can be had without pushing anybody out."""
    return _kib_of(Path("/proc/meminfo"), "MemAvailable")


def rss_bytes() -> int:
    """Resident memory of this process."""
    return _kib_of(Path("/proc/self/status"), "VmRSS")


def peak_rss_bytes() -> int:
    """The most resident memory that this process had, since ``reset_peak_rss``."""
    return _kib_of(Path("/proc/self/status"), "VmHWM")


def reset_peak_rss() -> None:
    """Begins a new peak at the present size, where the kernel lets a process do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def memory_limit(budget: int) -> int:
    """The most that an engine with this budget may make a process grow by."""
    return int(1.05 * budget) + (16 << 20)


def memory_facts(store: embedrock.Store, budget: int, rss_before: int) -> dict[str, Any]:
    """Memory that a store reports, and growth of its process since ``reset_peak_rss``."""
    grown = peak_rss_bytes() - rss_before
    return {
        **store.stats()["memory"],
        "budget_bytes": budget,
        "peak_rss_grown_bytes": grown,
        "within_budget": grown <= memory_limit(budget),
    }


def forget_pages(file: Path) -> None:
    """Writes a file's pages to the device and drops them from memory; nobody may map it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def core_wait_share() -> float:
    """Time that the main thread wanted to run and had no core ÷ time it ran or wanted to."""
    ran, waited = (int(text) for text in _first_line(Path("/proc/self/schedstat")).split()[:2])
    return waited / (ran + waited) if ran + waited else 0.0


def bytes_read() -> int:
    """Bytes that devices read for this process; 0 where the kernel does not count them."""
    return _io_count("read_bytes:")


def bytes_written() -> int:
    """Bytes that this process sent towards devices; 0 where the kernel does not count them."""
    return _io_count("write_bytes:")


def _io_count(name: str) -> int:
    for line in _lines(Path("/proc/self/io")):
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def steal_share(before: tuple[int, int] | None = None) -> tuple[int, int] | float:
    """Time that a hypervisor gave to others: call it without, later with the first answer."""
    fields = [int(field) for field in _first_line(Path("/proc/stat")).split()[1:9]]
    now = (fields[7] if len(fields) > 7 else 0, sum(fields))
    if before is None:
        return now
    return (now[0] - before[0]) / max(now[1] - before[1], 1)


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.lower().startswith(("model name", "hardware")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _kib_of(path: Path, name: str) -> int:
    for line in _lines(path):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _mount_of(path: Path) -> tuple[str, str, str]:
    """Mount point, source and kind of the file system that holds ``path``."""
    place, found = path.resolve(), ("?", "?", "?")
    for line in _lines(Path("/proc/self/mounts")):
        source, mount, kind = line.split()[:3]
        if place.is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, source, kind)
    return found


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
