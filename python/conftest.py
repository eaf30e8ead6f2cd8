"""What tests and documented examples share: a directory of their own and an open store."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock

# A shell that starts tests in the background has them ignore Ctrl-C, and some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A module of an adapter cannot be imported, and so has no examples to run, without its library.
_NEEDS = {"pyg": "torch_geometric", "lightning.py": "pytorch_lightning", "hf.py": "transformers"}
collect_ignore = [
    f"embedrock/adapters/{name}"
    for name, library in _NEEDS.items()
    if importlib.util.find_spec(library) is None
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[embedrock.Store]:
    """An empty store in a directory of its own, with too little disk to measure its speed first."""
    path = tmp_path / "test.store"
    with embedrock.open(path, memory="64MiB", max_disk_bytes=100 << 20) as store:
        yield store
        if not store.closed and store.uncommitted[0]:
            store.commit(1_000_000)


@pytest.fixture
def table(store: embedrock.Store) -> embedrock.Table:
    """A growing table of four values per row that start at zero, with element-wise Adagrad."""
    return store.table("ads", 4, optimizer="adagrad", initializer=0.0)


@pytest.fixture
def filled(table: embedrock.Table) -> embedrock.Table:
    """The table with keys 0 to 99: value j of key k is 10 k + j."""
    keys = np.arange(100)
    table.put(keys, (keys[:, None] * 10 + np.arange(4)).astype(np.float32))
    return table


@pytest.fixture(autouse=True)
def _examples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives documented examples their names, and a directory of their own to write into."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    names: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    names.update(embedrock=embedrock, np=np)
    for name in ("store", "table"):
        names[name] = request.getfixturevalue(name)
