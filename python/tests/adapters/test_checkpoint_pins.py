"""Commits of checkpoints are pinned as long as these are on disk, whoever removes them."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from test_restore import (  # noqa: E402
    DIM,
    IDS,
    Rows,
    hf_trainer,
    lightning_model,
    lightning_trainer,
    loader,
    now,
    same,
    together,
)

import embedrock  # noqa: E402
from embedrock.adapters._pinning import CheckpointPins  # noqa: E402
from embedrock.errors import MisuseError  # noqa: E402


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[embedrock.Store]:
    """A store that keeps two commits, as one that nobody has told otherwise."""
    with embedrock.open(tmp_path / "store", memory="4MiB") as store:
        torch.manual_seed(0)
        yield store
        if store.uncommitted[0]:
            store.commit(1_000_000)


def steps(store: embedrock.Store) -> list[int]:
    return sorted(set(store.pins().values()))


def train(store: embedrock.Store, step: int) -> None:
    store.table("plain", DIM).put([0], torch.full((1, DIM), float(step)))
    store.commit(step)


# The pins themselves.


def test_a_pin_lives_as_long_as_its_file(opened: embedrock.Store, tmp_path: Path) -> None:
    pins, folder = CheckpointPins(opened), tmp_path / "files"
    folder.mkdir()
    for step in range(1, 6):
        train(opened, step)
        pins.tidy()
        pins.hold(folder / f"{step}.ckpt")
        (folder / f"{step}.ckpt").write_text("saved")
        pins.saved(folder / f"{step}.ckpt")
    assert steps(opened) == [1, 2, 3, 4, 5]
    assert "checkpoint:2:files/2.ckpt" in opened.pins()
    (folder / "2.ckpt").unlink()
    (folder / "4.ckpt").unlink()
    CheckpointPins(opened).tidy()  # as a later run does
    assert steps(opened) == [1, 3, 5]
    # A folder that is gone as a whole may have been moved.
    folder.rename(tmp_path / "moved")
    CheckpointPins(opened).tidy()
    assert steps(opened) == [1, 3, 5]
    (tmp_path / "moved").rename(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    CheckpointPins(opened).tidy()
    assert steps(opened) == []


def test_a_file_that_is_written_again_keeps_its_old_rows_until_it_is_there(
    opened: embedrock.Store, tmp_path: Path
) -> None:
    """Between the new pin and the new file the old one is what a crash leaves."""
    pins, last = CheckpointPins(opened), tmp_path / "last.ckpt"
    train(opened, 1)
    pins.hold(last)
    last.write_text("one")
    pins.saved(last)
    for step in (2, 3, 4):
        train(opened, step)
        pins.tidy()
        pins.hold(last)
        CheckpointPins(opened).tidy()
        assert steps(opened) == [step - 1, step]
        pins.saved(last)  # it is still the old one, which a plugin is about to replace
        pins.tidy()
        assert steps(opened) == [step - 1, step]
        draft = tmp_path / "draft"
        draft.write_text("more " * step)
        draft.replace(last)
        pins.saved(last)
        assert steps(opened) == [step]


def test_a_crash_between_pin_and_file_leaves_a_pin_that_the_next_run_takes(
    opened: embedrock.Store, tmp_path: Path
) -> None:
    pins = CheckpointPins(opened)
    train(opened, 1)
    pins.hold(tmp_path / "never.ckpt")
    pins.tidy()
    assert steps(opened) == [1]  # it may be on its way
    CheckpointPins(opened).tidy()
    assert steps(opened) == []


@pytest.mark.parametrize("name", ["long " * 40 + ".ckpt", "line\nbreak.ckpt"])
def test_places_that_no_name_can_hold_are_known_in_their_run(
    opened: embedrock.Store, tmp_path: Path, name: str
) -> None:
    pins = CheckpointPins(opened)
    train(opened, 1)
    pins.hold(tmp_path / name)
    (tmp_path / name).write_text("saved")
    pins.saved(tmp_path / name)
    (tmp_path / name).unlink()
    CheckpointPins(opened).tidy()  # another run cannot tell
    assert steps(opened) == [1]
    pins.tidy()
    assert steps(opened) == []


def test_a_storage_that_fails_keeps_the_pins(
    opened: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec's ``exists`` says no to every error, so a hiccup took the best model's rows."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    folder, pins = "/checkpoints-that-fail", CheckpointPins(opened)
    for step in (1, 2):
        train(opened, step)
        pins.hold(f"memory:/{folder}/{step}.ckpt")
        memory.pipe(f"{folder}/{step}.ckpt", b"saved")
        pins.saved(f"memory:/{folder}/{step}.ckpt")

    def hiccup(*_: Any, **__: Any) -> None:
        raise ConnectionError("the network is gone")

    with monkeypatch.context() as broken:
        broken.setattr(type(memory), "info", hiccup)
        CheckpointPins(opened).tidy()
    assert steps(opened) == [1, 2]
    memory.rm(f"{folder}/1.ckpt")
    CheckpointPins(opened).tidy()
    assert steps(opened) == [2]
    # Nor does a folder that is gone as a whole: it may have been moved.
    memory.rm(folder, recursive=True)
    CheckpointPins(opened).tidy()
    assert steps(opened) == [2]


def test_pins_of_others_stay(opened: embedrock.Store, tmp_path: Path) -> None:
    train(opened, 1)
    for name in ("best", "checkpoint:", "checkpoint:7:none.ckpt", "checkpoint:1"):
        opened.pin(1, name)
    CheckpointPins(opened).tidy()
    assert len(opened.pins()) == 4


# Lightning.


def checkpoints(folder: Path) -> list[int]:
    """The steps that checkpoints on disk need."""
    found = set()
    for path in folder.glob("**/*.ckpt"):
        found.add(torch.load(path, weights_only=False)["global_step"])
    return sorted(found)


@pytest.mark.parametrize("weights_only", [False, True])
def test_lightning_finds_the_rows_of_the_best_however_many_came_after(
    opened: embedrock.Store, tmp_path: Path, weights_only: bool
) -> None:
    """With keep=2 they were gone at the end of training, and nothing said so before."""
    pytest.importorskip("pytorch_lightning")
    from embedrock.adapters.lightning import Commits

    seen: dict[int, Any] = {}
    model = lightning_model(opened, seen)
    trainer, _ = lightning_trainer(tmp_path / "ckpt", opened, 8, save_weights_only=weights_only)
    trainer.fit(model, loader(), loader())
    wanted = seen[4]
    assert steps(opened) == checkpoints(tmp_path) == [2, 4, 6, 8, 10, 12, 14, 16]
    # Evaluation of each loses nothing of the others.
    for step in (4, 2, 10, 6, 16, 4):
        ((path,)) = [p for p in (tmp_path / "ckpt").glob(f"*step={step}.ckpt")]
        trainer.validate(model, loader(), ckpt_path=path, verbose=False)
        assert opened.step == step
    assert same(now(model.inner), wanted)
    with pytest.raises(MisuseError, match="came after the commit to go back to"):
        model.inner.rows.table.put([0], torch.ones(1, DIM))
    assert steps(opened) == checkpoints(tmp_path)
    # It can be saved beside the commit that it has.
    trainer.save_checkpoint(tmp_path / "best.ckpt")
    assert opened.step == 4 and "checkpoint:4:best.ckpt" in opened.pins()
    # Going on from there is another branch, and says what that costs.
    with pytest.warns(UserWarning, match=r"goes on from its commit of step 4.*cannot be loaded"):
        next(one for one in trainer.callbacks if isinstance(one, Commits)).drop_later()
    model.inner.rows.table.put([0], torch.ones(1, DIM))
    opened.commit(17)
    assert steps(opened) == [2, 4]


def test_lightning_keeps_pins_of_the_top_alone(opened: embedrock.Store, tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from embedrock.adapters.lightning import Commits

    model = lightning_model(opened, {})
    best = pl.callbacks.ModelCheckpoint(
        tmp_path / "best", monitor="worse", save_top_k=2, save_last=True
    )
    every = pl.callbacks.ModelCheckpoint(
        tmp_path / "every", every_n_train_steps=5, save_top_k=-1, filename="{step}"
    )
    trainer = pl.Trainer(
        max_epochs=8,
        callbacks=[best, every, Commits(opened)],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, loader(), loader())
    assert steps(opened) == checkpoints(tmp_path) == [2, 4, 5, 10, 15]
    trainer.validate(model, loader(), ckpt_path="best", verbose=False)
    assert opened.step == 4


def test_lightning_resumes_from_an_earlier_one_and_drops_the_later(tmp_path: Path) -> None:
    for epochs, resumed in ((4, None), (3, "epoch=1")):
        with embedrock.open(tmp_path / "store", memory="4MiB") as store:
            torch.manual_seed(0)
            model = lightning_model(store, {})
            trainer, _ = lightning_trainer(tmp_path / "ckpt", store, epochs)
            path = None
            if resumed is not None:
                ((path,)) = (tmp_path / "ckpt").glob(f"{resumed}*.ckpt")
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                trainer.fit(model, loader(), loader(), ckpt_path=path)
            told = [str(one.message) for one in said if "goes on from" in str(one.message)]
            assert len(told) == (resumed is not None)
            assert store.step == 2 * epochs
            assert steps(store) == ([2, 4, 6, 8] if resumed is None else [2, 4, 6])


def test_commits_pin_nothing_where_they_are_told_so(
    opened: embedrock.Store, tmp_path: Path
) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from embedrock.adapters.lightning import Commits

    model = lightning_model(opened, {})
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[pl.callbacks.ModelCheckpoint(tmp_path / "c"), Commits(opened, pin=False)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, loader(), loader())
    assert opened.step == 2 and opened.pins() == {}


# Hugging Face.


def folders(out: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in out.glob("checkpoint-*"))


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_hf_finds_the_rows_of_the_best_however_many_came_after(
    opened: embedrock.Store, tmp_path: Path, limit: int | None
) -> None:
    options = {"save_strategy": "epoch", "load_best_model_at_end": True, "save_total_limit": limit}
    trainer, seen = hf_trainer(tmp_path, opened, 8, **options)
    trainer.train()
    assert opened.step == 4 and same(now(trainer.model), seen[4]) and not same(seen[16], seen[4])
    left = folders(tmp_path / "out")
    assert 4 in left and len(left) == (8 if limit is None else limit)
    assert set(steps(opened)) >= set(left) and len(steps(opened)) <= len(left) + 1
    # Training goes on from the best, and says what that costs.
    if left[-1] > 4:
        with pytest.warns(UserWarning, match="goes on from its commit of step 4"):
            trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.model.rows.table.put([0], torch.ones(1, DIM))
    opened.commit(20)


def test_hooks_of_a_loaded_model_can_be_pickled_and_do_not_pile_up(
    opened: embedrock.Store,
) -> None:
    """A local function could not, and each load left one more."""
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    from embedrock.adapters import hf

    model, pins = torch.nn.Linear(2, 2), CheckpointPins(opened)
    hf._watch(pins)
    hooks = list(_global_optimizer_pre_hooks)
    for _ in range(3):  # as each load_state does
        hf._go_back_before_loads(model, opened)
        hf._watch(pins)
    assert len(model._load_state_dict_pre_hooks) == 1
    assert list(_global_optimizer_pre_hooks) == hooks and len(hf._gone_back) == 1
    again = pickle.loads(pickle.dumps(model))
    again(torch.ones(1, 2))
    again.load_state_dict(model.state_dict())
    del pins  # as with the accelerator that had them
    assert not hf._gone_back


def test_accelerate_keeps_states_and_goes_on_from_one(
    opened: embedrock.Store, tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate")
    from embedrock.adapters.hf import commit_with

    accelerator = accelerate.Accelerator(cpu=True)
    model = Rows(opened)
    model, optimizer = accelerator.prepare(model, together(model))
    commit_with(accelerator, opened)

    def step() -> None:
        accelerator.backward(model(IDS)["loss"])
        optimizer.step()
        optimizer.zero_grad()

    seen = []
    for number in range(6):
        step()
        accelerator.save_state(str(tmp_path / f"state{number % 5}"))  # the first is written again
        seen.append(now(model))
    for number in (1, 4, 0, 2):
        accelerator.load_state(str(tmp_path / f"state{number}"))
        model.eval()
        with torch.no_grad():
            model(IDS)
        model.train()
        model(IDS)["loss"].backward()  # as one who looks at gradients does
        optimizer.zero_grad()
        assert same(now(model), seen[number or 5])
    assert steps(opened) == [1, 2, 3, 4, 5]
    accelerator.load_state(str(tmp_path / "state1"))
    model.eval()  # as with the statistics of a norm that stay: rows train all the same
    with pytest.warns(UserWarning, match="goes on from its commit of step 1"):
        step()
    accelerator.save_state(str(tmp_path / "new"))
    assert steps(opened) == [1, 2] and os.path.isdir(tmp_path / "state3")


class Both(torch.nn.Module):  # type: ignore[misc]
    """Rows of two stores."""

    def __init__(self, *stores: embedrock.Store) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([Rows(store) for store in stores])

    def forward(self, ids: Any) -> Any:
        return sum(part(ids)["loss"] for part in self.parts)


def test_two_stores_go_on_beside_hooks_of_others(opened: embedrock.Store, tmp_path: Path) -> None:
    """The hook took itself away while torch went through the hooks, of which others came later."""
    accelerate = pytest.importorskip("accelerate")
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from embedrock.adapters.hf import commit_with

    accelerator = accelerate.Accelerator(cpu=True)
    with embedrock.open(tmp_path / "other", memory="4MiB") as other:
        model = Both(opened, other)
        model, optimizer = accelerator.prepare(model, together(model))
        for store in (opened, other):
            commit_with(accelerator, store)

        def step() -> None:
            accelerator.backward(model(IDS))
            optimizer.step()
            optimizer.zero_grad()

        for number in range(3):
            step()
            accelerator.save_state(str(tmp_path / f"state{number}"))
        accelerator.load_state(str(tmp_path / "state0"))
        seen: list[Any] = []
        handle = register_optimizer_step_pre_hook(lambda *_: seen.append(None))
        try:
            with pytest.warns(UserWarning, match="goes on from its commit of step 0") as warned:
                step()
        finally:
            handle.remove()
        assert len(warned) == 2 and seen
        assert steps(opened) == steps(other) == [0]
        other.commit(3)


def test_pins_that_could_not_be_dropped_are_dropped_before_the_next_step(
    opened: embedrock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedrock.adapters import hf

    model, pins, tries = Rows(opened), CheckpointPins(opened), []

    def drop() -> None:
        tries.append(None)
        if len(tries) == 1:
            raise OSError("not this time")

    monkeypatch.setattr(pins, "drop_later", drop)
    hf._watch(pins)
    optimizer = together(model)
    model(IDS)["loss"].backward()
    with pytest.raises(OSError, match="not this time"):
        optimizer.step()
    optimizer.step()
    model(IDS)["loss"].backward()
    optimizer.step()
    assert len(tries) == 2


@pytest.mark.parametrize("way", ["positional", "keyword", "put"])
def test_changes_that_no_gradient_announces_have_a_way_on(
    opened: embedrock.Store, tmp_path: Path, way: str
) -> None:
    """The hook looked at gradients before a closure made them, and the pins refused the change."""
    accelerate = pytest.importorskip("accelerate")
    from embedrock.adapters.hf import commit_with

    accelerator, model = accelerate.Accelerator(cpu=True), Rows(opened)
    model = accelerator.prepare(model)
    commits = commit_with(accelerator, opened)
    optimizer = embedrock.optim.SGD(model, lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(IDS)["loss"]
        loss.backward()
        return loss

    for number in range(3):
        optimizer.step(closure)
        accelerator.save_state(str(tmp_path / f"state{number}"))
    accelerator.load_state(str(tmp_path / "state0"))
    saved, ones = now(model), torch.ones(1, DIM)
    if way == "put":
        with pytest.raises(MisuseError, match="unpin it first"):
            model.rows.table.put([0], ones)
    with pytest.warns(UserWarning, match="goes on from its commit of step 0"):
        if way == "put":
            commits.drop_later()
        elif way == "keyword":
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
    if way == "put":
        model.rows.table.put([0], ones)
    assert steps(opened) == [0] and not same(now(model), saved)
