"""Hugging Face: a commit of the rows with each checkpoint of the ``Trainer`` and of Accelerate."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import nn

from embedrock._arguments import function, whole
from embedrock._optional import missing
from embedrock.adapters import _restoring
from embedrock.store import Store

__all__ = ["Commits", "commit_with"]


def _callback() -> Any:
    if importlib.util.find_spec("transformers") is None:
        return object  # Accelerate alone needs no callbacks
    return importlib.import_module("transformers").TrainerCallback


class Commits(_callback()):  # type: ignore[misc]
    """A ``TrainerCallback`` that commits the store with each checkpoint of the ``Trainer``.

    ``trainer.train(resume_from_checkpoint=...)`` and ``load_best_model_at_end`` bring the rows back
    in place before they load the parameters. Pass it to the ``Trainer`` when that is made, with
    ``optimizers=(embedrock.optim.Together(...), scheduler)``.

    The store has to keep the commits of all checkpoints that may be loaded: open it with a ``keep``
    above ``save_total_limit``, and above how many checkpoints come after the best one.

    Args:
        store: The open store with the tables of the model.

    Errors: ``NotFoundError`` for a checkpoint whose commit is not kept; ``UnsupportedError`` for
    several processes; ``ModuleNotFoundError`` without transformers.

    Durability: the rows of a checkpoint are durable before its files are written.

    >>> from embedrock.adapters.hf import Commits
    >>> callbacks = [Commits(store)]
    """

    def __init__(self, store: Store) -> None:
        """Takes the store."""
        if importlib.util.find_spec("transformers") is None:
            raise ModuleNotFoundError(
                missing("embedrock.adapters.hf.Commits", "transformers", "transformers"),
                name="transformers",
            )
        self.store = _restoring.the_store(store)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Goes back before a state is loaded."""
        _restoring.only_process(max(args.world_size, args.n_gpu), "Trainer")
        _go_back_before_loads(kwargs["model"], self.store)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits where a checkpoint is to be saved."""
        if control.should_save:
            _restoring.commit(self.store, state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits where a checkpoint is to be saved."""
        if control.should_save:
            _restoring.commit(self.store, state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits where a checkpoint is saved if it is the best."""
        if args.save_strategy == "best":
            _restoring.commit(self.store, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Commits what others have decided to save."""
        _restoring.commit(self.store, state.global_step)


def commit_with(accelerator: Any, store: Store, step: Callable[[], int] | None = None) -> None:
    """Commits the store with each ``accelerator.save_state``, and goes back with ``load_state``.

    ``step`` gives the number of the commit; None: one more than that of the last commit. The rows
    are durable before the files of the state are written.

    Errors: as for :class:`Commits`.

    >>> from embedrock.adapters.hf import commit_with
    >>> commit_with(accelerator, store)  # doctest: +SKIP
    """
    _restoring.the_store(store)
    function("step", step, "no arguments that returns the number of the step")
    _restoring.only_process(accelerator.num_processes, "Accelerator")

    def save(models: list[nn.Module], weights: list[dict[str, Any]], output_dir: str) -> None:
        last = -1 if store.step is None else store.step
        number = last + 1 if step is None else whole("step", step(), 0)
        _restoring.commit(store, number)
        for model, state in zip(models, weights, strict=False):
            _restoring.restate(model, store, state)

    def load(models: list[nn.Module], input_dir: str) -> None:
        for model in models:
            _go_back_before_loads(model, store)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


class _GoesBack:
    """Before a module loads a state, its rows go back to those that it was saved beside."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, module: nn.Module, state_dict: Any, prefix: str, *_: Any) -> None:
        own = {key[len(prefix) :]: state_dict[key] for key in state_dict if key.startswith(prefix)}
        _restoring.go_back_for(module, self.store, own, "the state_dict")


def _go_back_before_loads(model: nn.Module, store: Store) -> None:
    for hook in model._load_state_dict_pre_hooks.values():
        if isinstance(getattr(hook, "hook", hook), _GoesBack):
            return
    model._register_load_state_dict_pre_hook(_GoesBack(store), with_module=True)
