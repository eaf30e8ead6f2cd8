"""The records of logs and topics: verbs as records, checked before they are appended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embedrock._arguments import flag, number, whole
from embedrock._arrays import ArrayLike, Keys, as_host, as_keys, as_rows
from embedrock._verbs import Floats
from embedrock.errors import MisuseError, NonFiniteError
from embedrock.follow.source import Kind
from embedrock.optimizers import pair_of_betas

__all__ = ["RecordWriter"]


class RecordWriter:
    """The base of writers: each verb is one record."""

    def put(
        self, table: str, keys: ArrayLike, values: ArrayLike, *, reset_state: bool = False
    ) -> None:
        """Appends rows to write, as :meth:`embedrock.Table.put` does.

        Shapes: ``keys (*,), values (*, embedding_dim) float32``.

        Errors: ``NonFiniteError``; ``MisuseError`` for more bytes than a record may have; as the
        class says.
        """
        options = {"reset_state": True} if flag("reset_state", reset_state) else {}
        found = as_keys(keys)
        self._append("put", table, found, _rows_of(found, values, "values"), options)

    def update(
        self,
        table: str,
        keys: ArrayLike,
        gradients: ArrayLike,
        *,
        lr: float,
        eps: float | None = None,
        betas: tuple[float, float] | None = None,
        weight_decay: float | None = None,
        step: int | None = None,
        **more: float,
    ) -> None:
        """Appends one optimizer step, as :meth:`embedrock.Table.update` makes it.

        The optimizer is that of the table that follows. Arguments that are None are left to
        ``Table.update``.

        Shapes: ``keys (*,), gradients (*, embedding_dim) float32``.

        Errors: ``NonFiniteError``; as the class says.
        """
        options = _options_of_update(lr, eps, betas, weight_decay, step, more)
        found = as_keys(keys)
        self._append("update", table, found, _rows_of(found, gradients, "gradients"), options)

    def delete(self, table: str, keys: ArrayLike) -> None:
        """Appends rows to delete, as :meth:`embedrock.Table.delete` does."""
        self._append("delete", table, as_keys(keys), None, {})

    def _append(
        self, kind: Kind, table: str, keys: Keys, rows: Floats | None, options: dict[str, Any]
    ) -> None:
        """Appends a record, whole or not at all."""
        raise NotImplementedError


def _options_of_update(
    lr: float,
    eps: float | None,
    betas: tuple[float, float] | None,
    weight_decay: float | None,
    step: int | None,
    more: Mapping[str, float],
) -> dict[str, Any]:
    """Options of a record for one optimizer step; what is None is left out."""
    options: dict[str, Any] = {"lr": number("lr", lr)}
    if eps is not None:
        options["eps"] = number("eps", eps)
    if betas is not None:
        options["betas"] = pair_of_betas(betas)
    if weight_decay is not None:
        options["weight_decay"] = number("weight_decay", weight_decay)
    if step is not None:
        options["step"] = whole("step", step, 1)
    for name, value in more.items():
        is_flag = isinstance(value, (bool, np.bool_))
        options[name] = bool(value) if is_flag else number(name, value)
    for name, value in options.items():
        if not np.isfinite(value).all():
            raise MisuseError(f"{name} is {value}, expected a finite number")
    return options


def _rows_of(keys: Keys, rows: ArrayLike, name: str) -> Floats:
    """Rows of the keys, as many values each as there are."""
    array = as_host(rows, name)
    shape = (*keys.shape, array.shape[-1] if array.ndim else 0)
    found = as_rows(rows, shape, "keys.shape + (embedding_dim,)", name)
    if not np.isfinite(found).all():
        raise NonFiniteError(f"{name} hold NaN or infinite numbers; the log takes none")
    return found.reshape(len(keys.flat), shape[-1])
