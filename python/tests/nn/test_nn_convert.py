"""Tables in the place of a model's embedding modules: what is carried over, and what is refused."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import MismatchError, MisuseError, UnsupportedError  # noqa: E402
from servers import serving  # noqa: E402

ROWS, DIM = 60, 4


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two kinds of modules, one of them used twice, and a small table."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(ROWS, DIM, padding_idx=0, sparse=True)
        self.tags = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", **options)
        self.parts = torch.nn.ModuleDict({"again": self.users})
        self.city = torch.nn.Embedding(5, DIM)
        self.head = torch.nn.Linear(DIM, 1)

    def forward(self, ids: Any) -> Any:
        users = self.users(ids[:, 0]) + self.parts["again"](ids[:, 1])
        return self.head(users + self.tags(ids) + self.city(ids[:, 0] % 5))


def trained(model: Any, optimizers: list[Any], steps: int = 6) -> list[float]:
    torch.manual_seed(3)
    losses = []
    for _ in range(steps):
        loss = model(torch.randint(0, ROWS, (16, 3))).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def twins() -> tuple[Any, Any]:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(Model())
    return models[0], models[1]


def rows_of(module: Any) -> Any:
    return module.table.get(np.arange(module.num_embeddings))


def test_a_converted_model_trains_as_its_twin_in_memory(store: embedrock.Store) -> None:
    plain, model = twins()
    made = nn.convert(model, store, min_rows=10, optimizer="sgd")
    assert {path: (type(module), module.table.name) for path, module in made.items()} == {
        "users": (nn.Embedding, "users"),
        "tags": (nn.EmbeddingBag, "tags"),
        "parts.again": (nn.Embedding, "users"),
    }
    assert model.users is model.parts["again"] is made["users"]
    assert type(model.city) is torch.nn.Embedding
    ours = trained(
        model, [torch.optim.SGD(nn.dense_parameters(model), lr=0.1), optim.SGD(model, lr=0.1)]
    )
    plain.users.sparse = False
    theirs = trained(plain, [torch.optim.SGD(plain.parameters(), lr=0.1)])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    for name in ("users", "tags"):
        expected = getattr(plain, name).weight.detach().numpy()
        np.testing.assert_allclose(rows_of(getattr(model, name)), expected, atol=1e-6)


def test_arguments_modes_and_attributes_are_carried_over(store: embedrock.Store) -> None:
    class Named(torch.nn.EmbeddingBag):  # type: ignore[misc]
        """A subclass that looks up as torch does."""

    weight = torch.randn(ROWS, DIM, dtype=torch.bfloat16)
    bag = Named(ROWS, DIM, mode="mean", scale_grad_by_freq=True, include_last_offset=True)
    bag.feature = "tags"
    model = torch.nn.Sequential(bag, torch.nn.Embedding.from_pretrained(weight)).eval()
    made = nn.convert(model, store, prefix="v1.")
    first, frozen = made["0"], made["1"]
    assert (first.mode, first.scale_grad_by_freq, first.include_last_offset) == ("mean", True, True)
    assert (first.feature, first.max_norm, first.training) == ("tags", None, False)
    assert [module.table.name for module in (first, frozen)] == ["v1.0", "v1.1"]
    assert (frozen.table.dtype, frozen.output_dtype) == ("bfloat16", torch.bfloat16)
    np.testing.assert_array_equal(rows_of(frozen), weight.float().numpy())
    model.train()
    assert not frozen(torch.tensor([1])).requires_grad
    assert first(torch.tensor([1]), torch.tensor([0, 1])).requires_grad


def test_a_narrower_dtype_is_that_of_the_table_and_not_of_outputs(store: embedrock.Store) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM))
    made = nn.convert(model, store, dtype=torch.bfloat16)["0"]
    assert made.table.dtype == "bfloat16"
    assert model(torch.tensor([1])).dtype == torch.float32


def test_modules_that_share_a_weight_share_a_table(store: embedrock.Store) -> None:
    model = torch.nn.ModuleList([torch.nn.Embedding(ROWS, DIM), torch.nn.Embedding(ROWS, DIM)])
    model[1].weight = model[0].weight
    made = nn.convert(model, store)
    assert model[0] is not model[1]
    assert [made[path].table.name for path in ("0", "1")] == ["0", "0"]


def test_select_chooses_by_path_and_module(store: embedrock.Store) -> None:
    model = Model()
    made = nn.convert(model, store, select=lambda path, module: path == "tags")
    assert list(made) == ["tags"]
    assert type(model.users) is torch.nn.Embedding


def test_a_model_without_modules_to_replace_stays(store: embedrock.Store) -> None:
    assert nn.convert(torch.nn.Linear(2, 1), store) == {}
    model = Model()
    assert nn.convert(model, store) != {}
    assert nn.convert(model, store) == {}


def test_padding_rows_of_a_weight_stay_as_they_are(store: embedrock.Store) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM, padding_idx=2))
    torch.nn.init.ones_(model[0].weight)  # and so libraries do
    nn.convert(model, store)
    assert model(torch.tensor([2])).tolist() == [[1.0] * DIM]


class OwnForward(torch.nn.Embedding):  # type: ignore[misc]
    def forward(self, input: Any) -> Any:
        return super().forward(input) * 2


def with_hook() -> Any:
    module = torch.nn.Embedding(ROWS, DIM)
    module.register_forward_hook(lambda *_: None)
    return module


def with_gradient() -> Any:
    module = torch.nn.Embedding(ROWS, DIM)
    module(torch.tensor([1])).sum().backward()
    return module


def with_hook_of_the_weight() -> Any:
    module = torch.nn.Embedding(ROWS, DIM)
    module.weight.register_hook(lambda gradient: gradient * 2)
    return module


def with_a_buffer() -> Any:
    module = torch.nn.Embedding(ROWS, DIM)
    module.register_buffer("scale", torch.ones(1))
    return module


def parametrized() -> Any:
    module = torch.nn.Embedding(ROWS, DIM)
    torch.nn.utils.parametrizations.weight_norm(module)
    return module


@pytest.mark.parametrize(
    ("module", "error", "reason"),
    [
        (lambda: torch.nn.Embedding(ROWS, DIM, max_norm=1.0), UnsupportedError, "max_norm=1.0"),
        (lambda: OwnForward(ROWS, DIM), UnsupportedError, "its own forward"),
        (with_hook, UnsupportedError, "has hooks"),
        (with_hook_of_the_weight, UnsupportedError, "has hooks"),
        (with_a_buffer, UnsupportedError, "scale beside its weight"),
        (parametrized, UnsupportedError, "no plain weight"),
        (with_gradient, MisuseError, "a gradient that no optimizer has applied"),
        (lambda: torch.nn.Embedding(ROWS, DIM).double(), UnsupportedError, "torch.float64"),
        (lambda: torch.nn.Embedding(ROWS, DIM, device="meta"), MisuseError, "without values"),
    ],
)
def test_what_would_be_another_model_is_refused(
    store: embedrock.Store, module: Any, error: Any, reason: str
) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM), module())
    before = list(model.modules())
    with pytest.raises(error, match=f"^1 .*{reason}"):
        nn.convert(model, store)
    assert list(model.modules()) == before
    assert store.tables == {}
    assert list(nn.convert(model, store, select=lambda path, _: path == "0")) == ["0"]


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


def tied(model: Any) -> None:
    model.head = torch.nn.Linear(DIM, ROWS, bias=False)
    model.head.weight = model.users.weight


def penalty(model: Any) -> None:
    model.penalties = [(list(model.users.parameters()), 1e-5)]


@pytest.mark.parametrize(
    ("hold", "who"),
    [
        (tied, r"head\.weight, which is tied to it"),
        (lambda model: torch.optim.Adam(model.parameters()), r"an optimizer \(Adam\)"),
        (penalty, "the model's penalties"),
        (lambda model: Holder(model.users.weight), "something else"),
    ],
)
def test_a_weight_that_something_else_holds_is_refused(
    store: embedrock.Store, hold: Any, who: str
) -> None:
    model = Model()
    held = hold(model)
    weight = id(model.users.weight)
    with pytest.raises(MisuseError, match=f"the weight of users .* is held by {who}"):
        nn.convert(model, store, min_rows=10)
    assert id(model.users.weight) == weight
    assert store.tables == {}
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    model.zero_grad()
    del held
    model.head, model.penalties = torch.nn.Linear(DIM, 1), []
    assert sorted(nn.convert(model, store, min_rows=10)) == ["parts.again", "tags", "users"]


def test_a_table_of_another_width_is_refused(store: embedrock.Store) -> None:
    store.table("tags", DIM + 1, ROWS)
    model = Model()
    with pytest.raises(MismatchError, match=r"'tags' exists.* 5 values per row; tags has 60 rows"):
        nn.convert(model, store, min_rows=10, load=False)
    assert list(store.tables) == ["tags"]
    model(torch.tensor([[1, 2, 3]]))


def test_rows_of_an_earlier_run_are_not_overwritten(store: embedrock.Store) -> None:
    nn.convert(Model(), store, min_rows=10)
    store.table("users").put([7], np.full((1, DIM), 7, np.float32))
    with pytest.raises(MisuseError, match=r"'users' exists.*load=False keeps the rows"):
        nn.convert(Model(), store, min_rows=10)
    model = Model()
    nn.convert(model, store, min_rows=10, load=False)
    assert model.users(torch.tensor([7])).tolist() == [[7.0] * DIM]


def test_a_failure_while_rows_are_written_leaves_the_model(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    expected = model.tags.weight.detach().clone()

    def full(*_: Any, **__: Any) -> Any:
        raise embedrock.errors.FullError("the disk is full")

    monkeypatch.setattr(embedrock.Table, "put", full)
    with pytest.raises(embedrock.errors.FullError):
        nn.convert(model, store, min_rows=10)
    assert torch.equal(model.tags.weight, expected)
    assert model.users.weight is model.parts["again"].weight
    model(torch.tensor([[1, 2, 3]])).sum().backward()


def test_code_that_reads_the_weight_is_told_why_there_is_none(store: embedrock.Store) -> None:
    model = Model()
    nn.convert(model, store, min_rows=10)
    with pytest.raises(AttributeError, match=r"'users' has no weight in memory.*\.table\.get"):
        torch.nn.functional.linear(torch.ones(1, DIM), model.users.weight)


def test_whoever_kept_the_old_module_is_told_where_its_rows_went(store: embedrock.Store) -> None:
    model = Model()
    kept = model.users
    nn.convert(model, store, min_rows=10)
    with pytest.raises(MisuseError, match="was replaced by a table at users"):
        kept(torch.tensor([1]))


def test_a_model_that_is_an_embedding_is_refused(store: embedrock.Store) -> None:
    with pytest.raises(MisuseError, match="which cannot be replaced from within"):
        nn.convert(torch.nn.Embedding(ROWS, DIM), store)


def test_tables_may_be_at_a_server(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "64MiB") as store:
        store.commit(0)
    plain, model = twins()
    with serving(tmp_path / "s", "--writable", "--commit-every", "0") as served:
        with embedrock.connect(served.url) as remote:
            nn.convert(model, remote, min_rows=10, optimizer="sgd")
            ours = trained(
                model,
                [torch.optim.SGD(nn.dense_parameters(model), lr=0.1), optim.SGD(model, lr=0.1)],
            )
            plain.users.sparse = False
            theirs = trained(plain, [torch.optim.SGD(plain.parameters(), lr=0.1)])
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
        served.stop()


RATES = [
    (lambda small: [{"params": small, "lr": 0.05}], 0.05, None),
    (lambda small: [{"params": small, "lr": 0.006}], 0.05, None),
    (lambda small: small, 0.05, r"left hours with torch, whose Adam trains them at lr=0\.001"),
    (lambda small: small, 1e-5, r"trained at lr=1e-05; give small tables .* of their own"),
]


@pytest.mark.parametrize("tables_first", [False, True])
@pytest.mark.parametrize(("groups", "rate", "said"), RATES)
def test_small_tables_that_are_trained_at_another_rate_are_warned_of(
    store: embedrock.Store, groups: Any, rate: float, said: str | None, tables_first: bool
) -> None:
    # Left with torch's Adam at 0.001 where the others had Adagrad at 0.05, they cost an AUC .015.
    model = torch.nn.ModuleDict(
        {"users": torch.nn.Embedding(ROWS, DIM), "hours": torch.nn.Embedding(5, DIM)}
    )
    nn.convert(model, store, min_rows=10, optimizer="sgd")
    tables = optim.SGD(model, lr=rate)
    small = torch.optim.Adam(groups([model["hours"].weight]), lr=0.001)
    torch.optim.lr_scheduler.LambdaLR(small, lambda step: 0.0)  # a warm-up begins with no rate
    for first in (True, False):
        model["users"](torch.tensor([1, 2])).sum().backward()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for each in (tables, small) if tables_first else (small, tables):
                each.step()
        found = [str(one.message) for one in told if "left" in str(one.message)]
        if said is None or not first:
            assert found == []
        else:
            assert len(found) == 1 and re.search(said, found[0])
    store.commit(1)


def test_small_tables_of_several_groups_are_told_together(store: embedrock.Store) -> None:
    parts = {"users": torch.nn.Embedding(ROWS, DIM)}
    parts |= {f"s{i}": torch.nn.EmbeddingBag(3, DIM) for i in range(3)}
    model = torch.nn.ModuleDict(parts)
    nn.convert(model, store, min_rows=10, optimizer="sgd")
    both = optim.Together(
        torch.optim.SGD(nn.dense_parameters(model), lr=10.0), optim.SGD(model, lr=1.0)
    )
    model["users"](torch.tensor([1])).sum().backward()
    with pytest.warns(UserWarning, match="left s0 and 2 more with torch, whose SGD .* lr=10.0"):
        both.step()
    store.commit(1)
