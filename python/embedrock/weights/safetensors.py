"""The safetensors file format, read by mapping and written in parts.

The library of that name writes only tensors that lie whole in memory, which a table does not, so
both directions are here. Layout: 8 bytes little-endian length of the header; the header, JSON,
padded with blanks so that the data is aligned; then the arrays, each at its ``data_offsets`` from
the header's end. Source: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock.errors import CorruptError, NotFoundError, UnsupportedError

__all__ = ["header", "map_array", "names"]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "U64": "<u8"}
_LARGEST_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
_ALIGNMENT_BYTES = 64


def header(
    arrays: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """A file's first bytes for arrays ``{name: (dtype, shape)}``, and where each array begins."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, (dtype, shape) in arrays.items():
        end = begin + math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    first = struct.pack("<Q", len(text)) + text
    return first, {name: len(first) + entries[name]["data_offsets"][0] for name in arrays}


def names(path: str | os.PathLike[str]) -> list[str]:
    """The arrays of a file. Errors: ``CorruptError`` for a file of another format."""
    return list(_entries(path)[0])


def map_array(path: str | os.PathLike[str], name: str) -> tuple[npt.NDArray[Any], str]:
    """An array of a file, mapped read-only, and its dtype: ``BF16`` comes as its 16 bits.

    Errors: ``NotFoundError`` names the arrays that the file has; ``UnsupportedError`` for a dtype
    that no rows or keys have; ``CorruptError`` for a damaged file.
    """
    entries, start = _entries(path)
    if name not in entries:
        raise NotFoundError(f"{path} has no array {name!r}: it has {', '.join(map(repr, entries))}")
    entry = entries[name]
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"{path}: the header's entry of {name!r} is malformed: {error}"
        ) from error
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"{path}: array {name!r} has dtype {dtype}, expected one of {', '.join(_DTYPES)}"
        )
    expected = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    there = os.path.getsize(path) - start
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= there or end - begin != expected:
        raise CorruptError(
            f"{path}: array {name!r} of {expected} bytes claims bytes {begin} to {end} of {there}"
        )
    if expected == 0:
        return np.empty(shape, _DTYPES[dtype]), dtype
    mapped = np.memmap(path, _DTYPES[dtype], mode="r", offset=start + begin, shape=shape)
    return mapped, dtype


def _entries(path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    """The header's entries by name, and where the data begins."""
    with open(path, "rb") as file:
        first = file.read(8)
        size = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
        text = file.read(size) if 2 <= size <= _LARGEST_HEADER_BYTES else b""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise CorruptError(
            f"{path} is not a safetensors file: its header does not parse"
        ) from error
    if len(text) != size or not isinstance(entries, dict):
        raise CorruptError(f"{path} is not a safetensors file: its header is cut short")
    entries.pop("__metadata__", None)
    return entries, 8 + size
