"""``bench recommend``: a small run on made users, and what it says of files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from embedrock.errors import MisuseError
from embedrock_lab.bench.training.recommend import made, read
from embedrock_lab.commands.bench import main


@pytest.mark.filterwarnings("ignore::embedrock.BudgetWarning")  # a quarter of so few rows
def test_both_loops_find_what_users_like(tmp_path: Path) -> None:
    file = tmp_path / "recommend.json"
    small = ["--users", "400", "--epochs", "12", "--dim", "16", "--batch", "512"]
    small += ["--negatives", "64", "--dir", str(tmp_path / "b"), "--json", str(file)]
    assert main(["recommend", *small]) == 0
    report = json.loads(file.read_text())
    figures, loops = report["figures"], report["results"]["loops"]
    assert figures["recall_20"] > 0.5  # by chance it is 0.03; of its own kind's items, 1
    assert abs(figures["recall_20_gap"]) < 0.01
    assert loops["store"]["loss"] == pytest.approx(loops["in memory"]["loss"], abs=1e-3)
    assert loops["store"]["loss"] < loops["store"]["loss_first"] - 0.1
    assert figures["speed_vs_memory_recommend"] > 0 and report["results"]["mismatches"] == 0


def test_files_are_read_and_what_is_wrong_with_them_is_named(tmp_path: Path) -> None:
    clicks = made(40, 1)
    assert clicks.users == 40 and clicks.items <= 600
    for name, items in (("train", clicks.known), ("test", clicks.wanted)):
        with gzip.open(tmp_path / f"{name}_queries.txt.gz", "wt") as file:
            for user, own in items.items():
                file.write(f"{user}\t{' '.join(map(str, own))}\n")
    found = read(tmp_path)
    assert all((found.known[user] == clicks.known[user]).all() for user in range(40))
    assert found.name == tmp_path.name and found.items == clicks.items
    with gzip.open(tmp_path / "test_queries.txt.gz", "wt") as file:
        file.write("0\t1 2\n3 4\n")
    with pytest.raises(MisuseError, match=r"line 2: .*expected a user, a tab, items"):
        read(tmp_path)
    (tmp_path / "test_queries.txt.gz").unlink()
    with pytest.raises(MisuseError, match=r"test_queries.txt.gz is not there"):
        read(tmp_path)
