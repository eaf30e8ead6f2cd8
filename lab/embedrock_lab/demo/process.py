"""What the kernel knows about this process: memory and time spent waiting for a core."""

from __future__ import annotations

from pathlib import Path

_SELF = Path("/proc/self")


def rss_bytes() -> int:
    """Memory of this process that is in DRAM right now."""
    return _status("VmRSS")


def peak_rss_bytes() -> int:
    """The most that `rss_bytes` has been since the start, or since `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Makes `peak_rss_bytes` start again from the memory in use. (proc(5), clear_refs, value 5.)"""
    (_SELF / "clear_refs").write_text("5")


def core_wait_share() -> float:
    """Time that the main thread wanted to run and had no core ÷ time it ran or wanted to."""
    ran, waited = (_SELF / "schedstat").read_text().split()[:2]
    total = int(ran) + int(waited)
    return int(waited) / total if total else 0.0


def _status(name: str) -> int:
    for line in (_SELF / "status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")
