"""Models of other libraries over tables, beside themselves with their tables in memory.

The same seed, the same batches, plain SGD: losses and rows stay the same over 50 steps, with a
tenth of the rows in memory on our side. Rows of equal width share the store's cache, whose least
size is a thousand rows, so there are several times as many.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, optim  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::embedrock.errors.BudgetWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

VOCABULARY, DIM, BATCH, STEPS, LR = 2000, 4, 16, 50, 0.01
FIELDS = ("user", "item", "city")
TOLERANCE = 1e-5

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], Any]
Built = tuple[Any, Loss]


def batch_of(step: int) -> Batch:
    """Ids of each field, a number, a sequence, negatives, triples and a label."""
    numbers = torch.Generator().manual_seed(step)

    def ids(*shape: int, below: int = VOCABULARY) -> Any:
        return torch.randint(0, below, shape, generator=numbers)

    return {
        **{field: ids(BATCH) for field in FIELDS},
        "age": torch.rand(BATCH, generator=numbers),
        "history": ids(BATCH, 3),
        "negatives": ids(BATCH, 2),
        "relation": ids(BATCH, below=RELATIONS),
        "label": ids(BATCH, below=2).float(),
    }


def likelihood(scores: Any, batch: Batch) -> Any:
    return torch.nn.functional.binary_cross_entropy(scores.reshape(-1), batch["label"])


# DeepCTR-Torch


DEEPCTR = [
    *("WDL", "DeepFM", "xDeepFM", "DCN", "DCNMix", "AFM", "NFM", "PNN"),
    *("AutoInt", "FiBiNET", "CCPM", "IFM", "DIFM", "AFN", "ONN", "MLR"),
]


def quiet_deepctr() -> None:
    """Keeps its import from asking the network for newer versions, in a thread of its own."""
    told = types.ModuleType("deepctr_torch.utils")
    told.__dict__["check_version"] = lambda version: None
    sys.modules.setdefault("deepctr_torch.utils", told)


def deepctr(name: str) -> Built:
    quiet_deepctr()
    inputs = importlib.import_module("deepctr_torch.inputs")
    kind = getattr(importlib.import_module("deepctr_torch.models"), name)
    sparse = [inputs.SparseFeat(field, VOCABULARY, embedding_dim=DIM) for field in FIELDS]
    columns = [*sparse, inputs.DenseFeat("age", 1)]
    both = sparse if name in ("AFM", "CCPM") else columns
    # Logarithms of small rows make a large difference of the last bit.
    options = {"init_std": 0.5} if name == "AFN" else {}
    model = kind(both) if name in ("PNN", "MLR") else kind(both, both, **options)
    model.regularization_weight.clear()

    def loss(model: Any, batch: Batch) -> Any:
        columns = [batch[name].float()[:, None] for name in model.feature_index]
        return likelihood(model(torch.cat(columns, dim=1)), batch)

    return model, loss


# torch-rechub

RECHUB = [
    *("WideDeep", "DeepFM", "DCN", "DCNv2", "EDCN", "AutoInt", "FiBiNet", "MMOE"),
    *("DSSM", "YoutubeDNN"),
]


def rechub(name: str) -> Built:
    features = importlib.import_module("torch_rechub.basic.features")
    groups = {"MMOE": "multi_task", "DSSM": "matching", "YoutubeDNN": "matching"}
    models = importlib.import_module(f"torch_rechub.models.{groups.get(name, 'ranking')}")
    # Its normal(0, 1e-4) and batch normalization make a large difference of the last bit.
    begin = importlib.import_module("torch_rechub.basic.initializers").RandomNormal(0, 0.1)
    sparse = [
        features.SparseFeature(field, VOCABULARY, embed_dim=DIM, initializer=begin)
        for field in FIELDS
    ]
    user, item, city = sparse
    mlp = {"dims": [8], "dropout": 0.0, "activation": "relu"}
    tower = {**mlp, "dims": [DIM], "activation": "sigmoid"}  # no vector is zero, as of ReLU
    made: dict[str, Callable[[Any], Any]] = {
        "WideDeep": lambda kind: kind([user, item], sparse, mlp),
        "DeepFM": lambda kind: kind(sparse, sparse, mlp),
        "DCN": lambda kind: kind(sparse, 2, mlp),
        "DCNv2": lambda kind: kind(sparse, 2, mlp, low_rank=4, num_experts=2),
        "EDCN": lambda kind: kind(sparse, 2, dict(mlp)),
        "AutoInt": lambda kind: kind(sparse, [], num_layers=1, mlp_params=mlp),
        "FiBiNet": lambda kind: kind(sparse, mlp),
        "MMOE": lambda kind: kind(
            sparse,
            ["classification", "classification"],
            2,
            expert_params=mlp,
            tower_params_list=[mlp, mlp],
        ),
        "DSSM": lambda kind: kind([user, city], [item], tower, tower),
        "YoutubeDNN": lambda kind: kind(
            [
                user,
                features.SequenceFeature(
                    "history", VOCABULARY, embed_dim=DIM, pooling="mean", shared_with="item"
                ),
            ],
            [item],
            [
                features.SequenceFeature(
                    "negatives", VOCABULARY, embed_dim=DIM, pooling="concat", shared_with="item"
                )
            ],
            tower,
        ),
    }

    def loss(model: Any, batch: Batch) -> Any:
        scores = model(batch)
        if name == "YoutubeDNN":
            first = torch.zeros(BATCH, dtype=torch.int64)
            return torch.nn.functional.cross_entropy(scores, first)
        return sum(likelihood(one, batch) for one in (scores.T if name == "MMOE" else [scores]))

    return made[name](getattr(models, name)), loss


# PyTorch Geometric

PYG = ["TransE", "DistMult", "ComplEx", "RotatE"]
RELATIONS = 20


def pyg(name: str) -> Built:
    kind = getattr(importlib.import_module("torch_geometric.nn"), name)
    model = kind(VOCABULARY, RELATIONS, hidden_channels=DIM)

    def loss(model: Any, batch: Batch) -> Any:
        return model.loss(batch["user"], batch["relation"], batch["item"])

    return model, loss


# FuxiCTR, whose package has layers and a base with a trainer; its models lie in its repository.

FUXICTR = ["LR", "FM", "DeepFM", "DCN", "DCNv2", "PNN", "xDeepFM", "FiBiNET"]


def fuxictr(name: str, folder: Path = Path(), **options: Any) -> Built:
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch import layers
    from fuxictr.pytorch.models import BaseModel

    fields = FeatureMap("twins", str(folder))
    for field in FIELDS:
        # Its own encoder pads with the first id.
        fields.features[field] = {
            "type": "categorical",
            "source": "",
            "vocab_size": VOCABULARY,
            "padding_idx": 0,
        }
    fields.labels, fields.num_fields, count = ["label"], len(FIELDS), len(FIELDS)

    class Zoo(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(
                fields,
                verbose=0,
                metrics=["logloss"],
                model_root=str(folder),
                monitor="logloss",
                monitor_mode="min",
                **options,
            )
            width = count * DIM
            self.embedding_layer = layers.FeatureEmbedding(fields, DIM)
            self.first = layers.LogisticRegression(fields)
            if name in ("FM", "DeepFM"):
                self.second = layers.FactorizationMachine(fields)
            elif name == "DCN":
                self.second = layers.CrossNet(width, 2)
            elif name == "DCNv2":
                self.second = layers.CrossNetV2(width, 2)
            elif name == "PNN":
                self.second = layers.InnerProductInteraction(count, output="inner_product")
                width = count * (count - 1) // 2
            elif name == "xDeepFM":
                self.second = layers.CompressedInteractionNet(count, [4], 1)
            elif name == "FiBiNET":
                self.second = layers.BilinearInteraction(count, DIM)
                width = count * (count - 1) // 2 * DIM
            self.mlp = layers.MLP_Block(width, [8], output_dim=1)
            self.compile("SGD", "binary_crossentropy", LR)
            self.reset_parameters()
            self.model_to_device()

        def forward(self, inputs: Any) -> Any:
            ids = self.get_inputs(inputs)
            rows, score = self.embedding_layer(ids), self.first(ids)
            flat = rows.flatten(start_dim=1)
            if name in ("FM", "DeepFM"):
                score = score + self.second(ids, rows)
            elif name in ("DCN", "DCNv2"):
                flat = self.second(flat)
            elif name in ("PNN", "FiBiNET"):
                flat = self.second(rows).flatten(start_dim=1)
            elif name == "xDeepFM":
                score = score + self.second(rows)
            if name not in ("LR", "FM"):
                score = score + self.mlp(flat)
            return {"y_pred": self.output_activation(score)}

    model = Zoo()
    model.optimizer = None  # of all parameters, with which no weight can be replaced

    def loss(model: Any, batch: Batch) -> Any:
        part = {field: batch[field] for field in (*FIELDS, "label")}
        return model.compute_loss(model(part), model.get_labels(part))

    return model, loss


LIBRARIES: dict[str, tuple[str, Callable[[str], Built], list[str]]] = {
    "deepctr": ("deepctr_torch", deepctr, DEEPCTR),
    "rechub": ("torch_rechub", rechub, RECHUB),
    "pyg": ("torch_geometric", pyg, PYG),
    "fuxictr": ("fuxictr", fuxictr, FUXICTR),
}
MODELS = [(library, name) for library, (_, _, names) in LIBRARIES.items() for name in names]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def built(library: str, name: str) -> Built:
    package, make, _ = LIBRARIES[library]
    needs(package)
    torch.manual_seed(20)
    return make(name)


def trained(model: Any, loss_of: Loss, optimizer: Any) -> list[float]:
    model.train()
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)  # of dropout and of negatives that models draw
        loss = loss_of(model, batch_of(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize(("library", "name"), MODELS, ids="-".join)
def test_a_converted_model_is_its_twin_in_memory(library: str, name: str, tmp_path: Path) -> None:
    plain, loss_of = built(library, name)
    expected = trained(plain, loss_of, torch.optim.SGD(plain.parameters(), lr=LR))
    model, loss_of = built(library, name)
    with embedrock.open(tmp_path / "s", "10%", max_disk_bytes=100 << 20) as store:
        made, optimizer = over(model, store)
        before = model_rows(made)
        losses = trained(model, loss_of, optimizer)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=TOLERANCE)
        after = model_rows(made)
        for path, rows in after.items():
            weight = plain.get_submodule(path).weight.detach().numpy()
            np.testing.assert_allclose(rows, weight, rtol=0, atol=TOLERANCE, err_msg=path)
        assert any(not np.array_equal(before[path], after[path]) for path in after)
        assert store.stats()["pages_read"] > 0
        store.commit(1)


def model_rows(made: dict[str, Any]) -> dict[str, Any]:
    return {
        path: module.table.get(np.arange(module.num_embeddings)) for path, module in made.items()
    }


@pytest.mark.parametrize(
    ("library", "name"),
    [("deepctr", "DeepFM"), ("rechub", "DeepFM"), ("fuxictr", "DeepFM"), ("pyg", "RotatE")],
    ids="-".join,
)
def test_a_deferred_model_begins_with_rows_of_the_same_distribution(
    library: str, name: str, store: embedrock.Store
) -> None:
    plain, _ = built(library, name)
    with nn.deferred(min_rows=VOCABULARY):
        model, loss_of = built(library, name)
    made = nn.convert(model, store, min_rows=VOCABULARY, optimizer="sgd")
    assert len(made) >= 2
    for path, rows in model_rows(made).items():
        weight = plain.get_submodule(path).weight.detach().numpy()
        scale = weight.std()
        assert abs(rows.mean() - weight.mean()) < 0.1 * scale, path
        np.testing.assert_allclose(
            np.quantile(rows, [0.05, 0.25, 0.75, 0.95]),
            np.quantile(weight, [0.05, 0.25, 0.75, 0.95]),
            atol=0.25 * scale,
            err_msg=path,
        )
    loss_of(model, batch_of(0)).backward()


# Trainers that restore the best model: its rows are those of the commit that was the best.


class Best:
    """Commits with each state dict that a trainer keeps, and notes the rows of the last."""

    def __init__(self, store: embedrock.Store, made: dict[str, Any]) -> None:
        self.store, self.made, self.step = store, made, 0
        self.rows: dict[str, Any] = {}

    def keep(self) -> None:
        self.step += 1
        self.store.commit(self.step)
        self.rows = {path: rows.copy() for path, rows in model_rows(self.made).items()}

    def check(self, model: Any, state: dict[str, Any]) -> None:
        """The state of the best, over other rows first, and then over its own."""
        assert any(
            not np.array_equal(rows, self.rows[path])
            for path, rows in model_rows(self.made).items()
        )
        with pytest.raises(embedrock.errors.MismatchError, match=rf"go_back\((step|{self.step})\)"):
            model.load_state_dict(state)
        self.store.go_back(self.step)
        model.load_state_dict(state)
        for path, rows in model_rows(self.made).items():
            np.testing.assert_array_equal(rows, self.rows[path])


def over(model: Any, store: embedrock.Store) -> tuple[dict[str, Any], Any]:
    """Its tables, and one optimizer of them and of what else it has."""
    made = nn.convert(model, store, optimizer="sgd")
    parts: list[Any] = [optim.SGD(model, lr=LR)]
    dense = list(nn.dense_parameters(model))  # a model of tables alone has none
    if dense:
        parts.insert(0, torch.optim.SGD(dense, lr=LR))
    return made, optim.Together(*parts)


def loader(count: int) -> Any:
    one = [batch_of(step) for step in range(count)]
    return {name: torch.cat([batch[name] for batch in one]) for name in one[0]}


def test_rechub_restores_the_best_of_its_early_stopper(
    tmp_path: Path, store: embedrock.Store
) -> None:
    needs("torch_rechub")
    from torch.utils.data import DataLoader
    from torch_rechub.trainers import CTRTrainer
    from torch_rechub.utils.data import TorchDataset

    model, _ = built("rechub", "DeepFM")
    made, together = over(model, store)
    best = Best(store, made)
    trainer = CTRTrainer(model, n_epoch=4, earlystop_patience=2, model_path=str(tmp_path))
    trainer.optimizer = together
    aucs = iter([0.7, 0.6, 0.5, 0.4])
    trainer.evaluate = lambda *_: next(aucs)
    stop = trainer.early_stopper.stop_training

    def stopping(auc: float, state: dict[str, Any]) -> bool:
        ends = stop(auc, state)
        if trainer.early_stopper.best_auc == auc:
            best.keep()
        if ends:  # as a user does before loading the best
            best.check(model, copy.deepcopy(trainer.early_stopper.best_weights))
        return bool(ends)

    trainer.early_stopper.stop_training = stopping
    data = loader(4)
    label = data.pop("label")
    made_of = {name: values.numpy() for name, values in data.items() if name in FIELDS}
    trainer.fit(DataLoader(TorchDataset(made_of, label), batch_size=BATCH), [1])
    assert best.step == 1 and store.step == 1


def test_fuxictr_restores_the_best_that_it_has_saved(
    tmp_path: Path, store: embedrock.Store
) -> None:
    needs("fuxictr")
    torch.manual_seed(20)
    model, _ = fuxictr("DeepFM", tmp_path, early_stop_patience=2)
    Path(model.model_dir).mkdir(exist_ok=True)
    made, model.optimizer = over(model, store)
    best = Best(store, made)
    losses = iter([{"logloss": value} for value in (0.5, 0.6, 0.7)])
    model.evaluate = lambda *_, **__: next(losses)
    save, load = model.save_weights, model.load_weights

    def saving(path: str) -> None:
        best.keep()
        save(path)

    def loading(path: str) -> None:
        best.check(model, torch.load(path, weights_only=True))
        load(path)

    model.save_weights, model.load_weights = saving, loading
    batches = [
        {name: values for name, values in batch_of(step).items() if name in (*FIELDS, "label")}
        for step in range(4)
    ]
    model.fit(batches, epochs=3, validation_data=batches)
    assert best.step == 1 and store.step == 1


def test_deepctr_restores_the_best_that_its_callback_has_kept(
    tmp_path: Path, store: embedrock.Store
) -> None:
    needs("deepctr_torch")
    quiet_deepctr()
    from deepctr_torch.callbacks import ModelCheckpoint

    model, _ = built("deepctr", "DeepFM")
    made, together = over(model, store)
    best = Best(store, made)
    model.compile(together, "binary_crossentropy", metrics=["logloss"])
    losses = iter([{"logloss": value} for value in (0.5, 0.6, 0.7)])
    model.evaluate = lambda *_: next(losses)

    class Keeping(ModelCheckpoint):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            before = self.best
            if self.monitor_op(logs[self.monitor], before):
                best.keep()
            super().on_epoch_end(epoch, logs)

    file = tmp_path / "best.pt"
    data = loader(4)
    label = data["label"].numpy()
    fields = {name: data[name].numpy() for name in model.feature_index}
    model.fit(
        fields,
        label,
        batch_size=BATCH,
        epochs=3,
        verbose=0,
        validation_data=({name: values.copy() for name, values in fields.items()}, label),
        callbacks=[
            Keeping(
                str(file), "val_logloss", save_best_only=True, save_weights_only=True, mode="min"
            )
        ],
    )
    best.check(model, torch.load(file, weights_only=True))
    assert best.step == 1 and store.step == 1


def test_the_dense_part_loads_over_rows_that_are_known_to_fit(
    tmp_path: Path, store: embedrock.Store
) -> None:
    model, loss_of = built("rechub", "DeepFM")
    _, together = over(model, store)
    state = copy.deepcopy(model.state_dict())
    trained(model, loss_of, together)
    weight = state["linear.fc.weight"]
    with nn.loading_dense_only():
        model.load_state_dict(state)
    assert torch.equal(model.state_dict()["linear.fc.weight"], weight)
