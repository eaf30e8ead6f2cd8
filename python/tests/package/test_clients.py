"""Clients of other languages in `examples/clients`, run against a server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import embedrock
from places import ROOT
from servers import serving

pytestmark = pytest.mark.long

CLIENTS = ROOT / "examples" / "clients"


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in Go, built. Without Go or its modules tests are skipped, and pytest says so."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed (Debian: apt-get install golang)")
    program = tmp_path_factory.mktemp("go") / "client"

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *words],
            cwd=CLIENTS / "go",
            env={**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
            capture_output=True,
            text=True,
            timeout=240,
        )

    try:
        got = call("mod", "download")
    except subprocess.TimeoutExpired:
        pytest.skip("modules of the client in Go did not come within 240 s")
    if got.returncode:
        pytest.skip(f"modules of the client in Go are not here: {got.stderr.strip()[-300:]}")
    built = call("build", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    checked = call("vet", ".")
    assert checked.returncode == 0, checked.stderr
    return program


def test_the_client_in_go_pulls_rows_in_three_ways(go_client: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    keys = np.array([17, 42, 2**64 - 2], np.uint64)
    rows = random.standard_normal((3, 8)).astype(np.float32)
    with embedrock.open(tmp_path / "served.store", "64MiB") as store:
        store.table("items", 8, initializer=0.5).put(keys, rows)
        store.commit(1)

    with serving(tmp_path / "served.store") as served:

        def pull(*words: str) -> subprocess.CompletedProcess[str]:
            command = [go_client, "-address", f"127.0.0.1:{served.port}", *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=60)

        done = pull("-table", "items", "42", "99", "17", str(2**64 - 2), "42")
        assert done.returncode == 0, done.stderr
        *told, mget, pulls = done.stdout.splitlines()
        assert mget == "MGET has the same rows"
        assert pulls == "100 pulls in one round trip have the same rows"
        expected = {"42": rows[1], "17": rows[0], str(2**64 - 2): rows[2]}
        for line, key in zip(told, ["42", "99", "17", str(2**64 - 2), "42"], strict=True):
            name, written, values = line.split(" ", 2)
            assert (name, written) == (f"items:{key}", str(key != "99").lower())
            shown = np.array(values.removesuffix(" ...").strip("[]").split(), np.float32)
            wanted = expected.get(key, np.full(8, 0.5, np.float32))
            np.testing.assert_array_equal(shown, wanted[: len(shown)])
            assert len(shown) == 4

        wrong = pull("-table", "nobody", "1")
        assert wrong.returncode == 1 and "NOTFOUND no table 'nobody'" in wrong.stderr


def test_the_client_in_go_is_formatted() -> None:
    gofmt = shutil.which("gofmt")
    if gofmt is None:
        pytest.skip("gofmt is not installed (Debian: apt-get install golang)")
    done = subprocess.run([gofmt, "-l", CLIENTS / "go"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
