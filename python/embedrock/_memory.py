"""The memory budget at the edge: what may be given, and what users are told of it.

The engine reads and divides budgets. Here texts that are a slip for another are refused, and a
warning says where a budget is not what was asked for, or more than there is.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from pathlib import Path
from typing import Any

from embedrock import _core
from embedrock._arguments import shown, text, whole
from embedrock._warnings import warn
from embedrock.errors import BudgetWarning, MisuseError

__all__ = [
    "is_in_bytes",
    "machine_bytes",
    "memory_text",
    "same_memory",
    "size_of",
    "size_or_none",
    "tell_divided",
    "warn_beyond_machine",
]

_LEAST_BYTES = 4096
"""Less than one page is a mistake. Whether more is too little depends on the tables: the engine
then refuses it and names a budget that works."""
_EXPECTED = 'expected bytes, "10%", "512MB" or "2GiB"'
_SHARE_MAX = 100
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_text(memory: Any) -> str:
    """The budget as the engine reads it.

    Errors: ``MisuseError`` for what is no budget, and for so few bytes that no store works: most
    often a share without its per cent sign.
    """
    if isinstance(memory, str):
        given = text("memory", memory)
        size = _size(given)
        if size is not None and size < _LEAST_BYTES:
            raise _too_little(memory, size)
        return given
    if isinstance(memory, float) and 0 < memory <= 1:
        raise _too_little(memory, memory)
    if not isinstance(memory, bool):
        with contextlib.suppress(TypeError):
            size = whole("memory", operator.index(memory), 1)
            if size < _LEAST_BYTES:
                raise _too_little(memory, size)
            return str(size)
    raise MisuseError(f"memory is {shown(memory)}, {_EXPECTED}")


def size_of(name: str, value: Any, least: int) -> int:
    """Bytes that are given as a number, or as a text such as "256MB".

    Errors: ``MisuseError`` for what is no size, and for fewer bytes than ``least``.
    """
    if isinstance(value, str):
        size = _size(text(name, value))
        if size is None or math.isinf(size):
            raise MisuseError(f'{name} is {shown(value)}, expected bytes, "512MB" or "2GiB"')
        value = int(size)
    return whole(name, value, least)


def size_or_none(name: str, value: Any, least: int) -> int | None:
    """As ``size_of``; None stays None."""
    return None if value is None else size_of(name, value, least)


def same_memory(one: str, other: str) -> bool:
    """Whether two budgets, as the engine reads them, are the same amount, however it is written."""
    return _amount(one) == _amount(other)


def is_in_bytes(memory: str) -> bool:
    """Whether a budget, as the engine reads it, names bytes and no share."""
    return _size(memory) is not None


def warn_beyond_machine(memory: str) -> None:
    """Warns of a budget in bytes that is more than the memory of this machine."""
    size, there = _size(memory), machine_bytes()
    if size is not None and there is not None and size > there:
        warn(_beyond(memory, there), BudgetWarning)


def tell_divided(memory: str, asked: int, budget: int) -> bool:
    """Warns where a budget in per cent came to something else than its user thinks.

    The engine calls it when it has divided a budget among tables. Returns whether there was
    anything to say: it is said once.
    """
    there = machine_bytes()
    if asked < budget:
        warn(
            f'memory="{memory}" is {_readable(asked)} of these tables, less than the minimum: '
            f"{_readable(budget)} are taken (indexes, buffers and the smallest cache); ask for at "
            f'least memory="{_spelled(budget)}" ({budget:,} bytes) to silence this warning',
            BudgetWarning,
        )
    elif memory.rstrip().endswith("%") and there is not None and budget > there:
        warn(
            _beyond(f"{memory}, which is {_readable(budget)} of these tables,", there),
            BudgetWarning,
        )
    else:
        return False
    return True


def machine_bytes() -> int | None:
    """Memory of this machine, or of the control group that this process may use; None: unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            found.append(int(Path(limit).read_bytes()))
    return min((size for size in found if size > 0), default=None)


def _size(memory: str) -> float | None:
    """Bytes of a text that names some; None for per cent, and for what is left to the engine."""
    amount = _core.amount_of(memory)
    return None if amount is None or amount[1] else amount[0]


def _amount(memory: str) -> object:
    """A value that is equal for all spellings of the same amount; text that is no amount is
    returned as it is."""
    amount = _core.amount_of(memory)
    if amount is None or amount[1] or math.isinf(amount[0]):
        return amount or memory
    return int(amount[0])  # the engine leaves fractions out, too


def _too_little(memory: Any, size: float) -> MisuseError:
    said = f"memory is {shown(memory)}"
    if size <= 1:
        return MisuseError(f'{said}, {_EXPECTED}; did you mean "{size * 100:g}%"?')
    said += f", {math.floor(size):,} bytes, with which no store works"
    if isinstance(memory, str) and memory.strip(" .0123456789") != "":
        return MisuseError(f"{said}; give more")
    return MisuseError(f'{said}; did you mean "{size:g}{"%" if size <= _SHARE_MAX else "MiB"}"?')


def _beyond(memory: str, there: int) -> str:
    return (
        f"memory is {memory} and this machine has {_readable(there)}: the system may end the "
        f"program once the cache fills; give less"
    )


def _spelled(size: int) -> str:
    """So many bytes at least, as ``memory=`` takes them."""
    units = ("KiB", "MiB", "GiB", "TiB")
    at = next((i for i in range(len(units)) if size < 1024 ** (i + 2)), len(units) - 1)
    return f"{math.ceil(size / 1024 ** (at + 1) * 10) / 10:g}{units[at]}"


def _readable(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
