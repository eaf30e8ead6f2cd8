"""The interface that modules and optimizers need of a store and its tables, wherever the rows are.

:class:`embedrock.Store`, :class:`embedrock.remote.RemoteStore` and
:class:`embedrock.distributed.Shard` are such stores. Modules and optimizers know this protocol
alone; what works in this process only asks with :func:`here`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from embedrock._arrays import ArrayLike, Keys
from embedrock._listeners import Listeners
from embedrock.errors import UnsupportedError
from embedrock.optimizers import OptimizerSpec

__all__ = ["WAITING", "Bounds", "CollectiveStore", "RowStore", "RowTable", "here"]

WAITING = "embedrock_table"
"""The attribute of a parameter that says whose rows wait in it: the parameter is not dense."""

Bounds: TypeAlias = tuple[float | None, float | None, float | None, float] | None
"""The bounds of gradients, as :func:`embedrock.clip.bounds` gives them."""


class RowTable(Protocol):
    """A table whose rows modules read and optimizers change."""

    @property
    def store(self) -> Any:
        """The store that it belongs to."""

    @property
    def name(self) -> str:
        """Its name, unique within its store."""

    @property
    def embedding_dim(self) -> int:
        """Values per row."""

    @property
    def num_embeddings(self) -> int | None:
        """Rows of a dense table; None for a growing table."""

    @property
    def dtype(self) -> str:
        """Type of the stored values."""

    @property
    def optimizer(self) -> OptimizerSpec:
        """The optimizer whose state the rows carry."""

    def __contains__(self, key: object) -> bool:
        """Whether this one key is written."""

    def put(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Writes rows ``(*, embedding_dim)``."""

    def _update_part(self, keys: Keys, gradients: ArrayLike, factors: dict[str, Any]) -> Any:
        """A table's part of an optimizer step, as its store takes it."""


@runtime_checkable
class RowStore(Protocol):
    """A store whose tables modules are made over."""

    _listeners: Listeners
    _elsewhere: str | None
    """Error text for a store that is not in this process: where it is, and what to do instead; None
    if it is here."""
    _collective: bool
    """Whether it is a :class:`CollectiveStore`."""
    _each_occurrence: bool
    """Whether it is to get a gradient for each id that occurs, rather than sums of equal ones."""

    @property
    def _returns(self) -> int:
        """Number of times that the store went back. Rows read before the last time are no longer
        valid."""

    @property
    def table(self) -> Callable[..., Any]:
        """The table of a name, created if there is none: :meth:`embedrock.Store.table`."""

    def get(
        self, batches: Sequence[tuple[Any, ArrayLike]], out: Sequence[Any] | None = None
    ) -> list[Any]:
        """Rows of several tables in one call."""

    def _has_table(self, name: str) -> bool:
        """Whether there is a table of that name."""

    def _update(
        self, parts: list[Any], non_finite: Any, within: Bounds, settled: Callable[[int], object]
    ) -> float | None:
        """One optimizer step on all parts; returns the norm that was scaled, if any.

        If it fails after it has changed some parts, or may have, it has called ``settled`` with
        their indexes: these parts must not be applied again.
        """

    def _gradient_norm(self, parts: list[Any], non_finite: Any, within: Bounds) -> float:
        """The norm of the gradients of all parts."""


class CollectiveStore(RowStore, Protocol):
    """A store that several processes share, all of which make each call.

    ``_update`` calls ``settled`` for the tables that were updated, and for no others.
    """

    def _absent_part(self, table: Any, factors: dict[str, Any]) -> Any:
        """The part of an optimizer step of a table of which this process has no gradient."""

    def _history(self) -> list[int]:
        """State of the rows in time, the same for all processes: two halves of an id, number and
        step of the last commit, 0, whether rows may have changed since, and a random number for
        each opening and going back."""

    def _refusing(self, verb: str) -> AbstractContextManager[None]:
        """Reports an error raised before a call begins to the processes that wait within that
        call."""


def here(store: RowStore, what: str) -> None:
    """Refuses a store elsewhere. ``what`` needs one that is open in this process alone."""
    if store._elsewhere is not None:
        raise UnsupportedError(
            f"{what} works on a store that is open in this process, and {store!r} is "
            f"{store._elsewhere}"
        )
