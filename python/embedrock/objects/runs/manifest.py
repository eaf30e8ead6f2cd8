"""The URL of a run, apart from its stores: manifests of the run, and parts of coming ones.

Format: ``docs/formats/objects.md``. A manifest of a run names one push of each store. A part is
what one machine has pushed of a store; when there is one for each store, the manifest is made.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from embedrock.errors import CorruptError, NotFoundError, UnsupportedError
from embedrock.objects import history
from embedrock.objects.manifest import WAY_OUT, digest_of, json_bytes, number_in, numbered
from embedrock.objects.remote import Found, Remote

__all__ = [
    "PARTS",
    "RUNS",
    "RunManifest",
    "StorePush",
    "encode",
    "of_a_run",
    "parts_of",
    "put_part",
    "read_run",
    "remove_parts",
    "run_name",
    "run_number",
    "run_numbers",
]

RUNS, PARTS = "runs", "parts"
_VERSION = 1


@dataclass(frozen=True)
class StorePush:
    """The push of one store that belongs to a push of the run."""

    folder: str
    number: int
    push: str
    store: str
    sequence: int
    committed: int
    bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class RunManifest:
    """A push of a run, by its stores in the order of buckets."""

    number: int
    push: str
    by: str
    pushed: int
    run: str
    step: int
    token: str
    world: int
    tables: dict[str, str]
    stores: tuple[StorePush, ...]
    pruned: int | None = None
    """When it was pruned, in seconds since 1970: pushes of its stores may be gone."""

    @property
    def bytes(self) -> int:
        """Those of the commits of all stores."""
        return sum(store.bytes for store in self.stores)

    @property
    def sent_bytes(self) -> int:
        """Those that were sent for it."""
        return sum(store.sent_bytes for store in self.stores)

    @property
    def commit(self) -> tuple[str, int, int, str]:
        """The identity of the run's commit."""
        return self.run, self.world, self.step, self.token

    def number_of(self, folder: str) -> int:
        """The push that it names of the store in a folder; 0 where it has none."""
        return next((store.number for store in self.stores if store.folder == folder), 0)


def run_name(number: int) -> str:
    """The object of a push of a run of this number."""
    return numbered(RUNS, number)


def run_number(name: str) -> int | None:
    """The number of a push of a run, of the name of its object; None for other names."""
    return number_in(RUNS, name)


def run_numbers(remote: Remote) -> list[Found]:
    """The manifests of runs that there are, pruned ones too, by rising number."""
    found = [found for found in remote.below(RUNS) if run_number(found.name) is not None]
    return sorted(found, key=lambda found: found.name)


def of_a_run(remote: Remote) -> bool:
    """Whether a run is pushed to this URL, or a push of one has begun."""
    return bool(run_numbers(remote)) or next(iter(remote.below(PARTS)), None) is not None


def encode(manifest: RunManifest) -> bytes:
    """Its line."""
    return _line({"embedrock": _VERSION, **asdict(manifest)})


def read_run(remote: Remote, name: str) -> RunManifest:
    """A manifest of a run, which may be pruned.

    Errors: ``NotFoundError``, ``CorruptError``, ``UnsupportedError``.
    """
    place = f"{remote.url}: {name}"
    told = _told(bytes(remote.get(name)), place)
    try:
        stores = tuple(StorePush(**store) for store in told.pop("stores"))
        manifest = RunManifest(**told, stores=stores)
    except (KeyError, TypeError) as error:
        raise CorruptError(f"{place}: {error}; {WAY_OUT}") from error
    if run_name(manifest.number) != name:
        raise CorruptError(
            f"{place} is the manifest of push {manifest.number} of a run under another name"
        )
    return manifest


def put_part(remote: Remote, commit: tuple[str, int, int, str], part: StorePush) -> None:
    """Notes, durably, that a store is there at the commit of its run."""
    facts = {"embedrock": _VERSION, "run": commit[0], **asdict(part)}
    remote.replace(f"{_parts(commit)}/{part.folder}.json", _line(facts))


def parts_of(remote: Remote, commit: tuple[str, int, int, str]) -> dict[str, StorePush]:
    """The stores that are there at a commit of their run, by folder; damaged parts are left out."""

    def read(at: Remote, name: str) -> StorePush | None:
        told = _told(bytes(at.get(name)), f"{at.url}: {name}")
        return StorePush(**told) if told.pop("run") == commit[0] else None

    found = {}
    for one in remote.below(_parts(commit)):
        try:
            part = history.whole_or_none(read, remote, one.name)
        except NotFoundError:
            continue
        if part is not None:
            found[part.folder] = part
    return found


def remove_parts(remote: Remote, commit: tuple[str, int, int, str]) -> None:
    """Those of a commit whose manifest is made."""
    remote.delete([found.name for found in remote.below(_parts(commit))])


def _parts(commit: tuple[str, int, int, str]) -> str:
    _, world, step, token = commit
    return f"{PARTS}/{world}-{step}-{token}"


def _line(told: dict[str, Any]) -> bytes:
    return json_bytes({**told, "digest": digest_of(json_bytes(told))}) + b"\n"


def _told(content: bytes, place: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(content)
        version, digest = told["embedrock"], told.pop("digest")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"{place} is no manifest: {error}; {WAY_OUT}") from error
    if version != _VERSION:
        raise UnsupportedError(
            f"{place} has version {version}, this build reads {_VERSION}; use a newer embedrock"
        )
    if digest_of(json_bytes(told)) != digest:
        raise CorruptError(f"{place} is not what was written; {WAY_OUT}")
    del told["embedrock"]
    return told
