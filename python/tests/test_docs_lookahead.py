"""The example of docs/lookahead.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import embedrock

PAGE = Path(__file__).parents[2] / "docs" / "lookahead.md"


def test_the_example_in_mlkvs_style_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "permits" in block]
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert re.fullmatch(r"200 batches, staleness up to [0-4]\n", said)
    with embedrock.open(tmp_path / "mlkv.store", memory="64MiB") as store:
        assert store.step == 200
        rows = store.table("embeddings").get(range(10_000))
        initial = store.table("other", 8).get(range(10_000))
        # Each step takes a fifth of a row's values away.
        assert abs(rows).mean() < 0.9 * abs(initial).mean()
