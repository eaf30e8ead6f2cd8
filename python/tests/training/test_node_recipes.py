"""Options of `embedrock train` for graphs, and its messages without PyTorch Geometric."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from embedrock import cli
from embedrock.errors import MisuseError
from embedrock.training.node_recipes import NodeRecipe
from nodegraphs import write_graph


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"task": "edges"}, "task is 'edges', expected one of nodes, links"),
        ({"rows": "x"}, "rows is 'x', expected one of auto, features, embeddings, both"),
        ({"split": "60-20"}, "split is '60-20', expected file, planetoid, or per cent"),
        ({"optimizer": "rms"}, "optimizer is 'rms', expected one of adagrad"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0, expected 0 or more"),
        ({"model_options": {"dropout": "1"}}, "dropout of model gat is 1.0, expected less than 1"),
        ({"model_options": {"layers": "1"}}, "model gat has no option 'layers'; it has neighbors="),
        ({"model_options": {"neighbors": "10-x"}}, "neighbors of model gat is '10-x', expected"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(MisuseError, match=problem):
        NodeRecipe.of_model("gat", given)


def test_defaults_depend_on_the_task_and_the_model() -> None:
    nodes, links = (NodeRecipe.of_model("gat", {"task": task}) for task in ("nodes", "links"))
    assert (nodes.model_options["neighbors"], nodes.dense_lr) == ((10, 10), 0.005)
    assert (links.model_options["neighbors"], links.model_options["heads"]) == ((10,), 8)
    assert (nodes.split_with(False), links.split_with(False)) == ("60-20-20", "85-5-10")
    assert nodes.split_with(True) == "file"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            ["--model", "gat", "--format", "csv"],
            "--format is for models of clicks; gat reads edges",
        ),
        (["--model", "gat", "--negatives", "8"], "--negatives is for models of knowledge graphs;"),
        (["--model", "transe", "--split", "file"], "--split is for models of graphs; transe reads"),
        (["--model", "transe", "--model-option", "a=b"], "--model-option is for models of clicks;"),
        (["--task", "links"], "--task is for models of graphs: add --model, one of graphsage, gat"),
        (["--model", "gat", "--split", "1-2-3"], "split is '1-2-3', expected file, planetoid"),
    ],
)
def test_options_of_other_models_are_refused(
    tmp_path: Path, capsys: Any, more: list[str], problem: str
) -> None:
    common = ["train", "--data", str(tmp_path), "--store", str(tmp_path / "s")]
    assert cli.main([*common, *more]) == 2
    assert problem in capsys.readouterr().err


def test_without_pytorch_geometric_the_command_says_how_to_get_it(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch_geometric" else find(name)
    )
    data = write_graph(tmp_path / "graph")
    common = ["train", "--data", str(data), "--store", str(tmp_path / "s"), "--model", "gat"]
    assert cli.main(common) == 2
    said = "embedrock: error: model gat needs PyTorch Geometric: pip install torch-geometric\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "s").exists()
