"""The store of a run: opened with the options of the run, and held against what it says itself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import embedrock
from embedrock import _core
from embedrock.ahead.window import WINDOW_GROUP
from embedrock.errors import MismatchError, MisuseError, NotFoundError
from embedrock.store import Store
from embedrock.training.run_options import RunOptions

__all__ = ["KEEP", "PROGRAM", "check_continues", "create", "open_stored", "row_optimizer"]
__all__ += ["stored_run"]

#: The program that has written a store.
PROGRAM = "embedrock train"
#: Commits that stay in the store.
KEEP = 2

_WITH_EPS = {
    kind.kind: kind
    for kind in (
        embedrock.optim.Adagrad,
        embedrock.optim.RowWiseAdagrad,
        embedrock.optim.Adam,
        embedrock.optim.RowWiseAdam,
    )
}


def row_optimizer(model: Any, recipe: Any) -> embedrock.optim.RowOptimizer:
    """The optimizer of a model's tables that a recipe names."""
    if recipe.optimizer == "sgd":
        return embedrock.optim.SGD(model, lr=recipe.lr)
    return _WITH_EPS[recipe.optimizer](model, lr=recipe.lr, eps=recipe.eps)


def open_stored(options: RunOptions, stack: contextlib.ExitStack) -> Store | None:
    """The store, if there is one. Options and paths with which none can be made are found out here,
    before the data are read, which may take long; it is made when these are known to be good."""
    with contextlib.suppress(NotFoundError):
        return stack.enter_context(_open(options, create=False))
    path = options.store.absolute()
    _core.check_place(path)
    place = next(place for place in (path, *path.parents) if os.path.exists(place))
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise MisuseError(
            f"{options.store} cannot be made: {place} is no directory that may be written to; "
            f"name another --store"
        )
    return None


def create(options: RunOptions, stack: contextlib.ExitStack) -> Store:
    """A store that was not there."""
    return stack.enter_context(_open(options, create=True))


def stored_run(store: Store, options: RunOptions) -> dict[str, Any] | None:
    """The store's description of the run that it holds; None if it holds none."""
    if store.step is None:
        return None
    if not options.resume:
        raise MisuseError(
            f"{store.path} holds a run at step {store.step}; add --resume to continue it, "
            f"or name another --store"
        )
    meta = store.meta
    if not isinstance(meta, dict) or meta.get("program") != PROGRAM:
        raise MismatchError(
            f"{store.path} was not written by embedrock train; name another --store"
        )
    return meta


def check_continues(
    options: RunOptions, stored: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Says what is otherwise from here on than the stored run had it.

    Errors: MismatchError for what makes another run.
    """
    changeable = stored.get("changeable", {})  # older stores do not have it
    for name, value in options.fixed().items():
        if settings.get(name) != value:
            raise MismatchError(
                f"{name} is {value}, but the run in {options.store} has "
                f"{settings.get(name)}; pass that, or name another --store"
            )
    for name, value in options.changeable().items():
        before = changeable.get(name, value)
        if before != value:
            print(f"{name} is {value} from here on, it was {before}", file=sys.stderr)
    most = stored.get("max_disk_bytes")
    if most is not None and options.max_disk_bytes is None:
        print(f"nothing bounds the disk from here on, it was --max-disk {most}", file=sys.stderr)


def _open(options: RunOptions, *, create: bool) -> Store:
    return embedrock.open(
        options.store,
        options.memory,
        seed=options.seed,
        max_disk_bytes=options.max_disk_bytes,
        io=options.io,
        policy=options.policy,
        window_bytes=options.window_bytes,
        window_group=WINDOW_GROUP if options.window_group is None else options.window_group,
        keep=KEEP,
        create=create,
    )
