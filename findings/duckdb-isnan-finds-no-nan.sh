#!/usr/bin/env bash
# What: DuckDB's WHERE isnan(x) over a Parquet file written by pyarrow or polars finds no row,
#   although NaN are there: the plan is "Empty Result". Counting without a filter, by count(*)
#   FILTER (isnan(x)), finds them. max(x) is a number for pyarrow's file and nan for that of
#   polars. The statistics of both files leave NaN out, as the format's specification asks of
#   writers. DuckDB takes them for all values, unless read_parquet is told can_have_nan=true. A
#   file that DuckDB has written has no statistics for such columns, and is read correctly.
# Version: duckdb 2.0.1 with pyarrow 25.0.1 and polars 2.1.0.
# Why it matters: one NaN in a column of embeddings, labels or gradients ruins a model. This query
#   is the way to look for it before training, and it reports that there is none. So count with
#   FILTER, or pass can_have_nan=true.
# Source: "When looking for NaN values, min and max should be ignored" (parquet.thrift of
#   apache/parquet-format). duckdb/duckdb#16962 read such files correctly, #17883 made that the
#   option can_have_nan, off by default; #25747 adds counts of NaN, which these two writers do not
#   write.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==2.0.1 pyarrow==25.0.1 polars==2.1.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import math
import sys

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

print("duckdb", duckdb.__version__, "pyarrow", pa.__version__, "polars", pl.__version__)
values = np.arange(20_000, dtype=np.float64)
values[::7] = math.nan  # 2,858 of them
frame = pa.table({"x": values})
pq.write_table(frame, "pyarrow.parquet", row_group_size=1000)
pl.DataFrame({"x": values}).write_parquet("polars.parquet", row_group_size=1000)
duckdb.sql("COPY (SELECT * FROM frame) TO 'duckdb.parquet' (FORMAT parquet)")

queries = {
    "where": "SELECT count(*) FROM {file} WHERE isnan(x)",
    "filter": "SELECT count(*) FILTER (isnan(x)) FROM {file}",
    "max": "SELECT max(x) FROM {file}",
}
files = {
    "in memory": "frame",
    "pyarrow": "'pyarrow.parquet'",
    "polars": "'polars.parquet'",
    "duckdb": "'duckdb.parquet'",
    "pyarrow, can_have_nan": "read_parquet('pyarrow.parquet', can_have_nan=true)",
}
seen = {}
for file, source in files.items():
    answers = [duckdb.sql(query.format(file=source)).fetchall()[0][0] for query in queries.values()]
    seen[file] = tuple(str(answer) for answer in answers)
    print(f"{file:22}", "  ".join(f"{n}: {a}" for n, a in zip(queries, seen[file], strict=True)))
expected = {
    "in memory": ("2858", "2858", "nan"),
    "pyarrow": ("0", "2858", "19998.0"),
    "polars": ("0", "2858", "nan"),
    "duckdb": ("2858", "2858", "nan"),
    "pyarrow, can_have_nan": ("2858", "2858", "nan"),
}
sys.exit(0 if seen == expected else f"the behaviour has changed: expected {expected}")
PYTHON
