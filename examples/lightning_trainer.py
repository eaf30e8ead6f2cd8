"""Trains with Lightning, and goes back to the best checkpoint: dense part and rows."""

import logging

import pytorch_lightning as pl
import torch

import embedrock
from embedrock.adapters.lightning import Commits

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Scores(pl.LightningModule):
    """Items (B, 4) int64 -> scores, with one optimizer for all."""

    def __init__(self, store):
        super().__init__()
        self.items = embedrock.nn.EmbeddingBag(1000, 8, store=store, name="items", mode="sum")
        self.score = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        """The loss of a batch."""
        ids, wanted = batch
        return (self.score(self.items(ids)).squeeze(1) - wanted).square().mean()

    def validation_step(self, batch, number):
        """The same of items that are not trained."""
        self.log("loss", self.training_step(batch, number))

    def configure_optimizers(self):
        """Rows and dense parameters."""
        return embedrock.optim.Together(
            torch.optim.Adam(embedrock.nn.dense_parameters(self), lr=0.1),
            embedrock.optim.RowWiseAdagrad(self, lr=0.3),
        )


def loader():
    """Targets that nothing can be learned of: the model gets worse the more it knows by heart."""
    data = torch.utils.data.TensorDataset(torch.randint(0, 1000, (256, 4)), torch.rand(256))
    return torch.utils.data.DataLoader(data, batch_size=64)


torch.manual_seed(0)
training, validation = loader(), loader()
with embedrock.open("lightning.store", memory="16MiB") as store:
    model = Scores(store)
    checkpoints = pl.callbacks.ModelCheckpoint("checkpoints", monitor="loss", save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=8,
        accelerator="cpu",
        callbacks=[checkpoints, Commits(store)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, training, validation)
    print("trained to step", store.step)
    trainer.validate(model, validation, ckpt_path="best", verbose=False)
    print("rows of the best, step", store.step)
