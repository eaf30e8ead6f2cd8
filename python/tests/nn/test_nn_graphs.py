"""Graphs of other tools: lookups have no place in them, and modules say so and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, weights  # noqa: E402
from embedrock.errors import UnsupportedError  # noqa: E402

IDS = torch.tensor([[1, 2, 3], [3, 4, 5]])


def bags(store: embedrock.Store) -> Any:
    config = nn.EmbeddingBagConfig("t", 4, num_embeddings=50, optimizer="sgd")
    offsets = torch.tensor([0, 3])
    collection = nn.EmbeddingBagCollection([config], store=store)

    class Bags(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.collection = collection

        def forward(self, ids: Any) -> Any:
            return self.collection({"t": (ids.reshape(-1), offsets)})["t"]

    return Bags()


MODULES: dict[str, Callable[[embedrock.Store], Any]] = {
    "Embedding": lambda s: nn.Embedding(50, 4, store=s, name="t", optimizer="sgd"),
    "EmbeddingBag": lambda s: nn.EmbeddingBag(50, 4, store=s, name="t", optimizer="sgd"),
    "EmbeddingBagCollection": bags,
}
TOOLS: dict[str, Callable[[Any, Path], Any]] = {
    "torch.jit.script": lambda m, _: torch.jit.script(m),
    "torch.jit.trace": lambda m, _: torch.jit.trace(m, (IDS,)),
    "ONNX": lambda m, p: torch.onnx.export(m, (IDS,), str(p / "m.onnx"), dynamo=False),
    "torch.export": lambda m, _: torch.export.export(m, (IDS,)),
}


# "0 INTERNAL ASSERT FAILED … please report a bug to PyTorch" was what users read.
@pytest.mark.parametrize("tool", list(TOOLS))
@pytest.mark.parametrize("kind", list(MODULES))
@pytest.mark.parametrize("training", [False, True])
def test_a_graph_of_a_lookup_is_refused_with_a_recipe(
    store: embedrock.Store, tmp_path: Path, kind: str, tool: str, training: bool
) -> None:
    if kind == "EmbeddingBagCollection" and tool == "torch.export":
        pytest.skip("its ids are refused as what they are there: tensors without data")
    model = torch.nn.Sequential(MODULES[kind](store)).train(training)
    with warnings.catch_warnings(), pytest.raises(UnsupportedError) as caught:
        warnings.simplefilter("ignore")
        TOOLS[tool](model, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{kind} of table 't' cannot be part of a graph that ")
    assert tool in said and "docs/models.md" in said and "weights.to_torch" in said
    model(IDS)  # goes on


def test_the_recipe_gives_equal_outputs(store: embedrock.Store) -> None:
    module = nn.EmbeddingBag(50, 4, store=store, name="t", optimizer="sgd")
    dense = torch.nn.Linear(4, 1)
    with torch.no_grad():
        expected = dense(module(IDS))
        traced = torch.jit.trace(dense, (torch.zeros(2, 4),))
        assert torch.equal(traced(module(IDS)), expected)
        plain = torch.nn.EmbeddingBag(50, 4)
        plain.weight.data = weights.to_torch(module.table).weight.data
        whole = torch.jit.script(torch.nn.Sequential(plain, dense))
        torch.testing.assert_close(whole(IDS), expected)


# It registered a parameter that no forward looked at.
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_a_weight_is_refused_when_it_is_set(store: embedrock.Store, kind: str) -> None:
    module = MODULES[kind](store)
    plain = torch.nn.Linear(4, 50)
    for weight in (plain.weight, plain.weight.data, None):
        with pytest.raises(AttributeError, match=rf"{kind} of table 't' cannot take a weight"):
            module.weight = weight
    assert list(module.parameters()) == [] and list(module.state_dict()) == ["_extra_state"]
    with pytest.raises(AttributeError, match="has no weight in memory"):
        module.weight  # noqa: B018
