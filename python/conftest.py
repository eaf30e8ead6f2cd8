"""Fixtures of tests and documented examples: a directory of their own and an open store."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock

# A module of an adapter cannot be imported, and so has no examples to run, without its library.
_NEEDS = {
    "hf.py": "transformers",
    "lightning.py": "pytorch_lightning",
    "pyg": "torch_geometric",
    "pykeen.py": "pykeen",
}
collect_ignore = [
    f"embedrock/adapters/{name}"
    for name, library in _NEEDS.items()
    if importlib.util.find_spec(library) is None
]

# Programs that tests begin find what tests share, from whatever folder they are.
_SHARED = str(Path(__file__).with_name("tests"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_SHARED, os.environ.get("PYTHONPATH")]))

# A shell that starts tests in the background has them ignore Ctrl-C, nohup the end of a terminal,
# and some tests send these to their children, which inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


_LONG_FIRST = (
    "remote/test_cluster.py",
    "package/test_examples.py",
    "distributed/",
    "remote/test_redis_py.py",
    "training/",
    "pipeline/",
    "package/test_odd_arguments.py",
    "objects/",
    "remote/",
    "cli/",
    "follow/",
    "store/test_changes.py",
    "store/test_lsm.py",
    "store/test_pins.py",
    "nn/test_nn_acceptance.py",
    "package/test_logs.py",
)
"""Tests that take long, or many of a worker: last, they would leave the other workers idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives long tests out first where several workers run them."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.removeprefix("python/tests/")
        found = (at for at, begin in enumerate(_LONG_FIRST) if file.startswith(begin))
        return next(found, len(_LONG_FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=place)


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from the tests themselves and the modules that they import.

    They stay to the end. Going through all of them took six per cent of the time of some files.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Lets the interpreter free what :func:`pytest_collection_finish` froze."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that share what is made once go to one worker; others go where there is time."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared(config.rootpath / nodeid.partition("::")[0]) or nodeid

    config.option.loadscopereorder = False  # by number of tests, not by how long they take
    return Scheduling(config, log)


@cache
def _shared(file: Path) -> str:
    """Resource that tests of a file share: the file's own fixtures, the broker, or nothing."""
    text = file.read_text(encoding="utf-8")
    if "broker: Broker" in text:
        return "broker"
    return str(file) if 'scope="module"' in text else ""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Kafka broker for all tests of a process: it takes seconds to start."""
    from brokers import Broker  # beside the tests alone

    found = Broker(tmp_path_factory.mktemp("kafka"))
    yield found
    found.stop(signal.SIGKILL)


@pytest.fixture(autouse=True, scope="session")
def _lines_of_the_engine_stay() -> Iterator[None]:
    """Keeps `embedrock serve`, where a test runs it in this process, from having the engine
    write its lines itself to the end of the process: other tests look for them in `logging`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedrock.cli.logs.from_engine", lambda _level: None)
        yield


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
