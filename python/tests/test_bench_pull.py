"""The bench of a server: same rows, same client, against Redis where it is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from embedrock.bench.__main__ import main


@pytest.mark.parametrize("redis", ["redis-server", "no-such-program"])
def test_a_small_pull_is_measured_and_verified(tmp_path: Path, redis: str) -> None:
    report = tmp_path / "pull.json"
    options = ["--rows", "3000", "--dim", "16", "--keys", "50", "--requests", "40", "--rounds", "2"]
    options += ["--patience", "0", "--dir", str(tmp_path), "--redis-server", redis]
    options += ["--gather-dims", *(["16", "256"] if redis == "redis-server" else [])]
    options += ["--gather-bytes", "200000"]
    assert main(["pull", *options, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    assert 0 < found["figures"]["pull_cpu_us"] < 1000
    for name in ("uniform", "depth_4", "zipf"):
        assert {"pull", "mget"} <= {*found["results"][name]}
    if redis == "redis-server":
        for dim in ("16", "256"):
            modes = found["results"]["gather"][dim]
            assert {"copy", "vectored"} <= {*modes}
            assert all(one["cpu_us_per_row"] > 0 for one in modes.values())
    if shutil.which(redis) is None:
        assert found["figures"]["pull_vs_redis"] is None
        assert any("redis-server is not installed" in note for note in found["notes"])
        if redis == "redis-server":
            pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    else:
        assert found["figures"]["pull_vs_redis"] > 0
        assert found["figures"]["pull_p99_vs_redis"] > 0
