"""What the verbs of tables and stores share: one call of the engine for a batch of each table.

``Table`` and ``Store`` settle what their arguments mean and come here with keys and arrays; a verb
of a table has one batch. What surrounds every call is in :class:`Call`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import choice, whole_or_none
from embedrock._arrays import ArrayLike, Keys
from embedrock._keys import KeysNamed
from embedrock.ahead.prefetch import Prefetch
from embedrock.clip import Clip, bounds
from embedrock.optimizers import hyper

if TYPE_CHECKING:
    from embedrock.store import Store
    from embedrock.table import Table

__all__ = ["NON_FINITE", "Call", "Factors", "Floats", "NonFinite", "UpdateReport"]

T = TypeVar("T")
Floats = npt.NDArray[np.float32]
NonFinite = Literal["refuse", "skip", "apply"]
NON_FINITE = ("refuse", "skip", "apply")
Found: TypeAlias = "Sequence[tuple[Table, Keys]]"
Factors: TypeAlias = tuple[float, float | None, tuple[float, float], float, dict[str, float]]
"""Hyperparameters of a step as ``hyper`` takes them behind the kind of optimizer."""


class _Updated(TypedDict):
    rows: int
    skipped: int


class UpdateReport(_Updated, total=False):
    """What an update did: distinct rows updated, and left out."""

    norm: float
    """The norm of all gradients before it was scaled, where ``Clip.norm`` bounds it."""
    saturated: int
    """Rows of which a value left the range of float16 or bfloat16, where some did."""


class Call(KeysNamed):
    """A verb's call of the engine, in a ``with`` block.

    Before it, listeners of the store are told, and waited for. When it has gone well they are told
    which rows it has visited and changed; when not, a ``KeyRangeError`` names the key as the caller
    passed it.
    """

    def __init__(
        self, store: Store, found: Found, *, visits: bool = False, changes: bool = False
    ) -> None:
        """Takes the tables with their keys, and what the verb does with the rows."""
        super().__init__(*found)
        self._listeners = store._listeners
        self._found, self._visits, self._changes = found, visits, changes

    def __enter__(self) -> None:
        """Tells of the verb."""
        self._listeners.before()

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Tells of the rows."""
        if kind is not None:
            super().__exit__(kind, error, trace)
        elif self._listeners:
            parts = [(table.name, keys.flat) for table, keys in self._found]
            if self._visits:
                self._listeners.visited(parts)
            if self._changes:
                self._listeners.changed(parts)


def get(store: Store, found: Found, filled: Sequence[tuple[Any, Floats | None]]) -> None:
    """Fills arrays for values, and for states where they are asked for."""
    parts = [
        (table._handle, keys.flat, values, states)
        for (table, keys), (values, states) in zip(found, filled, strict=True)
    ]
    with Call(store, found, visits=True):
        store._core.get(parts)


def put(
    store: Store,
    found: Found,
    rows: Sequence[tuple[ArrayLike, ArrayLike | None]],
    reset_state: bool,
    non_finite: NonFinite,
) -> None:
    """Writes values, and states where they are given."""
    choice("non_finite", non_finite, NON_FINITE)
    parts = [
        (
            table._handle,
            keys.flat,
            table._rows(keys, values, "values", "embedding_dim"),
            None if state is None else table._rows(keys, state, "state", "state_words"),
        )
        for (table, keys), (values, state) in zip(found, rows, strict=True)
    ]
    with Call(store, found, visits=True, changes=True):
        store._core.put(parts, reset_state, non_finite)


def update(
    store: Store,
    found: Found,
    gradients: Sequence[ArrayLike],
    factors: Factors,
    non_finite: NonFinite,
    step: int | None,
    clip: Clip | None,
    other_norm: float,
) -> UpdateReport:
    """One optimizer step."""
    parts = update_parts(found, gradients, factors)
    within = bounds(clip, other_norm)
    choice("non_finite", non_finite, NON_FINITE)
    number = whole_or_none("step", step, 1)
    with Call(store, found, visits=True, changes=True):
        rows, skipped, saturated, norm = store._core.update(parts, non_finite, number, within)
    report = UpdateReport(rows=rows, skipped=skipped)
    if saturated:
        report["saturated"] = saturated
    if norm is not None:
        report["norm"] = norm
    return report


def update_parts(found: Found, gradients: Sequence[ArrayLike], factors: Factors) -> list[Any]:
    """The batches of an update as the engine takes them."""
    return [
        update_part(table, keys, rows, hyper(table._optimizer["kind"], *factors))
        for (table, keys), rows in zip(found, gradients, strict=True)
    ]


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
    with Call(store, found, visits=True):
        return store._prefetcher.read(parts, answer, number)
