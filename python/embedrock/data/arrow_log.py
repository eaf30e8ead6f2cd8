"""A click log as record batches of Arrow, of which labels and columns are named.

The batches come from a source: a Parquet file (`parquet_log`), or data of a program, in memory or
as a stream (`arrow_sources`). Columns that are not named are not read, and may hold anything.
Batches of any size become the same blocks of samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embedrock.data import arrow_columns
from embedrock.data.csv import RULES, Columns, scaled
from embedrock.data.errors import DataError
from embedrock.data.lines import BadLine, Block
from embedrock.data.memory import Column

__all__ = ["ROWS", "ArrowLog", "Source", "class_of"]

ROWS = 1 << 16
"""Most rows that are looked at together: more leave the processor's caches."""
_SHOWN = 40


class Source(Protocol):
    """A source of record batches."""

    #: The file, for errors; None where there is none.
    path: Path | None
    schema: Any

    def batches(self, columns: Columns, first: int) -> Iterator[tuple[int, Any]]:
        """Batches with those columns, among others, of at most `ROWS` rows, from row number
        `first` on: the number of the first row of each, and the batch.

        Errors: DataError.
        """
        ...


class ArrowLog:
    """See `streamed.RowFormat`. Columns are looked for when it is made."""

    name = "arrow"

    def __init__(
        self,
        source: Source,
        columns: Columns,
        *,
        ids: tuple[str, ...] = (),
        rules: int = RULES,
    ) -> None:
        """`ids` are those of the categorical columns whose whole numbers are keys as they are.

        Errors: DataError when a column is not there, or holds what its role has no use for.
        """
        columns.check()
        self.columns = columns
        self.source = source
        self._rules = rules
        self._roles = dict.fromkeys(columns.labels, "label")
        self._roles |= dict.fromkeys(columns.dense, "dense")
        self._roles |= dict.fromkeys(columns.categorical, "categorical")
        self._roles |= dict.fromkeys(ids, "ids")
        self._schema = source.schema
        #: The types of values, by column.
        self.kinds = self._kinds(source.schema)

    @property
    def features(self) -> tuple[str, ...]:
        """The categorical columns."""
        return self.columns.categorical

    @property
    def num_dense(self) -> int:
        """The columns of numbers; without any, a constant stands for them."""
        return max(1, len(self.columns.dense))

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of labels."""
        return self.columns.labels

    def blocks(self, first: int) -> Iterator[tuple[int, Block]]:
        """Rows from number `first` on, from 0: the number of the first of each block, and the
        block.

        Errors: DataError.
        """
        from pyarrow import ArrowException

        for row, batch in self.source.batches(self.columns, first):
            self._check(batch, row)
            try:
                block = self._block(batch)
            except ArrowException as error:
                raise DataError(f"cannot be read: {error}", path=self.source.path) from error
            yield row, block

    def _kinds(self, schema: Any, row: int | None = None) -> dict[str, str]:
        """The kinds of the columns. Errors: DataError."""
        found = {}
        for name in self.columns.names:
            kinds = [field.type for field in schema if field.name == name]
            if len(kinds) != 1:
                problem = "twice" if kinds else "not"
                raise DataError(
                    f"column {name!r} is {problem} there; the columns are "
                    f"{', '.join(schema.names)}",
                    path=self.source.path,
                    row=row,
                )
            expected = arrow_columns.expected_of(kinds[0], self._roles[name], self._rules)
            if expected is not None:
                raise DataError(
                    f"column {name!r} is {kinds[0]}, expected {expected}",
                    path=self.source.path,
                    row=row,
                )
            found[name] = str(arrow_columns.value_kind(kinds[0])[0])
        return found

    def _check(self, batch: Any, row: int) -> None:
        """Errors: DataError for a batch whose columns are others than those before."""
        if batch.schema.equals(self._schema):
            return
        self._schema = batch.schema
        for name, kind in self._kinds(batch.schema, row + 1).items():
            before = self.kinds[name]
            if before == "null":
                self.kinds[name] = kind
            elif self._roles[name] in ("categorical", "ids") and class_of(kind) != class_of(before):
                if kind == "null":
                    continue
                raise DataError(
                    f"column {name!r} is {kind} from here on, but {before} before: equal numbers "
                    f"would be two values (7 and 7.0); give all batches one type",
                    path=self.source.path,
                    row=row + 1,
                )

    def _block(self, batch: Any) -> Block:
        columns, rows = self.columns, len(batch)
        wrong = np.zeros((len(columns.labels) + len(columns.dense), rows), np.bool_)
        labels = np.empty((rows, len(columns.labels)), np.float32)
        dense = np.ones((rows, self.num_dense), np.float32)
        keys = np.zeros((len(columns.categorical), rows), np.int64).T
        bags: dict[int, Column] = {}
        for place, name in enumerate(columns.labels):
            labels[:, place], wrong[place] = arrow_columns.labels(_column(batch, name))
        for place, name in enumerate(columns.dense):
            values = arrow_columns.numbers(_column(batch, name))
            dense[:, place], wrong[len(columns.labels) + place] = scaled(values)
        for place, name in enumerate(columns.categorical):
            column = _column(batch, name)
            keys_of = arrow_columns.ids if self._roles[name] == "ids" else arrow_columns.keys
            if arrow_columns.value_kind(column.type)[1]:
                bags[place] = arrow_columns.bags(column, keys_of)
            else:
                keys[:, place] = keys_of(column)
        is_bad = wrong.any(axis=0)
        bad = [self._bad(batch, row, wrong[:, row]) for row in np.flatnonzero(is_bad).tolist()]
        lines = np.flatnonzero(~is_bad)
        if bad:
            labels, dense, keys = labels[lines], dense[lines], keys[lines]
            bags = {place: Column.of(bag.gather(lines)) for place, bag in bags.items()}
        return Block(
            labels=labels if labels.shape[1] > 1 else labels[:, 0],
            dense=dense,
            keys=keys,
            lines=lines,
            ends=lines + 1,
            bad=bad,
            num_lines=rows,
            bags=bags,
        )

    def _bad(self, batch: Any, row: int, wrong: NDArray[np.bool_]) -> BadLine:
        place, labels = int(np.argmax(wrong)), self.columns.labels
        name = [*labels, *self.columns.dense][place]
        value = _column(batch, name)[row].as_py()
        shown = "a null" if value is None else repr(value)[:_SHOWN]
        expected = "0 or 1" if place < len(labels) else "a finite number"
        return BadLine(row, name, f"{shown} is not {expected}")


def class_of(kind: str) -> str:
    """Types of which equal values have equal texts."""
    if "int" in kind:
        return "whole numbers"
    return "texts" if "string" in kind or "binary" in kind else kind


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))
