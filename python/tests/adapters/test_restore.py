"""Trainers that save the best model, train on and restore it: rows are those of the best."""

from __future__ import annotations

import copy
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import NotFoundError, UnsupportedError  # noqa: E402

N, DIM = 40, 4
IDS = torch.arange(32).view(16, 2) % N


class Rows(torch.nn.Module):  # type: ignore[misc]
    """A model of the loss that trainers of Hugging Face expect."""

    def __init__(self, store: embedrock.Store) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(N, DIM, store=store, name="rows", mode="sum", optimizer="sgd")
        self.score = torch.nn.Linear(DIM, 1)

    def forward(self, ids: Any) -> dict[str, Any]:
        score = self.score(self.rows(ids)).squeeze(1)
        return {"loss": (score - ids.sum(1) / N).square().mean(), "logits": score}


def together(model: Any) -> optim.Together:
    dense = torch.optim.SGD(nn.dense_parameters(model), lr=0.1)
    return optim.Together(dense, optim.SGD(model, lr=0.1))


def now(model: Any) -> tuple[Any, Any]:
    """The rows and the dense weight."""
    rows = model.rows.table.get(torch.arange(N))
    return torch.from_numpy(rows), model.score.weight.detach().clone()


def same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    with embedrock.open(
        tmp_path / "store", memory="4MiB", keep=6, max_disk_bytes=100 << 20
    ) as store:
        torch.manual_seed(0)
        yield store
        if not store.closed and store.uncommitted[0]:
            store.commit(1_000_000)


# Lightning.


def lightning_model(store: embedrock.Store, seen: dict[int, Any]) -> Any:
    pl = pytest.importorskip("pytorch_lightning")

    class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Rows(store)

        def training_step(self, ids: Any, _: int) -> Any:
            return self.inner(ids)["loss"]

        def validation_step(self, ids: Any, _: int) -> None:
            # The second pass is the best one.
            seen[self.global_step] = now(self.inner)
            self.log("worse", abs(self.global_step - 4.0))

        def configure_optimizers(self) -> Any:
            return together(self.inner)

    return Model()


def lightning_trainer(
    folder: Path, store: embedrock.Store, epochs: int, *, pin: bool = True, **options: Any
) -> tuple[Any, Any]:
    pl = pytest.importorskip("pytorch_lightning")
    from embedrock.adapters.lightning import Commits

    best = pl.callbacks.ModelCheckpoint(
        folder, monitor="worse", save_top_k=-1, save_last=True, **options
    )
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[best, Commits(store, pin=pin)],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    return trainer, best


def loader() -> Any:
    return torch.utils.data.DataLoader(IDS, batch_size=8)


@pytest.mark.parametrize("weights_only", [False, True])
def test_lightning_restores_the_rows_of_the_best(
    opened: embedrock.Store, tmp_path: Path, weights_only: bool
) -> None:
    seen: dict[int, Any] = {}
    model = lightning_model(opened, seen)
    trainer, best = lightning_trainer(tmp_path, opened, 4, save_weights_only=weights_only)
    trainer.fit(model, loader(), loader())
    assert [*seen] == [2, 4, 6, 8] and opened.step == 8
    assert same(now(model.inner), seen[8]) and not same(seen[8], seen[4])
    seen.clear()
    trainer.validate(model, loader(), ckpt_path="best", verbose=False)
    ((_, found),) = seen.items()
    assert opened.step == 4
    assert same(now(model.inner), found) and "epoch=1" in Path(best.best_model_path).name
    # Loading by hand also fails with the name of the commit that the saved state needs.
    state = torch.load(best.best_model_path, weights_only=False)["state_dict"]
    model.load_state_dict(state)
    opened.go_back(8)
    with pytest.raises(embedrock.errors.MismatchError, match=r"call store\.go_back\(4\) first"):
        model.load_state_dict(state)


def test_lightning_goes_on_from_its_last_checkpoint_as_without_a_break(tmp_path: Path) -> None:
    results = []
    for name, parts in (("whole", [3]), ("parts", [2, 3])):
        folder = tmp_path / name
        folder.mkdir()
        for epochs in parts:
            with embedrock.open(folder / "store", memory="4MiB", keep=6) as store:
                torch.manual_seed(0)
                model = lightning_model(store, {})
                trainer, _ = lightning_trainer(folder, store, epochs)
                last = folder / "last.ckpt"
                if last.exists():
                    # As after a crash: the store is a commit ahead of the checkpoint.
                    model.inner.rows.table.put([0], torch.ones(1, DIM))
                    store.commit(99)
                trainer.fit(model, loader(), loader(), ckpt_path=last if last.exists() else None)
                results.append(now(model.inner))
    assert same(results[0], results[2]) and not same(results[1], results[2])


def test_lightning_refuses_a_checkpoint_whose_commit_is_gone(tmp_path: Path) -> None:
    with embedrock.open(tmp_path / "store", memory="4MiB", keep=1) as store:
        model = lightning_model(store, {})
        trainer, _ = lightning_trainer(tmp_path, store, 4, pin=False)
        trainer.fit(model, loader(), loader())
        with pytest.raises(NotFoundError, match=r"beside the commit of step 4.* keeps more"):
            trainer.validate(model, loader(), ckpt_path="best", verbose=False)


@pytest.mark.parametrize("weights_only", [False, True])
def test_lightning_commits_what_is_saved_behind_a_fit(
    opened: embedrock.Store, tmp_path: Path, weights_only: bool
) -> None:
    """The rows of such a checkpoint were in no commit, and it was loaded beside others."""
    model = lightning_model(opened, {})
    trainer, _ = lightning_trainer(tmp_path, opened, 1)
    trainer.fit(model, loader(), loader())
    table = model.inner.rows.table
    table.put([3], torch.ones(1, DIM).numpy())
    trainer.save_checkpoint(tmp_path / "end.ckpt", weights_only)
    assert opened.uncommitted == (0, 0) and opened.step == 2
    saved = now(model.inner)
    table.put([3], torch.zeros(1, DIM).numpy())
    trainer.validate(model, loader(), ckpt_path=tmp_path / "end.ckpt", verbose=False)
    assert same(now(model.inner), saved)


def test_lightning_commits_no_longer_where_it_is_no_callback(
    opened: embedrock.Store, tmp_path: Path
) -> None:
    model = lightning_model(opened, {})
    trainer, _ = lightning_trainer(tmp_path, opened, 1)
    trainer.fit(model, loader(), loader())
    assert not {"on_save_checkpoint", "on_load_checkpoint"} & set(vars(model))
    trainer.callbacks = []
    model.inner.rows.table.put([3], torch.ones(1, DIM).numpy())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    assert opened.uncommitted != (0, 0)


# Hugging Face.


def hf_trainer(
    folder: Path, store: embedrock.Store, epochs: int, *others: Any, **options: Any
) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from embedrock.adapters.hf import Commits

    torch.manual_seed(0)
    model = Rows(store)
    seen: dict[int, Any] = {}

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            step = self.state.global_step
            seen[step] = now(model)
            metrics = {"eval_worse": abs(step - 4.0)}
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, metrics
            )
            return metrics

    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        eval_strategy="epoch",
        metric_for_best_model="worse",
        greater_is_better=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    optimizer = together(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    data = [{"ids": ids} for ids in IDS]
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data,
        optimizers=(optimizer, schedule),
        callbacks=[Commits(store), *others],
    )
    return trainer, seen


@pytest.mark.parametrize("strategy", ["epoch", "best"])
def test_hf_trainer_restores_the_rows_of_the_best(
    opened: embedrock.Store, tmp_path: Path, strategy: str
) -> None:
    trainer, seen = hf_trainer(
        tmp_path, opened, 4, save_strategy=strategy, load_best_model_at_end=True
    )
    trainer.train()
    assert [*seen] == [2, 4, 6, 8] and opened.step == 4
    assert same(now(trainer.model), seen[4]) and not same(seen[8], seen[4])


def test_hf_trainer_resumes_as_without_a_break(tmp_path: Path) -> None:
    results = []
    for name, parts in (("whole", [3]), ("parts", [2, 3])):
        (tmp_path / name).mkdir()
        for epochs in parts:
            with embedrock.open(tmp_path / name / "store", memory="4MiB", keep=6) as store:
                trainer, _ = hf_trainer(tmp_path / name, store, epochs, save_strategy="epoch")
                trainer.train(resume_from_checkpoint=epochs == 3 and len(parts) == 2)
                results.append(now(trainer.model))
    assert same(results[0], results[2]) and not same(results[1], results[2])


@pytest.mark.parametrize("decides", ["a callback", "the best metric", "a signal"])
def test_hf_rows_are_durable_before_files_whoever_decides_to_save(
    tmp_path: Path, decides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that others decided to save were written first: a kill behind them left a checkpoint
    whose rows no commit had."""
    transformers = pytest.importorskip("transformers")
    jit = pytest.importorskip("transformers.trainer_jit_checkpoint")
    safetensors = pytest.importorskip("safetensors.torch")

    class Killed(BaseException):
        """The process is gone."""

    class Other(transformers.TrainerCallback):  # type: ignore[misc]
        """Decides behind ours."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3 and decides == "a callback":
                control.should_save = True

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3 and decides == "a signal":
                (manager,) = (
                    one.jit_manager
                    for one in trainer.callback_handler.callbacks
                    if isinstance(one, jit.JITCheckpointCallback)
                )
                manager.is_checkpoint_requested = True

    options: dict[str, Any] = {"save_strategy": "no"}
    if decides == "the best metric":
        options = {"save_strategy": "best", "load_best_model_at_end": True}
    if decides == "a signal":
        options["enable_jit_checkpoint"] = True
    handler = signal.getsignal(signal.SIGTERM)
    with embedrock.open(tmp_path / "store", memory="4MiB", keep=6) as store:
        trainer, _ = hf_trainer(tmp_path, store, 4, Other(), **options)
        saves, written = trainer._save_checkpoint, []

        def save(*args: Any, **kwargs: Any) -> None:
            saves(*args, **kwargs)
            written.append((trainer.state.global_step, now(trainer.model)))
            raise Killed

        monkeypatch.setattr(trainer, "_save_checkpoint", save)
        with pytest.raises(Killed):
            trainer.train()
        signal.signal(signal.SIGTERM, handler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store.close()  # changes without a commit end with the process
    ((step, rows),) = written
    state = safetensors.load_file(tmp_path / "out" / f"checkpoint-{step}" / "model.safetensors")
    with embedrock.open(tmp_path / "store", memory="4MiB", keep=6) as store:
        assert store.step == step
        model = hf_trainer(tmp_path, store, 4, save_strategy="no")[0].model
        model.load_state_dict(state)
        assert same(now(model), rows)


def test_accelerate_restores_what_was_saved(opened: embedrock.Store, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from embedrock.adapters.hf import commit_with

    accelerator = accelerate.Accelerator(cpu=True)
    model = Rows(opened)
    model, optimizer = accelerator.prepare(model, together(model))
    commit_with(accelerator, opened)

    def train() -> None:
        accelerator.backward(model(IDS)["loss"])
        optimizer.step()
        optimizer.zero_grad()

    train()
    accelerator.save_state(str(tmp_path / "best"))
    best = now(model)
    for _ in range(2):
        train()
        accelerator.save_state(str(tmp_path / "later"))
    assert opened.step == 2
    train()  # of which no commit has anything
    accelerator.load_state(str(tmp_path / "best"))
    assert opened.step == 0 and same(now(model), best)
    accelerator.load_state(str(tmp_path / "later"))
    assert opened.step == 2 and not same(now(model), best)


# A loop of one's own: no adapter at all.
def test_rows_stay_where_the_dense_part_alone_is_loaded(opened: embedrock.Store) -> None:
    accelerate = pytest.importorskip("accelerate")
    from embedrock.adapters.hf import commit_with

    model = Rows(opened)
    commit_with(accelerate.Accelerator(cpu=True), opened)
    model.rows.table.put([3], torch.ones(1, DIM).numpy())
    opened.commit(1)
    saved = model.state_dict()
    model.rows.table.put([3], torch.zeros(1, DIM).numpy())
    with nn.loading_dense_only():
        model.load_state_dict(saved)
    assert not model.rows.table.get([3]).any()


def test_a_plain_loop_restores_the_best(opened: embedrock.Store) -> None:
    model = Rows(opened)
    optimizer = together(model)
    states, seen = [], []
    for step in range(3):
        model(IDS)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        opened.commit(step)
        states.append(copy.deepcopy(model.state_dict()))
        seen.append(now(model))
    opened.go_back(1)
    model.load_state_dict(states[1])
    assert same(now(model), seen[1])


def test_several_processes_are_refused() -> None:
    from embedrock.adapters import _restoring

    with pytest.raises(UnsupportedError, match="runs 2 processes, and one process writes"):
        _restoring.only_process(2, "Trainer")
