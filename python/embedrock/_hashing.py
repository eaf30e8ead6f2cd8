"""64-bit keys for ids that are texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock._arguments import shown
from embedrock._arrays import as_host
from embedrock.errors import MisuseError

__all__ = ["hash_keys"]


def hash_keys(strings: Any) -> npt.NDArray[np.int64]:
    """Keys of texts, for growing tables: equal texts have equal keys, today and ever after.

    A key is the 64 bits of XXH3 (seed 0) of the UTF-8 bytes, so ``"user_1"`` and ``b"user_1"`` are
    one key, and other programs can compute it. ``embedrock train --format csv`` has it for the
    values of categorical columns. Two of n distinct texts share a key with a chance of about
    n**2 / 2**65: one in 370,000 for ten million.

    Args:
        strings: A list, a NumPy array of any shape, or anything that ``np.asarray`` makes one of
            (a column of pandas): all str or bytes. NumPy's arrays of fixed-size bytes do not keep
            zero bytes at the end.

    Shapes: ``strings (*,) -> keys (*,) int64``.

    Errors: ``MisuseError`` for what is neither str nor bytes, a missing value for example, with
    its place, and for texts that are no Unicode.

    >>> embedrock.hash_keys(["user_1", "user_2", b"user_1"])
    array([ 2375940910326535585, -2890470084645552214,  2375940910326535585])
    >>> table.get(embedrock.hash_keys(["user_1"])).shape
    (1, 4)
    """
    if isinstance(strings, (str, bytes)):
        raise MisuseError(
            f"strings is {shown(strings)}, expected a list or an array of them: hash_keys([...])"
        )
    if isinstance(strings, (list, tuple)) and not any(
        isinstance(one, (list, tuple, np.ndarray)) for one in strings[:1]
    ):
        # Not through NumPy, which would make texts of bytes beside texts, and cut zero bytes.
        return _core.hash_texts(list(strings)).view(np.int64)
    array = as_host(strings, "strings")
    if array.dtype.kind not in "USOT":
        raise MisuseError(
            f"strings are {array.dtype}, expected str or bytes; integers are keys as they are"
        )
    keys = _core.hash_texts(array.reshape(-1).tolist())
    return keys.view(np.int64).reshape(array.shape)
