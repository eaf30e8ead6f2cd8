"""Arguments at the edge that are no arrays: numbers, flags, texts, paths, functions.

Each check returns the argument as the package uses it, or raises ``MisuseError`` with the
argument's name, what came and what was expected. Nothing here calls what it was given, beyond
what makes a number of it.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from embedrock.errors import IoError, MisuseError

__all__ = [
    "Progress",
    "between",
    "between_or_none",
    "choice",
    "file_errors",
    "flag",
    "function",
    "instance",
    "iterable",
    "iterated",
    "named_path",
    "named_path_or_none",
    "number",
    "seconds",
    "shown",
    "step_or_pin",
    "text",
    "whole",
    "whole_or_none",
]

T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Told how much is done, of how much."""

_NO_NUMBERS = ("b", "c", "m", "M", "O", "S", "U", "V")
"""Kinds of NumPy's dtypes that ``number`` does not take."""
_SHOWN_MAX = 60
_SPELT_MAX = 3
_SHOWN = (str, bytes, int, float, complex, type(None), type(...), np.generic, os.PathLike)


def shown(value: Any) -> str:
    """A value for a message, in few words: small ones as they are, of others the type."""
    with contextlib.suppress(Exception):  # numbers too long to print
        if isinstance(value, _SHOWN):
            said = repr(value)
            if len(said) <= _SHOWN_MAX:
                return said
    kind = type(value)
    name = kind.__qualname__
    module = kind.__module__
    if module.startswith("embedrock."):
        module = module.split(".")[1]  # the group, which has the public name too
    if module not in ("builtins", "embedrock"):
        name = f"{module}.{name}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def whole(name: str, value: Any, least: int) -> int:
    """A whole number from ``least`` on, below 2**64."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except Exception:  # of the object's own, too
        number = None
    if number is None:
        raise MisuseError(f"{name} is {shown(value)}, expected a whole number")
    if not least <= number < 2**64:
        raise MisuseError(f"{name} is {shown(number)}, expected {least} or more, below 2**64")
    return number


def whole_or_none(name: str, value: Any, least: int) -> int | None:
    """As ``whole``; None stays None."""
    return None if value is None else whole(name, value, least)


def step_or_pin(name: str, value: Any) -> tuple[int | None, str | None]:
    """A step, or the name of a pinned commit; neither for None."""
    if isinstance(value, str):
        return None, text(name, value)
    if value is not None and not hasattr(value, "__index__"):
        raise MisuseError(f"{name} is {shown(value)}, expected a step or the name of a pin")
    return whole_or_none(name, value, 0), None


def number(name: str, value: Any) -> float:
    """A real number, NaN and infinities included."""
    if type(value) is float:
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # of NumPy's
    # float() also reads texts, and the bytes of a buffer as one.
    real = hasattr(value, "__float__") or hasattr(value, "__index__")
    if (
        real
        and kind not in _NO_NUMBERS
        and not isinstance(value, (bool, complex))
        and getattr(value, "ndim", 0) == 0
    ):
        with contextlib.suppress(Exception):  # of the object's own, too
            return float(value)
    raise MisuseError(f"{name} is {shown(value)}, expected a number")


def between(name: str, value: Any, least: float, most: float) -> float:
    """A number from ``least`` to ``most``."""
    found = number(name, value)
    if not least <= found <= most:  # NaN lies nowhere
        raise MisuseError(f"{name} is {found}, expected {least} to {most}")
    return found


def between_or_none(name: str, value: Any, least: float, most: float) -> float | None:
    """A number from ``least`` to ``most``, or None."""
    return None if value is None else between(name, value, least, most)


def seconds(name: str, value: Any) -> float | None:
    """A time to wait, for which None, and what is too long to be waited for, is for ever."""
    if value is None:
        return None
    found = number(name, value)
    if math.isnan(found):
        raise MisuseError(f"{name} is {found}, expected seconds, or None: as long as it takes")
    return None if found > threading.TIMEOUT_MAX else max(found, 0.0)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise MisuseError(f"{name} is {shown(value)}, expected True or False")


def text(name: str, value: Any) -> str:
    """A text that has a place in UTF-8."""
    if not isinstance(value, str):
        raise MisuseError(f"{name} is {shown(value)}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MisuseError(f"{name} is {value!r}, which is no Unicode text: {error}") from error
    return str(value)


def choice(name: str, value: Any, options: Sequence[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in options:
        expected = f"one of {', '.join(options)}"
        if len(options) <= _SPELT_MAX:
            expected = f"{', '.join(map(repr, options[:-1]))} or {options[-1]!r}"
        raise MisuseError(f"{name} is {shown(value)}, expected {expected}")
    return str(value)


def named_path(name: str, value: Any) -> Path:
    """A path, given as text or as an object of ``pathlib``."""
    given = value
    try:
        if not isinstance(given, str):
            given = None if isinstance(given, bytes) else os.fspath(given)
        if isinstance(given, str) and given and b"\0" not in os.fsencode(given):
            return Path(given)
    except (TypeError, ValueError):  # no path, or a text that is the name of no file
        pass
    raise MisuseError(f"{name} is {shown(value)}, expected a path: a text or a pathlib.Path")


def named_path_or_none(name: str, value: Any) -> Path | None:
    """A path that stays right when the working directory changes, or None."""
    if value is None:
        return None
    path = named_path(name, value)
    if str(path).startswith("~"):
        raise MisuseError(
            f"{name} is {shown(value)}, and only a shell expands ~: write the path out, or use "
            "os.path.expanduser"
        )
    return path.absolute()


def function(name: str, value: Any, of: str) -> Any:
    """A callable, or None. ``of`` says of what."""
    if value is None or callable(value):
        return value
    raise MisuseError(f"{name} is {shown(value)}, expected a function of {of}")


def instance(name: str, value: Any, kind: type[T]) -> T:
    """An object of this class of ours."""
    if not isinstance(value, kind):
        module = kind.__module__.partition(".")[0]
        raise MisuseError(f"{name} is {shown(value)}, expected {module}.{kind.__name__}")
    return value


def iterable(loader: Any) -> Iterable[Any]:
    """The loader. Errors: ``MisuseError`` for what cannot be iterated."""
    iterates = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if not iterates or isinstance(loader, type) or getattr(loader, "ndim", None) == 0:
        raise MisuseError(f"loader is {shown(loader)}, expected an iterable of batches")
    found: Iterable[Any] = loader
    return found


def iterated(name: str, value: Iterable[T], expected: str) -> list[T]:
    """The elements of a list or any other iterable; not the letters of a text."""
    if not isinstance(value, (str, bytes, bytearray, memoryview)):
        try:
            return list(value)
        except (TypeError, RuntimeError) as error:  # PyTorch's error for a jagged tensor
            raise MisuseError(f"{name} is {shown(value)}, expected {expected}") from error
    raise MisuseError(f"{name} is {shown(value)}, expected {expected}")


@contextlib.contextmanager
def file_errors(doing: str) -> Iterator[None]:
    """Errors of the operating system in the block become ``IoError``, with their number."""
    try:
        yield
    except OSError as error:
        if isinstance(error, IoError):
            raise
        told = IoError(f"{doing}: {error}")
        told.errno = error.errno
        raise told from error
