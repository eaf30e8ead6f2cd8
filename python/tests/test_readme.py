"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

README = Path(__file__).parents[2] / "README.md"


def test_the_example_trains_and_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(blocks[0], str(README), "exec"), names)
    store = names["store"]
    assert [commit.step for commit in store.commits()] == [9]  # type: ignore[attr-defined]
    ids = torch.cat([ids for ids, _ in names["batches"]]).unique()  # type: ignore[attr-defined]
    assert len(store.table("items")) == len(ids)  # type: ignore[attr-defined]
    store.close()  # type: ignore[attr-defined]
