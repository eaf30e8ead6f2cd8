"""Averages of a model's weights: the dense part is averaged, beside the rows as they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402
from embedrock.errors import MisuseError  # noqa: E402

N, DIM = 40, 4
IDS = torch.arange(32).view(16, 2) % N


def twins(store: embedrock.Store) -> tuple[Any, Any]:
    """A model with rows in the store, and PyTorch's with the same values."""
    torch.manual_seed(0)
    ours = torch.nn.Sequential(
        nn.EmbeddingBag(N, DIM, mode="sum", store=store, name="t", optimizer="sgd"),
        torch.nn.Linear(DIM, 1),
    )
    theirs = torch.nn.Sequential(torch.nn.EmbeddingBag(N, DIM, mode="sum"), copy.deepcopy(ours[1]))
    rows = torch.from_numpy(ours[0].table.get(torch.arange(N)))
    theirs[0].weight.data.copy_(rows)
    return ours, theirs


@pytest.mark.parametrize("kind", ["mean", "ema"])
def test_the_dense_part_is_averaged_as_torch_does(store: embedrock.Store, kind: str) -> None:
    """A model with tables could not be copied at all, so none of these averages began."""
    options = {} if kind == "mean" else {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}
    ours, theirs = twins(store)
    with nn.by_reference():
        averages = [AveragedModel(ours, **options), AveragedModel(theirs, **options)]
    optimizers = [
        optim.Together(torch.optim.SGD(nn.dense_parameters(ours), lr=0.1), optim.SGD(ours, lr=0.1)),
        torch.optim.SGD(theirs.parameters(), lr=0.1),
    ]
    for step in range(6):
        for model, optimizer, average in zip((ours, theirs), optimizers, averages, strict=True):
            (model(IDS).squeeze(1) - IDS.sum(1) / N).square().mean().backward()
            if step % 2:  # also where the gradients of rows are there yet
                average.update_parameters(model)
            optimizer.step()
            optimizer.zero_grad()
    for name in ("weight", "bias"):
        found, wanted = (getattr(each.module[1], name) for each in averages)
        torch.testing.assert_close(found, wanted)
        assert not torch.equal(found, getattr(ours[1], name))
    # Rows are those of the model, and not averaged.
    torch.testing.assert_close(averages[0].module[0](IDS), ours[0](IDS).detach())
    torch.testing.assert_close(averages[0].module[0](IDS), theirs[0](IDS).detach())


def test_a_copy_by_reference_shares_the_rows_and_nothing_else(store: embedrock.Store) -> None:
    ours, _ = twins(store)
    ours.store = store
    with nn.by_reference():
        again = copy.deepcopy(ours)
    assert again[0] is ours[0] and again.store is store
    assert again[1] is not ours[1] and torch.equal(again[1].weight, ours[1].weight)
    assert again[1].weight.data_ptr() != ours[1].weight.data_ptr()
    with pytest.raises(MisuseError, match=r"to average the dense parameters.*by_reference\(\)"):
        copy.deepcopy(ours[0])
    with pytest.raises(TypeError, match=r"save_hyperparameters\(ignore=\['store'\]\)"):
        copy.deepcopy(store)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_callbacks_of_lightning_average_the_dense_part(tmp_path: Path, kind: str) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from embedrock.adapters.lightning import Commits

    class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, inner: Any, ours: bool) -> None:
            super().__init__()
            self.inner, self.ours = inner, ours

        def training_step(self, batch: Any, _: int) -> Any:
            return (self.inner(batch).squeeze(1) - batch.sum(1) / N).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.training_step(batch, number))

        def configure_optimizers(self) -> Any:
            if not self.ours:
                return torch.optim.SGD(self.inner.parameters(), lr=0.1)
            dense = torch.optim.SGD(nn.dense_parameters(self), lr=0.1)
            return optim.Together(dense, optim.SGD(self, lr=0.1))

    def callback() -> Any:
        if kind == "swa":
            return pl.callbacks.StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
        return pl.callbacks.EMAWeightAveraging(decay=0.5)

    loader = torch.utils.data.DataLoader(IDS, batch_size=8)
    found = []
    with embedrock.open(tmp_path / "store", memory="4MiB") as store:
        for ours, inner in zip((True, False), twins(store), strict=True):
            best = pl.callbacks.ModelCheckpoint(tmp_path / str(ours), monitor="loss")
            trainer = pl.Trainer(
                max_epochs=5,
                callbacks=[callback(), best, *([Commits(store)] if ours else [])],
                accelerator="cpu",
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
            )
            with nn.by_reference():
                trainer.fit(Model(inner, ours), loader, loader)
            found.append(inner)
        assert store.step == 10 and len(store.pins()) == 1
        torch.testing.assert_close(found[0][1].weight, found[1][1].weight)
        if kind == "swa":  # at the end of an average of ours, rows are those of the last step
            return
        assert not torch.equal(found[0][1].weight, torch.zeros_like(found[0][1].weight))


def test_a_store_among_hyperparameters_is_left_out(tmp_path: Path) -> None:
    pl = pytest.importorskip("pytorch_lightning")

    class Model(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, store: embedrock.Store, width: int, told: bool) -> None:
            super().__init__()
            self.save_hyperparameters(**({"ignore": ["store"]} if told else {}))

    with embedrock.open(tmp_path / "store", memory="4MiB") as store:
        with pytest.raises(TypeError, match=r"save_hyperparameters\(ignore=\['store'\]\)"):
            Model(store, 3, told=False)
        assert dict(Model(store, 3, told=True).hparams) == {"width": 3, "told": True}
