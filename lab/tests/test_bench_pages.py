"""The bench of read modes, small."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embedrock_lab.bench import pages
from embedrock_lab.commands.bench import main

FILE_BYTES = 4 << 20


def test_every_mode_reads_and_verifies_rows(tmp_path: Path) -> None:
    file = tmp_path / "pages.json"
    arguments = ["pages", "--file-bytes", str(FILE_BYTES), "--rows", "200000", "--rounds", "1"]
    arguments += ["--threads", "1", "2", "--slice", "0.1", "--patience", "0"]
    assert main([*arguments, "--dir", str(tmp_path), "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    modes = found["results"]["modes"]
    counted = {f"{mode}-{threads}" for mode in pages.MODES for threads in (1, 2)}
    assert set(modes) == counted | {"embedrock"}
    assert all(modes[name]["rows_verified"] > 0 for name in counted)
    assert all(one["accesses_per_s"] > 0 and one["cpu_us"] > 0 for one in modes.values())
    assert found["results"]["mismatches"] == 0
    assert all(value > 0 for value in found["figures"].values())
    assert [left.name for left in tmp_path.iterdir()] == ["pages.json"]


@pytest.mark.parametrize("mode", pages.MODES)
def test_a_wrong_row_is_counted(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "pages"
    words = np.arange(2 * pages.PAGE_WORDS, dtype=np.uint32)
    rows = words.reshape(2, -1, pages.ROW_BYTES // 4)
    rows[0, 0, 5] += 1  # Page p is asked for its row p.
    file.write_bytes(words.tobytes())
    try:
        found = pages.read(str(file), mode, 2, 0.02, FILE_BYTES, None, 1)
    except OSError:
        pytest.skip("this file system has no direct reads")
    assert 0 < found["mismatches"] < found["rows_verified"]
