"""Labels, numbers, keys and bags of keys from Arrow arrays, for readers of click logs.

A value means what its text means in a log with a header (`csv`). The text of a number is that of
Python's `str` (7.0 is "7.0"), of Booleans "true" and "false", of nulls nothing; its key is that of
`embedrock.hash_keys`. Arrays may be slices of others, with offsets and validity of their own. Of an
array with a dictionary each distinct value is looked at once. pyarrow is imported when a function
is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedrock import _core
from embedrock.data.csv import LABELS, number_of, numbers_of_pieces
from embedrock.data.memory import Column

__all__ = [
    "Keys",
    "bags",
    "expected_of",
    "ids",
    "is_coded_list",
    "is_integer",
    "is_measure",
    "is_text",
    "keys",
    "kind_of",
    "labels",
    "numbers",
    "texts",
    "value_kind",
]

Keys: TypeAlias = NDArray[np.int64]

_SMALL = 1 << 16
"""Whole numbers below this have their keys in a table, which fits the processor's caches."""
_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}
_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_TEXTS = ("string", "large_string", "binary", "large_binary", "fixed_size_binary", *_VIEWS)
_NUMBERS = ("integer", "floating", "decimal")
_SINGLE = ("boolean", "null", *_NUMBERS, *_TEXTS)


_ANSWERS: dict[tuple[int, tuple[str, ...]], bool] = {}
"""Results of `_is`, by the number of a type and names; bounded by the calls of this module."""


def _is(kind: Any, *names: str) -> bool:
    """Whether a type is one of these; older pyarrows do not know all of them."""
    asked = kind.id, names
    answer = _ANSWERS.get(asked)
    if answer is None:
        from pyarrow import types

        answer = any(getattr(types, f"is_{name}", lambda _: False)(kind) for name in names)
        _ANSWERS[asked] = answer
    return answer


def kind_of(kind: Any) -> Any:
    """The type of values, however they are kept: as they are, as extension, by a dictionary or
    by their runs."""
    kind = getattr(kind, "storage_type", kind)
    if _is(kind, "dictionary", "run_end_encoded"):
        return kind_of(kind.value_type)
    return kind


def value_kind(kind: Any) -> tuple[Any, bool]:
    """(type of single values, whether a row has a list of them)."""
    kind = kind_of(kind)
    if _is(kind, *_LISTS):
        return kind_of(kind.value_type), True
    return kind, False


def is_measure(kind: Any) -> bool:
    """Whether a type is one of numbers that mean how much, as far as a type tells, or Boolean."""
    return _is(kind, "floating", "decimal", "boolean")


def is_integer(kind: Any) -> bool:
    """Whether a type is one of whole numbers."""
    return _is(kind, "integer")


def is_text(kind: Any) -> bool:
    """Whether a type is one of texts with offsets, as Parquet has them."""
    return _is(kind, "string", "large_string", "binary", "large_binary")


def is_coded_list(kind: Any) -> bool:
    """Whether a type is one of lists whose values have a dictionary."""
    kind = kind_of(kind)
    return _is(kind, *_LISTS) and _is(kind.value_type, "dictionary")


def expected_of(kind: Any, role: str, rules: int) -> str | None:
    """Expected type in place of this column's, and the way out; None if the column can be read in
    its role: `label`, `dense`, `categorical` or `ids`."""
    single, is_list = value_kind(kind)
    if role in ("label", "dense") and is_list:
        what = "a number, a Boolean or a text"
        return f"one value in a row: {what}; write a row or a column for each value"
    if _is(single, "nested", "union"):
        what = "one value in a row, or a list of them"
        return f"{what}: numbers, Booleans or texts; write a column for each field"
    if role == "ids" and not _is(single, "integer", "null"):
        return (
            "whole numbers that are keys as they are; cast it to int64 (pandas makes floating "
            "point numbers of integers where one is missing), or name it as categorical"
        )
    if role == "categorical" and _is(single, "timestamp") and rules > 2:
        return (
            "values that come again; take what does of it, such as hour and weekday "
            "(pyarrow.compute.hour and day_of_week, .dt.hour of pandas and polars), or its seconds "
            "as a number for dense"
        )
    if role in ("label", "dense") and not _is(single, *_SINGLE):
        wanted = "0 or 1" if role == "label" else "numbers"
        return f"{wanted}: as numbers, Booleans or texts; cast it before"
    return None


def labels(column: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """(labels, which are neither 0 nor 1): the first of these is 0 where the second holds."""
    column = _plain(column)
    if _is(column.type, *_TEXTS):
        column = column.dictionary_encode()
    if _is(column.type, "dictionary"):
        values = np.append(_labels_of_few(column.dictionary), math.nan)[_places(column)]
    else:
        values = _floats(column, math.nan)
    wrong = (values != 0) & (values != 1)
    values[wrong] = 0
    return values.astype(np.float32), wrong


def _labels_of_few(column: Any) -> NDArray[np.float64]:
    """Of the distinct values of a column; NaN for what is no label."""
    if not _is(column.type, *_TEXTS):
        return _floats(column, math.nan)
    texts = _as_bytes(column).to_pylist()
    return np.array([LABELS.get(text, math.nan) for text in texts], np.float64)


def numbers(column: Any) -> NDArray[np.float64]:
    """Numbers, NaN for what is none, 0 for a null."""
    column = _plain(column)
    if _is(column.type, "dictionary"):
        return np.append(numbers(column.dictionary), 0.0)[_places(column)]
    if not _is(column.type, *_TEXTS):
        return _floats(column, 0.0)
    values, is_long = numbers_of_pieces(*_pieces(column))
    for place in np.flatnonzero(is_long).tolist():
        values[place] = number_of(_as_bytes(column.slice(place, 1))[0].as_py())
    return values


def keys(column: Any) -> Keys:
    """`embedrock.hash_keys` of the text of each value; of nothing for nulls."""
    column = _plain(column)
    if not len(column):
        return np.empty(0, np.int64)
    kind = column.type
    if _is(kind, "dictionary"):
        return _by_dictionary(column, keys)
    if _is(kind, "integer"):
        return _keys_of_integers(column)
    if _is(kind, "floating"):
        return _keys_of_floats(column)
    return _core.hash_pieces(*_pieces(column)).view(np.int64)


@cache
def _small_keys() -> Keys:
    import pyarrow

    texts = pyarrow.array(np.arange(_SMALL)).cast(pyarrow.string())
    return _core.hash_pieces(*_pieces(texts)).view(np.int64)


def _keys_of_integers(column: Any) -> Keys:
    import pyarrow

    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    is_small = (values >= 0) & (values < _SMALL)
    found: Keys = _small_keys()[np.where(is_small, values, 0)]
    if not is_small.all():
        texts = pyarrow.array(values[~is_small]).cast(pyarrow.large_string())
        found[~is_small] = _core.hash_pieces(*_pieces(texts)).view(np.int64)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _missing()
    return found


def ids(column: Any) -> Keys:
    """Whole numbers as keys, as they are; nulls have the key of missing values."""
    column = _plain(column)
    if _is(column.type, "dictionary"):
        return _by_dictionary(column, ids)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    if _is(column.type, "null"):
        found = np.zeros(len(column), np.int64)
    else:
        values: NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
        found = values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
    return np.where(nulls, _missing(), found) if nulls.any() else found


def texts(column: Any) -> list[bytes | None]:
    """The text of each value; None of nulls."""
    column = _plain(column)
    if _is(column.type, "dictionary"):
        column = column.dictionary_decode()
    if _is(column.type, "floating"):
        found = [None if one is None else str(one).encode() for one in column.to_pylist()]
        return found
    listed: list[bytes | None] = _as_bytes(column).to_pylist()
    return listed


def bags(column: Any, keys_of: Callable[[Any], Keys]) -> Column:
    """The bags of lists: of nulls, empty ones; of nulls in them, the key of missing values."""
    column = _plain(column)
    if _is(column.type, "dictionary"):
        column = column.dictionary_decode()
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    if _is(column.type, "fixed_size_list"):
        sizes = np.full(len(column), column.type.list_size, np.int64)
        column = column.drop_null() if nulls.any() else column  # older ones flatten nulls, too
    else:
        sizes = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.where(nulls, 0, sizes), out=offsets[1:])
    return Column(keys_of(column.flatten()), offsets)


def _plain(column: Any) -> Any:
    """An array without extension, runs and views."""
    import pyarrow
    from pyarrow import compute

    column = getattr(column, "storage", column)
    if _is(column.type, "run_end_encoded"):
        return _plain(compute.run_end_decode(column))
    if _is(column.type, *_VIEWS):
        return column.cast(getattr(pyarrow, _VIEWS[str(column.type)])())
    return column


def _by_dictionary(column: Any, keys_of: Callable[[Any], Keys]) -> Keys:
    """Keys of an array with a dictionary, each of whose values is looked at once, unless they are
    more than there are rows."""
    if len(column.dictionary) > len(column):
        return keys_of(column.dictionary_decode())
    distinct = np.append(keys_of(column.dictionary), _missing())
    return distinct[_places(column)]


def _places(column: Any) -> NDArray[np.intp]:
    """Of each row the place of its value in the dictionary; of nulls that behind the last."""
    import pyarrow

    places = column.indices.cast(pyarrow.int64()).fill_null(len(column.dictionary))
    found: NDArray[np.intp] = places.to_numpy(zero_copy_only=False)
    return found


@cache
def _missing() -> np.int64:
    """The key of a missing value: that of no text."""
    key: np.int64 = _core.hash_texts([b""]).view(np.int64)[0]
    return key


def _floats(column: Any, of_null: float) -> NDArray[np.float64]:
    """Numbers and Booleans, as an array of its own."""
    import pyarrow
    from pyarrow import compute

    if _is(column.type, "float16"):  # which older ones do not cast
        found: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        found[column.is_null().to_numpy(zero_copy_only=False)] = of_null
        return found
    if _is(column.type, "boolean"):
        column = column.cast(pyarrow.uint8())
    values = column.cast(pyarrow.float64(), safe=False)
    if values.null_count:
        values = compute.fill_null(values, of_null)
    numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
    return numbers if numbers.flags.writeable else numbers.copy()


def _keys_of_floats(column: Any) -> Keys:
    values = column.to_numpy(zero_copy_only=False)
    distinct, places = np.unique(values, return_inverse=True)
    texts = distinct.astype("S32")
    size = texts.dtype.itemsize
    lengths = np.char.str_len(texts).astype(np.int64)
    starts = np.arange(len(texts), dtype=np.int64) * size
    found = _core.hash_pieces(texts.tobytes(), starts, lengths).view(np.int64)[places.reshape(-1)]
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _missing()
    return found


def _as_bytes(column: Any) -> Any:
    """The texts of values, as bytes."""
    import pyarrow

    if not _is(column.type, *_TEXTS):
        column = column.cast(pyarrow.large_string())
    return column.cast(pyarrow.large_binary())


def _pieces(column: Any) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """(text, starts, lengths) of the texts of values; nulls are pieces without length."""
    if not _is(column.type, "string", "binary"):
        column = _as_bytes(column)
    if not len(column):
        return b"", np.empty(0, np.int64), np.empty(0, np.int64)
    _, offsets, data = column.buffers()
    width = np.dtype(np.int64 if _is(column.type, "large_binary") else np.int32)
    ends = np.frombuffer(offsets, width, len(column) + 1, column.offset * width.itemsize)
    begin, end = int(ends[0]), int(ends[-1])
    text = b"" if data is None else data.slice(begin, end - begin).to_pybytes()
    places = ends.astype(np.int64) - begin
    lengths = np.diff(places)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return text, places[:-1], lengths
