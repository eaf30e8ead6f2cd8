"""Reading and writing the files, block after block, and a table as a module of torch."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from embedrock._arguments import (
    file_errors,
    flag,
    function,
    instance,
    named_path,
    shown,
    text,
    whole,
)
from embedrock._arrays import ArrayLike, as_host, as_keys, crossing_dtype, narrowed
from embedrock._verbs import Floats
from embedrock.errors import (
    BudgetError,
    CorruptError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.table import Table
from embedrock.weights import arrow, safetensors
from embedrock.weights.blocks import blocks, contents, ids_of
from embedrock.weights.drafts import Draft, atomic

if TYPE_CHECKING:
    import torch

__all__ = ["export", "load", "to_torch"]

Progress = Callable[[int, int], object]
_SUFFIXES = ".npy, .safetensors, .parquet or .arrow"


def load(
    table: Table,
    source: Any,
    *,
    name: str | None = None,
    keys: ArrayLike | None = None,
    state: bool = False,
    progress: Progress | None = None,
) -> int:
    """Writes existing rows into a table and returns how many.

    ``source`` is a ``torch.nn.Embedding`` or ``EmbeddingBag``, a tensor, an array, or the path of a
    ``.npy`` or ``.safetensors`` file (mapped, not read whole; ``name`` chooses among several
    arrays). Row ``i`` gets key ``i``, or ``keys[i]``; keys that :func:`export` wrote beside rows
    are found without being named. Rows start with initial optimizer state. Values are rounded to
    the table's dtype, to nearest. ``progress(done, total)`` counts rows.

    Or it is a ``.parquet`` or ``.arrow`` file, or anything that gives a stream of Arrow
    (``__arrow_c_stream__``): a table or reader of pyarrow, a frame of polars or pandas, a relation
    of DuckDB. The column ``"key"`` has keys, if there is one, and ``name``, ``"embedding"`` or the
    only column of lists of floats has rows: lists of any kind, list views, and tensors of one shape
    with as many values. ``state`` takes the optimizer state of the column
    ``"state"``, too. That is streamed, and its rows are counted as they come where the source does
    not know how many there are.

    Shapes: ``source (N, embedding_dim)``, ``keys (N,)``; without keys, ``N`` is ``num_embeddings``
    of a dense table.

    Errors: ``MismatchError`` for another shape; ``NotFoundError``, ``CorruptError``,
    ``UnsupportedError`` for files; those of ``Table.put``, with earlier blocks written;
    ``ModuleNotFoundError`` for Arrow without pyarrow.

    Durability: with the next commit.

    >>> from embedrock import weights
    >>> weights.load(table, np.ones((3, 4), np.float32), keys=[10, 20, 30])
    3
    """
    instance("table", table, Table)
    function("progress", progress, "rows done and in all")
    if name is not None:
        text("name", name)
    if arrow.is_source(source):
        if keys is not None:
            raise MisuseError('keys of Arrow are those of its column "key"; leave keys= out')
        return arrow.load(table, source, name, flag("state", state), progress)
    if flag("state", state):
        raise MisuseError("state=True takes the state of Parquet or Arrow; this source has none")
    rows, found_keys = _open_source(source, name)
    given: Any = found_keys if keys is None else keys
    _check_shape(table, rows.shape, keyed=given is not None)
    total = int(rows.shape[0])
    flat = None
    if given is not None:
        flat = as_keys(given).flat
        if flat.size != total:
            raise MismatchError(f"there are {flat.size} keys for {total} rows, expected one each")
    for start, stop in blocks(table, total):
        block = np.arange(start, stop) if flat is None else flat[start:stop]
        table.put(block, _as_float32(rows, start, stop, table.dtype), reset_state=True)
        if progress is not None:
            progress(stop, total)
    return total


def export(
    table: Table,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    state: bool = False,
    progress: Progress | None = None,
) -> int:
    """Writes a table's rows to a file and returns how many: ``.npy``, ``.safetensors``,
    ``.parquet`` or ``.arrow``.

    A dense table gives all its rows in the order of ids, never written ones as their initial rows.
    A growing table gives its written rows, in the engine's order, and their keys; so does one in an
    lsm with ``num_embeddings`` and ``expected_rows`` of less than a third of that. ``name`` is the
    rows' name: ``"weight"`` in a safetensors file unless it is given, ``"embedding"`` in Parquet
    and Arrow. These have keys always, a row group or batch for each block, the table's name and
    the store's step in the metadata, and with ``state`` the optimizer state
    (:func:`to_arrow` describes the columns). The table should not change meanwhile.

    Shapes: rows ``(N, embedding_dim)`` of the table's dtype, float32 of a quantised one (and of
    bfloat16 in ``.npy``, Parquet and Arrow), keys ``(N,)`` int64.

    Errors: ``MisuseError`` for ``state`` in a file that has no place for it; ``FullError`` where
    the disk is full; ``IoError``; ``ModuleNotFoundError`` for Parquet and Arrow without pyarrow.

    Blocking: reads the whole table.

    Durability: a file appears under its name whole and synced, or not at all. (Of the two ``.npy``
    files of a table with keys, the keys come first.)

    >>> from embedrock import weights
    >>> table.put([5, 6], np.ones((2, 4), np.float32))
    >>> weights.export(table, "ads.safetensors")
    2
    """
    instance("table", table, Table)
    function("progress", progress, "rows done and in all")
    target = named_path("path", path)
    if name is not None:
        text("name", name)
    if target.suffix in arrow.SUFFIXES:
        return arrow.export(table, target, name or "embedding", flag("state", state), progress)
    if flag("state", state):
        raise MisuseError(f"{target} has no place for state; export to .parquet or .arrow")
    name = name or "weight"
    size = ids_of(table)
    dense = size is not None
    total = len(table) if size is None else size
    shape = (total, table.embedding_dim)
    with contextlib.ExitStack() as stack:
        if target.suffix == ".safetensors":
            arrays = {} if dense else {"keys": ("I64", (total,))}
            if name in arrays:
                raise MisuseError(f"name is {name!r}, which is the name of the keys")
            stored = crossing_dtype(table.dtype)
            kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[stored]
            first, begins = safetensors.header({**arrays, name: (kind, shape)}, {"format": "pt"})
            file = stack.enter_context(atomic(target))
            file.write(first, at=0)
            rows_at = (file, begins[name])
            keys_at = None if dense else (file, begins["keys"])
        elif target.suffix == ".npy":
            stored = "float16" if table.dtype == "float16" else "float32"
            descr = np.dtype(stored).newbyteorder("<").str
            rows_at = _start_npy(stack.enter_context(atomic(target)), descr, shape)
            keys_at = None
            if not dense:
                keys_file = stack.enter_context(atomic(_keys_path(target)))
                keys_at = _start_npy(keys_file, "<i8", (total,))
        else:
            raise MisuseError(f"path ends in {target.suffix!r}, expected {_SUFFIXES}")
        _write_rows(table, total, stored, rows_at, keys_at, progress)
    return total


def to_torch(table: Table, *, padding_idx: int | None = None) -> torch.nn.Embedding:
    """A dense table as a ``torch.nn.Embedding`` of its dtype in memory, trainable, on the CPU;
    quantised rows as float32.

    Errors: ``BudgetError`` when the machine has not the memory; ``MisuseError`` for a growing
    table, whose keys a ``torch.nn.Embedding`` cannot hold.

    Blocking: reads the whole table.

    >>> from embedrock import weights
    >>> dense = store.table("country", 2, num_embeddings=200)
    >>> weights.to_torch(dense)
    Embedding(200, 2)
    """
    import torch

    size = instance("table", table, Table).num_embeddings
    if size is None:
        raise MisuseError(
            f"table {table.name!r} grows and has arbitrary keys, which torch.nn.Embedding cannot "
            f"hold; use embedrock.weights.export"
        )
    dtype: torch.dtype = getattr(torch, crossing_dtype(table.dtype))
    needed, free = size * table.embedding_dim * dtype.itemsize, _free_memory_bytes()
    if needed > free:
        raise BudgetError(
            f"table {table.name!r} takes {needed} bytes as a tensor, {free} are free; use "
            f"embedrock.weights.export"
        )
    if padding_idx is not None:
        padding_idx = whole("padding_idx", padding_idx, -size)
        if padding_idx >= size:
            raise MisuseError(f"padding_idx is {padding_idx}, expected {-size} to {size - 1}")
    rows = torch.empty(size, table.embedding_dim, dtype=dtype, device="cpu")
    for start, stop in blocks(table, size):
        table.get(np.arange(start, stop), out=rows[start:stop])
    return torch.nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=padding_idx)


def _open_source(source: Any, name: str | None) -> tuple[Any, npt.NDArray[Any] | None]:
    """Something with a shape that slices to rows, and the keys that lie beside it."""
    if isinstance(source, (str, os.PathLike)):
        path = named_path("source", source)
        if path.suffix not in (".npy", ".safetensors"):
            raise MisuseError(f"source ends in {path.suffix!r}, expected {_SUFFIXES}")
        if not path.exists():
            raise NotFoundError(f"source {path} does not exist")
        with file_errors(f"reading {path}"):
            if path.suffix == ".safetensors":
                return _open_safetensors(path, name)
            keys = _keys_path(path)
            return _map_npy(path), _map_npy(keys) if keys.exists() else None
    weight = getattr(source, "weight", source)
    try:
        shaped = hasattr(weight, "shape")
    except RuntimeError:  # a jagged tensor has none
        shaped = False
    if not shaped:
        weight = as_host(weight, "source")
    _try_block(weight)
    return weight, None


def _try_block(weight: Any) -> None:
    """Errors: ``MisuseError`` for an array whose rows cannot be read in blocks."""
    try:
        block = weight[:1] if len(tuple(weight.shape)) > 0 else None
    except Exception as error:  # any error of the object itself
        raise MisuseError(f"source is {shown(weight)}, which has no rows: {error}") from error
    if block is None:
        raise MisuseError(f"source is {shown(weight)}, expected rows (N, embedding_dim)")
    as_host(block, "source")


def _map_npy(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise CorruptError(f"{path} is not a .npy file that can be mapped: {error}") from error
    return array


def _open_safetensors(path: Path, name: str | None) -> tuple[Any, npt.NDArray[Any] | None]:
    there = safetensors.names(path)
    if name is None:
        rows = [each for each in there if each != "keys"]
        if len(rows) != 1:
            raise MisuseError(
                f"{path} has {len(rows)} arrays ({', '.join(rows)}); choose one with name="
            )
        name = rows[0]
    array, dtype = safetensors.map_array(path, name)
    exported = "keys" in there and set(there) == {"keys", name}
    beside = safetensors.map_array(path, "keys")[0] if exported else None
    return (_BFloat16(array) if dtype == "BF16" else array), beside


class _BFloat16:
    """bfloat16 rows, of which NumPy knows only the bits."""

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        self._bits = bits
        self.shape = bits.shape

    def __getitem__(self, rows: slice) -> Floats:
        return (self._bits[rows].astype(np.uint32) << 16).view(np.float32)


def _as_float32(rows: Any, start: int, stop: int, stored: str) -> Floats:
    block = as_host(rows[start:stop], "source")
    if block.dtype.kind != "f":
        raise MisuseError(f"source is {block.dtype}, expected floating-point rows")
    if block.dtype.itemsize > 4:
        return narrowed(block, stored)
    return np.ascontiguousarray(block, np.float32)


def _check_shape(table: Table, shape: tuple[int, ...], keyed: bool) -> None:
    size = table.num_embeddings
    if len(shape) == 2 and shape[1] == table.embedding_dim and (keyed or size in (None, shape[0])):
        return
    expected = "N" if size is None else size
    raise MismatchError(
        f"source has shape {tuple(shape)}, table {table.name!r} takes ({expected}, "
        f"{table.embedding_dim}); pass keys= to write only some rows"
    )


def _write_rows(
    table: Table,
    total: int,
    stored: str,
    rows_at: tuple[Draft, int],
    keys_at: tuple[Draft, int] | None,
    progress: Progress | None,
) -> None:
    """Writes rows of the dtype ``stored`` and keys from their places in the files on."""
    done = 0
    for keys, values in contents(table, total):
        _write_at(rows_at, done, _as_stored(values, stored))
        if keys_at is not None:
            _write_at(keys_at, done, keys.astype("<i8", copy=False))
        done += len(keys)
        if progress is not None:
            progress(done, total)


def _as_stored(values: Floats, stored: str) -> npt.NDArray[Any]:
    """Rows as a file of this dtype has them; exact for rows that come from such a table."""
    if stored == "bfloat16":
        return (values.view(np.uint32) >> np.uint32(16)).astype("<u2")
    return values.astype(np.dtype(stored).newbyteorder("<"), copy=False)


def _write_at(place: tuple[Draft, int], row: int, block: npt.NDArray[Any]) -> None:
    file, begin = place
    at = begin + row * (block.nbytes // len(block))
    file.write(np.ascontiguousarray(block).data, at=at)


def _start_npy(file: Draft, dtype: str, shape: tuple[int, ...]) -> tuple[Draft, int]:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    file.write(header.getvalue(), at=0)
    return file, header.tell()


def _keys_path(path: Path) -> Path:
    return path.with_suffix(".keys.npy")


def _free_memory_bytes() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62
