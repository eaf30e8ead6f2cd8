"""Three servers that share the keys of one store, each with a copy of its part."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import embedrock
import servers
from servers import Served

BUCKETS = {"a": "0-340", "b": "341-700", "c": "701-1023"}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


class Trio:
    """The servers "a", "b" and "c", and their map."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.ports = dict(zip(BUCKETS, free_ports(len(BUCKETS)), strict=True))
        self.map = folder / "map.json"
        self.servers: dict[str, Served] = {}
        self.write_map()

    def write_map(
        self, buckets: dict[str, str] = BUCKETS, ports: dict[str, int] | None = None
    ) -> None:
        """Writes who has which buckets, reached at which ports."""
        nodes = [
            {"id": name, "address": f"127.0.0.1:{port}", "buckets": buckets[name]}
            for name, port in {**self.ports, **(ports or {})}.items()
        ]
        self.map.write_text(json.dumps({"nodes": nodes}))

    def store_of(self, name: str) -> Path:
        return self.folder / f"{name}.store"

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def url(self, name: str) -> str:
        return f"redis://{self.address(name)}"

    def start(self, name: str) -> Served:
        """Starts a server at its port."""
        options = ["--listen", self.address(name), "--cluster", str(self.map)]
        options += ["--cluster-node", name]
        self.servers[name] = servers.start(self.store_of(name), *options, *self.options)
        return self.servers[name]

    def kill(self, name: str) -> None:
        """Ends a server at once."""
        process = self.servers.pop(name).process
        process.kill()
        process.communicate(timeout=60)


@contextlib.contextmanager
def cluster(store: Path, folder: Path, *options: str) -> Iterator[Trio]:
    """Three servers with the rows of a store."""
    trio = Trio(folder, *options)
    try:
        for name, buckets in BUCKETS.items():
            embedrock.copy(store, trio.store_of(name), buckets=buckets, memory="64MiB")
            trio.start(name)
        yield trio
    finally:
        for name in [*trio.servers]:
            trio.kill(name)
