"""Models built without memory for their tables, and the rows that their tables begin with."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
import withtorch  # noqa: E402
from embedrock import nn  # noqa: E402
from embedrock.errors import MisuseError, UnsupportedError  # noqa: E402

ROWS, DIM = 400, 4
INIT = torch.nn.init


def built(fill: Callable[[Any], object], **options: Any) -> Any:
    with nn.deferred():
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM, **options))
        fill(model[0].weight)
    return model


NORMAL = {"normal": {"mean": 0.0, "std": 1.0}}
FILLS: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "none": (lambda w: None, NORMAL),
    "normal": (lambda w: INIT.normal_(w, 1, 0.5), {"normal": {"mean": 1.0, "std": 0.5}}),
    "data": (lambda w: w.data.uniform_(-1, 2), {"uniform": {"low": -1.0, "high": 2.0}}),
    "default argument": (lambda w: w.data.uniform_(-1), {"uniform": {"low": -1.0, "high": 1.0}}),
    "constant": (lambda w: INIT.constant_(w, 3), {"constant": 3.0}),
    "zeros": (lambda w: w.data.zero_(), {"constant": 0.0}),
    "all but the first row": (
        lambda w: INIT.normal_(w[1:, :], std=1e-4),
        {"normal": {"mean": 0.0, "std": 1e-4}},
    ),
    "transposed": (lambda w: INIT.zeros_(w.T), {"constant": 0.0}),
    "xavier_normal_": (
        lambda w: INIT.xavier_normal_(w),
        {"normal": {"mean": 0.0, "std": math.sqrt(2 / (ROWS + DIM))}},
    ),
    "kaiming_uniform_": (
        lambda w: INIT.kaiming_uniform_(w, nonlinearity="linear"),
        {"uniform": {"low": -math.sqrt(3 / DIM), "high": math.sqrt(3 / DIM)}},
    ),
    "trunc_normal_": (
        lambda w: INIT.trunc_normal_(w, std=0.02, a=-0.04, b=0.04),
        {"truncated_normal": {"mean": 0.0, "std": 0.02, "a": -0.04, "b": 0.04}},
    ),
    "scaled": (
        lambda w: w.data.uniform_(-1, 1).div_(4).add_(0.5),
        {"uniform": {"low": 0.25, "high": 0.75}},
    ),
    "turned round": (
        lambda w: w.data.uniform_(0, 1).mul_(-2),
        {"uniform": {"low": -2.0, "high": 0.0}},
    ),
    "normal, scaled": (lambda w: w.data.mul_(-0.1), {"normal": {"mean": 0.0, "std": 0.1}}),
    "several at once": (
        lambda w: (torch._foreach_zero_([w.data]), torch._foreach_add_([w.data], 3)),
        {"constant": 3.0},
    ),
    "several, each with a factor": (
        lambda w: torch._foreach_mul_([torch.ones(2), w.data], [2.0, 0.5]),
        {"normal": {"mean": 0.0, "std": 0.5}},
    ),
    "the last of two": (
        lambda w: (INIT.orthogonal_(w), INIT.ones_(w)),
        {"constant": 1.0},
    ),
}


@pytest.mark.parametrize("fill", FILLS)
def test_the_last_fill_is_the_initializer(store: embedrock.Store, fill: str) -> None:
    model = built(FILLS[fill][0])
    assert model[0].weight.is_meta
    table = nn.convert(model, store)["0"].table
    assert set(table.initializer) == set(FILLS[fill][1])
    for name, expected in FILLS[fill][1].items():
        assert table.initializer[name] == pytest.approx(expected)
    assert len(table) == 0, "no row is written"


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "another tensor's values": (lambda w: w.data.copy_(torch.randn(ROWS, DIM)), "copy_"),
    "orthogonal_": (lambda w: INIT.orthogonal_(w), "orthogonal_"),
    "out=": (
        lambda w: torch.nn.functional.normalize(w.data, out=w.data),
        "div",
    ),
    "half of the rows": (lambda w: INIT.normal_(w[: ROWS // 2]), r"normal_ of 800"),
    "half of the columns": (lambda w: INIT.zeros_(w[:, :2]), r"(zero|fill)_ of 800"),
    "an infinite value": (lambda w: w.data.fill_(math.inf), "fill_"),
    "squares": (lambda w: w.data.pow_(2), "pow_"),
    "several, of other values": (
        lambda w: torch._foreach_copy_([w.data], [torch.ones(ROWS, DIM, device="meta")]),
        "_foreach_copy_",
    ),
    "several, by tensors": (
        lambda w: torch._foreach_mul_([w.data], [torch.ones(ROWS, DIM, device="meta")]),
        "_foreach_mul_",
    ),
    "rounded quotients": (lambda w: w.data.div_(2, rounding_mode="floor"), "div_"),
}


@pytest.mark.parametrize("fill", REFUSED)
def test_what_cannot_be_carried_over_is_refused(store: embedrock.Store, fill: str) -> None:
    model = built(REFUSED[fill][0])
    with pytest.raises(UnsupportedError, match=f"^0 .*is filled by {REFUSED[fill][1]}"):
        nn.convert(model, store)
    assert store.tables == {}
    with nn.deferred():
        INIT.normal_(model[0].weight)
    with pytest.raises(UnsupportedError):
        nn.convert(model, store)


def test_a_fill_behind_the_block_is_refused(store: embedrock.Store) -> None:
    model = built(INIT.ones_)
    INIT.zeros_(model[0].weight)
    with pytest.raises(UnsupportedError, match="something behind the block"):
        nn.convert(model, store)


def test_a_weight_that_was_replaced_is_refused_or_loaded(store: embedrock.Store) -> None:
    model = built(lambda w: setattr(w, "data", w.data * 2))
    with pytest.raises(UnsupportedError, match="another tensor that its data was set to"):
        nn.convert(model, store)
    model[0].weight = torch.nn.Parameter(torch.full((ROWS, DIM), 2.0))
    nn.convert(model, store)
    assert model(torch.tensor([399])).tolist() == [[2.0] * DIM]


def test_rows_that_were_filled_with_a_value_have_it(store: embedrock.Store) -> None:
    def fill(weight: Any) -> None:
        weight.data[1] = 5
        INIT.constant_(weight, 1)
        weight.data[3] = 2
        weight.data[7:9].fill_(4)
        weight.data.mul_(2)

    table = nn.convert(built(fill), store)["0"].table
    assert table.get(np.arange(10))[:, 0].tolist() == [2, 2, 2, 4, 2, 2, 2, 8, 8, 2]


def test_a_row_is_not_the_whole_of_a_small_table(store: embedrock.Store) -> None:
    with nn.deferred():
        model = torch.nn.Sequential(torch.nn.Embedding(3, DIM))
        INIT.ones_(model[0].weight)
        INIT.zeros_(model[0].weight[1])
    nn.convert(model, store)
    assert model(torch.arange(3))[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("fill", "is_zero"),
    [
        (lambda w: None, True),
        (lambda w: INIT.normal_(w[1:]), True),
        (lambda w: INIT.normal_(w), False),  # and so the row is in memory
    ],
)
def test_padding_rows_are_zero_if_they_would_be_in_memory(
    store: embedrock.Store, fill: Any, is_zero: bool
) -> None:
    model = built(fill, padding_idx=0)
    nn.convert(model, store)
    output = model(torch.tensor([0]))
    assert bool((output == 0).all()) is is_zero
    table = store.table("0")
    assert np.array_equal(output.detach().numpy(), table.get([0]))


def test_a_convert_that_was_interrupted_is_made_whole_by_the_next(
    store: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table was taken as good with a padding row that is not zero, and without other fills."""
    puts, left = embedrock.Table.put, 0

    def put(table: Any, keys: Any, values: Any) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        puts(table, keys, values)

    def model_of(fill: Any) -> Any:
        return built(lambda w: (fill(w), w.data[5:9].fill_(3), w.data[7].fill_(4)), padding_idx=0)

    for fill, is_zero in ((lambda w: None, True), (INIT.normal_, False)):
        for number in range(9):
            model, prefix, left = model_of(fill), f"{is_zero}{number}.", number
            with monkeypatch.context() as patch:
                patch.setattr(embedrock.Table, "put", put)
                try:
                    nn.convert(model, store, prefix=prefix)
                except KeyboardInterrupt:
                    pass
                else:
                    break
            table = nn.convert(model, store, prefix=prefix)["0"].table
            assert table.get([5, 6, 7, 8])[:, 0].tolist() == [3, 3, 4, 3]
            padding = table.get(0)
            assert table.delete([0]) == 1
            assert np.array_equal(padding, np.zeros(DIM) if is_zero else table.get(0))
        assert number > 1
    # Rows that were written stay, whatever a fill says.
    table = store.table(f"{prefix}0")
    table.put([0, 5], np.full((2, DIM), 7, np.float32))
    again = nn.convert(model_of(INIT.ones_), store, prefix=prefix)["0"].table
    assert again.get([0, 5, 7])[:, 0].tolist() == [7, 7, 4]


def test_subclasses_that_fill_in_their_own_constructor_are_seen(store: embedrock.Store) -> None:
    class Own(torch.nn.Embedding):  # type: ignore[misc]
        def reset_parameters(self) -> None:
            INIT.uniform_(self.weight, -3, 3)
            self._fill_padding_idx_with_zero()

    with nn.deferred():
        model = torch.nn.Sequential(Own(ROWS, DIM, padding_idx=1))
    table = nn.convert(model, store)["0"].table
    assert table.initializer == {"uniform": {"low": -3.0, "high": 3.0}}
    assert table.get([1]).tolist() == [[0.0] * DIM]


def test_only_tables_of_that_size_are_deferred() -> None:
    class OwnForward(torch.nn.Embedding):  # type: ignore[misc]
        def forward(self, input: Any) -> Any:
            return input

    with nn.deferred(min_rows=ROWS):
        modules = [
            torch.nn.Embedding(np.int64(ROWS), DIM),
            torch.nn.EmbeddingBag(ROWS, DIM),
            torch.nn.Embedding(ROWS - 1, DIM),
            torch.nn.Embedding(ROWS, DIM, max_norm=1.0),
            torch.nn.Embedding.from_pretrained(torch.ones(ROWS, DIM)),
            OwnForward(ROWS, DIM),
        ]
    after = torch.nn.Embedding(ROWS, DIM)
    found = [module.weight.is_meta for module in [*modules, after]]
    assert found == [True, True, False, False, False, False, False]


def test_torch_is_as_it_was_when_no_deferred_weight_is_left() -> None:
    gc.collect()
    kinds, fills = (torch.nn.Embedding, torch.nn.EmbeddingBag), ("orthogonal_", "sparse_")
    places = [(kind, name) for kind in kinds for name in ("__init__", "_apply")]
    places += [(torch.nn.init, name) for name in fills]
    own = [inspect.unwrap(getattr(owner, name)) for owner, name in places]
    assert [getattr(owner, name) for owner, name in places] == own
    with nn.deferred():
        model = torch.nn.Sequential(torch.nn.Embedding(100, 4))
        with nn.deferred():
            assert torch.nn.Embedding.__init__ is not own[0]
    # A fill behind the block is noticed as long as there is a weight that it could fill.
    assert torch.nn.init.orthogonal_ is not own[4]
    torch.nn.Embedding.__init__ = own[0]  # as another library's block may put it back
    with nn.deferred():
        assert torch.nn.Embedding.__init__ is not own[0]
    del model
    gc.collect()
    assert [getattr(owner, name) for owner, name in places] == own


def test_other_threads_are_left_alone() -> None:
    made: list[Any] = []
    with nn.deferred():
        thread = threading.Thread(target=lambda: made.append(torch.nn.Embedding(ROWS, DIM)))
        thread.start()
        thread.join()
        with nn.deferred(min_rows=ROWS + 1):
            made.append(torch.nn.Embedding(ROWS, DIM))
        made.append(torch.nn.Embedding(ROWS, DIM))
    assert [module.weight.is_meta for module in made] == [False, False, True]


def test_a_model_moves_before_it_is_converted(store: embedrock.Store) -> None:
    with nn.deferred():
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM), torch.nn.Linear(DIM, 1))
        model.to("cpu")
    model.to(torch.bfloat16)
    assert model[0].weight.is_meta
    nn.convert(model, store)
    assert model[0].table.dtype == "bfloat16"
    assert model(torch.tensor([1])).dtype == torch.bfloat16


def test_modules_that_share_a_deferred_weight_share_a_table(store: embedrock.Store) -> None:
    with nn.deferred():
        model = torch.nn.ModuleList([torch.nn.Embedding(ROWS, DIM) for _ in range(2)])
        model[1].weight = model[0].weight
    made = nn.convert(model, store)
    assert [made[path].table.name for path in ("0", "1")] == ["0", "0"]


def test_a_deferred_module_that_is_not_converted_is_refused(store: embedrock.Store) -> None:
    model = built(lambda w: None)
    with pytest.raises(MisuseError, match=r"^0 .*min_rows=401 leaves it as it is"):
        nn.convert(model, store, min_rows=ROWS + 1)
    nn.convert(model, store)


def test_a_deferred_model_goes_on_with_the_tables_that_are_there(store: embedrock.Store) -> None:
    nn.convert(built(INIT.ones_), store)
    store.table("0").put([7], np.full((1, DIM), 7, np.float32))
    model = built(INIT.zeros_)
    nn.convert(model, store)
    assert model(torch.tensor([7, 8])).tolist() == [[7.0] * DIM, [1.0] * DIM]


def test_conversion_within_the_block_works(store: embedrock.Store) -> None:
    with nn.deferred():
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM))
        INIT.ones_(model[0].weight)
        nn.convert(model, store)
    assert model(torch.tensor([7])).tolist() == [[1.0] * DIM]


LIMITED = """
import resource, sys, torch, embedrock

def model():
    return torch.nn.Sequential(
        torch.nn.EmbeddingBag(10_000_000, 64, mode="sum"), torch.nn.Linear(64, 1)
    )

pages = int(open("/proc/self/statm").read().split()[0])
base = pages * resource.getpagesize()
room = 10_000_000 * 64 * 4 // 3
resource.setrlimit(resource.RLIMIT_AS, (base + room, base + room))
try:
    model()
except (RuntimeError, MemoryError):
    print("no room")
with embedrock.nn.deferred(min_rows=1000):
    big = model()
store = embedrock.open(sys.argv[1], "160MiB")
embedrock.nn.convert(big, store, min_rows=1000, optimizer="sgd")
optimizer = embedrock.optim.SGD(big, lr=0.1)
big(torch.randint(0, 10_000_000, (64, 4))).sum().backward()
optimizer.step()
store.commit(1)
print(len(big[0].table), big[0].table.initializer)
store.close()
"""


def test_a_model_of_ten_million_rows_is_built_in_less_memory_than_its_table(
    tmp_path: Path,
) -> None:
    done = withtorch.run(
        ["-c", LIMITED, str(tmp_path / "s")],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(embedrock.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no room\n256 {'normal': {'mean': 0.0, 'std': 1.0}}\n"


def test_a_deferred_model_that_is_called_says_what_is_missing(store: embedrock.Store) -> None:
    # It ended in torch's "expected device meta".
    with nn.deferred(min_rows=ROWS):
        model = torch.nn.Sequential(torch.nn.Embedding(ROWS, DIM))
        bags = torch.nn.Sequential(torch.nn.EmbeddingBag(ROWS, DIM))
    for one in (model, bags, copy.deepcopy(model)):
        with pytest.raises(
            MisuseError,
            match=rf"this Embedding(Bag)? of {ROWS} rows was built within .*deferred.*convert",
        ):
            one(torch.tensor([[1, 2]]))
    nn.convert(model, store, optimizer="sgd")
    assert model(torch.tensor([[1, 2]])).shape == (1, 2, DIM)
    bags[0].weight = torch.nn.Parameter(torch.ones(ROWS, DIM))  # its owner gave it one
    assert bags(torch.tensor([[1, 2]])).tolist() == [[1.0] * DIM]
