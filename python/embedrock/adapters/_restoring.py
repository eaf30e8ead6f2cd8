"""The shared part of trainers' adapters: a commit with each checkpoint, going back with each load.

A checkpoint has the ``state_dict`` of the model, in which modules of tables say beside which rows
they were saved (:mod:`embedrock.nn.state_dict_guard`). So a commit that is made before, or named in
the dict after, is found again from the dict alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import nn

from embedrock._arguments import instance
from embedrock._loading import is_dense_only
from embedrock._rows import RowStore, here
from embedrock.adapters._pinning import CheckpointPins
from embedrock.errors import MismatchError, NotFoundError, UnsupportedError
from embedrock.nn import state_dict_guard
from embedrock.nn.module import RowsModule
from embedrock.store import Store

__all__ = ["commit", "go_back_for", "module_states", "only_process", "restate", "the_store"]


def the_store(store: Any) -> Store:
    """The store whose commits go with checkpoints. Errors: ``UnsupportedError`` for a server's."""
    if isinstance(store, RowStore):
        here(store, "Commits")
    return instance("store", store, Store)


def only_process(world_size: int, named: str) -> None:
    """Errors: ``UnsupportedError`` where several processes train."""
    if world_size > 1:
        raise UnsupportedError(
            f"{named} runs {world_size} processes, and one process writes to a store; train with "
            f"one device, or keep the tables at a server (embedrock.connect)"
        )


def commit(pins: CheckpointPins, step: int) -> None:
    """Commits under this step, unless the last commit has it and nothing has changed since.

    Nor is there one where the store has gone back and nothing has changed: the commit that it is at
    has these rows, and another one would drop what came after it.
    """
    store = pins.store
    if store.uncommitted == (0, 0) and (store.step == step or pins.is_back()):
        return
    store.commit(step)


def module_states(model: nn.Module, store: Store) -> Iterator[tuple[str, RowsModule]]:
    """The modules of a model with tables of the store, each with its name in a ``state_dict``."""
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, RowsModule) and module.store is store:
            yield f"{name}.{state_dict_guard.KEY}" if name else state_dict_guard.KEY, module


def restate(model: nn.Module, store: Store, state_dict: MutableMapping[str, Any]) -> None:
    """Brings a ``state_dict`` that was made before the commit to say that it belongs to it."""
    for key, module in module_states(model, store):
        if key in state_dict:
            state_dict[key] = module.get_extra_state()


def go_back_for(model: nn.Module, store: Store, state_dict: Mapping[str, Any], named: str) -> None:
    """Brings back the rows that belong to a ``state_dict``, if it names their commit.

    Later commits stay, and later pins, until something changes: :meth:`CheckpointPins.drop_later`
    comes before that. Without a named commit, the check of modules decides; it refuses rows of
    other steps.

    Rows stay as they are within ``embedrock.nn.loading_dense_only``, in which also
    ``embedrock.resume`` loads.

    Errors: ``NotFoundError`` where its commit is not kept.
    """
    if is_dense_only():
        return
    for key, module in module_states(model, store):
        saved = state_dict.get(key)
        commit = state_dict_guard.commit_of(saved, store)
        if commit is None:
            continue
        number, step = commit
        kept = store.commits()
        if kept and kept[-1].sequence == number and store.uncommitted == (0, 0):
            continue  # there already
        pinned = [pin for pin in store._core.pins() if pin["sequence"] == number]
        name = next((pin["name"] for pin in pinned if pin["step"] == step), None)
        same = [each.sequence for each in kept if each.step == step]
        if name is None and same and same[-1] != number:
            continue  # the store has gone on by another way since
        try:
            store._look_back(step if name is None else name)
        except NotFoundError as error:
            if _fits(module, saved):
                continue  # nothing has changed since
            raise NotFoundError(
                f"{named} was saved beside the commit of step {step}, and {error}, as many as "
                f"there are checkpoints to load; Commits pins those of checkpoints that are where "
                f"they were saved"
            ) from error


def _fits(module: RowsModule, saved: Any) -> bool:
    try:
        module.set_extra_state(saved)
    except MismatchError:
        return False
    return True
