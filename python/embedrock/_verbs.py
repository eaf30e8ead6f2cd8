"""The shared part of the verbs of tables and stores: one engine call for a batch of each table.

``Table`` and ``Store`` settle what their arguments mean and come here with keys and arrays; a verb
of a table has one batch. :func:`call` has the steps around every engine call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import choice, whole_or_none
from embedrock._arrays import ArrayLike, Keys
from embedrock._keys import KeysNamed
from embedrock.ahead.prefetch import Prefetch
from embedrock.clip import Clip, bounds
from embedrock.errors import KeyRangeError

if TYPE_CHECKING:
    from embedrock.store import Store
    from embedrock.table import Table

__all__ = [
    "ASKS",
    "CHANGES",
    "NON_FINITE",
    "VISITS",
    "Floats",
    "NonFinite",
    "UpdateReport",
    "call",
]

T = TypeVar("T")
Floats = npt.NDArray[np.float32]
NonFinite = Literal["refuse", "skip", "apply"]
NON_FINITE = ("refuse", "skip", "apply")
Found: TypeAlias = "Sequence[tuple[Table, Keys]]"


class _Updated(TypedDict):
    rows: int
    skipped: int


class UpdateReport(_Updated, total=False):
    """The result of an update: distinct rows updated, and left out."""

    norm: float
    """The norm of all gradients before it was scaled, where ``Clip.norm`` bounds it."""
    saturated: int
    """Rows of which a value left the range of float16 or bfloat16, where some did."""


VISITS = 1
CHANGES = 2
ASKS = 4


def call(store: Store, found: Found, does: int, verb: Callable[..., T], *arguments: Any) -> T:
    """A verb's call of the engine, with what surrounds each of them.

    ``does`` is a sum of VISITS, CHANGES and ASKS: what the verb does with the rows ``found``, and
    whether they are a query, which those of a put are not. Listeners of the store are told before
    it, and waited for, and when it has gone well of the rows. A ``KeyRangeError`` names the key as
    the caller passed it.
    """
    listeners = store._listeners
    if listeners.all:
        listeners.before()
    if does & ASKS:
        for table, keys in found:
            if table._hashed_by is not None:
                table._doubt(keys.flat)
    try:
        answer = verb(*arguments)
    except KeyRangeError:
        KeysNamed(*found).check()
        raise
    if does and listeners.all:
        parts = [(table.name, keys.flat) for table, keys in found]
        if does & VISITS:
            listeners.visited(parts)
        if does & ASKS:
            listeners.asked(parts, bool(does & CHANGES))
        if does & CHANGES:
            listeners.changed(parts)
    return answer


def put(
    store: Store, found: Found, parts: list[Any], reset_state: bool, non_finite: NonFinite
) -> None:
    """Writes what ``put_part`` made of each batch."""
    choice("non_finite", non_finite, NON_FINITE)
    call(store, found, VISITS + CHANGES, store._core.put, parts, reset_state, non_finite)
    for (table, _), (*_, states) in zip(found, parts, strict=True):
        if states is not None:
            store._name_optimizer(table._handle)


def put_part(table: Table, keys: Keys, values: ArrayLike, state: ArrayLike | None = None) -> Any:
    """One table's part of a put as the engine takes it."""
    rows = table._rows(keys, values, "values", "embedding_dim")
    states = None if state is None else table._rows(keys, state, "state", "state_words")
    return (table._handle, keys.flat, rows, states)


def update(
    store: Store,
    found: Found,
    parts: list[Any],
    non_finite: NonFinite,
    step: int | None,
    clip: Clip | None,
    other_norm: float,
) -> UpdateReport:
    """One optimizer step on what ``update_part`` made of each batch."""
    within = bounds(clip, other_norm)
    choice("non_finite", non_finite, NON_FINITE)
    number = whole_or_none("step", step, 1)
    does = VISITS + CHANGES + ASKS
    rows, skipped, saturated, norm = call(
        store, found, does, store._core.update, parts, non_finite, number, within
    )
    report = UpdateReport(rows=rows, skipped=skipped)
    if saturated:
        report["saturated"] = saturated
    if norm is not None:
        report["norm"] = norm
    return report


def update_part(
    table: Table, keys: Keys, gradients: ArrayLike, factors: _core.Hyper
) -> tuple[_core.TableId, npt.NDArray[np.uint64], Floats, _core.Hyper]:
    """One table's part of an update as the engine takes it."""
    rows = table._rows(keys, gradients, "gradients", "embedding_dim")
    return (table._handle, keys.flat, rows, factors)


def lookahead(
    store: Store, found: Found, out: Sequence[Any], answer: T, announced: Any
) -> Prefetch[T]:
    """Begins to fill the arrays; the handle gives ``answer``."""
    names = ["out"] if len(out) == 1 else [f"out[{i}]" for i in range(len(out))]
    parts = [
        (table._handle, keys.flat, table._out_values(keys, array, name), None)
        for (table, keys), array, name in zip(found, out, names, strict=True)
    ]
    KeysNamed(*found).check()
    number = whole_or_none("announced", announced, 1)
    return call(store, found, VISITS + ASKS, store._prefetcher.read, parts, answer, number)
