"""Every parameter of every public callable, given odd objects.

The callables and their parameters are found by their signatures; ``CALLS`` has arguments of each
with which it works. Each parameter in turn is replaced by every odd object, alone and within what
it may hold. The call works, or raises an error of Embedrock; a store is what it was. Of the odd
objects each parameter gets a third by day, the next one the next third; contests try them all.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedrock
from embedrock import _core, follow, initializers, nn, optim, optimizers, weights
from embedrock.ahead.permits import Permit, Permits
from embedrock.ahead.prefetch import Prefetch
from embedrock.ahead.schedule import BatchSchedule, Schedule
from embedrock.ahead.window import Window
from embedrock.errors import EmbedrockError
from embedrock.observe.recording import Recording
from embedrock.remote import RemoteStore, RemoteTable
from odd import ODD
from rows import numbered

Arguments = dict[str, Any]
KEYS = np.array([1, 2])
EDGES = np.arange(10).reshape(5, 2)
CONTROL = np.arange(100)


class World:
    """A store in use, and a model over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers = itertools.count()
        self.store = embedrock.open(path / "s", "32MiB", max_disk_bytes=100 << 20)
        self.table = self.store.table("t", 4, optimizer="adagrad", initializer=0.0)
        self.momentum = self.store.table("m", 4, optimizer="momentum", initializer=0.0)
        self.ftrl = self.store.table("f", 4, optimizer="ftrl", initializer=0.0)
        self.dense = self.store.table("d", 4, 100, optimizer="none", initializer=0.0)
        self.control = self.store.table("control", 4, optimizer="none")
        self.control.put(CONTROL, numbered(CONTROL))
        self.bag = nn.EmbeddingBag(None, 4, mode="sum", store=self.store, name="b", optimizer="sgd")
        self.embedding = nn.Embedding(50, 4, store=self.store, name="e", optimizer="adam")
        config = nn.EmbeddingBagConfig("c", 4, ["x", "y"])
        self.bags = nn.EmbeddingBagCollection([config], store=self.store)
        self.model = torch.nn.Sequential(self.bag, torch.nn.Linear(4, 1))
        self.step = itertools.count(1)
        self.store.commit(0)
        embedrock.open(path / "other", "16MiB", max_disk_bytes=100 << 20).close()
        with embedrock.open(path / "regions", "16MiB") as regions:
            regions.table("t", 4, 10, storage="pmem")
            regions.commit(1)

    def new_path(self) -> Path:
        return self.path / f"new{next(self.numbers)}"

    @cached_property
    def ranged(self) -> embedrock.Table:
        return self.store.table("ranged", 4, num_embeddings=50, optimizer="sgd")

    @cached_property
    def scheduled(self) -> Schedule:
        return embedrock.schedule([{self.table: KEYS}], self.path / "ads.schedule")

    def more_rows(self) -> nn.Embedding:
        return nn.Embedding(None, 4, store=self.store, name="more", optimizer="sgd")

    def batches(self, width: int) -> list[tuple[Any, ...]]:
        return [(self.table, KEYS, np.zeros((2, 4), np.float32))[:width]]

    @cached_property
    def server(self) -> _core.Server:
        return _core.Server(self.store._core, "127.0.0.1:0", threads=1, commit_every=0)

    @cached_property
    def remote(self) -> RemoteStore:
        return embedrock.connect(f"redis://{self.server.address()}")

    @cached_property
    def watching(self) -> RemoteStore:
        """A server that reads at one state beside the writer, since one that writes never moves."""
        self.reader = embedrock.open(self.path / "s", "32MiB", read_only=True)
        self.reading = _core.Server(self.reader._core, "127.0.0.1:0", threads=1)
        return embedrock.connect(f"redis://{self.reading.address()}")

    def check(self) -> None:
        """Nothing that no call named has changed, and the store goes on."""
        np.testing.assert_array_equal(self.control.get(CONTROL), numbered(CONTROL))
        assert len(self.control) == len(CONTROL)
        self.momentum.put([77], np.ones((1, 4), np.float32))
        np.testing.assert_array_equal(self.momentum.get([77]), np.ones((1, 4), np.float32))
        self.store.commit(max(self.store.step or 0, next(self.step)))


def pinned(world: World) -> str:
    world.store.pin(world.store.step or 0, "pinned")
    return "pinned"


def rows(world: World) -> Any:
    return np.zeros((2, 4), np.float32)


def optimizer_arguments(kind: str) -> Callable[[World], Arguments]:
    def arguments(world: World) -> Arguments:
        model = nn.Embedding(50, 4, store=world.store, name=f"of {kind}", optimizer=kind)
        return {"modules": model}

    return arguments


MODULE = {"store": "store", "name": "new"}
CALLS: dict[str, tuple[Callable[[World], Any], Callable[[World], Arguments]]] = {
    "open": (lambda w: embedrock.open, lambda w: {"path": w.new_path(), "memory": "16MiB"}),
    "check": (lambda w: embedrock.check, lambda w: {"path": w.path / "other"}),
    "copy": (
        lambda w: embedrock.copy,
        lambda w: {"path": w.path / "s", "destination": w.new_path()},
    ),
    "resize": (
        lambda w: embedrock.resize,
        lambda w: {"path": w.path / "regions", "table": "t", "capacity": 10},
    ),
    "freeze": (
        lambda w: embedrock.freeze,
        lambda w: {"path": w.path / "s", "destination": w.new_path()},
    ),
    "distinct": (lambda w: embedrock.distinct, lambda w: {"keys": KEYS}),
    "hash_keys": (lambda w: embedrock.hash_keys, lambda w: {"strings": ["a", "b"]}),
    "save": (
        lambda w: embedrock.save,
        lambda w: {"store": w.store, "model": w.model, "optimizer": None, "step": 1},
    ),
    "resume": (
        lambda w: embedrock.resume,
        lambda w: {"store": w.store, "model": None, "optimizer": None},
    ),
    "Clip": (lambda w: embedrock.Clip, lambda w: {}),
    "StepReport": (lambda w: embedrock.StepReport, lambda w: {"store": w.store}),
    "LookaheadLoader": (
        lambda w: embedrock.LookaheadLoader,
        lambda w: {"loader": [KEYS], "model": w.store, "keys_of": lambda batch: {"t": batch}},
    ),
    "Pipeline": (
        lambda w: embedrock.Pipeline,
        lambda w: {"model": w.bag, "loader": [torch.tensor([[1]])]},
    ),
    "Store.table": (lambda w: w.store.table, lambda w: {"name": "new", "embedding_dim": 4}),
    "Store.go_back": (lambda w: w.store.go_back, lambda w: {"step": 0}),
    "Store.pin": (lambda w: w.store.pin, lambda w: {"step": w.store.step, "name": "p"}),
    "Store.unpin": (lambda w: w.store.unpin, lambda w: {"name": pinned(w)}),
    "Store.get": (lambda w: w.store.get, lambda w: {"batches": w.batches(2)}),
    "Store.lookahead": (
        lambda w: w.store.lookahead,
        lambda w: {"batches": w.batches(2), "out": [rows(w)]},
    ),
    "Store.put": (lambda w: w.store.put, lambda w: {"batches": w.batches(3)}),
    "Store.update": (lambda w: w.store.update, lambda w: {"batches": w.batches(3), "lr": 0.1}),
    "Store.gradient_norm": (lambda w: w.store.gradient_norm, lambda w: {"batches": w.batches(3)}),
    "Store.commit": (lambda w: w.store.commit, lambda w: {"step": 1}),
    "Store.record": (lambda w: w.store.record, lambda w: {}),
    "Store.permits": (lambda w: w.store.permits, lambda w: {}),
    "Store.__contains__": (lambda w: w.store.__contains__, lambda w: {"name": "t"}),
    "Table.grow": (lambda w: w.ranged.grow, lambda w: {"num_embeddings": 50}),
    "Table.__contains__": (lambda w: w.table.__contains__, lambda w: {"key": 1}),
    "Table.get": (lambda w: w.table.get, lambda w: {"keys": KEYS}),
    "Table.put": (lambda w: w.table.put, lambda w: {"keys": KEYS, "values": rows(w)}),
    "Table.update": (
        lambda w: w.table.update,
        lambda w: {"keys": KEYS, "gradients": rows(w), "lr": 0.1},
    ),
    "Table.modify": (
        lambda w: w.table.modify,
        lambda w: {"keys": KEYS, "function": lambda values, state: None},
    ),
    "Table.delete": (lambda w: w.table.delete, lambda w: {"keys": KEYS}),
    "Table.promote": (lambda w: w.table.promote, lambda w: {"keys": KEYS}),
    "Table.contains": (lambda w: w.table.contains, lambda w: {"keys": KEYS}),
    "Table.lookahead": (lambda w: w.table.lookahead, lambda w: {"keys": KEYS, "out": rows(w)}),
    "Table.items": (lambda w: w.table.items, lambda w: {}),
    "Table.keys": (lambda w: w.table.keys, lambda w: {}),
    "Table.digest": (lambda w: w.control.digest, lambda w: {}),
    "connect": (
        lambda w: embedrock.connect,
        lambda w: {"url": f"redis://{w.server.address()}", "retries": 0},
    ),
    "RemoteStore.table": (lambda w: w.remote.table, lambda w: {"name": "t"}),
    "RemoteStore.get": (
        lambda w: w.remote.get,
        lambda w: {"batches": [(w.remote["t"], KEYS)], "out": [rows(w)]},
    ),
    "RemoteStore.commit": (lambda w: w.remote.commit, lambda w: {}),
    "RemoteStore.__contains__": (lambda w: w.remote.__contains__, lambda w: {"name": "t"}),
    "RemoteTable.__contains__": (lambda w: w.remote["t"].__contains__, lambda w: {"key": 1}),
    "RemoteTable.get": (lambda w: w.remote["t"].get, lambda w: {"keys": KEYS}),
    "RemoteTable.put": (lambda w: w.remote["t"].put, lambda w: {"keys": KEYS, "values": rows(w)}),
    "RemoteTable.update": (
        lambda w: w.remote["t"].update,
        lambda w: {"keys": KEYS, "gradients": rows(w), "lr": 0.1},
    ),
    "RemoteTable.lookahead": (lambda w: w.remote["t"].lookahead, lambda w: {"keys": KEYS}),
    "RemoteStore.switch": (lambda w: w.watching.switch, lambda w: {"step": 0}),
    "RemoteTable.promote": (lambda w: w.remote["t"].promote, lambda w: {"keys": KEYS}),
    "Window.announce_range": (
        lambda w: w.store.window.announce_range,
        lambda w: {"table": w.ranged, "first": 0, "last": 5},
    ),
    "PartitionedEdges": (
        lambda w: embedrock.PartitionedEdges,
        lambda w: {"edges": EDGES, "table": w.ranged, "batch_size": 2, "partitions": 2},
    ),
    "SharedNegatives": (lambda w: embedrock.SharedNegatives, lambda w: {"count": 3}),
    "Window.announce": (lambda w: w.store.window.announce, lambda w: {"batch": {w.table: KEYS}}),
    "BatchSchedule": (
        lambda w: BatchSchedule,
        lambda w: {"stretch": 0, "stretch_batches": 1, "furthest": 1, "next_use": {}},
    ),
    "schedule": (
        lambda w: embedrock.schedule,
        lambda w: {"batches": [{w.table: KEYS}], "path": w.new_path()},
    ),
    "Schedule": (lambda w: Schedule, lambda w: {"path": w.scheduled.path}),
    "Schedule.batch": (
        lambda w: w.scheduled.batch,
        lambda w: {"number": 0, "keys": {w.table: KEYS}},
    ),
    "Schedule.find": (lambda w: w.scheduled.find, lambda w: {"keys": {w.table: KEYS}}),
    "Window.begin": (lambda w: w.store.window.begin, lambda w: {"number": 1}),
    "Window.finish": (lambda w: w.store.window.finish, lambda w: {"number": 1}),
    "Permits.acquire": (lambda w: w.store.permits().acquire, lambda w: {"batch": {w.table: KEYS}}),
    "Prefetch.wait": (lambda w: w.table.lookahead(KEYS, rows(w)).wait, lambda w: {}),
    "PendingCommit.wait": (
        lambda w: w.store.commit(max(w.store.step or 0, 1), wait=False).wait,
        lambda w: {},
    ),
    "Recording.save": (lambda w: recorded(w).save, lambda w: {"file": w.new_path()}),
    "StepReport.steps": (
        lambda w: embedrock.StepReport(w.store).steps,
        lambda w: {"batches": [KEYS]},
    ),
    "StepReport.to_csv": (
        lambda w: embedrock.StepReport(w.store).to_csv,
        lambda w: {"file": w.new_path()},
    ),
    "LookaheadLoader.load_state_dict": (
        lambda w: embedrock.LookaheadLoader([KEYS], w.bag).load_state_dict,
        lambda w: {"state_dict": {}},
    ),
    **{
        f"initializers.{name}": (
            lambda w, name=name: getattr(initializers, name),
            lambda w, name=name: {"value": 1.0} if name == "constant" else {},
        )
        for name in ("constant", "uniform", "normal", "truncated_normal")
    },
    **{
        f"optimizers.{name}": (lambda w, name=name: getattr(optimizers, name), lambda w: {})
        for name in optimizers.__all__
        if name.islower()
    },
    "weights.export": (
        lambda w: weights.export,
        lambda w: {"table": w.dense, "path": w.new_path().with_suffix(".npy")},
    ),
    "weights.load": (lambda w: weights.load, lambda w: {"table": w.table, "source": rows(w)}),
    "weights.to_arrow": (lambda w: weights.to_arrow, lambda w: {"table": w.table}),
    "weights.to_torch": (lambda w: weights.to_torch, lambda w: {"table": w.dense}),
    "nn.Embedding": (
        lambda w: nn.Embedding,
        lambda w: {"num_embeddings": 50, "embedding_dim": 4, "store": w.store, "name": "new e"},
    ),
    "nn.EmbeddingBag": (
        lambda w: nn.EmbeddingBag,
        lambda w: {"num_embeddings": 50, "embedding_dim": 4, "store": w.store, "name": "new b"},
    ),
    "nn.EmbeddingBagCollection": (
        lambda w: nn.EmbeddingBagCollection,
        lambda w: {"tables": [nn.EmbeddingBagConfig("new c", 4)], "store": w.store},
    ),
    "nn.EmbeddingBagConfig": (
        lambda w: (
            lambda *fields: nn.EmbeddingBagCollection(
                [nn.EmbeddingBagConfig(*fields)], store=w.store
            )
        ),
        lambda w: {"name": "new f", "embedding_dim": 4},
    ),
    "nn.convert": (
        lambda w: nn.convert,
        lambda w: {
            "model": torch.nn.Sequential(torch.nn.Embedding(50, 4)),
            "store": w.store,
            "prefix": f"converted {next(w.numbers)} ",
        },
    ),
    "nn.deferred": (
        lambda w: lambda min_rows: entered(nn.deferred(min_rows)),
        lambda w: {"min_rows": 1},
    ),
    "nn.by_reference": (lambda w: nn.by_reference, lambda w: {}),
    "nn.loading_dense_only": (lambda w: nn.loading_dense_only, lambda w: {}),
    "nn.dense_parameters": (lambda w: nn.dense_parameters, lambda w: {"model": w.model}),
    "nn.read_together": (
        lambda w: lambda model: nn.read_together(model).remove(),
        lambda w: {"model": w.model},
    ),
    "nn.rows_modules": (lambda w: nn.rows_modules, lambda w: {"model": w.model}),
    "Embedding.forward": (lambda w: w.embedding, lambda w: {"input": torch.tensor([1])}),
    "Embedding.keys_of": (lambda w: w.embedding.keys_of, lambda w: {"input": torch.tensor([1])}),
    "nn.sampled_logits": (
        lambda w: nn.sampled_logits,
        lambda w: {"module": w.embedding, "hidden": torch.zeros(2, 4), **sampled_arguments()},
    ),
    "nn.tied": (
        lambda w: (
            lambda module, inputs, targets, negatives, hidden: nn.tied(
                module, inputs, targets, negatives
            )[1](hidden)
        ),
        lambda w: {
            "module": w.embedding,
            "inputs": torch.tensor([1]),
            "targets": torch.tensor([1, 2]),
            "negatives": torch.tensor([3, 4, 5]),
            "hidden": torch.zeros(2, 4),
        },
    ),
    "Embedding.scores": (
        lambda w: w.embedding.scores,
        lambda w: {"queries": torch.zeros(2, 4), "ids": [1, 2]},
    ),
    "Embedding.topk": (
        lambda w: w.embedding.topk,
        lambda w: {"queries": torch.zeros(2, 4), "k": 3, "exclude": [[1], [2]], "ids": [1, 2]},
    ),
    "EmbeddingBag.forward": (lambda w: w.bag, lambda w: bag_arguments()),
    "EmbeddingBag.keys_of": (lambda w: w.bag.keys_of, lambda w: bag_arguments()),
    "EmbeddingBagCollection.forward": (lambda w: w.bags, lambda w: features_arguments()),
    "EmbeddingBagCollection.keys_of": (lambda w: w.bags.keys_of, lambda w: features_arguments()),
    **{
        f"optim.{name}": (
            lambda w, name=name: getattr(optim, name),
            optimizer_arguments(getattr(optim, name).kind),
        )
        for name in optim.__all__
        if name not in ("RowOptimizer", "Together")
    },
    "optim.Together": (
        lambda w: lambda one, other: optim.Together(one, other),
        lambda w: {
            "one": torch.optim.SGD(nn.dense_parameters(w.model), lr=0.1),
            "other": optim.SGD(w.bag),
        },
    ),
    "Together.add_param_group": (
        lambda w: optim.Together(optim.SGD(w.bag)).add_param_group,
        lambda w: {"param_group": {"params": w.more_rows()}},
    ),
    "Together.step": (lambda w: optim.Together(optim.SGD(w.bag)).step, lambda w: {}),
    "Together.zero_grad": (lambda w: optim.Together(optim.SGD(w.bag)).zero_grad, lambda w: {}),
    "Together.load_state_dict": (
        lambda w: optim.Together(optim.SGD(w.bag)).load_state_dict,
        lambda w: {"state_dict": optim.Together(optim.SGD(w.bag)).state_dict()},
    ),
    "RowOptimizer.add_param_group": (
        lambda w: optim.SGD(w.bag).add_param_group,
        lambda w: {"param_group": {"params": w.more_rows()}},
    ),
    "RowOptimizer.step": (lambda w: optim.SGD(w.bag).step, lambda w: {}),
    "RowOptimizer.zero_grad": (lambda w: optim.SGD(w.bag).zero_grad, lambda w: {}),
    "RowOptimizer.load_state_dict": (
        lambda w: optim.SGD(w.bag).load_state_dict,
        lambda w: {"state_dict": optim.SGD(w.bag).state_dict()},
    ),
    "follow.apply_changes": (
        lambda w: follow.apply_changes,
        lambda w: {"store": w.store, "changes": []},
    ),
    "follow.StoreFollower": (
        lambda w: follow.StoreFollower,
        lambda w: {"copy": w.store, "source": w.new_path(), "memory": "64MiB"},
    ),
    "follow.LogWriter": (lambda w: follow.LogWriter, lambda w: {"directory": w.new_path()}),
    "follow.LogReader": (lambda w: follow.LogReader, lambda w: {"directory": log_of(w)}),
    "follow.Follower": (
        lambda w: follow.Follower,
        lambda w: {"store": w.store, "source": follow.LogReader(log_of(w)), "start": "begin"},
    ),
    "LogWriter.put": (
        lambda w: follow.LogWriter(w.new_path()).put,
        lambda w: {"table": "t", "keys": KEYS, "values": rows(w)},
    ),
    "LogWriter.update": (
        lambda w: follow.LogWriter(w.new_path()).update,
        lambda w: {"table": "t", "keys": KEYS, "gradients": rows(w), "lr": 0.1},
    ),
    "LogWriter.delete": (
        lambda w: follow.LogWriter(w.new_path()).delete,
        lambda w: {"table": "t", "keys": KEYS},
    ),
    "LogReader.seek": (
        lambda w: follow.LogReader(log_of(w)).seek,
        lambda w: {"position": follow.LogReader(log_of(w)).position},
    ),
    "Follower.run": (  # without end, were it not for one of these
        lambda w: (
            lambda once, stop, progress: [
                follower(w).run(once=once, stop=lambda: True),
                follower(w).run(once=True, stop=stop),
                follower(w).run(once=True, progress=progress),
            ]
        ),
        lambda w: {"once": True, "stop": None, "progress": None},
    ),
}
"""The callable, and arguments with which it works."""


def log_of(world: World) -> Path:
    """A log with a record of the table."""
    path = world.path / "log"
    if not path.exists():
        with follow.LogWriter(path) as log:
            log.put("t", KEYS, rows(world))
    return path


def follower(world: World) -> follow.Follower:
    return follow.Follower(world.store, follow.LogReader(log_of(world)), start="begin")


def entered(context: Any) -> None:
    with context:
        pass


def bag_arguments() -> Arguments:
    return {
        "input": torch.tensor([1, 2]),
        "offsets": torch.tensor([0]),
        "per_sample_weights": torch.ones(2),
    }


def sampled_arguments() -> Arguments:
    of_ids = torch.zeros(2), torch.zeros(3)
    ids = {"targets": torch.tensor([1, 2]), "negatives": torch.tensor([3, 4, 5])}
    return {**ids, "log_expected": of_ids, "mask_hits": True}


def features_arguments() -> Arguments:
    one = (torch.tensor([1, 2]), torch.tensor([0]))
    return {"features": {"x": one, "y": one}}


def recorded(world: World) -> Recording:
    with world.store.record() as recording:
        world.table.get(KEYS)
    return recording


CALLED = ("progress", "function", "keys_of", "closure", "stop", "on_bad", "select")
"""Parameters whose own errors reach the caller as they are."""

# Names used for parameters without a fixed name.
MORE = ("momentum", "dampening", "nesterov", "lr_power", "l1", "l2", "beta", "unknown")


def within(world: World, parameter: str, odd: Any, usual: Any) -> Iterator[Any]:
    """The odd object alone, and in the places of what the parameter may hold."""
    yield odd
    if parameter == "batches" and isinstance(usual, list):
        yield [odd]
        yield odd, odd
        for place in range(len(usual[0])):
            yield [tuple(odd if i == place else one for i, one in enumerate(usual[0]))]
    if parameter == "batch":
        yield {world.table: odd}
        yield {"t": odd}
        yield {world.table: [odd]}
    if parameter in ("out", "optimizer", "scheduler", "optimizers", "modules", "dense", "tables"):
        yield [odd]
        yield odd, odd
    if parameter == "betas":
        yield odd, 0.9
        yield (0.9, odd)
        yield (odd,)
    if parameter in ("state", "extra", "meta", "state_dict"):
        yield {"a": odd}
    if parameter == "features":
        yield {**usual, "x": odd}
        yield {**usual, "x": (odd, torch.tensor([0]))}
        yield {**usual, "x": (torch.tensor([1, 2]), odd)}
    if parameter == "function":
        yield lambda values, state: odd
        yield lambda values, state: (odd, state)
        yield lambda values, state: (values, odd)
    if parameter == "keys_of":
        yield lambda batch: odd
        yield lambda batch: {world.table: odd}
    if parameter in ("modules", "param_group"):
        new = nn.Embedding(None, 4, store=world.store, name="grouped", optimizer="sgd")
        yield {"params": odd}
        yield [{"params": new, "lr": odd}]
        yield {"params": new, "lr": odd}
    if parameter == "initializer":
        yield {"constant": odd}
        yield {"uniform": {"low": odd, "high": 1.0}}
        yield {"normal": odd}
    if parameter == "optimizer":
        yield {"kind": odd}
        yield {"kind": "adagrad", "initial_accumulator": odd}
    if parameter == "feature_names":
        yield [odd]
    if parameter == "position":
        for one in usual:
            yield {**usual, one: odd}
    try:
        hash(odd)
    except (TypeError, ValueError):
        return
    if parameter in ("batch", "state", "extra", "features", "initializer", "optimizer"):
        yield {odd: usual}


def finish(result: Any) -> None:
    """Uses what a call has returned."""
    if isinstance(result, (embedrock.Store, Recording)):
        result.close() if isinstance(result, embedrock.Store) else result.stop()
    elif isinstance(result, (Prefetch, embedrock.PendingCommit)):
        result.wait()
    elif isinstance(result, Permit):
        result.release()
    elif isinstance(result, RemoteStore):
        result.close()
    elif isinstance(result, (embedrock.LookaheadLoader, embedrock.Pipeline)):
        next(iter(result), None)
        result.close()
    elif inspect.isgenerator(result):
        list(itertools.islice(result, 3))
        result.close()


def call(function: Any, signature: inspect.Signature, arguments: Arguments) -> Any:
    bound = inspect.BoundArguments(signature, dict(arguments))  # type: ignore[arg-type]
    bound.apply_defaults()
    return function(*bound.args, **bound.kwargs)


def noting(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """The function, which notes what it raises."""

    def noted(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except BaseException as error:
            raised.append(error)
            raise

    return noted


def signature_of(name: str, function: Any) -> inspect.Signature:
    if name == "nn.EmbeddingBagConfig":
        return inspect.signature(nn.EmbeddingBagConfig)
    forward = isinstance(function, torch.nn.Module)
    return inspect.signature(function.forward if forward else function)


def odd_ones(number: int, parts: int) -> list[tuple[str, Callable[[], Any]]]:
    """One odd object of so many; over as many numbers in a row each comes once."""
    return [one for at, one in enumerate(ODD.items()) if (at + number) % parts == 0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", list(CALLS))
def test_odd_arguments_work_or_raise_our_errors(
    name: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a text is a path
    world = World(tmp_path)
    wrong = []
    own: list[BaseException] = []  # errors raised by given functions
    make, arguments = CALLS[name]
    signature = signature_of(name, make(world))
    finish(call(make(world), signature, arguments(world))) if name not in NO_USUAL else None
    # Where it begins differs from callable to callable, of which many have one parameter.
    number = itertools.count([*CALLS].index(name))
    for parameter, kind in [(p.name, p.kind) for p in signature.parameters.values()]:
        if kind is inspect.Parameter.VAR_KEYWORD:
            places = [(one, {}) for one in MORE]
        else:
            places = [(parameter, arguments(world))]
        tried = [(*one, *odd) for one in places for odd in odd_ones(next(number), parts)]
        for place, usual, title, odd in tried:
            for given in within(world, place, odd(), usual.get(place)):
                if place in CALLED and callable(given):
                    given = noting(given, own)
                chosen = {**arguments(world), place: given}
                if place != parameter:
                    chosen = {**arguments(world), parameter: {place: given}}
                try:
                    finish(call(make(world), signature, chosen))
                except EmbedrockError as error:
                    if not str(error):
                        wrong.append(f"{place} = {title}: an error without a message")
                except TimeoutError:
                    assert name.endswith(".wait")
                except BaseException as error:
                    if str(error).startswith("of __") or any(error is one for one in own):
                        continue  # the object's own
                    shown = repr(given)[:60] if given is not odd else ""
                    wrong.append(f"{place} = {title} {shown}: {type(error).__name__}: {error}")
    assert not wrong, f"{len(wrong)} of {name}:\n" + "\n".join(wrong)
    world.check()
    world.store.close()


# A bad number is the only thing that these can be given by hand; a position that no loader told.
NO_USUAL = {
    "Window.begin",
    "Window.finish",
    "resume",
    "LookaheadLoader.load_state_dict",
}


def public_callables() -> Iterator[str]:
    """Names of all public functions, classes for callers and their methods with parameters."""
    modules = {"": embedrock, "initializers.": initializers, "optimizers.": optimizers}
    modules |= {"weights.": weights, "nn.": nn, "optim.": optim, "follow.": follow}
    for prefix, module in modules.items():
        for name in module.__all__:
            found = getattr(module, name)
            if callable(found) and not name.endswith(("Error", "Warning", "Spec")):
                yield prefix + name
    owners = [embedrock.Store, embedrock.Table, Window, Permits, Permit, Prefetch, Recording]
    owners += [embedrock.PendingCommit, embedrock.StepReport, embedrock.LookaheadLoader]
    owners += [embedrock.Pipeline, nn.Embedding, nn.EmbeddingBag, nn.EmbeddingBagCollection]
    owners += [optim.RowOptimizer, follow.LogWriter, follow.LogReader, follow.Follower]
    owners += [RemoteStore, RemoteTable, Schedule]
    for owner in owners:
        for name, method in vars(owner).items():
            public = not name.startswith("_") or name == "__contains__"
            if public and inspect.isfunction(method) and method.__code__.co_argcount > 1:
                yield f"{owner.__name__}.{name}"


NOT_MADE_BY_CALLERS = {
    "close_all",
    "Commit",
    "PendingCommit",
    "Store",
    "Table",
    "nn.ReadTogether",
    "nn.RowsModule",
    "nn.TopK",
    "nn.Jagged",
    "optim.RowOptimizer",
    "follow.Followed",
    "follow.Record",
    "follow.Source",
    "follow.RemoteSource",
    "follow.Kafka",  # these need a broker: test_kafka_message.py
    "follow.KafkaWriter",
    "follow.KafkaPublisher",
    "follow.Published",
    "follow.StoreFollowed",
    "ChangedRows",
    "Changes",
}


def test_every_public_callable_is_called() -> None:
    missing = set(public_callables()) - set(CALLS) - NOT_MADE_BY_CALLERS
    assert not missing
