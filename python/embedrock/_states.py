"""States of models, optimizers and schedulers as byte strings, and back.

Defines the allowed content of a state: tensors, numbers, texts and plain containers, which
``torch.load`` reads with ``weights_only=True``, so that opening a commit never runs code. A state
is checked before it is written, while an error can still be corrected.
"""

from __future__ import annotations

import copy
import io
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from embedrock.errors import MismatchError, MisuseError

__all__ = ["decoded", "encoded", "fits", "plain", "told"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_CONTAINERS = (list, tuple, set, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)


def encoded(state: Any, name: str) -> bytes:
    """A plain state as ``torch.save`` writes it. Errors: ``MisuseError``."""
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise MisuseError(f"{name} holds a tensor that torch does not save: {error}") from error
    return buffer.getvalue()


def decoded(content: bytes, name: str) -> Any:
    """The state. Errors: ``MismatchError`` for what ``encoded`` has not written."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise MismatchError(
            f"{name} of the commit is not what embedrock.save writes: {error}"
        ) from error


def plain(value: Any, place: str) -> Any:
    """The value, with NumPy's numbers replaced by Python's: learning rate schedules that compute
    with NumPy leave them in learning rates, and metrics return them. A value that needs no change
    is returned as it is.

    Errors: ``MisuseError`` with the place of a value that could not be read back.
    """
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        number = value.item()
        if type(number) in _PLAIN:
            return number
    if isinstance(value, _MAPPINGS) and type(value).__module__ in ("builtins", "collections"):
        entries = {
            plain(key, f"a key of {place}"): plain(entry, f"{place}[{key!r}]")
            for key, entry in value.items()
        }
        pairs = zip(value.items(), entries.items(), strict=False)
        if len(entries) == len(value) and all(a is c and b is d for (a, b), (c, d) in pairs):
            return value
        changed = copy.copy(value)  # with what it has beside its entries
        changed.clear()
        changed.update(entries)
        return changed
    if type(value) in _CONTAINERS:
        items = [plain(entry, f"{place}[{i}]") for i, entry in enumerate(value)]
        same = all(one is other for one, other in zip(value, items, strict=True))
        return value if same else type(value)(items)
    raise MisuseError(
        f"{place} is {type(value).__module__}.{type(value).__qualname__}, expected tensors, "
        f"numbers, texts, lists and dicts of these; torch.from_numpy makes a tensor of an array, "
        f"and .tolist() a list"
    )


def fits(optimizer: Any, state: Any) -> bool:
    """Whether a state may be one of this optimizer: it has as many parameters in each group, and
    the same tables. Anything that is not a torch optimizer fits."""
    if not isinstance(optimizer, torch.optim.Optimizer) or not isinstance(state, Mapping):
        return True
    parts = getattr(optimizer, "optimizers", None)
    if isinstance(parts, tuple):  # Together
        saved = state.get("parts")
        return isinstance(saved, list) and len(saved) == len(parts) and all(map(fits, parts, saved))
    name_tables = getattr(optimizer, "_name_tables", None)
    if name_tables is not None:
        name_tables()
    groups, saved = optimizer.param_groups, state.get("param_groups", [])
    return len(groups) == len(saved) and all(
        len(group["params"]) == len(other.get("params", ())) and same_tables(group, other)
        for group, other in zip(groups, saved, strict=True)
    )


def same_tables(group: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether a group that was saved is of the same tables, whatever their names were then.

    A table is told by the name that it was created with, which a group has as ``first_names`` where
    one of its tables was renamed.
    """
    tables, others = group.get("tables"), saved.get("tables")
    if group.get("first_names", tables) == saved.get("first_names", others):
        return True
    return "first_names" not in group and tables == others


def told(optimizer: Any) -> str:
    """A description of an optimizer, or of the state of one, for messages."""
    parts = getattr(optimizer, "optimizers", None)
    if isinstance(optimizer, Mapping):
        parts = optimizer.get("parts")
    if parts is not None:
        return " and ".join(map(told, parts))
    groups = [
        f"tables {tables}" if tables else f"{count} parameters"
        for count, tables in _groups(optimizer)
    ]
    return ", ".join(groups) or "no parameters"


def _groups(optimizer: Any) -> list[tuple[int, Any]]:
    """Of each group how many parameters it has, and the tables whose rows they are."""
    named = isinstance(optimizer, Mapping)
    groups = optimizer.get("param_groups", []) if named else optimizer.param_groups
    return [(len(group.get("params", ())), group.get("tables")) for group in groups]
