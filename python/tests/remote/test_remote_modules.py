"""Modules and optimizers over tables of a server: what a store that is here does, and refusals."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import embedrock
from embedrock.errors import (
    IoError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.remote.batches import send_all
from embedrock.remote.wire import Refused, Wire
from servers import Served, serving

torch = pytest.importorskip("torch")

DIM = 8


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A store without tables, committed."""
    with embedrock.open(tmp_path / "served.store", "64MiB") as store:
        store.commit(0)
    return tmp_path / "served.store"


@pytest.fixture
def writable(empty: Path) -> Iterator[Served]:
    with serving(empty, "--writable", "--commit-every", "0") as served:
        yield served


def model_over(store: Any, kind: str) -> Any:
    """A small model with a dense table and one that grows, of equal dense weights each time."""
    torch.manual_seed(5)
    nn = embedrock.nn

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.EmbeddingBag(
                500, DIM, mode="sum", store=store, name="item", optimizer=kind, padding_idx=3
            )
            self.user = nn.Embedding(
                None, DIM, store=store, name="user", optimizer=kind, initializer=0.25
            )
            self.top = torch.nn.Linear(2 * DIM, 1)

        def forward(self, batch: dict[str, Any]) -> Any:
            both = torch.cat([self.item(batch["item"]), self.user(batch["user"])], dim=1)
            return self.top(both).square().mean()

    return Model()


def batches(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [
        {
            "item": torch.from_numpy(random.integers(0, 500, (40, 5))),
            "user": torch.from_numpy(random.integers(-(2**62), 2**62, 40) // 2**58),
        }
        for _ in range(count)
    ]


def train(model: Any, tables: Any, steps: list[dict[str, Any]]) -> list[float]:
    dense = torch.optim.SGD(embedrock.nn.dense_parameters(model), lr=0.05)
    losses = []
    for batch in steps:
        loss = model(batch)
        dense.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        tables.step()
        dense.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: embedrock.optim.SGD(model, lr=0.1, weight_decay=0.01),
    "momentum": lambda model: embedrock.optim.SGD(model, lr=0.05, momentum=0.9, nesterov=True),
    "rowwise_adagrad": lambda model: embedrock.optim.RowWiseAdagrad(model, lr=0.1, lr_decay=0.01),
    "adagrad": lambda model: embedrock.optim.Adagrad(model, lr=0.1, eps=1e-7),
    "adam": lambda model: embedrock.optim.Adam(model, lr=0.01, betas=(0.8, 0.99)),
    "adamw": lambda model: embedrock.optim.AdamW(model, lr=0.01, weight_decay=0.1),
    "ftrl": lambda model: embedrock.optim.FTRL(model, lr=0.1, l1=0.01, beta=0.5),
}
SOON = ("adam",)
"""Those that `make test` tries, beside one with `Together`."""


@pytest.mark.parametrize(
    ("kind", "together"),
    [
        ("sgd", True),
        *(
            pytest.param(kind, False, marks=[] if kind in SOON else [pytest.mark.long])
            for kind in sorted(OPTIMIZERS)
        ),
    ],
)
def test_training_at_a_server_has_the_bits_of_training_here(
    kind: str, together: bool, writable: Served, tmp_path: Path
) -> None:
    steps, keys = batches(50), np.arange(-20, 500)
    with (
        embedrock.open(tmp_path / "here.store", "64MiB") as here,
        embedrock.connect(writable.url) as there,
    ):
        losses = []
        for store in (here, there):
            model = model_over(store, kind)
            if together:
                embedrock.nn.read_together(model)
            tables = OPTIMIZERS[kind](model)
            losses.append(train(model, tables, steps))
            dense = {name for name in model.state_dict() if "_extra_state" not in name}
            assert dense == {"top.weight", "top.bias"}
            again = OPTIMIZERS[kind](model)
            again.load_state_dict(tables.state_dict())
            assert again._steps(model.user._pending["rows"]) == 50
        assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
        for name in ("item", "user"):
            asked = keys[keys >= 0] if name == "item" else keys
            np.testing.assert_array_equal(there[name].get(asked), here.table(name).get(asked))
            assert there[name].optimizer == here.table(name).optimizer
            assert there[name].initializer == here.table(name).initializer
        assert not there["item"].get([3]).any()
        here.commit(1)


def test_two_trainers_of_one_server_lose_no_update(writable: Served) -> None:
    steps, rows = 200, 50

    def trainer() -> None:
        with embedrock.connect(writable.url) as store:
            item = embedrock.nn.Embedding(
                None, DIM, store=store, name="item", optimizer="sgd", initializer=0.0
            )
            optimizer = embedrock.optim.SGD(item, lr=0.5)
            for _ in range(steps):
                item(torch.arange(rows)).sum().backward()
                optimizer.step()

    threads = [threading.Thread(target=trainer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with embedrock.connect(writable.url) as store:
        np.testing.assert_array_equal(
            store["item"].get(np.arange(rows)), np.full((rows, DIM), -0.5 * 2 * steps, np.float32)
        )


def test_a_table_that_is_made_at_a_server_is_there_after_its_end(empty: Path) -> None:
    with serving(empty, "--writable", "--commit-every", "0") as served:
        with embedrock.connect(served.url) as remote:
            made = remote.table("ads", 4, 100, optimizer="adagrad", dtype="float16")
            assert (made.dtype, made.num_embeddings) == ("float16", 100)
            assert made.optimizer == embedrock.optimizers.adagrad()
            assert remote.table("ads", 4, 100).optimizer == made.optimizer
            above = 1 + 2.0**-11 + 2.0**-40  # nearer to 1 + 2**-10; as float32 in the middle
            made.put([7], np.full((1, 4), above))
            assert made.get([7]).tolist() == [[1 + 2.0**-10] * 4]
            for given, said in (
                ((4, 100, "sgd"), "optimizer"),
                ((8, 100, None), "embedding_dim is 4, asked 8"),
                ((4, None, None), "num_embeddings is 100, asked None"),
            ):
                with pytest.raises(MismatchError, match=said):
                    remote.table("ads", *given[:2], optimizer=given[2])
            with pytest.raises(NotFoundError, match=r"no table 'other' .it has 'ads'"):
                remote.table("other")
            with pytest.raises(MisuseError, match="needs embedding_dim"):
                remote.table("other", num_embeddings=5)

            def create(name: bytes, parameters: object) -> object:
                text = parameters if isinstance(parameters, bytes) else json.dumps(parameters)
                sent = text if isinstance(text, bytes) else text.encode()
                return remote._call(b"EMB.CREATE", name, sent, repeats=False)

            assert create(b"plain", {"embedding_dim": 2}) == "OK"
            assert create(b"plain", {}) == "OK"
            assert remote["plain"].optimizer == embedrock.optimizers.rowwise_adagrad()
            assert remote["plain"].initializer == embedrock.initializers.uniform()
            assert create(b"named", {"embedding_dim": 2, "optimizer": "ftrl"}) == "OK"
            assert remote["named"].optimizer == embedrock.optimizers.ftrl()
            for name, parameters, said in (
                (b"new", {}, "'new' without embedding_dim"),
                (b"new", {"embedding_dim": 0}, "embedding_dim"),
                (b"new", {"embedding_dim": 2, "width": 3}, "unknown field `width`"),
                (
                    b"new",
                    {"embedding_dim": 2, "storage": "pages"},
                    "which `embedrock freeze` writes",
                ),
                (b"new", {"embedding_dim": 2, "optimizer": "adamax"}, "unknown variant `adamax`"),
                (b"new", b"{", "EOF while parsing"),
                (b"new", b"\xff", "JSON is no UTF-8"),
                (b"\xff", {"embedding_dim": 2}, "name of a table is no UTF-8"),
                (b"plain", {"num_embeddings": 3}, "num_embeddings is None, asked 3"),
            ):
                with pytest.raises((MisuseError, MismatchError), match=said):
                    create(name, parameters)
        served.stop()
    with embedrock.open(empty, "64MiB", read_only=True) as store:
        assert [*store.tables] == ["ads", "plain", "named"] and store.step == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage": ""},
        *(
            pytest.param(wrong, marks=pytest.mark.long)
            for wrong in ({"rounding": ""}, {"storage": "tape"}, {"capacity": 0}, {"dtype": "int2"})
        ),
    ],
)
def test_tables_of_a_server_refuse_the_arguments_that_a_store_here_refuses(
    wrong: dict[str, Any], empty: Path, tmp_path: Path
) -> None:
    """An empty text was no text at all to a server."""
    said = []
    with (
        serving(empty) as served,
        embedrock.connect(served.url) as remote,
        embedrock.open(tmp_path / "here.store", "16MiB") as here,
    ):
        for store in (remote, here):
            with pytest.raises(MisuseError, match=next(iter(wrong))) as caught:
                store.table("fresh", 4, **wrong)
            said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_server_that_reads_gives_inference_and_makes_no_table(
    empty: Path, tmp_path: Path
) -> None:
    steps = batches(4)
    with embedrock.open(empty, "64MiB") as store:
        model = model_over(store, "sgd")
        train(model, embedrock.optim.SGD(model, lr=0.1), steps)
        store.commit(1)
        expected = model.eval()(steps[0]).item()
        weights = model.state_dict()
    with serving(empty) as served, embedrock.connect(served.url) as remote:
        model = model_over(remote, "sgd")
        model.load_state_dict(weights)
        model.load_state_dict(model.state_dict())
        at_a_server = model.state_dict()
        assert model.eval()(steps[0]).item() == expected
        assert "optimizer='sgd'" in repr(model)
        model.train()(steps[0]).backward()
        with pytest.raises(MisuseError, match="--writable"):
            embedrock.optim.SGD(model, lr=0.1).step()
        with pytest.raises(MisuseError, match="no table 'fresh', and this server only reads"):
            embedrock.nn.Embedding(None, 4, store=remote, name="fresh")
        with pytest.raises(MismatchError, match="embedding_dim is 8, asked 4"):
            embedrock.nn.Embedding(500, 4, store=remote, name="item")
    with embedrock.open(empty, "64MiB", read_only=True) as store:
        here = model_over(store, "sgd")
        with pytest.raises(MismatchError, match="beside the rows of a server"):
            here.load_state_dict(at_a_server)


def test_what_needs_a_store_here_is_refused_and_says_why(writable: Served) -> None:
    with embedrock.connect(writable.url) as remote:
        model = model_over(remote, "sgd")
        optimizer = embedrock.optim.SGD(model, lr=0.1)
        named = f"RemoteStore at 127.0.0.1:{writable.port}"
        for refused in (
            lambda: embedrock.LookaheadLoader([], model),
            lambda: embedrock.Pipeline(model, []),
            lambda: embedrock.save(remote, model, optimizer, 1),
            lambda: embedrock.resume(remote, model, optimizer),
        ):
            with pytest.raises(UnsupportedError, match=f"{named}.* at a server: .*torch.save"):
                refused()
        with pytest.raises(UnsupportedError, match="clip_grad_norm_"):
            embedrock.optim.SGD(model, lr=0.1, clip=embedrock.Clip(norm=1.0))
        for name, said in (
            ("window", "lookahead"),
            ("permits", "threads of one process"),
            ("state", "part of a commit"),
            ("stats", "/metrics"),
            ("nonsense", "has no 'nonsense'$"),
        ):
            with pytest.raises(AttributeError, match=said):
                getattr(remote, name)
        with pytest.raises(AttributeError, match="no such command"):
            remote["item"].delete([1])
        with pytest.raises(MisuseError, match="expected a table of"):
            remote.get([(None, [1])])


def test_a_step_with_bad_gradients_changes_no_table(writable: Served) -> None:
    with embedrock.connect(writable.url) as remote:
        model = model_over(remote, "sgd")
        optimizer = embedrock.optim.SGD(model, lr=0.1)
        batch = batches(1)[0]
        everything = np.arange(500)
        before = remote["item"].get(everything)
        model(batch).backward()
        model.user._pending["rows"].parameter.grad[2, 1] = torch.nan
        with pytest.raises(NonFiniteError, match=r"1 of .* rows of table 'user'"):
            optimizer.step()
        np.testing.assert_array_equal(remote["item"].get(everything), before)
        assert len([*model.item.parameters()]) == 1  # a refused step can be made again
        model.user._pending["rows"].parameter.grad[2, 1] = 0.0
        optimizer.step()
        assert (remote["item"].get(everything) != before).any()


class Between:
    """Stands between client and server, and closes a connection once it has passed on an update."""

    def __init__(self, port: int) -> None:
        self._port, self.cuts = port, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            client = self._listener.accept()[0]
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while request := client.recv(1 << 20):
                server.sendall(request)
                reply = server.recv(1 << 20)
                if b"EMB.UPDATE" in request and self.cuts:
                    self.cuts -= 1
                    return
                client.sendall(reply)


def test_a_step_without_an_answer_is_never_made_again(writable: Served) -> None:
    between = Between(writable.port)
    with embedrock.connect(between.url) as remote:
        item = embedrock.nn.Embedding(
            None, DIM, store=remote, name="item", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(item, lr=1.0)
        item(torch.tensor([1, 2])).sum().backward()
        between.cuts = 1
        with pytest.raises(IoError, match="no reply"):
            optimizer.step()
        optimizer.step()  # trying again makes no second step
        np.testing.assert_array_equal(remote["item"].get([1, 2]), np.full((2, DIM), -1, np.float32))
        item(torch.tensor([1])).sum().backward()
        writable.stop()
        with pytest.raises(IoError):
            optimizer.step()


class Answers:
    """A connection on which these answers come."""

    def __init__(self, *answers: object) -> None:
        self._answers = iter(answers)
        self.has_sent = False

    def send(self, *arguments: object) -> None:
        self.has_sent = True
        assert arguments == (b"EMB.UPDATE",)

    def reply(self) -> object:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "raised", "settled"),
    [
        (["made", Refused("FULL no room"), "made"], Refused, [0, 2]),
        (["made", IoError("no reply")], IoError, [0, 1, 2]),
        ([Refused("FULL no room"), IoError("no reply")], IoError, [1, 2]),
    ],
)
def test_parts_of_a_step_that_are_made_or_may_be_are_told(
    answers: list[object], raised: type[Exception], settled: list[int]
) -> None:
    found: list[int] = []
    with pytest.raises(raised):
        send_all(cast(Wire, Answers(*answers)), [[b"EMB.UPDATE"]] * 3, found.append)
    assert found == settled


def test_a_step_that_was_never_sent_can_be_made_again(empty: Path) -> None:
    with serving(empty, "--writable") as served:
        remote = embedrock.connect(served.url)
        item = embedrock.nn.Embedding(
            None, DIM, store=remote, name="item", optimizer="sgd", initializer=0.0
        )
        optimizer = embedrock.optim.SGD(item, lr=1.0)
        item(torch.tensor([1])).sum().backward()
        served.stop()
    with pytest.raises(IoError, match="cannot connect"):
        optimizer.step()
    assert len([*item.parameters()]) == 1
    with serving(empty, "--writable", "--listen", f"127.0.0.1:{served.port}"):
        optimizer.step()
        assert not [*item.parameters()]
        np.testing.assert_array_equal(remote["item"].get([1]), np.full((1, DIM), -1, np.float32))
        remote.close()


def test_many_tables_are_read_in_one_pass(writable: Served) -> None:
    with embedrock.connect(writable.url) as remote:
        tables = [remote.table(f"t{i}", DIM, 2000, initializer=float(i)) for i in range(30)]
        keys = np.arange(2000).reshape(2, 1000)
        rows = remote.get([(table, keys) for table in tables])
        for i, some in enumerate(rows):
            np.testing.assert_array_equal(some, np.full((2, 1000, DIM), i, np.float32))
        out = [np.empty((3, DIM), np.float32), np.empty((1, DIM), np.float32)]
        found = remote.get([(tables[4], [1, 2, 3]), (tables[7], [9])], out)
        assert found[0] is out[0] and out[0][0, 0] == 4 and out[1][0, 0] == 7
        with pytest.raises(embedrock.errors.KeyRangeError, match="2000 of table 't1'"):
            remote.get([(tables[0], [1]), (tables[1], [2000])])
        assert remote["t2"].get([5])[0, 0] == 2  # no reply is left on a connection
