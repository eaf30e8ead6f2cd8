"""Hugging Face: a commit of the rows with each checkpoint of the ``Trainer`` and of Accelerate."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from embedrock._arguments import function, whole
from embedrock._optional import missing
from embedrock.adapters import _restoring
from embedrock.adapters._pinning import CheckpointPins
from embedrock.optim.base import RowOptimizer
from embedrock.store import Store

__all__ = ["Commits", "StateCommits", "commit_with"]


def _of_transformers(name: str) -> Any:
    if importlib.util.find_spec("transformers") is None:
        return object  # Accelerate alone needs no callbacks
    return getattr(importlib.import_module("transformers"), name)


class Commits(_of_transformers("TrainerCallback")):  # type: ignore[misc]
    """A ``TrainerCallback`` that commits the store with each checkpoint of the ``Trainer``.

    ``trainer.train(resume_from_checkpoint=...)`` and ``load_best_model_at_end`` bring the rows back
    in place before they load the parameters. Pass it to the ``Trainer`` when that is made, with
    ``optimizers=(embedrock.optim.Together(...), scheduler)``.

    The commit of each checkpoint is pinned as long as its folder exists, whoever removes it, so the
    best model finds its rows however many checkpoints came after. If training goes on from an
    earlier checkpoint, later ones lose their rows, with a warning.

    Args:
        store: The open store with the tables of the model.
        pin: False leaves commits to the store's ``keep``, which spares each checkpoint the writing
            of an index (:meth:`embedrock.Store.pin`). ``keep`` then has to be above
            ``save_total_limit``, and above how many checkpoints come after the best one.

    Errors: ``NotFoundError`` for a checkpoint whose commit is not kept, as that of one that was
    moved may be; ``UnsupportedError`` for several processes; ``ModuleNotFoundError`` without
    transformers.

    Durability: the rows of a checkpoint are durable, and pinned, before its files are written.

    >>> from embedrock.adapters.hf import Commits
    >>> callbacks = [Commits(store)]
    """

    def __init__(self, store: Store, *, pin: bool = True) -> None:
        """Takes the store."""
        if importlib.util.find_spec("transformers") is None:
            raise ModuleNotFoundError(
                missing("embedrock.adapters.hf.Commits", "transformers", "transformers"),
                name="transformers",
            )
        self.store = _restoring.the_store(store)
        self._pins = CheckpointPins(self.store, pin)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Goes back before a state is loaded."""
        _restoring.only_process(max(args.world_size, args.n_gpu), "Trainer")
        _go_back_before_loads(kwargs["model"], self.store)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Commits from here on as soon as anything decides that a checkpoint is saved."""
        self.drop_later()
        watched = TrainerControl(**dataclasses.asdict(control))

        def commit() -> None:
            self._commit(args, state)

        watched.before_saves = commit
        # It saves by itself, and asks for the end of training first.
        watched.saves_at_stop = bool(getattr(args, "enable_jit_checkpoint", False))
        return watched

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits where it was decided before the step that a checkpoint is saved behind it."""
        if control.should_save:
            self._commit(args, state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """As at the end of a step."""
        if control.should_save:
            self._commit(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits what another control than ours has let the Trainer save."""
        self._commit(args, state)
        self._pins.saved(_folder(args, state), is_sure=True)
        self._pins.tidy()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Takes the pins of checkpoints away that are gone."""
        self._pins.tidy()

    def drop_later(self) -> None:
        """Unpins the checkpoints after the commit that the store is at, so that it can change.

        ``train`` does so by itself. Behind ``load_best_model_at_end`` it lets ``store.commit`` make
        the best rows the last ones. Warns with the checkpoints that lose their rows.
        """
        self._pins.drop_later()

    def _commit(self, args: Any, state: Any) -> None:
        _restoring.commit(self._pins, state.global_step)
        self._pins.hold(_folder(args, state))


def _folder(args: Any, state: Any) -> str:
    """The folder in which the Trainer saves the checkpoint of this step."""
    return os.path.join(args.output_dir, f"checkpoint-{state.global_step}")


class TrainerControl(_of_transformers("TrainerControl")):  # type: ignore[misc]
    """The control of a Trainer, which commits when it is told that a checkpoint is to be saved.

    Callbacks behind ours may still decide that in the same event, and the Trainer itself for the
    best model. Files are written before any callback is told. The name of the class is the one
    under which checkpoints keep a control.
    """

    before_saves: Callable[[], None] | None = None
    saves_at_stop = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        saves = name == "should_save" or (name == "should_training_stop" and self.saves_at_stop)
        if saves and value and self.before_saves is not None:
            self.before_saves()


def commit_with(
    accelerator: Any, store: Store, step: Callable[[], int] | None = None, *, pin: bool = True
) -> StateCommits:
    """Commits the store with each ``accelerator.save_state``, and goes back with ``load_state``.

    ``step`` gives the number of the commit; None: one more than that of the last commit. The rows
    are durable before the files of the state are written, and pinned as long as its folder is
    there; ``pin=False`` leaves that to the store's ``keep``. The first step that changes rows after
    a state was loaded goes on from there: later states lose their rows, with a warning. Evaluation
    loses nothing. A change before that step, as by ``table.put`` or a constraint of rows, is
    refused for the later pins: call ``drop_later()`` of what is returned before.

    Errors: as for :class:`Commits`.

    >>> from embedrock.adapters.hf import commit_with
    >>> commits = commit_with(accelerator, store)  # doctest: +SKIP
    """
    pins = CheckpointPins(_restoring.the_store(store), pin)
    function("step", step, "no arguments that returns the number of the step")
    _restoring.only_process(accelerator.num_processes, "Accelerator")

    def save(models: list[nn.Module], weights: list[dict[str, Any]], output_dir: str) -> None:
        last = -1 if store.step is None else store.step
        number = last + 1 if step is None else whole("step", step(), 0)
        saved()
        _restoring.commit(pins, number)
        pins.tidy()
        pins.hold(output_dir)
        last_saved[:] = [output_dir]
        for model, state in zip(models, weights, strict=False):
            _restoring.restate(model, store, state)

    def load(models: list[nn.Module], input_dir: str) -> None:
        saved()
        for model in models:
            _go_back_before_loads(model, store)
        _watch(pins)

    last_saved: list[str] = []

    def saved() -> None:  # nothing tells when the files of a state are there
        while last_saved:
            pins.saved(last_saved.pop(), is_sure=True)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return StateCommits(pins)


class StateCommits:
    """The commits of a store with the states of an Accelerator; :func:`commit_with` gives it."""

    def __init__(self, pins: CheckpointPins) -> None:
        """Takes the pins of the states."""
        self._pins = pins

    def drop_later(self) -> None:
        """Unpins the states after the commit that the store is at, so that it can change.

        A step of an optimizer of ``embedrock.optim`` does so by itself. Call it behind
        ``load_state`` and before any other change: ``table.put``, ``table.modify``, rows that a
        constraint writes in a forward, ``store.commit``. Warns with the states that lose their
        rows.
        """
        self._pins.drop_later()


_gone_back: weakref.WeakSet[CheckpointPins] = weakref.WeakSet()
"""Pins of stores that a state was loaded for, and of which no rows have changed since."""
_looks_at_steps: list[RemovableHandle] = []
"""The hook of this process, once it is needed, in torch's public registry: a step of any optimizer
may be the first change, and Trainer makes optimizers that nobody hands us. It stays: torch may be
going through its hooks whenever one could be taken away, and refuses to go on then."""


def _watch(pins: CheckpointPins) -> None:
    """Unpins later checkpoints before the first step that changes rows. No forward tells that
    training goes on, in whichever mode the model is."""
    if not _looks_at_steps:
        _looks_at_steps.append(register_optimizer_step_pre_hook(_before_step))
    _gone_back.add(pins)


def _before_step(optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    if not _gone_back or not isinstance(optimizer, RowOptimizer):
        return
    # A closure brings the gradients within the step.
    has_closure = any(callable(one) for one in (*arguments[1:], *keywords.values()))
    for pins in list(_gone_back):
        if any(
            rows.table.store is pins.store and (has_closure or rows.parameter.grad is not None)
            for rows in optimizer._pending.values()
        ):
            pins.drop_later()
            _gone_back.discard(pins)  # an error of the former leaves it to the next step


class _GoesBack:
    """Before a module loads a state, its rows go back to those that it was saved beside."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store

    def __call__(self, module: nn.Module, state_dict: Any, prefix: str, *_: Any) -> None:
        if self.store is None:
            return
        own = {key[len(prefix) :]: state_dict[key] for key in state_dict if key.startswith(prefix)}
        _restoring.go_back_for(module, self.store, own, "the state_dict")

    def __reduce__(self) -> Any:
        return _GoesBack, ()  # a model that was pickled goes back once it is made to

    def __deepcopy__(self, memo: object) -> _GoesBack:
        return self


def _go_back_before_loads(model: nn.Module, store: Store) -> None:
    for hook in model._load_state_dict_pre_hooks.values():
        found = getattr(hook, "hook", hook)
        if isinstance(found, _GoesBack) and found.store is store:
            return
    model._register_load_state_dict_pre_hook(_GoesBack(store), with_module=True)
