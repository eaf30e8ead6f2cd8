"""``read_together``: the reads of all modules of a model in one call of the engine."""

from __future__ import annotations

from typing import Any

from torch import nn

from embedrock._arguments import shown
from embedrock.errors import MisuseError
from embedrock.pipeline.grouped_read import GroupedRead, offer, withdraw
from embedrock.pipeline.keys import KeyFinder, KeysOf, for_model, stores_of
from embedrock.pipeline.run import Run

__all__ = ["ReadTogether", "read_together"]


class ReadTogether:
    """The handle that :func:`read_together` returns."""

    def __init__(self, model: nn.Module, finder: KeyFinder) -> None:
        """Begins it."""
        self._finder = finder
        self._offered: list[GroupedRead] = []
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after, always_call=True),
        ]

    def remove(self) -> None:
        """Ends it: each module reads for itself. A second call does nothing."""
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs = (*given, named) if named else given
        for store, parts in self._finder.by_store(inputs[0] if len(inputs) == 1 else inputs):
            others = any(store._listeners.find(kind) is not None for kind in (GroupedRead, Run))
            if len(parts) > 1 and not others:
                self._offered.append(offer(store, parts))

    def _after(self, model: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        withdraw(self._offered)
        self._offered.clear()


def read_together(model: nn.Module, keys_of: KeysOf | None = None) -> ReadTogether:
    """Makes the first module call in a forward of the model read the rows of all modules.

    For models with a module for each field, in a loop without :class:`embedrock.LookaheadLoader` or
    :class:`embedrock.Pipeline`, which do it by themselves. If rows are not in memory, one call of
    the engine keeps the disk busy with all tables at once; a call for each module waits for each
    table in turn. Results are the same: a module that is called again, with ids other than those of
    ``keys_of``, or after its rows have changed, reads for itself.

    Args:
        model: The model, or the part of it whose forward calls the modules.
        keys_of: From the model's input to ``{table or module: keys}``, as
            :mod:`embedrock.pipeline` describes. The input is the only argument of the forward, or a
            tuple of all, keyword arguments as a dict at its end. None takes the model's own.

    Returns a handle whose ``remove()`` ends it.

    Errors: ``MisuseError`` for what is no model with tables; from a forward, what ``keys_of``
    raises.

    Blocking: a forward waits for the rows of all tables at its first module.

    >>> import torch
    >>> class Model(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.user = embedrock.nn.Embedding(None, 4, store=store, name="user")
    ...         self.item = embedrock.nn.Embedding(None, 4, store=store, name="item")
    ...     def forward(self, batch):
    ...         return (self.user(batch["user"]) * self.item(batch["item"])).sum(dim=1)
    >>> model = Model()
    >>> together = embedrock.nn.read_together(model)
    >>> model({"user": torch.tensor([1, 2]), "item": torch.tensor([7, 7])}).shape
    torch.Size([2])
    >>> together.remove()
    """
    if not isinstance(model, nn.Module):
        raise MisuseError(f"model is {shown(model)}, expected a torch.nn.Module")
    finder = KeyFinder(for_model(model) if keys_of is None else keys_of, stores_of(model))
    return ReadTogether(model, finder)
