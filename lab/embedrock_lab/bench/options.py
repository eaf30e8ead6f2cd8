"""Options of a bench: a dataclass, whose fields are options of the command line.

>>> @dataclass(frozen=True, kw_only=True)
... class Options(Common):
...     rows: int = option(1000, "rows of the table")
...     batches: list[int] = option([64], "keys of a batch")
>>> parser = argparse.ArgumentParser()
>>> add_options(parser, Options)
>>> found = of_arguments(Options, parser.parse_args(["--batches", "32", "64"]))
>>> found.rows, found.batches, found.seed
(1000, [32, 64], 1)
"""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

__all__ = ["Common", "Given", "add_options", "listed", "of_arguments", "option", "patience_of"]
__all__ += ["per_cent", "positive"]

DIRECTORY = Path(".cache/bench")
PATIENCE = "seconds a figure may take to repeat rounds that others disturbed"

_G = TypeVar("_G", bound="Given")


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] | None = None,
    metavar: str | None = None,
    nargs: str | None = None,
    parse: Callable[[str], Any] | None = None,
    flag: str | None = None,
    positional: bool = False,
) -> Any:
    """A field that is an option of the same name, or of the name ``flag``.

    The field's type says what the option takes: a list takes one value or more, a truth value none.
    ``parse`` makes a value of a text where that type does not.
    """
    given = {
        "help": help,
        "choices": None if choices is None else list(choices),
        "metavar": metavar,
        "nargs": nargs,
        "type": parse,
    }
    about = {"given": given, "flag": flag, "positional": positional}
    if isinstance(default, list):
        return field(default_factory=partial(list, default), metadata=about)
    return field(default=default, metadata=about)


def patience_of(seconds: float) -> Any:
    """The option ``--patience`` with another default."""
    return option(seconds, PATIENCE, metavar="S")


@dataclass(frozen=True, kw_only=True)
class Given:
    """Options of every bench."""

    FORMATTER: ClassVar[type[argparse.HelpFormatter]] = argparse.ArgumentDefaultsHelpFormatter
    """Format of help: with the default of every option."""
    GROUP: ClassVar[str | None] = None
    """Under which title the options of this class are shown, not those of its bases."""

    json: Path | None = option(None, "write the report to this file")
    all: bool = option(False, "run the variants too")


@dataclass(frozen=True, kw_only=True)
class Common(Given):
    """Options of every bench that makes stores."""

    dir: Path = option(DIRECTORY, "where stores are written, and removed again")
    seed: int = option(1, "seed of the keys")
    patience: float = patience_of(60.0)


def add_options(parser: argparse.ArgumentParser, kind: type[Given]) -> None:
    """Adds an option for every field: the class's own first, then those of its bases."""
    hints = typing.get_type_hints(kind)
    known = {one.name: one for one in fields(kind)}
    for owner in kind.__mro__:
        own = [known.pop(name) for name in inspect.get_annotations(owner) if name in known]
        title = owner.__dict__.get("GROUP")
        group = parser.add_argument_group(title) if own and title else parser
        for one in own:
            about, taken = one.metadata, _taken(hints[one.name], one)
            name = one.name if about["positional"] else f"--{one.name.replace('_', '-')}"
            if about["flag"]:
                name, taken["dest"] = about["flag"], one.name
            group.add_argument(name, **taken)


def of_arguments(kind: type[_G], arguments: argparse.Namespace) -> _G:
    """The options that were parsed."""
    return kind(**{one.name: getattr(arguments, one.name) for one in fields(kind)})


def listed(kind: Any) -> Any:
    """Parses what stands between commas."""

    def values(text: str) -> list[Any]:
        return [kind(one) for one in text.split(",")]

    values.__name__ = f"list of {kind.__name__}"  # argparse's name for a wrong one
    return values


def per_cent(text: str) -> float:
    """A share in per cent, with the sign or without."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share in per cent, as 27 or 27%%")
    return value


def positive(text: str) -> int:
    """A whole number from 1."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return value


def _taken(hint: Any, one: Field[Any]) -> dict[str, Any]:
    """Arguments of ``add_argument`` for a field of this type."""
    factory = one.default_factory
    default = one.default if not callable(factory) else factory()
    given = {"default": default}
    given |= {name: value for name, value in one.metadata["given"].items() if value is not None}
    if isinstance(hint, types.UnionType):  # or None
        hint = typing.get_args(hint)[0]
    if hint is bool:
        yes_or_no = argparse.BooleanOptionalAction
        return {**given, "action": yes_or_no if default is True else "store_true"}
    if "type" in given:
        return given
    if typing.get_origin(hint) is list:
        given.setdefault("nargs", "+")
        (hint,) = typing.get_args(hint)
    return given if hint is str else {**given, "type": hint}
