"""The public functions: push, pull, list and prune, for a store or a run of ranks."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embedrock import _logs
from embedrock._arguments import (
    Progress,
    flag,
    function,
    named_path,
    named_path_or_none,
    shown,
    step_or_pin,
    whole,
    whole_or_none,
)
from embedrock._memory import size_or_none
from embedrock._ranks import folders_in
from embedrock.errors import MisuseError
from embedrock.objects import history
from embedrock.objects.pruning import list_pushes, prune_store
from embedrock.objects.pulling import chosen, pull_push
from embedrock.objects.pushing import PIECE_BYTES_MAX, PIECE_BYTES_MIN, hold, push_commit
from embedrock.objects.remote import Remote
from embedrock.objects.runs.holding import held_run
from embedrock.objects.runs.manifest import of_a_run
from embedrock.objects.runs.pruning import list_runs, prune_runs
from embedrock.objects.runs.pulling import pull_run
from embedrock.objects.runs.pushing import push_run
from embedrock.store import Store

__all__ = ["list", "prune", "pull", "push"]

_log = _logs.of("objects")


def push(
    store: Store | str | os.PathLike[str],
    url: Any,
    *,
    step: int | str | None = None,
    options: Mapping[str, Any] | None = None,
    in_flight: int = 8,
    piece_bytes: int | str | None = None,
    cold_directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Sends the parts of a store's commit that object storage lacks; the last commit by default.

    The folder of a run of ranks is pushed whole: each store at one commit that all of them have,
    the newest by default, and a manifest of the run at the end.

    Args:
        store: The store, its path, or the path of the folder that ``embedrock.distributed.open``
            was given. It may be open and written to meanwhile, here or elsewhere.
        url: ``s3://bucket/path``, ``gs://…``, ``az://…``, ``file:///folder`` or the path of a
            folder (``./folder``), for this store or run alone; or a store of ``obstore``. In the
            names of buckets ``?`` and ``#`` are characters as others, and ``%3F`` is ``?``.
        step: The step of a commit that is kept or pinned, or the name of a pin, by which the push
            can be pulled then. If some stores of a run are on other machines, each machine pushes
            its own, at the same step, to one URL.
        options: Arguments of ``obstore`` beside the URL: settings of the storage by name
            (``endpoint``, ``region``, ``access_key_id``, …), ``client_options``, ``retry_config``,
            ``credential_provider``. The environment (``AWS_…``) is read, too.
        in_flight: Pieces read and sent at once.
        piece_bytes: Bytes of a piece, a power of two from 262,144 to 4,194,304. Earlier pushes to
            the URL fix it; else it depends on the size of the store.
        cold_directory: Folder of the store's partitions, if they were moved.
        progress: Called as ``progress(done, total)``, in bytes of the commit.

    Returns a dict: ``number`` of the push, ``step``, ``sequence``, ``bytes`` of the commit,
    ``sent_bytes`` and ``sent_pieces``, and ``is_new``, which is False where the newest push has the
    same commit already. Of a run it has no ``sequence``, but ``run``, ``ranks``, ``stores``, the
    push of each by its folder, and ``waiting_for``: the buckets of stores that no machine has
    pushed at this commit yet. While there are any, ``number`` is None, and nothing can be pulled
    of this commit. A damaged manifest is left out, with a ``UserWarning`` that names it.

    Errors: ``NotFoundError`` for a store, commit, bucket or folder that is not there, and for a
    reader whose commit its hold alone keeps; ``MismatchError`` where the URL has pushes of another
    store or run, or stores are of two commits; ``MisuseError`` where the URL is the folder of a
    store, or some stores of a run are missing and no step is given; ``LockedError`` naming the push
    that was made meanwhile; ``UnsupportedError`` where a table has storage ``"pmem"``, or a server
    overwrites what is to be created only where there is none; ``CommitGoneError``, ``FullError``,
    ``IoError``.

    Blocking: reads all that the commit needs. An interrupt ends requests within a second.
    *Memory*: the index of the commit, for a run those of all its stores here; ``in_flight`` pieces,
    and about 1 KB for each piece of a store. Durability: when it returns; a push that was cut off
    changes nothing that can be pulled, and the next one uses what it has sent.
    """
    number, pin = step_or_pin("step", step)
    workers = whole("in_flight", in_flight, 1)
    size = _piece_bytes(piece_bytes)
    function("progress", progress, "bytes done and in all")
    cold = named_path_or_none("cold_directory", cold_directory)
    path = Path(store.path) if isinstance(store, Store) else named_path("store", store)
    if not isinstance(store, Store) and not (path / "superblock").exists() and folders_in(path):
        if cold is not None:
            raise MisuseError(
                f"cold_directory is {shown(str(cold))}, which is of one store, and {path} has "
                f"those of ranks; leave it out: stores know where their partitions are"
            )
        with held_run(path, number, pin) as stores:
            remote = Remote(url, options, make=True)
            return _told(
                "push",
                path,
                remote,
                lambda: push_run(path, stores, remote, workers, size, progress),
            )
    held = hold(store if isinstance(store, Store) else path, number, pin, cold)
    try:
        remote = Remote(url, options, make=True)
        return _told(
            "push",
            path,
            remote,
            lambda: push_commit(held, remote, path, workers, size, progress, pin).told(),
        )
    finally:
        held.close()


def _piece_bytes(value: int | str | None) -> int | None:
    size = size_or_none("piece_bytes", value, PIECE_BYTES_MIN)
    if size is not None and (size & (size - 1) or size > PIECE_BYTES_MAX):
        raise MisuseError(
            f"piece_bytes is {size}, expected a power of two from {PIECE_BYTES_MIN} to "
            f"{PIECE_BYTES_MAX}"
        )
    return size


def pull(
    url: Any,
    path: str | os.PathLike[str],
    *,
    step: int | str | None = None,
    number: int | None = None,
    stores: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    in_flight: int = 8,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Makes a store from a pushed commit, the newest one by default, or a folder from a pushed run.

    Args:
        url: The URL of the push, as for :func:`push`.
        path: A folder that is empty or does not exist; or one of an interrupted pull, which then
            goes on.
        step: The step of the commit, or the name that it was pushed by (``push(step="best")``); of
            several pushes, the last. Of a run, a step.
        number: The number of the push.
        stores: For a run, the folders of the wanted stores, such as ``["buckets-0000-0511"]``:
            those of this machine. None for all.
        options: As for :func:`push`.
        in_flight: Pieces received at once.
        progress: Called as ``progress(done, total)``, in bytes of the commit, and then in pages
            that are verified.

    Returns a dict: ``number``, ``step`` and ``sequence``, ``bytes`` of the commit,
    ``received_bytes``, and ``pages`` and ``rows`` that were verified. Of a run it has no
    ``sequence``, but ``run``, ``ranks`` and the list ``stores``; ``received_bytes``, ``pages`` and
    ``rows`` are those of this call.

    The store has this commit alone, with the rows, states and counts that it was pushed with. All
    of it lies in ``path``; opened with ``cold_directory=`` it begins one. The folder of a run has a
    store for each rank, and is opened by ``embedrock.distributed.open`` with as many ranks.

    Errors: ``NotFoundError`` for a push that is not there, or was pruned; ``MisuseError`` where the
    folder has other files, or a store; ``CorruptError`` naming the file and the piece that is
    missing or is not what was pushed; ``FullError``, ``LockedError``, ``IoError``. Until it
    returns the folder is no store: ``open`` refuses it.

    Blocking: writes, syncs and reads all of the commit. An interrupt ends requests within a second.
    *Memory*: its index, ``in_flight`` pieces, and about 1 KB for each piece. Durability: when it
    returns.
    """
    at, pin = step_or_pin("step", step)
    wanted = at, whole_or_none("number", number, 1)
    workers = whole("in_flight", in_flight, 1)
    function("progress", progress, "done and in all")
    folder = named_path("path", path)
    remote = Remote(url, options)
    if _is_run(remote):
        if pin is not None:
            raise MisuseError(
                f"step is {pin!r}, and {remote.url} has pushes of a run, which are pulled by step"
            )
        return _told(
            "pull",
            folder,
            remote,
            lambda: pull_run(remote, folder, *wanted, stores, workers, progress),
        )
    if stores is not None:
        raise MisuseError(
            f"stores is {shown(stores)}, and {remote.url} has pushes of a single store"
        )
    return _told(
        "pull",
        folder,
        remote,
        lambda: pull_push(
            remote, chosen(remote, *wanted, pin), folder, workers, progress, progress
        ),
    )


def _told(
    what: str, path: Path, remote: Remote, run: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Returns the result of a push or a pull, and logs its beginning and end."""
    began = time.monotonic()
    _log.info("%s: %s begins, %s", path, what, remote.url)
    try:
        done = run()
    except BaseException as error:
        after = time.monotonic() - began
        _log.warning("%s: %s ended after %.1f s: %s", path, what, after, type(error).__name__)
        raise
    moved = done.get("sent_bytes", done.get("received_bytes", 0))
    _log.info(
        "%s: %s %s of step %s is done: %d bytes of %d in %.1f s",
        path,
        what,
        done["number"],
        done["step"],
        moved,
        done["bytes"],
        time.monotonic() - began,
    )
    return done


def _is_run(remote: Remote) -> bool:
    """Whether a URL has pushes of a run, and none of a store."""
    return not history.numbers(remote) and of_a_run(remote)


def list(url: Any, *, options: Mapping[str, Any] | None = None) -> builtins.list[dict[str, Any]]:
    """The pushes that a URL has, oldest first.

    Each is a dict: ``number``, ``step`` and ``sequence`` of the commit, ``committed`` and
    ``pushed`` in seconds since 1970, ``by`` whom, ``bytes`` of the commit and ``sent_bytes`` for
    it, ``store`` that it is of, and ``pin``, the name of a pin that it was pushed by, or None. Of a
    run it has ``run``, ``ranks`` and ``stores``, the push of each by its folder, in place of
    ``sequence``, ``store`` and ``pin``. ``options`` are as :func:`push` says.

    A manifest that is damaged is left out, with a ``UserWarning`` that names it.

    Errors: ``NotFoundError`` where the bucket or folder is not there, ``IoError``. Blocking: reads
    the first line of each manifest.
    """
    remote = Remote(url, options)
    return list_runs(remote) if _is_run(remote) else list_pushes(remote)


def prune(
    url: Any,
    keep: int,
    *,
    options: Mapping[str, Any] | None = None,
    alone: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Removes all pushes but the last ``keep``, and pieces that these do not name.

    Pieces go once they are seven days old, so that a push which goes on meanwhile finds what it
    counts on. All stores of one push of a run live or die together. ``alone=True`` says that no
    push goes on, and removes younger ones, too. ``progress(done, 0)`` is called now and then, in
    pieces looked at. ``options`` are as :func:`push` says.

    Returns a dict: ``pruned`` and ``kept`` pushes, ``removed_pieces`` and ``removed_bytes``,
    ``waiting_bytes`` of pieces that are too young, and ``missing``, the names of pieces that pushes
    which are kept have lost.

    A damaged manifest is named by ``damaged`` and a ``UserWarning``. Among those that stay it does
    not count, and no piece is removed until ``keep`` newer ones are whole; then it goes.

    Errors: ``NotFoundError``, ``IoError``. Blocking: reads the manifests that are kept, and lists
    all pieces. One that was cut off is made up for by the next.
    """
    kept_pushes = whole("keep", keep, 1)
    alone = flag("alone", alone)
    function("progress", progress, "pieces looked at and 0")
    remote = Remote(url, options)
    prune_it = prune_runs if _is_run(remote) else prune_store
    return prune_it(remote, kept_pushes, alone, progress)
