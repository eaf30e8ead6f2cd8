"""The engine's optimizer steps in NumPy, with its order of operations: equal bits.

Shapes: ``values (N, D), state (N, W), gradients (N, D) float32 -> values, state``. Gradients of
equal keys are summed before. (PyTorch differs in the last bit: it takes approximate square roots
and fuses products with sums.)

>>> one, zero = np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32)
>>> values, state = row_wise_adagrad(one, zero, one, 0.5)
>>> values.tolist(), state.tolist()
([[0.5, 0.5]], [[1.0]])
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["adam", "row_wise_adagrad"]

Floats = npt.NDArray[np.float32]

LANES = 16
"""Partial sums of the engine's mean of squares."""


def row_wise_adagrad(
    values: Floats, state: Floats, gradients: Floats, lr: float, eps: float = 1e-10
) -> tuple[Floats, Floats]:
    """One step of row-wise Adagrad; the state is the sum of mean squared gradients."""
    lanes = np.zeros((len(values), LANES), np.float32)
    for begin in range(0, gradients.shape[1], LANES):
        part = gradients[:, begin : begin + LANES]
        lanes[:, : part.shape[1]] += part * part
    width = LANES // 2
    while width:
        lanes[:, :width] += lanes[:, width : 2 * width]
        width //= 2
    state = state + lanes[:, :1] / np.float32(gradients.shape[1])
    scale = np.float32(-lr) / (np.sqrt(state) + np.float32(eps))
    return values + scale * gradients, state


def adam(
    values: Floats,
    state: Floats,
    gradients: Floats,
    lr: float,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Floats, Floats]:
    """One step of Adam with the bias correction of ``step``; the state is both moments."""
    dim = values.shape[1]
    first, second = state[:, :dim], state[:, dim:]
    first = first + (gradients - first) * np.float32(1.0 - betas[0])
    second = second + (gradients * gradients - second) * np.float32(1.0 - betas[1])
    size = np.float32(-(lr * math.sqrt(1.0 - betas[1] ** step) / (1.0 - betas[0] ** step)))
    moved: Floats = (values + size * (first / (np.sqrt(second) + np.float32(eps)))).astype(
        np.float32
    )
    return moved, np.concatenate([first, second], axis=1)
