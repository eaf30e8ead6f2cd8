"""Rows as columns of Arrow: Parquet, Arrow's own files, and streams of other libraries.

pyarrow is optional and imported when it is needed. Both ways are streamed in blocks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from embedrock._arguments import flag, instance, named_path, shown, text
from embedrock._arrays import crossing_dtype, narrowed
from embedrock._optional import missing
from embedrock.errors import (
    CorruptError,
    IoError,
    MismatchError,
    MisuseError,
    NotFoundError,
)
from embedrock.table import Table
from embedrock.weights.blocks import blocks, contents, ids_of
from embedrock.weights.drafts import atomic, writing

__all__ = ["SUFFIXES", "export", "is_source", "load", "to_arrow"]

SUFFIXES = (".parquet", ".arrow")
Progress = Callable[[int, int], object]
_KEY, _STATE, _EMBEDDING = "key", "state", "embedding"


def to_arrow(
    table: Table, *, name: str = _EMBEDDING, state: bool = False, dtype: str | None = None
) -> Any:
    """A table's rows as a ``pyarrow.RecordBatchReader``, which reads them on demand.

    polars, DuckDB, pandas and others take it as it is (``polars.from_arrow``,
    ``pyarrow.Table.from_batches``, ``SELECT ... FROM reader``). It gives the same rows as
    :func:`export`; the table should not change meanwhile.

    Columns: ``key`` int64; ``embedding`` (``name``) a fixed-size list of ``embedding_dim`` values,
    of float32 or float16; with ``state``, ``state`` a fixed-size list of ``state_words`` float32.
    Bfloat16, which Arrow has not, and quantised rows come as float32; with ``dtype="float32"``
    those of float16 do, too, for DuckDB and others that have no half precision. The schema's
    metadata have ``embedrock.table``, ``embedrock.step`` (of the last commit, ``""`` before the
    first), ``embedrock.dtype`` and ``embedrock.optimizer``.

    Errors: ``ModuleNotFoundError`` without pyarrow; ``MisuseError`` for ``state`` of a table that
    has none, and for another ``dtype``.

    Blocking: reading a batch waits for its pages.

    >>> from embedrock import weights
    >>> table.put([5, 6], np.ones((2, 4), np.float32))
    >>> weights.to_arrow(table).read_all().column_names
    ['key', 'embedding']
    """
    pyarrow = _pyarrow("embedrock.weights.to_arrow")
    instance("table", table, Table)
    if dtype is not None and not (isinstance(dtype, str) and dtype == "float32"):
        raise MisuseError(f"dtype is {shown(dtype)}, expected 'float32' or None")
    schema, batches, _ = _out(table, text("name", name), flag("state", state), dtype)
    return pyarrow.RecordBatchReader.from_batches(schema, batches)


def export(table: Table, path: Path, name: str, state: bool, progress: Progress | None) -> int:
    """As :func:`embedrock.weights.export`, to a file of Arrow or Parquet."""
    pyarrow = _pyarrow(f"writing {path.suffix}")
    schema, batches, total = _out(table, name, state)
    with atomic(path) as draft:
        done = 0
        with _writing(path):
            if path.suffix == ".parquet":
                from pyarrow import parquet

                # Floats hardly repeat: dictionaries would only take time.
                writer = parquet.ParquetWriter(draft.file, schema, use_dictionary=False)
            else:
                writer = pyarrow.ipc.new_file(draft.file, schema)
        try:
            for batch in batches:
                with _writing(path):
                    if path.suffix == ".parquet":
                        writer.write_batch(batch, row_group_size=len(batch))
                    else:
                        writer.write_batch(batch)
                done += len(batch)
                if progress is not None:
                    progress(done, total)
            with _writing(path):
                writer.close()
        except BaseException:
            # It has more to write, and fails as what was before it did.
            with contextlib.suppress(pyarrow.ArrowException, OSError):
                writer.close()
            raise
    return total


def is_source(source: Any) -> bool:
    """Whether it is a file of Arrow or Parquet, or gives a stream of Arrow."""
    if isinstance(source, (str, os.PathLike)):
        return Path(os.fsdecode(source)).suffix in SUFFIXES
    return hasattr(source, "__arrow_c_stream__")


def load(
    table: Table, source: Any, name: str | None, state: bool, progress: Progress | None
) -> int:
    """As :func:`embedrock.weights.load`, from Arrow."""
    with _opened(source) as (schema, batches, known, told):
        columns = _Columns(schema, table, name, state, told)
        if not columns.keyed and known is not None and known != table.num_embeddings:
            raise columns.mismatch(f"{known} rows without keys")
        done = 0
        for batch in batches:
            for start, stop in blocks(table, len(batch), state):
                some = batch.slice(start, stop - start)
                keys = columns.keys(some, done)
                values, states = columns.rows(some, done)
                table.put(keys, values, state=states, reset_state=states is None)
                done += len(keys)
                if progress is not None:
                    progress(done, done if known is None else known)
    if not columns.keyed and done != table.num_embeddings:
        raise columns.mismatch(f"{done} rows without keys, which are written")
    return done


def _pyarrow(what: str) -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError(missing(what, "pyarrow", "pyarrow"), name="pyarrow")
    import pyarrow
    import pyarrow.ipc

    return pyarrow


def _out(
    table: Table, name: str, state: bool, dtype: str | None = None
) -> tuple[Any, Iterator[Any], int]:
    """Schema, batches and how many rows they have."""
    pyarrow = _pyarrow("Arrow")
    if name in (_KEY, _STATE):
        raise MisuseError(f"name is {name!r}, which is the name of another column")
    if state and table.state_words == 0:
        raise MisuseError(f"table {table.name!r} has no optimizer state; leave state=True out")
    size = ids_of(table)
    total = len(table) if size is None else size
    kind = dtype or ("float16" if crossing_dtype(table.dtype) == "float16" else "float32")
    value = pyarrow.float16() if kind == "float16" else pyarrow.float32()
    fields = [
        pyarrow.field(_KEY, pyarrow.int64(), nullable=False),
        pyarrow.field(name, pyarrow.list_(value, table.embedding_dim), nullable=False),
    ]
    if state:
        words = pyarrow.list_(pyarrow.float32(), table.state_words)
        fields.append(pyarrow.field(_STATE, words, nullable=False))
    step = table.store.step
    metadata = {
        "embedrock.table": table.name,
        "embedrock.step": "" if step is None else str(step),
        "embedrock.dtype": table.dtype,
        "embedrock.optimizer": table.optimizer["kind"],
    }
    schema = pyarrow.schema(fields, metadata=metadata)

    def batches() -> Iterator[Any]:
        for keys, *rows in contents(table, total, state):
            arrays = [pyarrow.array(keys)]
            for field, block in zip(fields[1:], rows, strict=True):
                stored = kind if field.name == name else "float32"
                flat = pyarrow.array(block.reshape(-1).astype(stored, copy=False))
                arrays.append(pyarrow.FixedSizeListArray.from_arrays(flat, type=field.type))
            yield pyarrow.record_batch(arrays, schema=schema)

    return schema, batches(), total


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        with writing(path):
            yield
    except ArrowException as error:
        raise IoError(f"writing {path}: {error}") from error


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[tuple[Any, Iterator[Any], int | None, str]]:
    """Schema, batches, how many rows there are where that is known, and what it is called."""
    pyarrow = _pyarrow("reading Arrow and Parquet")
    if not isinstance(source, (str, os.PathLike)):
        told = f"source ({type(source).__name__})"
        try:
            reader = pyarrow.RecordBatchReader.from_stream(source)
        except pyarrow.ArrowException as error:
            raise MisuseError(
                f"{told} gives no stream of rows with columns: {_reason(error)}; give a table of "
                f'Arrow, with a column "key" and one of lists of floats'
            ) from error
        with reader:
            yield reader.schema, _taken(reader, told), None, told
        return
    path = named_path("source", source)
    if not path.exists():
        raise NotFoundError(f"source {path} does not exist")
    with contextlib.ExitStack() as stack:
        with _reading(path):
            if path.suffix == ".parquet":
                from pyarrow import parquet

                file = stack.enter_context(parquet.ParquetFile(path))
                schema, batches = file.schema_arrow, file.iter_batches()
                known: int | None = file.metadata.num_rows
            else:
                mapped = stack.enter_context(pyarrow.memory_map(str(path)))
                reader = stack.enter_context(pyarrow.ipc.open_file(mapped))
                schema, known = reader.schema, None
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        yield schema, _read(batches, path), known, str(path)


def _taken(reader: Any, told: str) -> Iterator[Any]:
    """The batches of a stream. Errors: ``IoError`` for what its maker cannot give."""
    from pyarrow import ArrowException

    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (ArrowException, OSError) as error:
            raise IoError(f"{told} ended in the middle of its rows: {_reason(error)}") from error
        yield batch


def _reason(error: BaseException) -> str:
    """The text of an Arrow error, without details for its makers."""
    return str(error).partition(" Detail: Python exception")[0].strip()


def _read(batches: Iterator[Any], path: Path) -> Iterator[Any]:
    while True:
        with _reading(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        number = getattr(error, "errno", None)
        if number is None:  # Arrow's own, for what the bytes are
            raise CorruptError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
        told = IoError(
            f"reading {path}: {error}; see to its rights and its disk, or load a copy of it"
        )
        told.errno = number
        raise told from error


class _Columns:
    """Columns of keys, rows and state, and their arrays as a table takes them."""

    def __init__(self, schema: Any, table: Table, name: str | None, state: bool, told: str) -> None:
        """Errors: ``MisuseError``, ``MismatchError``."""
        self._table, self._told = table, told
        self._there = {field.name: field.type for field in schema}
        self.keyed = _KEY in self._there
        if not self.keyed and table.num_embeddings is None:
            raise self.mismatch('no column "key"')
        self._name = self._lists(name)
        self._check_width(self._name, table.embedding_dim, "embedding_dim")
        if state:
            if _STATE not in self._there:
                raise self.mismatch('no column "state"')
            self._check_width(_STATE, table.state_words, "state_words")
        self._state = state

    def mismatch(self, what: str) -> MismatchError:
        """An error about the whole source."""
        table = self._table
        return MismatchError(
            f"{self._told} has {what}; its columns are {self._all()}, and it is to become {table!r}"
        )

    def keys(self, batch: Any, done: int) -> npt.NDArray[np.int64] | npt.NDArray[np.uint64]:
        """The keys ``(N,)`` of some rows, behind ``done`` others."""
        if not self.keyed:
            return np.arange(done, done + len(batch))
        column = self._whole(batch, _KEY, done)
        column = getattr(column, "storage", column)
        keys = column.to_numpy(zero_copy_only=False)
        if keys.dtype.kind not in "iu":
            raise MisuseError(
                f'column "key" of {self._told} is {column.type}, expected int64 or uint64'
            )
        return cast("npt.NDArray[np.int64]", keys)

    def rows(self, batch: Any, done: int) -> tuple[Any, Any]:
        """Values ``(N, D)``, and state ``(N, S)`` or None."""
        values = self._floats(batch, self._name, self._table.embedding_dim, done)
        if not self._state:
            return values, None
        return values, self._floats(batch, _STATE, self._table.state_words, done)

    def _floats(self, batch: Any, name: str, width: int, done: int) -> npt.NDArray[np.float32]:
        column = self._whole(batch, name, done)
        column = getattr(column, "storage", column)  # of a type that is made of another
        if not hasattr(column.type, "list_size"):
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(lengths != width)
            if len(odd):
                row = int(odd[0])
                raise MismatchError(
                    f"column {name!r} of {self._told}, row {done + row}: {int(lengths[row])} "
                    f"values, expected {width}"
                )
        flat = column.flatten()
        if flat.null_count:
            place = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            raise MisuseError(
                f"column {name!r} of {self._told}, row {done + place // width}: a null among its "
                f"values; drop such rows first"
            )
        found = flat.to_numpy(zero_copy_only=False)
        if found.dtype.itemsize > 4:
            found = narrowed(found, self._table.dtype if name == self._name else "float32")
        else:
            found = found.astype(np.float32, copy=False)
        return cast("npt.NDArray[np.float32]", found.reshape(len(batch), width))

    def _whole(self, batch: Any, name: str, done: int) -> Any:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise MisuseError(
                f"column {name!r} of {self._told}, row {done + row}: null; drop such rows first"
            )
        return column

    def _lists(self, name: str | None) -> str:
        lists = [each for each, kind in self._there.items() if _is_floats(kind)]
        if name is not None:
            if name not in self._there:
                raise NotFoundError(
                    f"{self._told} has no column {name!r}; its columns are {self._all()}"
                )
            if name not in lists:
                raise MisuseError(
                    f"column {name!r} of {self._told} is {self._there[name]}, expected lists of "
                    f"floating-point values"
                )
            return name
        if _EMBEDDING in lists:
            return _EMBEDDING
        others = [each for each in lists if each != _STATE]
        if len(others) != 1:
            raise MisuseError(
                f"{self._told} has {len(others)} columns of lists of floating-point values, "
                f"expected one, or name=; its columns are {self._all()}"
            )
        return str(others[0])

    def _check_width(self, name: str, width: int, what: str) -> None:
        kind = self._there[name]
        if not _is_floats(kind):
            raise self.mismatch(f"a column {name!r} that is no list of floating-point values")
        order = getattr(kind, "permutation", None)
        if order is not None and list(order) != sorted(order):
            raise MisuseError(
                f"column {name!r} of {self._told} is {kind}, whose values lie in another order; "
                f"bring them into the order of rows first"
            )
        size = getattr(_storage_of(kind), "list_size", width)
        if size != width:
            raise MismatchError(
                f"column {name!r} of {self._told} has lists of {size}, table "
                f"{self._table.name!r} has {what}={width}"
            )

    def _all(self) -> str:
        return ", ".join(f"{name!r} {kind}" for name, kind in self._there.items()) or shown(None)


def _storage_of(kind: Any) -> Any:
    """The type of which an extension type is made, such as that of tensors of one shape."""
    return getattr(kind, "storage_type", kind)


def _is_floats(kind: Any) -> bool:
    from pyarrow import types

    kind = _storage_of(kind)
    names = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    lists = (getattr(types, f"is_{name}", None) for name in names)  # older ones have no views
    is_list = any(one is not None and one(kind) for one in lists)
    return is_list and bool(types.is_floating(kind.value_type))
