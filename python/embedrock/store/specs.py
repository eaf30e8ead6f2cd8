"""The description of a table: the arguments of ``table``, of a local store and of a server."""

from __future__ import annotations

from typing import Any

from embedrock import initializers as _initializers
from embedrock import optimizers as _optimizers
from embedrock._arguments import choice, whole, whole_or_none
from embedrock._arrays import STORED_DTYPES, dtype_name

__all__ = ["asked_of", "spec_of"]

_ROUNDINGS = ("stochastic", "nearest")
_STORAGES = ("log", "lsm", "pmem")


def asked_of(
    embedding_dim: Any,
    num_embeddings: Any,
    *,
    expected_rows: Any,
    optimizer: Any,
    initializer: Any,
    dtype: Any,
    rounding: Any,
    storage: Any,
    capacity: Any,
) -> dict[str, Any]:
    """The arguments, checked, as the engine reads them; options that are None are left out.

    Errors: ``MisuseError``.
    """
    options = {
        "rounding": None if rounding is None else choice("rounding", rounding, _ROUNDINGS),
        "storage": None if storage is None else choice("storage", storage, _STORAGES),
        "embedding_dim": whole("embedding_dim", embedding_dim, 1),
        "num_embeddings": whole_or_none("num_embeddings", num_embeddings, 1),
        "expected_rows": whole_or_none("expected_rows", expected_rows, 1),
        "dtype": None if dtype is None else dtype_name(dtype, "dtype", STORED_DTYPES),
        "capacity": whole_or_none("capacity", capacity, 1),
        "optimizer": None if optimizer is None else _optimizers.resolve(optimizer),
        "initializer": None if initializer is None else _initializers.resolve(initializer),
    }
    # A table without num_embeddings grows: that is no option left out.
    return {n: v for n, v in options.items() if v is not None or n == "num_embeddings"}


def spec_of(name: str, asked: dict[str, Any], stored: dict[str, Any] | None) -> dict[str, Any]:
    """All of a table: what is asked, else as it is stored, else as usual."""
    usual = {
        "expected_rows": None,
        "dtype": "float32",
        "rounding": "stochastic",
        "storage": "log",
        "capacity": None,
        "optimizer": _optimizers.resolve("rowwise_adagrad"),
        "initializer": _initializers.resolve(_initializers.uniform()),
    }
    kept = {n: v for n, v in (stored or {}).items() if n in usual}
    return {"name": name, **usual, **kept, **asked}
