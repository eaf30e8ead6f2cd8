"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import embedrock

torch = pytest.importorskip("torch")

README = Path(__file__).parents[2] / "README.md"


def test_the_example_trains_and_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    for _ in ("trains", "has nothing left to do"):
        torch.manual_seed(0)
        names: dict[str, Any] = {}
        exec(compile(blocks[0], str(README), "exec"), names)
        ids = torch.cat([ids for ids, _ in names["batches"]]).unique()
        with embedrock.open("model.store", "10%", create=False) as store:
            assert store.step == 9
            assert store.table("items").contains(ids.numpy()).all()
