"""Trains with the Trainer of Hugging Face, which ends with the best model: dense part and rows."""

import torch
from transformers import Trainer, TrainingArguments

import embedrock
from embedrock.adapters.hf import Commits


class Scores(torch.nn.Module):
    """Items (B, 4) int64 -> loss and scores."""

    def __init__(self, store):
        super().__init__()
        self.items = embedrock.nn.EmbeddingBag(1000, 8, store=store, name="items", mode="sum")
        self.score = torch.nn.Linear(8, 1)

    def forward(self, ids, labels):
        """Returns the outputs that the Trainer expects."""
        scores = self.score(self.items(ids)).squeeze(1)
        return {"loss": (scores - labels).square().mean(), "logits": scores}


def data():
    """Targets that nothing can be learned of: the model gets worse the more it knows by heart."""
    pairs = zip(torch.randint(0, 1000, (256, 4)), torch.rand(256), strict=True)
    return [{"ids": ids, "labels": wanted} for ids, wanted in pairs]


torch.manual_seed(0)
with embedrock.open("trainer.store", memory="16MiB") as store:
    model = Scores(store)
    optimizer = embedrock.optim.Together(
        torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.1),
        embedrock.optim.RowWiseAdagrad(model, lr=0.3),
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    arguments = TrainingArguments(
        "trainer",
        num_train_epochs=8,
        per_device_train_batch_size=64,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data(),
        eval_dataset=data(),
        optimizers=(optimizer, schedule),
        callbacks=[Commits(store)],
    )
    trainer.train()
    print("trained to step", trainer.state.global_step, "and back to that of step", store.step)
