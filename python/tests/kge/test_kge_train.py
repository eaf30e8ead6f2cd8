"""`embedrock train` on a knowledge graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import embedrock
from embedrock import cli
from embedrock.data import DataError
from embedrock.errors import MismatchError, MisuseError
from embedrock.report.progress import Lines
from embedrock.training import batches, epoch_run
from embedrock.training import graphs as job
from embedrock.training.graph_options import GraphOptions
from embedrock.training.graph_recipes import GraphRecipe
from graphs import triples_of, write_graph
from trainings import _After, digests

SMALL = {"epochs": 3, "batch_size": 64, "negatives": 16, "embedding_dim": 8}


def options_of(tmp_path: Path, store: str, model: str = "distmult", **given: Any) -> GraphOptions:
    """Five steps an epoch, three epochs."""
    if not (tmp_path / "graph").exists():
        write_graph(tmp_path / "graph", triples_of())
    recipe = {**SMALL, **{n: v for n, v in given.items() if hasattr(GraphRecipe, n)}}
    rest = {name: value for name, value in given.items() if name not in recipe}
    chosen = {"memory": "64MiB", "threads": 1, "commit_every": 4, "unknown": "skip"}
    return GraphOptions(
        data=tmp_path / "graph",
        model=model,
        store=tmp_path / store,
        recipe=GraphRecipe.of_model(model, recipe),
        **{"given": frozenset(recipe), **chosen, **rest},
    )


def train(options: GraphOptions) -> dict[str, Any]:
    return job.train(options, Lines())


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("distmult", {"optimizer": "adagrad", "lr_decay": 0.5}),
        pytest.param(
            "transe",
            {"unit_rows": True, "optimizer": "sgd", "margin": 1.0},
            marks=pytest.mark.long,
        ),
        ("rotate", {"pipeline": True, "optimizer": "rowwise_adam", "dtype": "bfloat16"}),
    ],
)
def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, given: dict[str, Any]
) -> None:
    whole = train(options_of(tmp_path, "whole", model, **given))
    assert whole["step"] == 15
    for stop in (1, 7):
        options = options_of(tmp_path, f"stopped-{stop}", model, **given, schedule=True)
        with monkeypatch.context() as patched:
            patched.setattr(epoch_run, "Interrupt", lambda steps=stop: _After(steps))
            first = train(options)
        assert (first["interrupted"], first["step"], first["ranks"]) == (True, stop, {})
        second = train(replace(options, resume=True, given=frozenset()))
        assert (second["step"], second["ranks"]) == (15, whole["ranks"])
        for run, steps in ((first, stop), (second, 15 - stop)):
            assert run["lookahead"]["scheduled"] >= steps, "batches are those of the schedule"
        assert digests(options.store) == digests(tmp_path / "whole")
    assert {part: int(ranks["queries"]) for part, ranks in whole["ranks"].items()} == {
        "valid": 68,
        "test": 64,
    }


def test_training_ranks_better_than_chance_and_fits_its_report(tmp_path: Path, capsys: Any) -> None:
    write_graph(tmp_path / "graph", triples_of(2000), held=20)
    common = ["train", "--model", "distmult", "--data", str(tmp_path / "graph")]
    common += ["--store", str(tmp_path / "s"), "--memory", "64MiB", "--threads", "1"]
    small = ["--epochs", "10", "--batch-size", "128", "--embedding-dim", "32", "--loss", "nssa"]
    more = ["--json", "--report", str(tmp_path / "r.json")]
    assert cli.main([*common, *small, *more]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ranks"]["test"]["mrr"] > 0.1  # by chance it is 0.02
    assert result["ranks"]["test"]["scans"] == 1
    figures = json.loads((tmp_path / "r.json").read_text())["figures"]
    assert figures["test_mrr"] == result["ranks"]["test"]["mrr"]
    assert result["samples"] == 10 * 1960
    assert cli.main([*common, "--resume"]) == 0
    assert "Hits@10" in capsys.readouterr().out


def test_what_does_not_fit_the_stored_run_is_refused(tmp_path: Path) -> None:
    options = options_of(tmp_path, "s")
    train(options)
    with pytest.raises(MisuseError, match="holds a run at step 15; add --resume"):
        train(options)
    again = replace(options, resume=True)
    with pytest.raises(MismatchError, match=r"model is complex, but the run in .* has distmult"):
        train(replace(options_of(tmp_path, "s", "complex"), resume=True))
    with pytest.raises(MismatchError, match=r"negatives is 17, but the run in .* has 16"):
        train(replace(again, recipe=replace(options.recipe, negatives=17)))
    longer = train(replace(again, recipe=replace(options.recipe, epochs=4)))
    assert longer["step"] == 20
    test = tmp_path / "graph" / "test.tsv"
    test.write_text(test.read_text() + "e1\tr1\te2\n")
    with pytest.raises(MisuseError, match=r"test\.tsv has more in it than what the run"):
        train(again)
    with pytest.raises(DataError, match=r"entity '.*' is not in train\.tsv"):
        train(options_of(tmp_path, "other", unknown="refuse"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--model", "transe", "--bottom", "8"], "--bottom is for models of clicks"),
        (["--model", "transe", "--format", "csv"], "--format is for models of clicks"),
        (["--negatives", "8"], "--negatives is for models of knowledge graphs: add --model"),
        ([], "--format is missing, expected one of criteo"),
        (["--model", "rotate", "--unit-rows"], "unit_rows is for transe"),
        (["--model", "rotate", "--lr", "-1"], "lr is -1.0, expected 0 or more"),
        (["--model", "rotate", "--read-ahead", "2"], "read_ahead is 2 without a pipeline"),
        (["--model", "rotate", "--embedding-dim", "7"], "expected an even number"),
    ],
)
def test_options_of_other_models_are_refused(
    tmp_path: Path, capsys: Any, more: list[str], problem: str
) -> None:
    write_graph(tmp_path / "graph", triples_of(2000), held=20)
    common = ["train", "--data", str(tmp_path / "graph"), "--store", str(tmp_path / "s")]
    assert cli.main([*common, *more]) == 2
    assert problem in capsys.readouterr().err


def test_a_store_of_clicks_is_not_gone_on_with(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "s", "16MiB") as store:
        store.table("other", 4)
        store.commit(1, {"program": "something else"})
    with pytest.raises(MismatchError, match="was not written by embedrock train"):
        train(replace(options_of(tmp_path, "s"), resume=True))


@pytest.mark.parametrize("order", ["beta", None])
def test_a_run_by_partitions_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str | None
) -> None:
    given = {"partitions": 4, "order": order}
    whole = train(options_of(tmp_path, "whole", **given))
    assert whole["order"]["partitions"] == 4 and whole["order"]["announced"] > 4
    assert whole["samples"] == 3 * (len(triples_of()) - 80)
    stop = whole["step"] // 2
    options = options_of(tmp_path, "stopped", **given)
    with monkeypatch.context() as patched:
        patched.setattr(epoch_run, "Interrupt", lambda: _After(stop))
        assert train(options)["step"] == stop
    on = replace(options, resume=True, given=frozenset(), partitions=None, order=None)
    second = train(on)
    assert (second["step"], second["ranks"]) == (whole["step"], whole["ranks"])
    assert digests(options.store) == digests(tmp_path / "whole")
    with pytest.raises(MismatchError, match="partitions is 5, but the run in"):
        train(replace(on, partitions=5))


def test_options_of_partitions_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="order is 'beta' without partitions"):
        train(options_of(tmp_path, "s", order="beta"))
    with pytest.raises(MisuseError, match="pipeline is for triples in random order"):
        train(options_of(tmp_path, "s", partitions=4, pipeline=True))
    with pytest.raises(MisuseError, match="schedule is for triples in random order"):
        train(options_of(tmp_path, "s", partitions=4, schedule=True))


@pytest.mark.parametrize(
    ("waited", "pipeline"),
    [(0.0, False), pytest.param(0.0, True, marks=pytest.mark.long), (2.0, False)],
)
def test_after_an_epoch_that_waits_for_rows_the_others_have_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: float, pipeline: bool
) -> None:
    monkeypatch.setattr(batches, "_WAITED", waited)
    monkeypatch.setattr(batches.ReadAhead, "_exceeds_caches", lambda _: True)
    plain = train(options_of(tmp_path, "plain", epochs=4, schedule=False))
    options = options_of(tmp_path, "tried", epochs=4, pipeline=pipeline)
    tried = train(options)
    assert tried["lookahead"]["handed_out"] == tried["step"] == 20
    assert tried["lookahead"]["scheduled"] == (0 if waited else 15)
    assert plain["lookahead"]["scheduled"] == 0
    assert digests(options.store) == digests(tmp_path / "plain")
    # Two epochs are too few.
    short = train(options_of(tmp_path, "short", epochs=2))
    assert (short["step"], short["lookahead"]["scheduled"]) == (10, 0)
