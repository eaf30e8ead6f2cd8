"""``Commits``: a commit of the rows with each checkpoint of Lightning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from embedrock._optional import missing
from embedrock.adapters import _restoring
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
    """Commits the store with each checkpoint, and goes back to that commit where one is loaded.

    Lightning saves the dense parameters and the optimizers; rows are committed under
    ``trainer.global_step`` before the checkpoint's file is there. ``ckpt_path=`` of ``fit``,
    ``validate``, ``test`` and ``predict``, ``"best"`` and ``"last"`` included, brings the rows back
    in place before it loads the parameters.

    The store has to keep the commits of all checkpoints that may be loaded: open it with a ``keep``
    above the ``save_top_k`` of ``ModelCheckpoint``, and above how many checkpoints come after the
    best one. An exception in training leaves the store at its last commit once it is opened again.

    Args:
        store: The open store with the tables of the model.

    Errors: ``NotFoundError`` for a checkpoint whose commit is not kept; ``UnsupportedError`` for
    several processes.

    Durability: the rows of a checkpoint are durable before its file is written.

    >>> from embedrock.adapters.lightning import Commits
    >>> callbacks = [Commits(store)]
    """

    def __init__(self, store: Store) -> None:
        """Takes the store."""
        self.store = _restoring.the_store(store)
        self._module: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Takes part in what the module saves and loads."""
        _restoring.only_process(trainer.world_size, "Trainer")
        if self._module is not None:
            self._release()
        self._module = pl_module
        saves, loads = pl_module.on_save_checkpoint, pl_module.on_load_checkpoint

        # A callback is asked after the parameters are loaded, and not at all where only they are
        # saved; the module is asked before, and always.
        def on_save_checkpoint(checkpoint: dict[str, Any]) -> None:
            _restoring.commit(self.store, trainer.global_step)
            _restoring.restate(pl_module, self.store, checkpoint["state_dict"])
            saves(checkpoint)

        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            state = checkpoint["state_dict"]
            _restoring.go_back_for(pl_module, self.store, state, "the checkpoint")
            loads(checkpoint)

        pl_module.on_save_checkpoint = on_save_checkpoint
        pl_module.on_load_checkpoint = on_load_checkpoint

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves the module as it was."""
        self._release()

    def _release(self) -> None:
        module, self._module = self._module, None
        if module is not None:
            for name in ("on_save_checkpoint", "on_load_checkpoint"):
                module.__dict__.pop(name, None)
