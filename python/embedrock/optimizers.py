"""Optimizers that the engine runs beside the rows; they define the state in a table's rows.

The optimizer of a table fixes its row layout, so it is chosen when the table is created and stays.
Learning rate and the like are arguments of each update and may change at any step. Each function
here returns the description that ``Store.table(optimizer=...)`` takes; a name alone (``"adagrad"``)
stands for its defaults.

=================== ======================== ==============================================
name                state per row            follows
=================== ======================== ==============================================
``none``            none                     rows are only put and read
``sgd``             none                     ``torch.optim.SGD`` without momentum
``momentum``        D float32                ``torch.optim.SGD`` with momentum
``adagrad``         D float32                ``torch.optim.Adagrad``, sparse path
``rowwise_adagrad`` 1 float32                one sum per row: mean squared gradient (FBGEMM)
``adam``            2 D float32 (+1 by row)  ``torch.optim.SparseAdam``
``adamw``           2 D float32 (+1 by row)  ``torch.optim.AdamW``
``rowwise_adam``    D + 1 float32 (+1)       Adam with one second moment per row (FBGEMM)
``ftrl``            2 D float32              FTRL-Proximal: TensorFlow's ``Ftrl``
=================== ======================== ==============================================

All of them are lazy: a step changes the rows that have a gradient and no others. Momentum, moments
and weight decay of the rest stand still meanwhile, where torch's dense optimizers would go on
moving them.

Arguments of an update beside ``lr``, which all need, and ``weight_decay``:

===================================== =============================================
optimizers                            hyperparameters
===================================== =============================================
``adagrad``, ``rowwise_adagrad``      ``eps``
``adam``, ``adamw``, ``rowwise_adam`` ``eps``, ``betas``
``momentum``                          ``momentum``, ``dampening``, ``nesterov``
``ftrl``                              ``lr_power``, ``l1``, ``l2``, ``beta``
===================================== =============================================

>>> embedrock.optimizers.adam(bias_correction="row")
{'kind': 'adam', 'bias_correction': 'row', 'initial_accumulator': 0.0}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from embedrock import _core
from embedrock._arguments import choice, flag, number, shown
from embedrock.errors import MisuseError

__all__ = [
    "OptimizerLike",
    "OptimizerSpec",
    "adagrad",
    "adam",
    "adamw",
    "ftrl",
    "momentum",
    "none",
    "rowwise_adagrad",
    "rowwise_adam",
    "sgd",
]


class OptimizerSpec(TypedDict):
    """The description of a table's optimizer; equal descriptions mean equal row layouts."""

    kind: str
    """One of the names in the table above."""
    bias_correction: str
    """Adam, AdamW, row-wise Adam: ``"row"`` counts steps in each row, ``"global"`` takes the
    table's step."""
    initial_accumulator: float
    """Adagrad, element-wise and by row, and FTRL: the sum that a row starts with."""


OptimizerLike: TypeAlias = str | OptimizerSpec

_ADAMS = ("adam", "adamw", "rowwise_adam")
_KINDS = ("none", "sgd", "momentum", "adagrad", "rowwise_adagrad", *_ADAMS, "ftrl")
_EPS = {"adagrad": 1e-10, "rowwise_adagrad": 1e-10, **dict.fromkeys(_ADAMS, 1e-8)}
_ACCUMULATORS = {"ftrl": 0.1}  # TensorFlow's
# Hyperparameters beside lr, weight_decay, eps and betas, which every kind lets pass.
_OWN_HYPER = {
    "momentum": ("momentum", "dampening", "nesterov"),
    "ftrl": ("lr_power", "l1", "l2", "beta"),
}
_BiasCorrection: TypeAlias = Literal["row", "global"]


def none() -> OptimizerSpec:
    """Rows without an optimizer: they are put, modified and read, never updated."""
    return _spec("none")


def sgd() -> OptimizerSpec:
    """Plain gradient descent: no state."""
    return _spec("sgd")


def momentum() -> OptimizerSpec:
    """Gradient descent with momentum: one buffer value per value.

    A row whose buffer is zero throughout takes its gradient whole, whatever the dampening, as torch
    does at a parameter's first step.

    Source: ``torch.optim.SGD``.
    """
    return _spec("momentum")


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


def adam(bias_correction: _BiasCorrection = "global") -> OptimizerSpec:
    """Lazy Adam: only rows with a gradient change, both moments kept per value.

    ``"global"`` corrects the bias by the table's step, as ``torch.optim.SparseAdam`` does;
    ``"row"`` by how often the row itself was updated, which takes one more word of state.
    """
    return _spec("adam", bias_correction=bias_correction)


def adamw(bias_correction: _BiasCorrection = "global") -> OptimizerSpec:
    """Adam with decoupled weight decay: rows with a gradient shrink by ``lr * weight_decay`` first.

    ``bias_correction`` as for :func:`adam`. Rows without a gradient do not shrink.

    Source: ``torch.optim.AdamW``, whose order of operations it has.
    """
    return _spec("adamw", bias_correction=bias_correction)


def rowwise_adam(bias_correction: _BiasCorrection = "global") -> OptimizerSpec:
    """Adam with one second moment per row, of the mean squared gradient: half of Adam's state.

    ``bias_correction`` as for :func:`adam`.

    Source: FBGEMM's ``PARTIAL_ROWWISE_ADAM``.
    """
    return _spec("rowwise_adam", bias_correction=bias_correction)


def ftrl(initial_accumulator: float = 0.1) -> OptimizerSpec:
    """FTRL-Proximal: an accumulator and a linear term per value; with ``l1`` rows become sparse.

    The values of a row follow from its state at every step, so rows best start at zero
    (``initializer=0.0``), and values that are put last until the row's next step only.

    Source: McMahan et al., "Ad Click Prediction", KDD 2013; TensorFlow's ``Ftrl``, which counts
    ``l2`` as half of the paper's.
    """
    return _spec("ftrl", initial_accumulator=initial_accumulator)


def resolve(optimizer: OptimizerLike) -> OptimizerSpec:
    """The full description that a name or a description stands for."""
    if isinstance(optimizer, str):
        given: dict[str, Any] = {"kind": optimizer}
    elif isinstance(optimizer, Mapping):
        given = dict(optimizer)
    else:
        raise MisuseError(_no_description(optimizer))
    kind = choice("optimizer", given.get("kind"), _KINDS)
    unknown = [option for option in given if option not in OptimizerSpec.__annotations__]
    if unknown:
        raise MisuseError(f"optimizer {kind!r} has no option {shown(unknown[0])}")
    return _spec(**given)


def _no_description(optimizer: Any) -> str:
    """The message for anything else, most often a class or an object of an optimizer."""
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    said = shown(optimizer)
    if callable(optimizer):
        module = getattr(optimizer, "__module__", None) or ""
        said = f"{module}.{name}" if module not in ("", "builtins") else name
    message = f"optimizer is {said}, expected a name or one of embedrock.optimizers"
    same = {known.replace("_", ""): known for known in _KINDS}.get(name.lower())
    if same is None:
        return message
    return f'{message}: "{same}"; embedrock.optim has what steps it'


def hyper(
    kind: str,
    lr: float,
    eps: float | None,
    betas: tuple[float, float],
    weight_decay: float,
    more: Mapping[str, Any],
) -> _core.Hyper:
    """The hyperparameters of an update as the engine takes them. Errors: as :func:`factors`."""
    return _core.Hyper(**factors(kind, lr, eps, betas, weight_decay, more))


def factors(
    kind: str,
    lr: float,
    eps: float | None,
    betas: tuple[float, float],
    weight_decay: float,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """The hyperparameters of an update by the engine's names.

    ``more`` are those that only some optimizers have. Errors: ``MisuseError`` for one that this
    optimizer does not have.
    """
    own = _OWN_HYPER.get(kind, ())
    for name in more:
        if name not in own:
            taken = ", ".join(("lr", "eps", "betas", "weight_decay", *own))
            raise MisuseError(f"optimizer {kind!r} takes no {name}, expected some of {taken}")
    others: dict[str, Any] = {
        name: flag(name, value) if name == "nesterov" else number(name, value)
        for name, value in more.items()
    }
    beta1, beta2 = pair_of_betas(betas)
    return {
        "lr": number("lr", lr),
        "eps": _EPS.get(kind, 0.0) if eps is None else number("eps", eps),
        "beta1": beta1,
        "beta2": beta2,
        "weight_decay": number("weight_decay", weight_decay),
        **others,
    }


def pair_of_betas(betas: Any) -> tuple[float, float]:
    """Both betas as numbers. Errors: ``MisuseError`` for anything but a pair of numbers."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise MisuseError(f"betas are {shown(betas)}, expected a pair of numbers")
    return number("betas[0]", betas[0]), number("betas[1]", betas[1])


def _spec(
    kind: str, bias_correction: str = "global", initial_accumulator: float | None = None
) -> OptimizerSpec:
    choice("bias_correction", bias_correction, ("row", "global"))
    if initial_accumulator is None:
        initial_accumulator = _ACCUMULATORS.get(kind, 0.0)
    return {
        "kind": kind,
        "bias_correction": bias_correction,
        "initial_accumulator": number("initial_accumulator", initial_accumulator),
    }
