"""``Commits``: a commit of the rows with each checkpoint of Lightning."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import weakref
from typing import Any

from embedrock._optional import missing
from embedrock.adapters import _restoring
from embedrock.adapters._pinning import CheckpointPins
from embedrock.store import Store

__all__ = ["Commits"]


def _callback() -> Any:
    """The class of callbacks, of the package that the program uses."""
    packages = {"pytorch_lightning": "pytorch_lightning", "lightning": "lightning.pytorch"}
    there = [name for name in packages if importlib.util.find_spec(name) is not None]
    used = [name for name in there if name in sys.modules] or there
    if not used:
        raise ModuleNotFoundError(
            missing("embedrock.adapters.lightning", "Lightning", "lightning"), name="lightning"
        )
    return importlib.import_module(packages[used[0]]).Callback


class Commits(_callback()):  # type: ignore[misc]
    """Commits the store with each checkpoint, and goes back to that commit when one is loaded.

    Lightning saves the dense parameters and the optimizers; rows are committed under
    ``trainer.global_step`` before the checkpoint's file is there, also by a ``save_checkpoint`` of
    the trainer behind ``fit``. ``ckpt_path=`` of ``fit``, ``validate``, ``test`` and ``predict``,
    ``"best"`` and ``"last"`` included, brings the rows back in place before it loads the
    parameters.

    The commit of each checkpoint is pinned as long as its file exists, whoever removes it, so
    ``ckpt_path="best"`` finds its rows however many checkpoints came after. If training goes on
    from an earlier checkpoint, later ones lose their rows, with a warning; evaluation loses
    nothing. An exception in training leaves the store at its last commit once it is opened again.

    Args:
        store: The open store with the tables of the model.
        pin: False leaves commits to the store's ``keep``, which spares each checkpoint the writing
            of an index (:meth:`embedrock.Store.pin`). ``keep`` then has to be above the
            ``save_top_k`` of ``ModelCheckpoint``, and above how many checkpoints come after the
            best one.

    Errors: ``NotFoundError`` for a checkpoint whose commit is not kept, as that of one that was
    moved may be; ``UnsupportedError`` for several processes.

    Durability: the rows of a checkpoint are durable, and pinned, before its file is written.

    >>> from embedrock.adapters.lightning import Commits
    >>> callbacks = [Commits(store)]
    """

    def __init__(self, store: Store, *, pin: bool = True) -> None:
        """Takes the store."""
        self.store = _restoring.the_store(store)
        self._pins = CheckpointPins(self.store, pin)
        self._module: Any = None
        self._saving: weakref.WeakSet[Any] = weakref.WeakSet()
        """Trainers whose saves commit."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Takes part in what the trainer saves and the module loads."""
        _restoring.only_process(trainer.world_size, "Trainer")
        if self._module is not None:
            self._release()
        self._module = pl_module
        self._commit_before_saves(trainer)
        loads = pl_module.on_load_checkpoint

        # A callback is asked after the parameters are loaded, and not at all where only they are
        # saved; the module is asked before, and always.
        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            state = checkpoint["state_dict"]
            _restoring.go_back_for(pl_module, self.store, state, "the checkpoint")
            loads(checkpoint)

        pl_module.on_load_checkpoint = on_load_checkpoint

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes leave of checkpoints after the one that training goes on from."""
        self.drop_later()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes the pins of checkpoints away that are gone."""
        self._pins.tidy()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves the module as it was."""
        self._release()

    def drop_later(self) -> None:
        """Unpins the checkpoints after the commit that the store is at, so that it can change.

        ``fit`` does so by itself. Behind ``validate(ckpt_path="best")`` it lets ``store.commit``
        make the best rows the last ones. Warns with the checkpoints that lose their rows.
        """
        self._pins.drop_later()

    def _release(self) -> None:
        module, self._module = self._module, None
        if module is not None:
            module.__dict__.pop("on_load_checkpoint", None)

    def _commit_before_saves(self, trainer: Any) -> None:
        """Lets the trainer commit before it saves, for as long as this is one of its callbacks.

        Everything that Lightning saves goes through this method of the trainer, of which callbacks
        and modules are told only while a loop runs, or not where parameters alone are saved.
        """
        if trainer in self._saving:
            return
        self._saving.add(trainer)
        saves = trainer.save_checkpoint

        @functools.wraps(saves)
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> None:
            commits = self in trainer.callbacks
            if commits:
                _restoring.commit(self._pins, trainer.global_step)
                self._pins.tidy()
                self._pins.hold(filepath)
            saves(filepath, *args, **kwargs)
            if commits:
                self._pins.saved(filepath)

        trainer.save_checkpoint = save_checkpoint
