"""The bench of a server: same rows, same client, against Redis where it is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from embedrock_lab.commands.bench import main


@pytest.mark.parametrize("redis", ["redis-server", "no-such-program"])
def test_a_small_pull_is_measured_and_verified(tmp_path: Path, redis: str) -> None:
    report = tmp_path / "pull.json"
    options = ["--rows", "3000", "--dim", "16", "--keys", "50", "--requests", "40", "--rounds", "2"]
    options += ["--patience", "0", "--dir", str(tmp_path), "--redis-server", redis]
    options += ["--parts", "redis"]
    assert main(["pull", *options, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    assert 0 < found["figures"]["pull_cpu_us"] < 1000
    for name in ("uniform", "depth_4", "zipf"):
        assert {"pull", "mget"} <= {*found["results"][name]}
    assert found["results"]["mixed"]["pull"]["rows_per_s"] > 0
    if shutil.which(redis) is None:
        assert found["figures"]["pull_vs_redis"] is None
        assert any("redis-server is not installed" in note for note in found["notes"])
        if redis == "redis-server":
            pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    else:
        assert found["figures"]["pull_vs_redis"] > 0
        assert found["figures"]["pull_p99_vs_redis"] > 0


def test_rows_from_regions_and_from_disk_are_measured_and_verified(tmp_path: Path) -> None:
    report = tmp_path / "pull.json"
    options = ["--rows", "6000", "--dim", "128", "--keys", "50", "--requests", "20"]
    options += ["--rounds", "2", "--patience", "0", "--dir", str(tmp_path), "--dims", "16", "64"]
    options += ["--gather-bytes", "65536"]
    options += ["--parts", "gather", "disk", "--json", str(report)]
    assert main(["pull", *options]) == 0
    found = json.loads(report.read_text())
    assert found["results"]["mismatches"] == 0
    assert found["figures"]["pull_vs_redis"] is None
    for dim in (16, 64):
        assert {"copy", "vectored", "zerocopy"} == {*found["results"][f"gather_{dim}"]}
    for storage in ("log", "pages"):
        one = found["results"]["disk"][storage]
        # A cache for a tenth of the rows answers about a tenth of uniform keys.
        assert 0.05 < one["cached_share"] < 0.2
        assert 0.7 < one["miss_rate"] < 0.98
        assert 0 < one["device_share"] < 3
    assert found["figures"]["pull_rows_per_core"] > 0
