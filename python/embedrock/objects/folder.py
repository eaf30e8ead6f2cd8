"""Objects in a folder: what has its name is whole and on the disk.

An object is written under a name that ``obstore`` does not list, synced, and given its name, by a
link where there must be none. Its name is durable once the folders that lead to it are synced.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from embedrock._durable import sync
from embedrock._ranks import folders_in
from embedrock.errors import MisuseError, UnsupportedError

__all__ = ["Folder", "folder_of"]

_STAGED = re.compile(r".+#\d+")


def folder_of(url: str) -> Path:
    """The folder that a ``file://`` URL names. Errors: ``MisuseError``."""
    if "#" in url or "?" in url:
        raise MisuseError(
            f"{url!r} has a '#' or a '?', which ends the path of a URL: write it as %23 or %3F, as "
            f"Path.as_uri() does"
        )
    host, path = urlsplit(url)[1:3]
    if host not in ("", "localhost") or not path.startswith("/"):
        raise MisuseError(f"{url!r} names no folder of this machine: expected file:///folder")
    return Path(unquote(path))


class Folder:
    """A folder with objects."""

    def __init__(self, place: Path) -> None:
        """Touches nothing."""
        self._place = place
        self._unsynced: set[Path] = set()
        """Folders with names that may not be on the disk yet."""
        self._lock = threading.Lock()

    def within(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self._place / name)

    def holds_store(self) -> bool:
        """Whether it is that of a store, or of the stores of a run of ranks."""
        return (self._place / "superblock").is_file() or bool(folders_in(self._place))

    def make(self) -> None:
        """Makes the folder, and those above it."""
        made = [p for p in (self._place, *self._place.parents) if not p.exists()]
        self._place.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._unsynced.update(path.parent for path in made)

    def put(self, name: str, content: bytes | memoryview, *, is_new: bool) -> None:
        """Writes an object. Errors: ``FileExistsError`` where there is one, if ``is_new``."""
        path = self._place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f"{path.name}#{secrets.randbelow(10**15)}")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
                os.fsync(descriptor)
            if is_new:
                _link(staged, path)
            else:
                os.replace(staged, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        self._named(path)

    def settle(self, name: str) -> None:
        """Makes an object and its name durable that somebody else has written."""
        path = self._place / name
        sync(path)
        self._named(path)
        self.sync()

    def _named(self, path: Path) -> None:
        with self._lock:
            self._unsynced.update(p for p in path.parents if p.is_relative_to(self._place))

    def sync(self) -> None:
        """Makes the names durable of all that was written."""
        with self._lock:
            folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            sync(folder)

    def staged(self, prefixes: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Unfinished objects below these names, which do not have their names yet."""
        walks = (os.walk(self._place / prefix) for prefix in prefixes)
        for root, _, names in itertools.chain.from_iterable(walks):
            for name in names:
                path = Path(root, name)
                if _STAGED.fullmatch(name):
                    with contextlib.suppress(FileNotFoundError):
                        yield str(path.relative_to(self._place)), path.stat()

    def remove(self, name: str) -> None:
        """Removes what :meth:`staged` has named."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place / name)


def _link(staged: Path, path: Path) -> None:
    try:
        os.link(staged, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise UnsupportedError(
            f"{path}: its file system has no links ({error.strerror}), by which one push alone "
            f"gets a number; push to a folder of another file system"
        ) from error
