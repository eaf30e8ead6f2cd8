"""Small click logs of every format and of every type of column, whose keys are known for ever."""

from __future__ import annotations

import datetime
import decimal
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embedrock.data import Position
from embedrock.data.csv import Columns
from embedrock.data.formats import parts_of
from embedrock.data.streamed import StreamedDataset, scan

ROWS = 24
COLUMNS = Columns("click", ("user", "item"), ("price", "age"))


def criteo() -> str:
    lines = []
    for row in range(ROWS):
        numbers = ["" if (row + n) % 5 == 0 else str(row * 7919 * n - 3) for n in range(13)]
        tokens = ["" if (row * n) % 7 == 3 else f"{row * 104729 + n * 31:x}" for n in range(26)]
        lines.append("\t".join([str(row % 2), *numbers, *tokens]))
    return "\n".join(lines) + "\n"


def avazu() -> str:
    names = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    names += "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    names += "C14,C15,C16,C17,C18,C19,C20,C21"
    lines = [names]
    for row in range(ROWS):
        tokens = [f"{row * n * 7:x}" if n % 2 else str(row - n) for n in range(21)]
        hour = f"141021{row % 24:02}"
        lines.append(",".join([str(row), str(int(row % 3 == 0)), hour, *tokens]))
    return "\n".join(lines) + "\n"


def csv(separator: str) -> str:
    def quoted(text: str) -> str:
        needs = separator != "\t" and ('"' in text or separator in text)
        return '"' + text.replace('"', '""') + '"' if needs else text

    lines = [["item", "click", "age", "user", "other", "price"]]
    for row in range(ROWS):
        user = ["", "ü 1", 'say "x"', f"a{separator}b" if separator != "\t" else "c", "7"][row % 5]
        click = ["0", "1", "false", "True", "1.0"][row % 5]
        price = ["", "1.5", "-2e3", "0.1", "1e-7"][row % 5]
        lines.append([str(row * 3), click, str(row - 9), user, "x", price])
    return "".join(separator.join(map(quoted, line)) + "\n" for line in lines)


def columns_of_arrow() -> dict[str, Any]:
    """A column of each type, with nulls; those that begin with ``d_`` are numbers."""
    import pyarrow

    some = [None if row % 5 == 4 else row for row in range(ROWS)]
    words = [None if n is None else ["", "a", 'say "x",', "zwei\nZeilen", "ü"][n % 5] for n in some]
    floats = [None if n is None else [7.0, 0.1, 1e16, -0.0, 1e-7, 123456.789][n % 6] for n in some]
    made: dict[str, Any] = {
        "click": [row % 2 for row in range(ROWS)],
        "text": words,
        "large": pyarrow.array(words, pyarrow.large_string()),
        "coded": pyarrow.array(words).dictionary_encode(),
        "bytes": [None if w is None else w.encode() + b"\xff" for w in words],
        "fixed": pyarrow.array(
            [None if n is None else b"%03d" % n for n in some], pyarrow.binary(3)
        ),
        "double": floats,
        "float": pyarrow.array(floats, pyarrow.float32()),
        "nan": pyarrow.array([float("nan") if n is None else n / 3 for n in some]),
        "flag": [None if n is None else n % 3 == 0 for n in some],
        "day": [None if n is None else datetime.date(2026, 11, 1 + n) for n in some],
        "moment": [None if n is None else datetime.datetime(2026, 11, 1 + n, 5) for n in some],
        "exact": [None if n is None else decimal.Decimal(n * 25) / 100 for n in some],
        "empty": pyarrow.nulls(ROWS),
        "d_double": floats,
        "d_float": pyarrow.array(floats, pyarrow.float32()),
        "d_half": pyarrow.array(
            [None if n is None else np.float16(n / 7) for n in some], pyarrow.float16()
        ),
        "d_flag": [None if n is None else n % 3 == 0 for n in some],
        "d_text": [None if n is None else ["", "3", "-1.5e3", "true", "0.1"][n % 5] for n in some],
        "d_exact": [None if n is None else decimal.Decimal(n * 25) / 100 for n in some],
        "d_coded": pyarrow.array(some).dictionary_encode(),
    }
    for bits in (8, 16, 32, 64):
        for kind in (f"int{bits}", f"uint{bits}"):
            low = 0 if kind[0] == "u" else 9
            values = [None if n is None else n - min(low, n) for n in some]
            made[kind] = pyarrow.array(values, getattr(pyarrow, kind)())
            made[f"d_{kind}"] = made[kind]
    made["int64"] = pyarrow.array([None if n is None else n - 2**63 for n in some])
    made["uint64"] = pyarrow.array(
        [None if n is None else 2**64 - 1 - n for n in some], pyarrow.uint64()
    )
    return made


def write(folder: Path) -> dict[str, tuple[str, Path, Columns | None]]:
    """(format, file, columns) of each log, by its name."""
    texts = {"criteo": criteo(), "avazu": avazu(), "comma": csv(","), "tab": csv("\t")}
    texts["semicolon"] = csv(";")
    logs: dict[str, tuple[str, Path, Columns | None]] = {}
    for name, text in texts.items():
        path = folder / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        is_own = name not in ("criteo", "avazu")
        logs[name] = ("csv" if is_own else name, path, COLUMNS if is_own else None)
    return logs


def write_parquet(folder: Path) -> tuple[str, Path, Columns]:
    """The log of all types."""
    import pyarrow
    from pyarrow import parquet

    made = columns_of_arrow()
    parquet.write_table(pyarrow.table(made), folder / "types.parquet", row_group_size=7)
    dense = tuple(name for name in made if name.startswith("d_"))
    categorical = tuple(name for name in made if name != "click" and name not in dense)
    return "csv", folder / "types.parquet", Columns("click", categorical, dense)


def read(log: tuple[str, Path, Columns | None], rules: int) -> Iterator[dict[str, Any]]:
    """Content of the batches of five samples, as JSON."""
    name, path, columns = log
    (part,) = parts_of(name, [path], columns, rules)
    data = StreamedDataset(path, part.kind, scan=scan(path, part.kind), holdout=0.0)
    for batch in data.train_batches(5, Position()):
        yield {
            "labels": batch.labels.tolist(),
            "keys": batch.keys.tolist(),
            "dense": [[float(value) for value in row] for row in batch.dense],
            "next": [batch.next.offset, batch.next.line],
        }
