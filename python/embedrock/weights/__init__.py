"""Rows in and out: import of existing weights, export to files that others read.

Everything is streamed in blocks, so neither side has to fit in memory. Values only: optimizer state
starts anew at import and is not exported (``embedrock.copy`` copies a store with all of it).

Files are ``.npy`` (one array of rows; a growing table has its keys beside it, in
``NAME.keys.npy``) and ``.safetensors`` (rows under a name, a growing table's keys as ``keys``).
Rows keep the table's dtype, but for int8 and int4, which become float32, and for bfloat16 in
``.npy``, which has no such thing and gets float32, too.
"""

from embedrock.weights.files import export, load, to_torch

__all__ = ["export", "load", "to_torch"]
