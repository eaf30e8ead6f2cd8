"""Arrays at the edge: what callers pass, as contiguous NumPy arrays of the engine's types.

Everything that Python code hands to the engine goes through here once, and is copied at most once:
not at all when it already has the right type and lies contiguously in host memory. Errors name what
came, what was expected and the way out. PyTorch is never imported: a tensor can only arrive when
its owner imported it.

bfloat16, which NumPy does not have, crosses to NumPy as float32 and to DLPack as itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock._arguments import shown
from embedrock.errors import MisuseError

__all__ = [
    "STORED_DTYPES",
    "ArrayLike",
    "BFloat16Rows",
    "Keys",
    "SupportsDLPack",
    "as_host",
    "as_keys",
    "as_out",
    "as_rows",
    "crossing_dtype",
    "dtype_name",
    "narrowed",
    "pinned",
]

STORED_DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
"""The dtypes that a table can store. Rows of the last two are exchanged only as float32."""

_FLOAT32 = np.dtype(np.float32)
_FLOAT16 = np.dtype(np.float16)
_UINT16 = np.dtype(np.uint16)
_DTYPES = ("float32", "float16", "bfloat16")
_OF_16_BITS = ("float16", "bfloat16")
_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)
_DIMENSIONS_MAX = 64  # of NumPy's arrays
_HOST_DEVICES = (1, 3, 11, 13)  # DLPack's codes for CPU, and CUDA and ROCm memory that CPUs read


class SupportsDLPack(Protocol):
    """An array of any library that speaks DLPack, such as a ``torch.Tensor``."""

    def __dlpack__(self, *, stream: Any = ...) -> Any:
        """Exports the array as a capsule."""


ArrayLike: TypeAlias = npt.ArrayLike | SupportsDLPack


class Keys(NamedTuple):
    """Keys as the engine takes them, and what is needed to give the answer their shape."""

    flat: npt.NDArray[np.uint64]
    """(N,) uint64, contiguous."""
    shape: tuple[int, ...]
    """The shape that the caller's keys had."""
    signed: bool
    """Whether the caller's keys were signed, for messages and for answers of the same type."""


def as_keys(keys: ArrayLike, name: str = "keys") -> Keys:
    """The keys as a flat uint64 array: signed ones keep their 64 bits, so -1 is 2**64 - 1."""
    if type(keys) is np.ndarray and keys.flags.carray:  # most calls, 1 us faster
        if keys.dtype is _INT64:
            return Keys(keys.view(_UINT64).reshape(-1), keys.shape, True)
        if keys.dtype is _UINT64:
            return Keys(keys.reshape(-1), keys.shape, False)
    array = as_host(keys, name)
    if array.size == 0 and isinstance(keys, (list, tuple)) and array.dtype == np.float64:
        array = array.astype(np.int64)  # an empty list, which NumPy takes for floats
    objects = array.reshape(-1)[:1].tolist() if array.dtype.kind == "O" else []
    if array.dtype.kind in "UST" or isinstance(next(iter(objects), None), (str, bytes)):
        raise MisuseError(
            f"{name} are {array.dtype}, expected int64 or uint64; texts become keys of a growing "
            f"table with embedrock.hash_keys(...)"
        )
    if array.dtype.kind not in "iu":
        raise MisuseError(
            f"{name} are {array.dtype}, expected int64 or uint64; convert ids with "
            f".astype(np.int64), tensors with .long()"
        )
    signed = array.dtype.kind == "i"
    array = _contiguous(array, _INT64 if signed else _UINT64)
    return Keys(array.view(_UINT64).reshape(-1), array.shape, signed)


def as_rows(
    rows: ArrayLike, shape: tuple[int, ...], meaning: str, name: str, stored: str = "float32"
) -> npt.NDArray[np.float32]:
    """The rows as a contiguous float32 array of exactly this shape.

    Narrower floats are widened, which is exact; wider ones and integers are refused. ``meaning``
    explains the shape in the error. If the rows are ``stored`` in 16 bits, doubles are accepted
    too, so that they are rounded only once.
    """
    if type(rows) is np.ndarray and rows.dtype is _FLOAT32 and rows.shape == shape:
        flags = rows.flags  # most calls, 1 us faster
        if flags.c_contiguous and flags.aligned:
            return rows
    array = as_host(rows, name)
    numbers = isinstance(rows, (list, tuple, int, float)) and array.dtype.kind in "iuf"
    if numbers or (array.dtype == np.float64 and stored in _OF_16_BITS):
        array = narrowed(array, stored)  # Python's numbers have no narrower type
    if array.dtype != _FLOAT32 and array.dtype.name not in ("float32", "float16", "bfloat16"):
        raise MisuseError(
            f"{name} are {array.dtype}, expected float32; "
            f"convert them with {name}.astype(np.float32)"
        )
    if array.shape != shape:
        raise MisuseError(f"{name} have shape {array.shape}, expected {shape}: {meaning}")
    return _contiguous(array, _FLOAT32)


def narrowed(values: npt.NDArray[Any], stored: str) -> npt.NDArray[np.float32]:
    """Numbers as float32, of which the engine makes what is ``stored``.

    Of 16 bits that would be rounding twice: a double near the middle of two of them becomes the
    middle in float32, and the middle goes to the even one. So what float32 does not have is rounded
    to the one of its two neighbours whose last bit is odd, which is never such a middle; rounded
    again, it gives what rounding the double once does.

    Source: Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms
    using rounding to odd", 2008.
    """
    with np.errstate(over="ignore"):  # infinity is refused where it is written
        nearest: npt.NDArray[np.float32] = values.astype(np.float32)
    wider = values.dtype.kind in "iu" or values.dtype.itemsize > _FLOAT32.itemsize
    if stored not in _OF_16_BITS or not wider:
        return nearest
    nearest = np.ascontiguousarray(nearest)
    # Beyond its largest number float32 has infinity, and so have the others.
    inexact = (nearest != values) & np.isfinite(nearest)
    away = inexact & (np.abs(nearest) > np.abs(values))
    bits = nearest.view(np.uint32)
    bits -= away.astype(np.uint32)  # towards zero
    bits |= inexact.astype(np.uint32)
    return nearest


def as_out(
    out: Any, shape: tuple[int, ...], meaning: str, name: str, own: str = "float32"
) -> npt.NDArray[Any]:
    """A view of the caller's array to fill: exactly this shape, contiguous, writeable.

    Its dtype is float32 or ``own``, that of the table; values of 2 bytes come as uint16. A CPU
    tensor of PyTorch is filled through its own memory; what autograd has saved of it counts as
    changed.
    """
    if (
        type(out) is np.ndarray
        and out.dtype is _FLOAT32
        and out.shape == shape
        and out.flags.carray
    ):  # most calls, 2 us faster
        return out
    array, dtype = out, getattr(getattr(out, "dtype", None), "name", "")
    if _is_tensor(out):
        array, dtype = _tensor_to_fill(out, name)
    elif isinstance(out, BFloat16Rows):
        array, dtype = out.bits, "bfloat16"
    if not isinstance(array, np.ndarray):
        raise MisuseError(f"{name} is {shown(out)}, expected a float32 array to fill")
    if isinstance(array, np.ma.MaskedArray):
        raise MisuseError(f"{name} is a masked array, expected a plain one; pass {name}.data")
    array = np.asarray(array)
    if dtype not in ("float32", own) or not array.dtype.isnative:
        dtype = dtype if array.dtype.isnative else str(array.dtype)
        others = "" if own == "float32" else f" or {own}"
        raise MisuseError(f"{name} is {dtype}, expected float32{others}")
    if array.shape != shape:
        raise MisuseError(f"{name} has shape {array.shape}, expected {shape}: {meaning}")
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        raise MisuseError(f"{name} is not C-contiguous; make it with np.empty({shape}, np.float32)")
    if not flags.writeable:
        raise MisuseError(f"{name} is read-only, expected an array to fill")
    return array if dtype == "float32" else array.view(_UINT16)


def dtype_name(dtype: Any, name: str = "dtype", expected: tuple[str, ...] = _DTYPES) -> str:
    """The name of a dtype of rows, given as text or as NumPy's or PyTorch's object.

    Errors: ``MisuseError`` for anything else than what is ``expected``: float32, float16 and
    bfloat16.
    """
    found = shown(dtype)
    with contextlib.suppress(Exception):  # what has no text, and no dtype of NumPy's
        found = str(dtype).removeprefix("torch.")
        if found not in expected:
            found = np.dtype(dtype).name
    if found not in expected:
        told = found if len(found) < 60 else shown(dtype)
        raise MisuseError(f"{name} is {told}, expected one of {', '.join(expected)}")
    return found


def crossing_dtype(stored: str) -> str:
    """The dtype of a table's rows outside of it: its own, but for quantised ones float32."""
    return stored if stored in _DTYPES else "float32"


class BFloat16Rows:
    """bfloat16 rows, which NumPy sees as float32 and DLPack as bfloat16.

    ``torch.from_dlpack(rows)`` is a tensor over the same memory; ``np.asarray(rows)`` a float32
    copy. ``bits`` are the values as they are, (*, embedding_dim) uint16.
    """

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        """Takes the bits of the values."""
        self.bits = bits

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows."""
        return self.bits.shape

    def __len__(self) -> int:
        """The length of the first dimension."""
        return len(self.bits)

    def __getitem__(self, index: Any) -> npt.NDArray[np.float32]:
        """Some of the values, as float32."""
        bits = np.asarray(self.bits[index]).astype(np.uint32)
        return (bits << np.uint32(16)).view(np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The values as float32, or as another dtype; always a copy."""
        if copy is False:
            raise ValueError("bfloat16 rows become float32 by a copy only")
        values = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        """The rows as a capsule of bfloat16."""
        # NumPy's capsule of the bits; a consumer that asks for a newer kind takes this one too.
        capsule = self.bits.__dlpack__()
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = (
            ctypes.c_void_p,
            [ctypes.py_object, ctypes.c_char_p],
        )
        tensor = _DLTensor.from_address(get_pointer(capsule, b"dltensor"))
        tensor.code = _BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory."""
        return self.bits.__dlpack_device__()

    def __repr__(self) -> str:
        return f"<embedrock bfloat16 rows {self.shape}>"


def pinned(array: npt.NDArray[Any]) -> list[weakref.ref[Any]]:
    """Weak references that keep the memory of an array in place: NumPy refuses to resize an array
    that has one, whatever ``refcheck`` says."""
    pins: list[weakref.ref[Any]] = []
    owner: Any = array
    while isinstance(owner, np.ndarray):
        pins.append(weakref.ref(owner))
        owner = owner.base
    return pins


_BFLOAT = 4  # DLPack's code of the type


class _DLTensor(ctypes.Structure):
    """The beginning of DLPack's DLTensor, which a capsule of the name "dltensor" points at."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


def as_host(value: Any, name: str) -> npt.NDArray[Any]:
    """Any array as a NumPy array in host memory, without a copy where it already is there."""
    if type(value) is np.ndarray:
        return value
    if _has_masked_elements(value):
        raise MisuseError(
            f"{name} are a masked array with masked elements, which have no value; leave them out "
            f"with .compressed(), or give them one with .filled(value)"
        )
    if isinstance(value, BFloat16Rows):
        return value[...]
    if _is_tensor(value):
        return _tensor_to_numpy(value, name)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        return _dlpack_to_numpy(value, name)
    try:
        return np.asarray(value)  # of a subclass the plain array
    except MemoryError:
        raise
    except Exception as error:  # whatever the object itself raises
        raise MisuseError(f"{name} cannot be read as an array: {error}") from error


def _has_masked_elements(value: Any) -> bool:
    """Whether NumPy would drop a mask with something behind it: of the array itself, or of one
    that lists hold, however deep."""
    if isinstance(value, np.ma.MaskedArray):
        return bool(np.ma.is_masked(value))
    if not isinstance(value, (list, tuple)):
        return False
    lists = [value]
    for _ in range(_DIMENSIONS_MAX):
        kinds = set(map(type, chain.from_iterable(lists)))
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            parts = chain.from_iterable(lists)
            if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
                return True
        if not any(issubclass(kind, (list, tuple)) for kind in kinds):
            break
        parts = chain.from_iterable(lists)
        # Each once: a list may hold itself.
        lists = list({id(one): one for one in parts if isinstance(one, (list, tuple))}.values())
    return False


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def _tensor_to_numpy(tensor: Any, name: str) -> npt.NDArray[Any]:
    if str(tensor.layout) != "torch.strided":
        kind = "jagged" if tensor.is_nested else "sparse"
        raise MisuseError(
            f"{name} are a {kind} tensor, expected a dense one; "
            f"pass its indices() as keys and its values() as rows"
        )
    if tensor.is_quantized:
        raise MisuseError(f"{name} are a quantized tensor; pass its dequantize()")
    try:
        if str(tensor.dtype) == "torch.bfloat16":
            tensor = tensor.detach().float()
        array: npt.NDArray[Any] = tensor.numpy(force=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MisuseError(f"{name} are a tensor without data to read: {error}") from error
    return array


def _tensor_to_fill(out: Any, name: str) -> tuple[npt.NDArray[Any], str]:
    """The memory of a CPU tensor, bfloat16 as int16, and the name of its dtype."""
    torch = sys.modules["torch"]
    if out.device.type != "cpu":
        raise MisuseError(f"{name} is on {out.device}, expected host memory; copy afterwards")
    if out.requires_grad and torch.is_grad_enabled():
        raise MisuseError(
            f"{name} requires a gradient, which filling it does not have; pass {name}.detach(), or "
            f"fill it under torch.no_grad()"
        )
    dtype = str(out.dtype).removeprefix("torch.")
    try:
        filled = out.detach()
        array = (filled.view(torch.int16) if dtype == "bfloat16" else filled).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise MisuseError(
            f"{name} is a tensor whose memory holds no plain values ({error}); fill a dense one "
            f"and copy it"
        ) from error
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return array, dtype


def _dlpack_to_numpy(value: Any, name: str) -> npt.NDArray[Any]:
    try:
        if int(value.__dlpack_device__()[0]) in _HOST_DEVICES:
            return np.from_dlpack(value)
        return np.from_dlpack(value, device="cpu")
    except MemoryError:
        raise
    except Exception as error:  # whatever the object itself raises
        raise MisuseError(
            f"{name} are {shown(value)} that cannot be read on the host ({error}); "
            f"copy them to host memory first"
        ) from error


def _contiguous(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, dtype=dtype, order="C", copy=True, subok=False)
