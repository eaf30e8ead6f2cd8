"""Save and resume a training run: tables and everything else, as one commit.

Owns the names and encoding of the byte strings that a commit carries beside the tables. Each is
what ``torch.save`` writes of a ``state_dict``, and is read with ``weights_only=True``: tensors,
numbers, texts and plain containers, never code. What always holds: a commit has all parts or does
not exist, so tables and dense parameters are never of different steps.

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

import io
import random
from collections import Counter, OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload, runtime_checkable

import numpy as np
import torch

from embedrock._arguments import instance, shown, whole
from embedrock._loading import loading_dense_only
from embedrock._rows import RowStore, here
from embedrock._warnings import warn
from embedrock._wrapped import with_names_of
from embedrock.commits import Commit, PendingCommit
from embedrock.errors import MismatchError, MisuseError, UncommittedWarning
from embedrock.store import Store

__all__ = ["Stateful", "resume", "save"]


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
        """Where it is, for messages."""

    @property
    def step(self) -> int | None:
        """Step of the commit that it was opened at or made last."""

    @property
    def read_only(self) -> bool:
        """Whether nothing is restored but what is asked for."""

    @property
    def uncommitted(self) -> tuple[int, int]:
        """Batches and rows since that commit."""

    def state(self) -> dict[str, bytes]:
        """The named byte strings of that commit."""

    def commit(
        self, step: int, meta: Any = None, state: Any = None, *, wait: bool
    ) -> Commit | PendingCommit:
        """Makes a commit."""

    def _made_elsewhere(self) -> str | None:
        """Why what the commit has of a process is not of this one; None where it is."""

    def _give_up(self, error: BaseException) -> None:
        """Tells those who commit together that this one cannot."""

    def _check_dense(self, owners: Sequence[tuple[str, Any]]) -> None:
        """Refuses dense parts that differ among those who commit together."""


_OF_PROCESS = ("random", "loader")
"""What a commit has of a process, and not of the model."""

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
        extra: Tensors and plain values by name, handed back by ``resume(extra=...)``.
        meta: What ``commits()`` shows of the commit: anything that JSON holds.
        wait: Whether to wait until it is durable. Without, the state of everything is taken at the
            call, training goes on while it is written, and the handle says when it is durable.

    Over a store of several ranks, all of them call it. They must have the same dense parameters
    and optimizer state of them, as ``DistributedDataParallel`` sees to; digests of both are
    compared. Buffers, such as running statistics, generators, loaders and ``extra`` may be each
    rank's own.

    Errors: ``MisuseError`` for a step lower than the last commit's, and for a state that holds
    anything but tensors and plain values, with its place; ``MismatchError`` on all ranks where
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
        owners = _owners(model, optimizer, scheduler, scaler, loader)
        number, encoded = _encoded(store, step, owners, extra)
    except Exception as error:
        store._give_up(error)
        raise
    store._check_dense(owners)
    return store.commit(number, meta, encoded, wait=wait)


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

    From a store that was opened ``read_only`` the model alone may be asked for, to use it. What the
    commit has beside it is not read, and random generators stay as they are.

    Rows are not brought back: they are those of the commit because the store was opened at it. A
    handle that has changed rows since is refused, for model and rows would be of different steps.

    Errors: ``MisuseError`` when the store has changes that no commit holds; with an
    ``UncommittedWarning`` instead where there is no commit. ``MismatchError`` when the commit was
    made without a part that is asked for, or with one that is not, before anything is restored;
    what ``load_state_dict`` of a part raises.

    Blocking: reads the dense state from the disk.
    """
    _check_here(store, "embedrock.resume")
    owners = _owners(model, optimizer, scheduler, scaler, loader)
    if not (extra is None or isinstance(extra, MutableMapping)):
        raise MisuseError(f"extra is {shown(extra)}, expected a dict to put what was saved into")
    _check_committed(store)
    if store.step is None:
        return 0
    stored = store.state()
    asked = [name for name, _ in owners]
    if extra is not None:
        asked.append("extra")
    _check_parts(store, asked, stored)
    elsewhere = store._made_elsewhere()
    left = () if elsewhere is None else _OF_PROCESS
    taken = [name for name in (asked if store.read_only else stored) if name not in left]
    decoded = {name: _decode(stored[name], name) for name in taken}
    with loading_dense_only():  # the rows are those of the commit, in a copy of the store, too
        for name, owner in owners:
            if name not in left:
                owner.load_state_dict(with_names_of(owner, decoded[name]))
    if extra is not None:
        extra.update(decoded["extra"])
    if elsewhere is not None:
        begins = "the loader begins its epoch anew, and generators" if loader else "generators"
        warn(f"{elsewhere}: {begins} stay as they are here")
    elif not store.read_only:
        _restore_random(decoded["random"])
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
    for name, state in states.items():
        _check_plain(state, name)
    return number, {name: _encode(state, name) for name, state in states.items()}


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
            f"nobody takes; resume with what save was given, open the store read_only to use the "
            f"model alone, or read it with Store.state()"
        )


def _encode(state: Any, name: str) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise MisuseError(f"{name} holds a tensor that torch does not save: {error}") from error
    return buffer.getvalue()


def _decode(content: bytes, name: str) -> Any:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise MismatchError(
            f"{name} of the commit is not what embedrock.save writes: {error}"
        ) from error


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_CONTAINERS = (list, tuple, set, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)


def _check_plain(value: Any, place: str) -> None:
    """Refuses what ``torch.load(weights_only=True)`` could not read back, before it is too late."""
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return
    if isinstance(value, _MAPPINGS) and type(value).__module__ in ("builtins", "collections"):
        for key, entry in value.items():
            _check_plain(key, f"a key of {place}")
            _check_plain(entry, f"{place}[{key!r}]")
        return
    if type(value) in _CONTAINERS:
        for i, entry in enumerate(value):
            _check_plain(entry, f"{place}[{i}]")
        return
    raise MisuseError(
        f"{place} is {type(value).__module__}.{type(value).__qualname__}, expected tensors, "
        f"numbers, texts, lists and dicts of these; convert arrays with torch.from_numpy"
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
