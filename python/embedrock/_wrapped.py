"""State dicts of models of which ``DistributedDataParallel`` wraps more or less than it did.

It keeps what it wraps as its part ``module``, so the names of all parameters within it change with
the wrapping. A run that wraps its dense part after it has resumed saves other names than it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

__all__ = ["with_names_of"]

_PART = "module"


def with_names_of(model: Any, stored: Any) -> Any:
    """A state dict by the names that ``model`` has now, where they are those of ``stored`` but for
    parts called ``module``, one to one. Else ``stored`` itself, for torch to say what is wrong."""
    if not (isinstance(model, nn.Module) and isinstance(stored, Mapping)):
        return stored
    names = model.state_dict().keys()
    if stored.keys() == names:
        return stored
    now, then = _by_bare(names), _by_bare(stored)
    if now is None or then is None or now.keys() != then.keys():
        return stored
    return {now[bare]: stored[name] for bare, name in then.items()}


def _by_bare(names: Iterable[str]) -> dict[str, str] | None:
    """Names by what they are without the wrapping; None where two are the same then."""
    found: dict[str, str] = {}
    for name in names:
        bare = ".".join(part for part in name.split(".") if part != _PART)
        if bare in found:
            return None
        found[bare] = name
    return found
