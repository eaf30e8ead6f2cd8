"""Save and resume a training run: tables and everything else, as one commit.

Owns the names and encoding of the byte strings that a commit carries beside the tables. Each is a
``state_dict`` written by ``torch.save``, and is read with ``weights_only=True``: tensors, numbers,
texts and plain containers, never code. Invariant: a commit has all parts or does not exist, so
tables and dense parameters are never of different steps.

========================== =====================================================
name                       content
========================== =====================================================
``model``                  ``model.state_dict()``: dense parameters and buffers
``optimizer.0``, ``.1`` …  each optimizer's ``state_dict()``
``scheduler.0`` …          each scheduler's
``scaler``, ``loader``     those of the ``GradScaler`` and of the loader
``random``                 generators of torch, its CUDA devices, NumPy and Python
``extra``                  the caller's own
========================== =====================================================
"""

from __future__ import annotations

import random
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import numpy as np
import torch

from embedrock import _logs
from embedrock._arguments import flag, instance, shown, whole
from embedrock._loading import loading_dense_only
from embedrock._rows import RowStore, here
from embedrock._states import decoded, encoded, fits, plain, told
from embedrock._warnings import warn
from embedrock._wrapped import with_names_of
from embedrock.commits import Commit, PendingCommit
from embedrock.errors import MismatchError, MisuseError, UncommittedWarning
from embedrock.store import Store

__all__ = ["Stateful", "resume", "save"]

_log = _logs.of("checkpoint")


@runtime_checkable
class Stateful(Protocol):
    """Anything that can tell and take its state: models, optimizers, schedulers, loaders."""

    def state_dict(self) -> Any:
        """The state, of tensors and plain values."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Takes a state that ``state_dict`` told."""


class CommittedStore(Protocol):
    """A store whose commits have the state of a run: a :class:`~embedrock.Store`, or that of ranks
    which commit together."""

    _commits_together: bool
    """Whether a commit is one of several processes, each of which calls ``save``."""
    _pending_step: int | None
    """Step of the last commit that was not waited for."""

    @property
    def path(self) -> Any:
        """Its location, for messages."""

    @property
    def step(self) -> int | None:
        """Step of the commit that it was opened at or made last."""

    @property
    def read_only(self) -> bool:
        """Whether nothing is restored but what is asked for."""

    @property
    def uncommitted(self) -> tuple[int, int]:
        """Batches and rows since that commit."""

    _state_taken: bool
    """Whether somebody took over what that commit has beside rows, or this handle made it."""

    def _take_state(self) -> None:
        """Notes that it was taken over."""

    def _stored_state(self) -> dict[str, bytes]:
        """The named byte strings of that commit, for a look at them."""

    def commit(
        self,
        step: int,
        meta: Any = None,
        state: Any = None,
        *,
        wait: bool,
        pin: str | None = None,
    ) -> Commit | PendingCommit:
        """Makes a commit."""

    def _made_elsewhere(self) -> str | None:
        """Why what the commit has of a process is not of this one; None where it is."""

    def _give_up(self, error: BaseException) -> None:
        """Tells those who commit together that this one cannot."""

    def _check_dense(self, owners: Sequence[tuple[str, Any]]) -> None:
        """Refuses dense parts that differ among those who commit together."""


_OF_PROCESS = ("random", "loader")
"""The parts of a commit that belong to a process, and not to the model."""

EXTRA_STATE = "_extra_state"
"""The name of what modules of ``embedrock.nn`` add to a state dict: no dense parameter."""

T = TypeVar("T")
OneOrMany: TypeAlias = T | Sequence[T] | None


@overload
def save(
    store: CommittedStore,
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    step: int,
    *,
    scheduler: OneOrMany[Stateful] = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    extra: Mapping[str, Any] | None = None,
    meta: Any = None,
    pin: str | None = None,
    new_model: bool = False,
    wait: Literal[True] = True,
) -> Commit: ...


@overload
def save(
    store: CommittedStore,
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    step: int,
    *,
    scheduler: OneOrMany[Stateful] = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    extra: Mapping[str, Any] | None = None,
    meta: Any = None,
    pin: str | None = None,
    new_model: bool = False,
    wait: Literal[False],
) -> PendingCommit: ...


@overload
def save(
    store: CommittedStore,
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    step: int,
    *,
    scheduler: OneOrMany[Stateful] = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    extra: Mapping[str, Any] | None = None,
    meta: Any = None,
    pin: str | None = None,
    new_model: bool = False,
    wait: bool,
) -> Commit | PendingCommit: ...


def save(
    store: CommittedStore,
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    step: int,
    *,
    scheduler: OneOrMany[Stateful] = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    extra: Mapping[str, Any] | None = None,
    meta: Any = None,
    pin: str | None = None,
    new_model: bool = False,
    wait: bool = True,
) -> Commit | PendingCommit:
    """Commits the store together with everything that a run needs to go on, and returns the commit.

    Random generators (torch's, its CUDA devices', NumPy's legacy one and Python's) are always part
    of it. Gradients that wait for a step are not.

    Args:
        store: The open store.
        model: Its ``state_dict`` holds the dense part; modules of ``embedrock.nn`` add which rows
            were theirs.
        optimizer: One or several, those of ``embedrock.optim`` included.
        step: The number of the step that is complete, not lower than that of the commit that the
            store was opened at or made last. The same step may be committed again, which releases
            copies of rows that only older commits need.
        scheduler: One or several learning rate schedulers.
        scaler: A ``GradScaler``.
        loader: A data loader with ``state_dict`` and ``load_state_dict``.
        extra: Tensors and plain values by name, handed back by ``resume(extra=...)``. Numbers that
            NumPy made come back as Python's.
        meta: Any JSON value; ``commits()`` shows it.
        pin: A name that keeps the commit beyond the last ones, as ``Store.pin`` does.
        new_model: Says that a model that began anew is meant to be trained on rows that an earlier
            one has left. Without, the dense part of the commit that the store was opened at has to
            have been taken over by someone: ``resume``, ``go_back`` or ``Store.state()``.
        wait: Whether to wait until it is durable. Without, the state of everything is taken at the
            call, training goes on while it is written, and the handle says when it is durable.

    Over a store of several ranks, all of them call it. They must have the same dense parameters
    and optimizer state of them, as ``DistributedDataParallel`` sees to; digests of both are
    compared. Buffers, such as running statistics, generators, loaders and ``extra`` may be each
    rank's own.

    Errors: ``MisuseError`` for a step lower than the last commit's, for a state that holds
    anything but tensors and plain values, with its place, and where the dense part of the opened
    commit would be lost, which nobody took over; ``MismatchError`` on all ranks where
    their dense parts differ, naming the first parameter; those of ``Store.commit``, which takes
    any step.

    Blocking: until the disk has it, or with ``wait=False`` as ``Store.commit`` says. Tables cost
    what changed since the last commit, dense state its size.

    Durability: when it returns, or the handle's ``wait`` does, a crash loses nothing of it; before,
    the last commit stands.

    >>> import torch
    >>> model = torch.nn.Sequential(
    ...     embedrock.nn.EmbeddingBag(None, 8, store=store, name="words", optimizer="sgd"),
    ...     torch.nn.Linear(8, 1),
    ... )
    >>> optimizers = [
    ...     embedrock.optim.SGD(model, lr=0.1),
    ...     torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.1),
    ... ]
    >>> first = embedrock.resume(store, model, optimizers)
    >>> for step in range(first + 1, 4):
    ...     loss = model(torch.tensor([[step, 2]])).sum()
    ...     loss.backward()
    ...     for optimizer in optimizers:
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> embedrock.save(store, model, optimizers, step).step
    3
    """
    _check_here(store, "embedrock.save")
    try:
        if not flag("new_model", new_model):
            _check_taken_over(store)
        owners = _owners(model, optimizer, scheduler, scaler, loader)
        number, state = _encoded(store, step, owners, extra)
    except Exception as error:
        store._give_up(error)
        raise
    store._check_dense(owners)
    return store.commit(number, meta, state, wait=wait, pin=pin)


def resume(
    store: CommittedStore,
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    *,
    scheduler: OneOrMany[Stateful] = None,
    scaler: Stateful | None = None,
    loader: Stateful | None = None,
    extra: MutableMapping[str, Any] | None = None,
) -> int:
    """Brings everything to the commit that the store was opened at, and returns its step.

    Returns 0 and changes nothing when there is no commit, so that one script starts and goes on.
    Pass what :func:`save` was given; ``extra`` is a dict that is updated with what ``save`` got.
    ``DistributedDataParallel`` may wrap parts of the model that it did not wrap then, or wrap less.
    Random generators are restored too, last of all. On AMD processors PyTorch's matrix products
    depend on where a batch begins in memory: ``docs/testing.md`` says what the same bits take.

    From a store that was opened ``read_only`` the model alone may be restored, to use it. The other
    parts of the commit are not read, and random generators stay as they are.

    Rows are not brought back: they are those of the commit because the store was opened at it. A
    handle that has changed rows since is refused, for model and rows would be of different steps.

    Errors: ``MisuseError`` when the store has changes that no commit holds; with an
    ``UncommittedWarning`` instead where there is no commit. ``MismatchError`` when the commit was
    made without a part that is asked for, or with one that is not, or has optimizers in another
    order, before anything is restored, and for an optimizer of other parameters; what
    ``load_state_dict`` of a part raises.

    Blocking: reads the dense state from the disk.
    """
    _check_here(store, "embedrock.resume")
    owners = _owners(model, optimizer, scheduler, scaler, loader)
    if not (extra is None or isinstance(extra, MutableMapping)):
        raise MisuseError(f"extra is {shown(extra)}, expected a dict to put what was saved into")
    _check_committed(store)
    if store.step is None:
        return 0
    stored = store._stored_state()
    asked = [name for name, _ in owners]
    if extra is not None:
        asked.append("extra")
    _check_parts(store, asked, stored)
    elsewhere = store._made_elsewhere()
    left = () if elsewhere is None else _OF_PROCESS
    taken = [name for name in (asked if store.read_only else stored) if name not in left]
    states = {name: decoded(stored[name], name) for name in taken}
    _check_order(owners, states)
    with loading_dense_only():  # the rows are those of the commit, in a copy of the store, too
        for name, owner in owners:
            if name not in left:
                _check_fits(name, owner, states[name])  # behind the model, which names parameters
                owner.load_state_dict(with_names_of(owner, states[name]))
    if extra is not None:
        extra.update(states["extra"])
    if elsewhere is not None:
        begins = "the loader begins its epoch anew, and generators" if loader else "generators"
        warn(f"{elsewhere}: {begins} stay as they are here")
    elif not store.read_only:
        _restore_random(states["random"])
    store._take_state()
    _log.info("%s: resumed at step %d: %s", store.path, store.step, ", ".join(taken))
    return store.step


def _encoded(
    store: CommittedStore,
    step: int,
    owners: Sequence[tuple[str, Any]],
    extra: Mapping[str, Any] | None,
) -> tuple[int, dict[str, bytes]]:
    """The step as a number, and the byte strings of its commit."""
    number = whole("step", step, 0)
    last = max((s for s in (store.step, store._pending_step) if s is not None), default=None)
    if last is not None and number < last:
        raise MisuseError(
            f"step is {number}, but the last commit in {store.path} is of step {last}; "
            f"count on from embedrock.resume(), or go back with store.go_back(step)"
        )
    states: dict[str, Any] = {"random": _random_state()}
    for name, owner in owners:
        states[name] = owner.state_dict()
    if extra is not None:
        if not isinstance(extra, Mapping):
            raise MisuseError(f"extra is {shown(extra)}, expected a dict of names to values")
        states["extra"] = dict(extra)
    values = {name: plain(state, name) for name, state in states.items()}
    return number, {name: encoded(state, name) for name, state in values.items()}


def _check_taken_over(store: CommittedStore) -> None:
    """Refuses to leave the dense part of the opened commit behind, where nobody has looked at it:
    rows of that commit were trained on with a model that began anew."""
    if store.step is None or store._state_taken:
        return
    content = store._stored_state().get("model")
    try:
        dense = {} if content is None else decoded(content, "model")
    except MismatchError:
        return  # somebody's own byte string of that name
    names = [name for name in dense if name.rpartition(".")[2] != EXTRA_STATE]
    if not names:
        return
    raise MisuseError(
        f"the commit of step {store.step} in {store.path} has a dense part ({names[0]!r} and "
        f"{len(names) - 1} more) that nobody has restored: the rows continue from that step, and "
        f"this model began anew; call embedrock.resume(store, model, optimizers) before you "
        f"train, or pass new_model=True where a new model on these rows is meant"
    )


def _check_here(store: object, what: str) -> None:
    if getattr(type(store), "_commits_together", False):
        return  # every rank's is here
    if isinstance(store, RowStore):
        here(store, what)
    instance("store", store, Store)


def _check_committed(store: CommittedStore) -> None:
    """Refuses a handle whose rows have gone on since its commit: a notebook's cell run again."""
    batches, rows = (0, 0) if store.read_only else store.uncommitted
    if batches == 0:
        return
    changed = f"{batches:,} batches have changed {rows:,} rows in {store.path}"
    if store.step is None:
        warn(
            f"{changed} before resume(), and no commit holds them: model and optimizers begin anew "
            f"and rows do not; close the store and open it again where rows shall begin anew, too",
            UncommittedWarning,
        )
        return
    raise MisuseError(
        f"{changed} since the commit of step {store.step}, and no commit holds them: model and "
        f"optimizers would go back to that step and rows would not; save first, or close the store "
        f"and open it again to go back with all of them"
    )


def _owners(
    model: Stateful | None,
    optimizer: OneOrMany[Stateful],
    scheduler: OneOrMany[Stateful],
    scaler: Stateful | None,
    loader: Stateful | None,
) -> list[tuple[str, Any]]:
    """Every part that was given, with its name. Schedulers come before optimizers, whose learning
    rates they would overwrite."""
    named: list[tuple[str, Any]] = [("model", model)]
    named += [(f"scheduler.{i}", each) for i, each in enumerate(_several(scheduler))]
    named += [(f"optimizer.{i}", each) for i, each in enumerate(_several(optimizer))]
    named += [("scaler", scaler), ("loader", loader)]
    found = [(name, owner) for name, owner in named if owner is not None]
    for name, owner in found:
        if isinstance(owner, type) or not isinstance(owner, Stateful):
            raise MisuseError(
                f"{name} is {shown(owner)}, expected something with state_dict() and "
                f"load_state_dict(); plain values go to extra="
            )
    return found


def _check_order(owners: Sequence[tuple[str, Any]], states: Mapping[str, Any]) -> None:
    """Refuses optimizers that fit what was saved under other names than theirs."""
    found = [(name, owner) for name, owner in owners if name.startswith("optimizer.")]
    for name, owner in found:
        own = [other for other, _ in found if fits(owner, states[other])]
        if own and name not in own:
            way = f"it fits what is saved as {own[0]}: give optimizers in the order of save"
            raise _of_others(name, owner, states[name], way)


def _check_fits(name: str, owner: Any, state: Any) -> None:
    """Refuses an optimizer of other parameters than those that were saved under its name."""
    if name.startswith("optimizer.") and not fits(owner, state):
        raise _of_others(name, owner, state, "make it of the same parameters in the same groups")


def _of_others(name: str, owner: Any, state: Any, way: str) -> MismatchError:
    return MismatchError(
        f"{name} is {type(owner).__name__} of {told(owner)}, and the commit's is of "
        f"{told(state)}; {way}"
    )


def _several(given: OneOrMany[Any]) -> Sequence[Any]:
    if given is None:
        return []
    return given if isinstance(given, (list, tuple)) else [given]


def _check_parts(store: CommittedStore, asked: Sequence[str], stored: Mapping[str, bytes]) -> None:
    missing = [name for name in [*asked, "random"] if name not in stored]
    if missing:
        raise MismatchError(
            f"the commit of step {store.step} in {store.path} has no {missing[0]}: it has "
            f"{', '.join(sorted(stored)) or 'no state'}; resume with what save was given"
        )
    unused = sorted(set(stored) - {*asked, "random", "extra"})
    if unused and not store.read_only:
        raise MismatchError(
            f"the commit of step {store.step} in {store.path} has {', '.join(unused)}, which "
            f"nobody takes; pass to resume what save was given, open the store read_only to use "
            f"the model alone, or read it with Store.state()"
        )


def _random_state() -> dict[str, Any]:
    kind, words, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(words, np.int64)), *rest],
        "python": random.getstate(),
    }


def _restore_random(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
