"""The formats of click logs that are streamed, by the name that users call them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embedrock.data import parquet
from embedrock.data.arrow_log import class_of
from embedrock.data.avazu import AVAZU
from embedrock.data.criteo import CRITEO
from embedrock.data.csv import RULES, Columns, Csv
from embedrock.data.errors import DataError
from embedrock.data.parquet_log import ParquetLog
from embedrock.data.streamed import Format, Kind, Part

STREAMED: dict[str, Format] = {kind.name: kind for kind in (CRITEO, AVAZU)}


def streamed_format(name: str, path: Path, columns: Columns | None, rules: int = RULES) -> Kind:
    """The format of this name, for a file whose columns the user names if it is csv; `rules` are
    those of `csv`.

    Errors: DataError when the file has other columns.
    """
    if columns is None:
        return STREAMED[name]
    if rules > 1 and parquet.is_parquet(path):
        return ParquetLog(path, columns, rules)
    return Csv(path, columns, rules)


def parts_of(
    name: str, paths: Sequence[Path], columns: Columns | None, rules: int = RULES
) -> list[Part]:
    """The files of a log, each with its format.

    Errors: DataError, also for a categorical column that is of one type in one Parquet file and of
    another in the next: the same number would be two values.
    """
    parts = [Part(path, streamed_format(name, path, columns, rules)) for path in paths]
    logs = [(part.path, part.kind) for part in parts if isinstance(part.kind, ParquetLog)]
    for path, kind in logs[1:]:
        first, begun = logs[0][1], logs[0][0]
        for column in kind.columns.categorical:
            one, other = class_of(first.kinds[column]), class_of(kind.kinds[column])
            if one != other:
                raise DataError(
                    f"column {column!r} is {kind.kinds[column]}, but {first.kinds[column]} in "
                    f"{begun}: equal numbers would be two values (7 and 7.0); write both files "
                    f"with one type",
                    path=path,
                )
    return parts
