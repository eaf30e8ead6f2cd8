"""The formats of click logs that are streamed, by the name that users call them."""

from __future__ import annotations

from pathlib import Path

from embedrock.data.avazu import AVAZU
from embedrock.data.criteo import CRITEO
from embedrock.data.csv import Columns, Csv
from embedrock.data.streamed import Format

STREAMED: dict[str, Format] = {kind.name: kind for kind in (CRITEO, AVAZU)}


def streamed_format(name: str, path: Path, columns: Columns | None) -> Format:
    """The format of this name, for a file whose columns the user names if it is csv.

    Errors: DataError when the file has other columns.
    """
    return STREAMED[name] if columns is None else Csv(path, columns)
