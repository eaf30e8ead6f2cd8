"""Rows in and out: import of existing weights, export to files that others read.

Everything is streamed in blocks, so neither side has to fit in memory. Unless it is asked for,
optimizer state is not exported, and starts anew at import (``embedrock.copy`` copies a store with
all of it).

Files are ``.npy`` (one array of rows; a growing table has its keys beside it, in
``NAME.keys.npy``), ``.safetensors`` (rows under a name, a growing table's keys as ``keys``),
``.parquet`` and ``.arrow`` (columns ``key`` and ``embedding``, and ``state`` on request). Rows keep
the table's dtype, but for int8 and int4, which become float32, and for bfloat16, which only
safetensors has: others get float32.
"""

from embedrock.weights.arrow import to_arrow
from embedrock.weights.files import export, load, to_torch

__all__ = ["export", "load", "to_arrow", "to_torch"]
