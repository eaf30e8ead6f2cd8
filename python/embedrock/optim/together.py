"""``Together``: the optimizers of a model as one, for trainers that take one.

Owns no hyperparameter and no state: groups and states are the present ones of its parts. Invariant:
parts of tables step first, so a refused gradient leaves dense parameters as they were, and a norm
that a part of tables bounds scales dense gradients before they are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

from embedrock._arguments import function, shown
from embedrock.errors import MismatchError, MisuseError
from embedrock.optim.base import RowOptimizer

__all__ = ["Together"]

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


class Together(torch.optim.Optimizer):  # type: ignore[misc]
    """Several optimizers as one: that of the dense parameters and those of the tables.

    Lightning, Accelerate, the Trainer of Hugging Face and libraries of click models take a single
    optimizer. This one has the parameter groups of all its parts, the same dicts, so learning rate
    schedulers, ``GradScaler`` and gradient clipping reach all of them.

    A step evaluates the closure once and steps the parts, those of tables first. ``zero_grad``
    clears all. A ``state_dict`` has those of the parts.

    Args:
        optimizers: The parts, in any order: torch's over ``embedrock.nn.dense_parameters(model)``,
            and those of ``embedrock.optim`` over the model.

    Errors: ``MisuseError`` for a part that is no optimizer, and for a parameter that two parts
    have. ``step`` raises what the parts raise; an error of a part of tables comes before any dense
    parameter has changed.

    Blocking, Durability: those of the parts.

    >>> import torch
    >>> model = torch.nn.Sequential(
    ...     embedrock.nn.EmbeddingBag(None, 4, store=store, name="words", optimizer="sgd"),
    ...     torch.nn.Linear(4, 1),
    ... )
    >>> optimizer = embedrock.optim.Together(
    ...     torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.01),
    ...     embedrock.optim.SGD(model, lr=0.1),
    ... )
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    >>> model(torch.tensor([[1, 2]])).sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    >>> schedule.step()
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.005, 0.05]
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        """Takes the parts."""
        # Optimizer.__init__ would copy the groups, and a scheduler would change the copies.
        if not optimizers:
            raise MisuseError("Together is of no optimizer, expected one or more")
        for each in optimizers:
            if not isinstance(each, torch.optim.Optimizer):
                given = shown(each)
                raise MisuseError(f"an optimizer is {given}, expected a torch.optim.Optimizer")
        self.optimizers = tuple(optimizers)
        _refuse_shared(self.optimizers)
        self.defaults = _common([each.defaults for each in self.optimizers])
        for name in _HOOKS:
            setattr(self, name, OrderedDict())
        self._patch_step_function()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all parts, in the order of the parts."""
        return [group for each in self.optimizers for group in each.param_groups]

    @property
    def state(self) -> MutableMapping[Any, Any]:
        """The state that the parts keep of each parameter. The state of rows is in the store."""
        return _States(self.optimizers)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the parts, and returns what the closure returns, which is called once."""
        loss = None
        function("closure", closure, "no arguments that returns the loss")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each in sorted(self.optimizers, key=lambda part: not isinstance(part, RowOptimizer)):
            each.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parts."""
        for each in self.optimizers:
            each.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Gives a group to the first part that takes such: modules of tables, or parameters."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise MisuseError(f'param_group is {shown(param_group)}, expected a dict with "params"')
        params = param_group["params"]
        listed = params if isinstance(params, (list, tuple)) else [params]
        rows = any(isinstance(each, nn.Module) for each in listed)
        for each in self.optimizers:
            if isinstance(each, RowOptimizer) == rows:
                each.add_param_group(param_group)
                _refuse_shared(self.optimizers)
                return
        raise MisuseError(
            "no part takes modules of tables; add an optimizer of embedrock.optim"
            if rows
            else "no part takes parameters; add an optimizer of torch.optim"
        )

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters by group, and the ``state_dict`` of each part, of plain values."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.param_groups
        ]
        state: dict[str, Any] = {
            "state": {},
            "param_groups": groups,
            "parts": [each.state_dict() for each in self.optimizers],
        }
        for hook in self._optimizer_state_dict_post_hooks.values():
            state = hook(self, state) or state
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives each part its state.

        Errors: ``MismatchError`` when it is of another number of parts, and what a part raises.
        """
        parts = state_dict.get("parts") if isinstance(state_dict, Mapping) else None
        if not isinstance(parts, list):
            raise MisuseError(
                f"state_dict is {shown(state_dict)}, expected what Together.state_dict() returned"
            )
        if len(parts) != len(self.optimizers):
            raise MismatchError(
                f"the saved state is of {len(parts)} optimizers, this one has "
                f"{len(self.optimizers)}; make it of the same in the same order"
            )
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        for each, state in zip(self.optimizers, state_dict["parts"], strict=True):
            each.load_state_dict(state)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> Any:
        """Refuses to be copied or pickled, as its parts of tables do."""
        raise MisuseError(
            "Together cannot be copied or pickled: make it anew and use state_dict() and "
            "load_state_dict()"
        )

    def __repr__(self) -> str:
        """The parts."""
        return f"Together({', '.join(repr(each) for each in self.optimizers)})"


class _States(MutableMapping[Any, Any]):
    """The states of several optimizers as one mapping, which writes to the one that has a key."""

    def __init__(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, key: Any) -> Any:
        return self._of(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of(key)[key]

    def __iter__(self) -> Iterator[Any]:
        return (key for each in self._optimizers for key in each.state)

    def __len__(self) -> int:
        return sum(len(each.state) for each in self._optimizers)

    def _of(self, key: Any) -> Any:
        for each in self._optimizers:
            if key in each.state or any(
                key is parameter for group in each.param_groups for parameter in group["params"]
            ):
                return each.state
        raise KeyError(key)


def _refuse_shared(optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
    """Refuses a parameter that two parts would step."""
    seen: dict[int, int] = {}
    for place, each in enumerate(optimizers):
        for group in each.param_groups:
            for parameter in group["params"]:
                first = seen.setdefault(id(parameter), place)
                if first != place:
                    raise MisuseError(
                        f"optimizers {first} and {place} both have a parameter of shape "
                        f"{tuple(parameter.shape)}; give dense optimizers "
                        f"embedrock.nn.dense_parameters(model) and name each in one"
                    )


def _common(defaults: list[dict[str, Any]]) -> dict[str, Any]:
    """The defaults that every part has, as the first has them: schedulers ask for names."""
    first, *others = defaults
    return {name: first[name] for name in first if all(name in each for each in others)}
