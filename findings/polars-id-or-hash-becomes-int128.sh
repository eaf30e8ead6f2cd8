#!/usr/bin/env bash
# What: in polars a column of ids with a hash in place of the missing ones is 128 bits wide.
#   hash() gives UInt64, ids are Int64, and coalesce, when/then and concat of the two have Int128
#   as their common type, without a warning. Such a frame cannot be exported by Arrow (the whole
#   frame is refused, not the column). Only polars reads the Parquet file that write_parquet makes
#   of it. pyarrow refuses the file even if only another column is wanted. DuckDB reads the ids as
#   BLOBs of 16 bytes, so that a join or a hash of them matches nothing.
# Version: polars 2.1.0 with pyarrow 26.0.1 and duckdb 2.0.1.
# Why it matters: embedding tables are read by ids and hashes of 64 bits, and a hash for a missing
#   id is the usual way to fill a gap. The file turns out to be unreadable when training opens it,
#   not when it is written. So make the hash signed before it meets ids:
#   pl.col(...).hash().reinterpret(signed=True), which keeps Int64.
# Source: found by writing such a column. polars documents Int128 as a type, and not that Int64
#   and UInt64 have it as their common type. Arrow's C data interface has no integer of 128 bits;
#   the format string that polars gives, _pli128, is its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

print("polars", pl.__version__, "pyarrow", pa.__version__, "duckdb", duckdb.__version__)
frame = pl.DataFrame({"id": [1, -2, None], "name": ["a", "b", "c"], "label": [0, 1, 0]})
hashed = pl.col("name").hash()


def outcome(call):
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


filled = frame.with_columns(pl.coalesce("id", hashed))
filled.write_parquet("filled.parquet")
signed = frame.with_columns(pl.coalesce("id", hashed.reinterpret(signed=True)))
of_file = "SELECT typeof(id), octet_length(id) FROM 'filled.parquet' LIMIT 1"
seen = {
    "type of id": str(filled.schema["id"]),
    "by Arrow": outcome(lambda: pa.table(filled).num_rows),
    "pyarrow, another column": outcome(lambda: pq.read_table("filled.parquet", columns=["label"])),
    "duckdb": outcome(lambda: duckdb.sql(of_file).fetchall()),
    "type of id, signed hash": str(signed.schema["id"]),
    "by Arrow, signed hash": outcome(lambda: pa.table(signed).num_rows),
}
for what, found in seen.items():
    print(f"{what:24} {found}")
expected = {
    "type of id": "Int128",
    "by Arrow": "ArrowInvalid: Invalid or unsupported format string: '_pli128'",
    "pyarrow, another column": "ArrowNotImplementedError: Integers with more than 64 bits not "
    "implemented",
    "duckdb": "[('BLOB', 16)]",
    "type of id, signed hash": "Int64",
    "by Arrow, signed hash": "3",
}
sys.exit(0 if seen == expected else f"the behaviour has changed: expected {expected}")
PYTHON
