"""Holds a process to a memory limit, page cache included, by a control group (version 1 or 2)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["MemoryLimit"]

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")


class MemoryLimit:
    """A control group of its own for one process; removed with ``close``.

    Use ``create``, which answers None where this process may not make one. Memory that the process
    took before it was put in may stay charged to its old group, so put it in before it grows.
    """

    def __init__(self, group: Path, version: int) -> None:
        """Over an existing group."""
        self._group = group
        self._version = version

    @classmethod
    def create(cls, name: str) -> MemoryLimit | None:
        """A new group below this process's own; None where that is not allowed."""
        for version, root in _hierarchies():
            group = root / f"{name}-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            limit = cls(group, version)
            if (group / limit._file("limit")).exists():
                return limit
            group.rmdir()
        return None

    @property
    def place(self) -> tuple[str, int]:
        """The group's folder and the version of control groups, for another process."""
        return str(self._group), self._version

    def add(self, process: int) -> None:
        """Puts a process in."""
        (self._group / "cgroup.procs").write_text(str(process))

    def used_bytes(self) -> int:
        """Memory of the group, page cache included."""
        return int((self._group / self._file("used")).read_text())

    def peak_bytes(self) -> int | None:
        """The most that it held; None where the kernel does not count it."""
        try:
            return int((self._group / self._file("peak")).read_text())
        except OSError:
            return None

    def set_bytes(self, limit: int) -> None:
        """Limits the group. Memory above the limit is reclaimed, or the call fails: ``OSError``."""
        (self._group / self._file("limit")).write_text(str(limit))

    def anonymous_bytes(self) -> int:
        """Memory of the group that is not page cache."""
        name = "rss" if self._version == 1 else "anon"
        for line in (self._group / "memory.stat").read_text().splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
        return self.used_bytes()

    def close(self) -> None:
        """Removes the group; its processes must have ended."""
        with contextlib.suppress(OSError):
            self._group.rmdir()

    def _file(self, what: str) -> str:
        files = {
            1: {
                "limit": "memory.limit_in_bytes",
                "used": "memory.usage_in_bytes",
                "peak": "memory.max_usage_in_bytes",
            },
            2: {"limit": "memory.max", "used": "memory.current", "peak": "memory.peak"},
        }
        return files[self._version][what]


def _hierarchies() -> list[tuple[int, Path]]:
    """Paths of this process's own memory group, by version of control groups."""
    own: dict[int, str] = {}
    try:
        lines = OWN.read_text().splitlines()
        mounts = MOUNTS.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            own[1] = path
        elif not controllers:
            own[2] = path
    found = []
    for line in mounts:
        _, mount, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(",") and 1 in own:
            found.append((1, _below(Path(mount), own[1])))
        elif kind == "cgroup2" and 2 in own:
            found.append((2, _below(Path(mount), own[2])))
    return sorted(found)


def _below(mount: Path, path: str) -> Path:
    """The group's folder; in a container the mount may already be the group."""
    inner = mount / path.lstrip("/")
    return inner if inner.exists() else mount
