"""Names that are not there, beside those that are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["beside"]

_NAMED_MOST = 12


def beside(name: str, there: Iterable[str]) -> str:
    """Names to suggest in an error for an unknown name: ``it has 'a', 'b'; did you mean 'a'?``.

    >>> beside("itmes", ["users", "items"])
    "it has 'users', 'items'; did you mean 'items'?"
    >>> beside("items", [])
    'it has none'
    """
    names = list(there)
    if not names:
        return "it has none"
    shown = ", ".join(repr(one) for one in names[:_NAMED_MOST])
    more = f" and {len(names) - _NAMED_MOST} more" if len(names) > _NAMED_MOST else ""
    near = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"it has {shown}{more}{meant}"
