"""Odd objects: what a caller may pass by mistake, and what arrays there are beside plain ones."""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["ODD"]


class _Raises:
    """Cannot be read as anything."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("of __array__")

    def __index__(self) -> int:
        raise TypeError("of __index__")

    def __float__(self) -> float:
        raise TypeError("of __float__")

    def __len__(self) -> int:
        raise TypeError("of __len__")

    def __iter__(self) -> Any:
        raise TypeError("of __iter__")


class _BadDLPack:
    """Says that it speaks DLPack."""

    def __dlpack__(self, **_: Any) -> Any:
        return 3

    def __dlpack_device__(self) -> Any:
        return (1, 0)


class _Elsewhere(_BadDLPack):
    """Lies on a device that nobody knows."""

    def __dlpack_device__(self) -> Any:
        return "somewhere"


def _masked(dtype: str, mask: Any) -> Any:
    return np.ma.array(np.arange(2, dtype=dtype), mask=mask)


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(2, dtype=torch.int64)


def _quantized() -> Any:
    try:
        return torch.quantize_per_tensor(torch.zeros(2, 4), 0.1, 0, torch.qint8)
    except (AttributeError, RuntimeError):  # gone from newer versions
        return torch.zeros(2, 4, dtype=torch.float8_e4m3fn)


def _read_only(dtype: str) -> Any:
    rows = np.zeros((2, 4), dtype)
    rows.flags.writeable = False
    return rows


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "text": lambda: "text",
    "empty text": lambda: "",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "\ud800",
    "digits": lambda: "3",
    "bytes": lambda: b"x",
    "bytearray": lambda: bytearray(b"xy"),
    "memoryview": lambda: memoryview(np.arange(2)),
    "array": lambda: array.array("q", [1, 2]),
    "1.5": lambda: 1.5,
    "2.0": lambda: 2.0,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2**63": lambda: 2**63,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "10**400": lambda: 10**400,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e300": lambda: 1e300,
    "1j": lambda: 1j,
    "Decimal": lambda: decimal.Decimal("0.1"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "date": lambda: datetime.date(2020, 1, 1),
    "list": list,
    "ragged": lambda: [[1], [2, 3]],
    "texts": lambda: ["a", "b"],
    "Nones": lambda: [None, None],
    "pair": lambda: (1, 2),
    "tuple": tuple,
    "dict": dict,
    "dict of text": lambda: {"text": "text"},
    "dict of numbers": lambda: {1: 2},
    "set": set,
    "set of numbers": lambda: {1, 2},
    "range": lambda: range(2),
    "generator": lambda: (i for i in range(2)),
    "object": object,
    "type": lambda: int,
    "function": lambda: lambda *_: None,
    "Ellipsis": lambda: ...,
    "error": lambda: ValueError("text"),
    "path": lambda: Path("absent") / "path",
    "raises": _Raises,
    "bad dlpack": _BadDLPack,
    "dlpack elsewhere": _Elsewhere,
    "module": lambda: math,
    "np.int64": lambda: np.int64(3),
    "np.float32": lambda: np.float32(np.nan),
    "np.bool": lambda: np.bool_(True),
    "np.str": lambda: np.str_("text"),
    "0-d": lambda: np.array(3),
    "bools": lambda: np.array([True, False]),
    "float keys": lambda: np.array([1.0, 2.0]),
    "complex": lambda: np.zeros((2, 4), complex),
    "longdouble": lambda: np.zeros((2, 4), np.longdouble),
    "float64": lambda: np.zeros((2, 4)),
    "objects": lambda: np.array([1, 2], object),
    "objects none": lambda: np.array([None, "a"], object),
    "objects of lists": lambda: np.array([[1], [2, 3]], object),
    "structured": lambda: np.zeros(2, [("a", "i8"), ("b", "f4")]),
    "records": lambda: np.zeros(2, [("a", "i8")]).view(np.recarray),
    "times": lambda: np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"),
    "durations": lambda: np.array([1, 2], "timedelta64[s]"),
    "text array": lambda: np.array(["a", "b"]),
    "bytes array": lambda: np.array([b"a", b"b"]),
    "void": lambda: np.array([b"a", b"b"], "V1"),
    "masked keys": lambda: _masked("i8", [True, False]),
    "masked nowhere": lambda: _masked("i8", False),
    "masked rows": lambda: np.ma.array(np.zeros((2, 4), "f4"), mask=np.eye(2, 4)),
    "np.ma.masked": lambda: np.ma.masked,
    "matrix": lambda: np.matrix([[1, 2]]),
    "matrix of rows": lambda: np.matrix(np.zeros((2, 4), "f4")),
    "empty matrix": lambda: np.matrix([]),
    "read-only": lambda: _read_only("f4"),
    "backwards": lambda: np.zeros((2, 4), "f4")[::-1],
    "columns": lambda: np.zeros((4, 2), "f4").T,
    "broadcast": lambda: np.broadcast_to(np.zeros(4, "f4"), (2, 4)),
    "big-endian": lambda: np.zeros((2, 4), ">f4"),
    "big-endian keys": lambda: np.array([1, 2], ">i8"),
    "3 dimensions": lambda: np.zeros((2, 4, 1), "f4"),
    "sparse": lambda: torch.eye(2, 4).to_sparse(),
    "csr": lambda: torch.eye(2, 4).to_sparse_csr(),
    "sparse keys": lambda: torch.tensor([1, 2]).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.zeros(1), torch.zeros(2)], layout=torch.jagged
    ),
    "meta": lambda: torch.zeros(2, 4, device="meta"),
    "meta keys": lambda: torch.zeros(2, dtype=torch.int64, device="meta"),
    "fake": _fake,
    "conjugate": lambda: torch.zeros(2, 4, dtype=torch.complex64).conj(),
    "negative bit": lambda: torch.zeros(2, 4, dtype=torch.complex64).conj().imag,
    "quantized": _quantized,
    "float8": lambda: torch.zeros(2, 4, dtype=torch.float8_e4m3fn),
    "bfloat16": lambda: torch.zeros(2, 4, dtype=torch.bfloat16),
    "double": lambda: torch.zeros(2, 4, dtype=torch.float64),
    "bool tensor": lambda: torch.tensor([True, False]),
    "float tensor": lambda: torch.zeros(2, 4),
    "0-d tensor": lambda: torch.tensor(3),
    "keys tensor": lambda: torch.tensor([1, 2]),
    "uint64 tensor": lambda: torch.tensor([1, 2], dtype=torch.uint64),
    "requires grad": lambda: torch.zeros(2, 4, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(2, 4)),
    "expanded": lambda: torch.zeros(1, 4).expand(2, 4),
    "strided": lambda: torch.zeros(16).as_strided((2, 4), (1, 1)),
    "linear": lambda: torch.nn.Linear(1, 1),
    "torch.float64": lambda: torch.float64,
    "np.float64": lambda: np.float64,
    "device": lambda: torch.device("cpu"),
}
