#!/usr/bin/env bash
# What: pylance's LanceDataset.take(positions) with a position beyond the last row is an OSError
#   while the positions ascend. In any other order the position is silently left out. The answer
#   has fewer rows than the request, so a reader that goes by place pairs every row behind the gap
#   with a wrong id. LanceDB's take_offsets over the same files leaves it out in each order, and
#   answers in the order of storage (which its docstring says).
# Version: pylance 14.0.2 with pyarrow 26.0.1, and lancedb 0.40.0.
# Why it matters: a program that keeps embedding rows in Lance and reads them by the ids of a
#   model meets this with the first new item. A test with sorted ids sees an error and passes. A
#   batch of training or serving is not sorted, and gets (n - 1, dim) for n ids. After a sum or
#   mean that is no error but a wrong vector. pyarrow's take over the same table refuses both
#   requests. So compare the length of each answer with the request, or check ids first.
# Source: the docstring of LanceDataset.take in pylance 14.0.2 does not mention it. LanceDB's
#   docstring of take_offsets states that the order is not guaranteed, not that rows may be
#   missing. lance-format/lance#7448 made delete_rows, which accepted such offsets too, refuse
#   them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pylance==14.0.2 lancedb==0.40.0 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import lance
import lancedb
import numpy as np
import pyarrow as pa

print("pylance", lance.__version__, "lancedb", lancedb.__version__, "pyarrow", pa.__version__)
rows, dim = 10_000, 8
values = np.repeat(np.arange(rows, dtype=np.float32)[:, None], dim, axis=1)
table = pa.table(
    {"item": np.arange(rows), "row": pa.FixedSizeListArray.from_arrays(values.ravel(), dim)}
)
database = lancedb.connect("items")
stored = database.create_table("items", table)
dataset = lance.dataset("items/items.lance")

requests = {
    "inside": [7, 3, 7],
    "one beyond, ascending": [3, 7, rows],  # valid positions are 0 to rows - 1
    "one beyond, not ascending": [7, rows, 3, 7],
    "beyond alone": [rows],
}


def items(take, positions):
    """The item of each row of an answer, or the name of the error."""
    try:
        return take(positions)["item"].to_pylist()
    except (OSError, pa.ArrowIndexError) as error:
        return type(error).__name__


takers = {
    "pylance": dataset.take,
    "lancedb": lambda positions: stored.take_offsets(positions).to_arrow(),
    "pyarrow": table.take,
}
seen = {
    (taker, name): items(take, positions)
    for taker, take in takers.items()
    for name, positions in requests.items()
}
for (taker, name), answer in seen.items():
    print(f"{taker}: {name:26} {str(requests[name]):18} -> {answer}")
expected = dict(
    zip(
        seen,
        [
            *([7, 3, 7], "OSError", [7, 3, 7], "OSError"),
            *([3, 7, 7], [3, 7], [3, 7, 7], []),
            *([7, 3, 7], "ArrowIndexError", "ArrowIndexError", "ArrowIndexError"),
        ],
        strict=True,
    )
)
sys.exit(0 if seen == expected else f"the behaviour has changed: expected {expected}")
PYTHON
