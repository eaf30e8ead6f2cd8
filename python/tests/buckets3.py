"""An S3 server of its own for tests: versitygw over a folder, on loopback."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "versitygw"
VERSION = "v1.8.0"
GO = "/usr/local/go/bin/go"
BUILD_SECONDS = 300
START_SECONDS = 30
KEY, SECRET, REGION = "embedrock", "embedrock-secret", "us-east-1"


def binary() -> Path:
    """The server, built if it is missing.

    Without Go or the sources the test is skipped, and pytest says so.
    """
    go = shutil.which("go") or (GO if os.access(GO, os.X_OK) else None)
    if go is None:
        pytest.skip("no S3 server: go is not installed (go.dev, 1.25 or newer)")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = CACHE / VERSION / "versitygw"
        if not place.exists():
            build(go, place.parent)
        return place


def build(go: str, folder: Path) -> None:
    """Go keeps sources and what it has compiled outside the clone, so another one takes little."""
    module = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder), "GOFLAGS": ""}
    try:
        done = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", module],
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"no S3 server: go has not built it within {BUILD_SECONDS} s")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        pytest.skip(f"no S3 server: go could not build it: {said[-1] if said else 'no word'}")


class Bucket:
    """A server that runs, with one bucket."""

    def __init__(self, folder: Path) -> None:
        place = binary()
        self.folder = folder / "data" / "models"
        self.folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "output"
        self.command = [place, "--port", f"127.0.0.1:{self.port}", "--quiet"]
        self.command += ["--access", KEY, "--secret", SECRET, "--region", REGION]
        self.command += ["posix", str(folder / "data")]
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        with self.log.open("a") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=subprocess.STDOUT)
        until = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            said = self.log.read_text()[-2000:]
            assert self.process.poll() is None and time.monotonic() < until, said
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": REGION,
            "client_options": {"allow_http": True},
        }

    def url(self, path: str) -> str:
        return f"s3://models/{path}"
