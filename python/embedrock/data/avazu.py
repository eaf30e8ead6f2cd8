"""Avazu's click log as Kaggle has it: a csv with a header, one impression a line."""

from __future__ import annotations

from pathlib import Path

from embedrock.data import avazu_lines
from embedrock.data.avazu_lines import COLUMNS, FEATURES, NUM_DENSE
from embedrock.data.errors import DataError
from embedrock.data.lines import Block

_SHOWN_BYTES = 80


class Avazu:
    """See `streamed.Format`."""

    name = "avazu"
    features = FEATURES
    num_dense = NUM_DENSE
    targets = ("click",)

    def header_bytes(self, text: bytes, path: Path) -> int:
        """The header must be there: it tells the training set from the test set.

        Errors: DataError for the test set, which has no column `click`, and for other columns.
        """
        header = text.find(b"\n") + 1 or len(text)
        shown = text[:header].decode("utf-8", "replace").strip()
        columns = shown.split(",")
        if columns == COLUMNS:
            return header
        if columns == [column for column in COLUMNS if column != "click"]:
            raise DataError(
                "has no column click: this is the test set, whose clicks were not published; "
                "pass the training set (train.csv, train.gz)",
                path=path,
                line=1,
            )
        raise DataError(
            f"header is {shown[:_SHOWN_BYTES]!r}, expected {','.join(COLUMNS)}", path=path, line=1
        )

    def parse(self, block: bytes) -> Block:
        """See `avazu_lines`."""
        return avazu_lines.parse(block)


AVAZU = Avazu()
