"""Optimizers that the engine runs beside the rows: what a table's rows carry.

The optimizer of a table fixes its row layout, so it is chosen when the table is created and stays.
Learning rate, epsilon, betas and weight decay are arguments of each update and may change at any
step. Each function here returns the description that ``Store.table(optimizer=...)`` takes; a name
alone (``"adagrad"``) stands for its defaults.

=================== ======================== ==============================================
name                state per row            follows
=================== ======================== ==============================================
``none``            none                     rows are only put and read
``sgd``             none                     ``torch.optim.SGD`` without momentum
``adagrad``         D float32                ``torch.optim.Adagrad``, sparse path
``rowwise_adagrad`` 1 float32                one sum per row: mean squared gradient (FBGEMM)
``adam``            2 D float32 (+1 by row)  ``torch.optim.SparseAdam``: only touched rows
=================== ======================== ==============================================

>>> embedrock.optimizers.adam(bias_correction="row")
{'kind': 'adam', 'bias_correction': 'row', 'initial_accumulator': 0.0}
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

from embedrock.errors import MisuseError

__all__ = ["OptimizerLike", "OptimizerSpec", "adagrad", "adam", "none", "rowwise_adagrad", "sgd"]


class OptimizerSpec(TypedDict):
    """The description of a table's optimizer; equal descriptions mean equal row layouts."""

    kind: str
    """One of the names in the table above."""
    bias_correction: str
    """Adam: ``"row"`` counts steps in each row, ``"global"`` takes the table's step."""
    initial_accumulator: float
    """Adagrad, element-wise and by row: the sum that a row starts with."""


OptimizerLike: TypeAlias = str | OptimizerSpec

_KINDS = ("none", "sgd", "adagrad", "rowwise_adagrad", "adam")
_EPS = {"adagrad": 1e-10, "rowwise_adagrad": 1e-10, "adam": 1e-8}


def none() -> OptimizerSpec:
    """Rows without an optimizer: they are put, modified and read, never updated."""
    return _spec("none")


def sgd() -> OptimizerSpec:
    """Plain gradient descent: no state."""
    return _spec("sgd")


def adagrad(initial_accumulator: float = 0.0) -> OptimizerSpec:
    """Element-wise Adagrad: one sum of squared gradients per value.

    Source: ``torch.optim.Adagrad``, its path for sparse gradients.
    """
    return _spec("adagrad", initial_accumulator=initial_accumulator)


def rowwise_adagrad(initial_accumulator: float = 0.0) -> OptimizerSpec:
    """Adagrad with one sum per row, of the mean squared gradient: 4 bytes of state.

    Source: FBGEMM's ``EXACT_ROWWISE_ADAGRAD``.
    """
    return _spec("rowwise_adagrad", initial_accumulator=initial_accumulator)


def adam(bias_correction: Literal["row", "global"] = "global") -> OptimizerSpec:
    """Lazy Adam: only rows with a gradient change, both moments kept per value.

    ``"global"`` corrects the bias by the table's step, as ``torch.optim.SparseAdam`` does;
    ``"row"`` by how often the row itself was updated, which takes one more word of state.
    """
    if bias_correction not in ("row", "global"):
        raise MisuseError(f'bias_correction is {bias_correction!r}, expected "row" or "global"')
    return _spec("adam", bias_correction=bias_correction)


def resolve(optimizer: OptimizerLike) -> OptimizerSpec:
    """The full description that a name or a description stands for."""
    given: dict[str, Any] = {"kind": optimizer} if isinstance(optimizer, str) else dict(optimizer)
    kind = given.get("kind")
    if kind not in _KINDS:
        raise MisuseError(f"optimizer is {kind!r}, expected one of {', '.join(_KINDS)}")
    unknown = set(given) - set(OptimizerSpec.__annotations__)
    if unknown:
        raise MisuseError(f"optimizer {kind!r} has no option {sorted(unknown)[0]!r}")
    return _spec(**given)


def default_eps(kind: str) -> float:
    """The epsilon that an update of such a table takes when the caller names none."""
    return _EPS.get(kind, 0.0)


def _spec(
    kind: str, bias_correction: str = "global", initial_accumulator: float = 0.0
) -> OptimizerSpec:
    return {
        "kind": kind,
        "bias_correction": bias_correction,
        "initial_accumulator": float(initial_accumulator),
    }
