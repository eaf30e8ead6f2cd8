"""Record batches from objects of a program: tables, streams, data sets, frames of other libraries.

Tables, data sets, objects that export a stream at each call, and functions that return one of them
are read again for each epoch; a reader or a generator is read once. Only the current batch is kept.
pyarrow is imported when rows are given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from embedrock._optional import missing
from embedrock.data import arrow_columns
from embedrock.data.arrow_log import ROWS, ArrowLog
from embedrock.data.csv import RULES, Columns
from embedrock.data.errors import DataError
from embedrock.data.parquet import is_installed
from embedrock.data.streamed import StreamedDataset, scan
from embedrock.errors import MisuseError

__all__ = ["Rows", "arrow"]

_AGAIN = (
    "for another pass give a source that can be read again: a table, a data set, or a function "
    "that opens it anew, such as lambda: frame.iter_batches()"
)


def arrow(
    batches: Any,
    label: str | Sequence[str],
    *,
    categorical: Sequence[str] | None = None,
    dense: Sequence[str] | None = None,
    ids: Sequence[str] = (),
    holdout: float = 0.0,
    skip_bad_lines: bool = False,
) -> StreamedDataset:
    """Training batches from Arrow record batches, with the keys that ``embedrock train --format
    csv`` makes of the same values in files.

    Labels are 0 or 1, as numbers, Booleans or texts. The key of a categorical value is
    ``embedrock.hash_keys`` of its text, as in CSV and Parquet: integers (``"7"``), floating-point
    numbers (``"7.0"``), Booleans (``"true"``), dates and texts, dictionary-encoded or not. A null
    has the key of the empty text, like an empty cell. A list of values is a bag; a null instead of
    a list is an empty bag. Dense numbers x, and Booleans as 0 and 1, become sign(x) log(1 + |x|);
    nulls become 0.

    Args:
        batches: A ``pyarrow`` Table, RecordBatch, RecordBatchReader, Dataset or Scanner; an object
            with ``__arrow_c_stream__`` (a polars or pandas dataframe, a DuckDB relation); an
            iterable of these (Ray, generators); or a function without arguments that returns one
            of these, called once per pass. Batches may have any size and may be empty.
        label: The label column, or several for a model with several targets.
        categorical: Columns whose values become keys, one feature each.
        dense: Columns of numbers; without any, a constant takes their place.
        ids: Columns of integers, or of lists of them, that are used as keys directly; they are
            features after those of ``categorical``. uint64 values from 2**63 on appear negative.
        holdout: The share of samples, the last ones, for ``test_batches``. If it is above 0, all
            rows are read once here, which also sets ``expected_rows`` of the features.
        skip_bad_lines: Count rows whose label is not 0 or 1, or with a number that is not finite,
            in ``bad_lines`` of the result, instead of raising an error.

    Without ``categorical`` and ``dense``, floating-point, decimal and Boolean columns are dense,
    and all others categorical. If one of the two is given, columns that are not named are ignored.

    Shapes: a batch of B samples and F features has ``dense (B, num_dense) float32``, ``keys (N,)
    int64``, ``offsets (F * B + 1,) int64``, ``labels (B,) float32`` or ``(B, T)``; see
    :class:`embedrock.data.Batch`.

    Errors: ``MisuseError`` if ``batches`` gives no record batches, if a column has two roles, and
    for a second pass over a source that can be read only once; ``DataError`` with the column, its
    type and what was expected, or with row and column of a bad value, here or while batches are
    taken; ``ModuleNotFoundError`` without pyarrow.

    >>> import pyarrow
    >>> table = pyarrow.table({"click": [1, 0], "user": ["ann", None], "tags": [[7, 8], []]})
    >>> data = embedrock.data.arrow(table, "click")
    >>> [feature.name for feature in data.features]
    ['user', 'tags']
    >>> batch = next(data.train_batches(2))
    >>> batch.labels.tolist(), batch.offsets.tolist()
    ([1.0, 0.0], [0, 1, 2, 4, 4])
    >>> batch.keys.tolist() == embedrock.hash_keys(["ann", "", "7", "8"]).tolist()
    True
    """
    if not is_installed():
        raise ModuleNotFoundError(
            missing("embedrock.data.arrow", "pyarrow", "pyarrow"), name="pyarrow"
        )
    if not 0 <= holdout < 1:
        raise MisuseError(f"holdout is {holdout}, expected 0 to less than 1")
    rows = Rows(batches)
    if holdout and rows.is_once:
        raise MisuseError(
            f"holdout is {holdout}, for which rows are counted before they are trained, but "
            f"batches ({type(batches).__name__}) can be read once; {_AGAIN}"
        )
    columns = _columns(rows.schema, label, categorical, dense, tuple(ids))
    log = ArrowLog(rows, columns, ids=tuple(ids))
    found = scan(None, log, skip_bad_lines=skip_bad_lines) if holdout else None
    return StreamedDataset(None, log, scan=found, holdout=holdout, skip_bad_lines=skip_bad_lines)


def _columns(
    schema: Any,
    label: str | Sequence[str],
    categorical: Sequence[str] | None,
    dense: Sequence[str] | None,
    ids: tuple[str, ...],
) -> Columns:
    """The columns that are meant. Errors: MisuseError."""
    for role, names in (("categorical", categorical), ("dense", dense), ("ids", ids)):
        if isinstance(names, str):
            raise MisuseError(f"{role} is {names!r}, expected a list of names: [{names!r}]")
    labels = label if isinstance(label, str) else tuple(label)
    if categorical is None and dense is None:
        named = {*((labels,) if isinstance(labels, str) else labels), *ids}
        is_whole = named <= {*schema.names}  # missing columns are reported before unnamed ones
        named |= {*_index_columns(schema)}
        rest = [field for field in schema if field.name not in named]
        dense = [field.name for field in rest if _is_number(field)]
        categorical = [field.name for field in rest if field.name not in dense]
        for field in rest:
            if is_whole and field.name in categorical and not _comes_again(field.type):
                raise MisuseError(
                    f"column {field.name!r} is {field.type}, of which nothing says what it is "
                    f"for; name the columns that are meant: categorical=[...], dense=[...]"
                )
    return Columns(labels, (*(categorical or ()), *ids), tuple(dense or ()))


def _is_number(field: Any) -> bool:
    kind, is_list = arrow_columns.value_kind(field.type)
    return not is_list and arrow_columns.is_measure(kind)


def _comes_again(kind: Any) -> bool:
    """Whether a column is one of categories, as far as its type tells."""
    if arrow_columns.expected_of(kind, "categorical", RULES) is not None:
        return False
    single, is_list = arrow_columns.value_kind(kind)
    return not (is_list and arrow_columns.is_measure(single))


def _index_columns(schema: Any) -> list[str]:
    """The columns that pandas made of an index."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in index if isinstance(name, str)]


class Rows:
    """See `arrow_log.Source`: the rows of something that is given by a program."""

    path: Path | None = None

    def __init__(self, given: Any) -> None:
        """Opens it for the first pass. Errors: MisuseError for what gives no batches; DataError."""
        self._given = given
        #: Whether it can be read a single time.
        self.is_once = _is_once(given)
        self._begun = False
        self._rows: int | None = None
        self._opened: Iterator[Any] | None = None
        schema = _schema_of(given)
        if schema is None:
            self._opened = _errors(_opened(given, None))
            first = next(self._opened, None)
            if first is None:
                raise DataError("batches gives none, which would say what the columns are")
            schema, self._opened = first.schema, _behind(first, self._opened)
        self.schema = schema

    def batches(self, columns: Columns, first: int) -> Iterator[tuple[int, Any]]:
        """From the beginning on; those before row number `first` are passed over.

        Errors: DataError, also where there are other rows than in the pass before; MisuseError
        where it can be read once and was.
        """
        if self._begun and self.is_once:
            what = type(self._given).__name__
            raise MisuseError(f"batches ({what}) can be read once, and was; {_AGAIN}")
        self._begun = True
        opened, self._opened = self._opened, None
        if opened is None:
            opened = _errors(_opened(self._given, list(columns.names)))
        row = 0
        for batch in opened:
            for begin in range(0, len(batch), ROWS):
                some = batch.slice(begin, ROWS)
                skipped = min(max(first - row, 0), len(some))
                if skipped < len(some):
                    yield row + skipped, some.slice(skipped)
                row += len(some)
        if first > row:
            raise DataError(f"batches has {row} rows, reading was to go on at {first}")
        if self._rows not in (None, row):
            raise DataError(
                f"batches gave {self._rows} rows in the pass before and {row} in this one; {_AGAIN}"
            )
        self._rows = row


def _behind(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    del first
    yield from rest


def _errors(batches: Iterator[Any]) -> Iterator[Any]:
    """The same. Errors: DataError for those of Arrow."""
    from pyarrow import ArrowException

    while True:
        try:
            batch = next(batches, None)
        except (ArrowException, OSError) as error:
            raise DataError(f"batches ended amid its rows: {error}") from error
        if batch is None:
            return
        yield batch


def _is_once(given: Any) -> bool:
    import pyarrow

    if isinstance(given, pyarrow.RecordBatchReader):
        return True
    return isinstance(given, Iterator) and not hasattr(given, "__arrow_c_stream__")


def _schema_of(given: Any) -> Any:
    """The schema of what has one without being opened; None of others."""
    import pyarrow

    if isinstance(given, (pyarrow.Table, pyarrow.RecordBatch, pyarrow.RecordBatchReader)):
        return given.schema
    dataset: Any = sys.modules.get("pyarrow.dataset")
    if dataset is not None and isinstance(given, dataset.Dataset):
        return given.schema
    return None


def _opened(given: Any, names: list[str] | None) -> Iterator[Any]:
    """The batches of something, with those columns at least; all of them for None.

    Errors: MisuseError for what has none.
    """
    import pyarrow

    dataset: Any = sys.modules.get("pyarrow.dataset")
    if isinstance(given, pyarrow.RecordBatch):
        yield given
    elif isinstance(given, pyarrow.Table):
        yield from given.to_batches()
    elif dataset is not None and isinstance(given, dataset.Dataset):
        yield from given.to_batches(columns=names, batch_size=ROWS)
    elif dataset is not None and isinstance(given, dataset.Scanner):
        yield from given.to_batches()
    elif hasattr(given, "__arrow_c_stream__"):
        with _stream_of(given) as reader:
            yield from reader
    elif hasattr(given, "__arrow_c_array__"):
        yield pyarrow.record_batch(given)
    elif callable(given):
        yield from _opened(given(), names)
    elif isinstance(given, Iterable) and not isinstance(given, (str, bytes, os.PathLike, dict)):
        try:
            items = iter(given)
        except TypeError as error:  # of a class that says so when it is asked
            raise _no_batches(given, type(given).__name__) from error
        for one in items:
            yield from _opened(_batches_in(one, given), names)
    else:
        raise _no_batches(given, type(given).__name__)


def _stream_of(given: Any) -> Any:
    """The reader of what exports a stream. Errors: DataError where pyarrow does not know a type."""
    import pyarrow

    try:
        return pyarrow.RecordBatchReader.from_stream(given)
    except pyarrow.ArrowException as error:
        raise DataError(
            f"batches ({type(given).__name__}) has a column that pyarrow {pyarrow.__version__} "
            f"does not know ({error}); cast it, or select the columns that are meant"
        ) from error


def _batches_in(one: Any, given: Any) -> Any:
    """An element of an iterable. Errors: MisuseError where it is no batch."""
    import pyarrow

    if isinstance(one, pyarrow.RecordBatch):
        return one
    if hasattr(one, "__arrow_c_stream__") or hasattr(one, "__arrow_c_array__"):
        return one
    raise _no_batches(given, f"{type(given).__name__}, which gives {type(one).__name__}")


def _no_batches(given: Any, what: str) -> MisuseError:
    way = "collect a lazy frame first"
    if isinstance(given, (str, os.PathLike)):
        way = "of files: pyarrow.dataset.dataset(path), or embedrock train --data"
    elif hasattr(given, "iter_batches"):
        way = 'lambda: data.iter_batches(batch_format="pyarrow")'
    elif hasattr(given, "with_format"):
        way = 'lambda: data.with_format("arrow").iter(8192)'
    return MisuseError(
        f"batches is {what}, expected record batches of Arrow: a table, a reader or a data set of "
        f"pyarrow, an object with __arrow_c_stream__, or an iterable of them; {way}"
    )
