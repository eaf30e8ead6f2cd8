"""Pins for the commits that belong to checkpoints on disk.

A checkpoint of a trainer has no rows: it names the commit that has them, and a store keeps only its
last few commits. So each checkpoint pins its commit before its files are written, under a name that
contains their path. The pin is removed once the files are gone, whoever removed them. There is no
state beside these names, so a later run goes on with them, and the next run removes a pin that a
crash left without files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from embedrock._arguments import flag
from embedrock._warnings import warn
from embedrock.errors import FullError, MisuseError, NotFoundError, UnsupportedError
from embedrock.store import Store

__all__ = ["CheckpointPins"]

_NAME = "checkpoint"
_NAME_BYTES_MAX = 200
_NAMED_MAX = 3
"""Checkpoints that a warning names."""


class _Pin(NamedTuple):
    """A pin of a checkpoint."""

    name: str
    where: str
    """Its place: beside the store, absolute or a URL; of a long one a digest."""
    step: int
    sequence: int


class CheckpointPins:
    """The pins that one store has for checkpoints.

    A checkpoint counts as gone when it is not in its folder and the folder is there: a folder that
    is gone itself may have been moved, and its pins stay.
    """

    def __init__(self, store: Store, pin: bool = True) -> None:
        """``pin=False`` leaves commits to the store's ``keep``."""
        self.store = store
        self._pins = flag("pin", pin)
        self._coming: dict[str, tuple[str, Any]] = {}
        """Names of pins whose files may still be on their way, with the place and what was there
        before."""
        self._long: dict[str, str] = {}
        """The places that are too long for a name, by their digests."""

    def hold(self, place: str | os.PathLike[str]) -> None:
        """Pins the store's last commit, which a checkpoint is about to be saved beside."""
        step = self.store.step
        if not self._pins or step is None:
            return
        path = os.fspath(place)
        name = f"{_NAME}:{step}:{self._where(path)}"
        if name in self._coming:
            return
        try:
            self.store.pin(step, name)
        except UnsupportedError:
            self._pins = False  # of tables on persistent memory no commit can be gone back to
        except (FullError, MisuseError) as error:
            warn(
                f"the checkpoint {path} does not pin its rows, and keep= alone keeps them: {error}"
            )
        else:
            self._coming[name] = (path, _stamp(path))

    def saved(self, place: str | os.PathLike[str], *, is_sure: bool = False) -> None:
        """The checkpoint is there: what was in its place before needs no rows any more.

        Unless that ``is_sure``, the files are looked at: a plugin may write them beside the loop.
        """
        path = os.fspath(place)
        own = [name for name, (where, _) in self._coming.items() if where == path]
        if not own:
            return
        newest, before = own[-1], self._coming[own[-1]][1]
        if not is_sure and "://" not in path and _stamp(path) in (None, before):
            return
        where = self._where(path)
        for pin in self._all():
            if pin.where == where and pin.name != newest:
                self._unpin(pin)
        for name in own:
            self._coming.pop(name, None)

    def tidy(self) -> None:
        """Takes the pins of checkpoints away that are gone."""
        at, back = self._at(), self.is_back()
        for path in {path for path, _ in self._coming.values()}:
            self.saved(path)
        for pin in self._all():
            if back and pin.sequence <= at:
                continue  # a change, with which what is later would go
            if pin.name not in self._coming and self._is_gone(pin.where):
                self._unpin(pin)

    def is_back(self) -> bool:
        """Whether the store has gone back to an earlier commit, and nothing has changed since."""
        if self.store.uncommitted != (0, 0):
            return False
        at = self._at()
        later = any(pin["sequence"] > at for pin in self.store._core.pins())
        return later or bool(self.store._later_commits())

    def drop_later(self) -> None:
        """Takes the pins after the commit away that the store has gone back to, so that it can go
        on from there. Warns with what cannot be loaded any more."""
        at = self._at()
        later = [pin for pin in self._all() if pin.sequence > at]
        for pin in later:
            self._unpin(pin)
        lost = [pin for pin in later if not self._is_gone(pin.where)]
        if lost:
            named = ", ".join(f"{pin.where} (step {pin.step})" for pin in lost[:_NAMED_MAX])
            more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
            warn(
                f"{self.store.path} goes on from its commit of step {self.store.step}: the rows of "
                f"the later checkpoints {named}{more} go with the next change, and these cannot be "
                f"loaded any more; to keep some, copy the store before (embedrock.copy with step=)"
            )

    def _at(self) -> int:
        last = self.store._core.last_commit()
        return 0 if last is None else int(last["sequence"])

    def _all(self) -> list[_Pin]:
        found = []
        for pin in self.store._core.pins():
            kind, _, rest = pin["name"].partition(":")
            step, _, where = rest.partition(":")
            if kind == _NAME and where and step == str(pin["step"]):
                found.append(_Pin(pin["name"], where, int(pin["step"]), int(pin["sequence"])))
        return found

    def _unpin(self, pin: _Pin) -> None:
        self._coming.pop(pin.name, None)
        try:
            self.store.unpin(pin.name)
        except NotFoundError:
            pass  # somebody else has, meanwhile
        except FullError as error:
            warn(f"{pin.name!r} stays pinned: {error}")

    def _where(self, path: str) -> str:
        """A place as names of pins have it."""
        where = path
        if "://" not in path:
            where = os.path.abspath(path)
            beside = os.path.relpath(where, self.store.path.parent)
            where = where if beside.startswith("..") else beside
        most = _NAME_BYTES_MAX - len(f"{_NAME}:{2**63}:")
        if where.isprintable() and len(where.encode()) <= most:
            return where
        digest = "#" + hashlib.sha256(os.fsencode(where)).hexdigest()[:32]
        self._long[digest] = where
        return digest

    def _is_gone(self, where: str) -> bool:
        if where.startswith("#"):
            if where not in self._long:
                return False  # of another run: it cannot be told
            where = self._long[where]
        if "://" in where:
            return _is_gone_from(where)
        path = Path(self.store.path).parent / where
        return not os.path.lexists(path) and path.parent.is_dir()


def _stamp(path: str) -> Any:
    """A stamp that changes when a file is rewritten; None if there is none, and for a URL."""
    if "://" in path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_gone_from(url: str) -> bool:
    """Whether nothing is there, and its folder is: an answer of the storage, not a failure of it.

    ``exists`` of fsspec says no, too, where a storage cannot be asked.
    """
    try:
        fsspec: Any = importlib.import_module("fsspec")
        files, path = fsspec.core.url_to_fs(url)
        folder = files._parent(path)
        files.invalidate_cache(folder)  # others write there, too
        try:
            files.info(path)
            return False
        except FileNotFoundError:
            files.info(folder)
            return True
    except Exception:  # of whatever storage it is
        return False  # it cannot be asked: the pin stays
