"""One training script, run on torch's modules and on embedrock's, must give the same model.

The script has what real ones have: several tables, bags and single ids, gradient clipping, a
gradient scaler with an overflow in the middle, four-step accumulation, a cosine schedule. The last
bits agree where both sides do the same operations in the same order. Two habits of torch stand in
the way, and the comparison bit for bit runs in a process of its own without them: on AVX2 and
AVX-512 it fuses ``a + alpha * b`` in one rounding, which ``ATEN_CPU_CAPABILITY=default`` turns off;
and its square root of many values is MKL's, which rounds a few of a thousand the other way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
from embedrock import nn, weights  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

KINDS = ("sgd", "adagrad", "adam")
ITEMS, USERS, CITIES, DIM = 400, 300, 40, 8
BATCH, ACCUMULATE, STEPS, OVERFLOW_AT = 32, 4, 30, 11
SEED = 20


class Model(torch.nn.Module):
    """A small DLRM: two bags, single ids, dense features, dot products between all of them."""

    def __init__(self, items: Any, users: Any, cities: Any) -> None:
        super().__init__()
        self.items, self.users, self.cities = items, users, cities
        self.bottom = torch.nn.Sequential(torch.nn.Linear(5, DIM), torch.nn.ReLU())
        self.top = torch.nn.Sequential(
            torch.nn.Linear(6 + DIM, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, batch: dict[str, Any]) -> Any:
        dense = self.bottom(batch["dense"])
        vectors = torch.stack(
            [
                dense,
                self.items(batch["items"], batch["offsets"]),
                self.users(batch["users"]),
                self.cities(batch["cities"]),
            ],
            dim=1,
        )
        products = vectors @ vectors.transpose(1, 2)
        upper = torch.triu_indices(4, 4, 1)
        features = torch.cat([dense, products[:, upper[0], upper[1]]], dim=1)
        return self.top(features).squeeze(1)


def batches(often: bool) -> Iterator[dict[str, Any]]:
    """The same batches at every call; ``often`` lets ids occur many times in one bag input."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(STEPS * ACCUMULATE):
        lengths = torch.randint(0, 5, (BATCH,), generator=generator)
        total = int(lengths.sum())
        if often:
            items = torch.randint(0, 30, (total,), generator=generator)
            users = torch.randint(0, USERS, (BATCH,), generator=generator)
        else:  # at most twice: the order of a sum of two does not matter
            items = torch.randperm(ITEMS, generator=generator)[: (total + 1) // 2].repeat(2)[:total]
            users = torch.randperm(USERS, generator=generator)[:BATCH]
        yield {
            "items": items,
            "offsets": lengths.cumsum(0) - lengths,
            "users": torch.stack([users, users], dim=1),
            "cities": torch.randint(0, CITIES, (BATCH,), generator=generator),
            "dense": torch.randn(BATCH, 5, generator=generator),
            "label": torch.randint(0, 2, (BATCH,), generator=generator).float(),
        }


def train(
    model: Model,
    optimizers: list[Any],
    max_norm: float,
    often: bool,
    before_step: Callable[[list[dict[str, Any]]], None] = lambda seen: None,
) -> list[float]:
    """The script; returns what it saw: total norms and losses."""
    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) for optimizer in optimizers
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    seen: list[dict[str, Any]] = []
    log = []
    for i, batch in enumerate(batches(often)):
        seen.append(batch)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"])
        log.append(loss.item())
        if i == OVERFLOW_AT * ACCUMULATE:
            loss = loss * float("inf")
        scaler.scale(loss / ACCUMULATE).backward()
        if len(seen) < ACCUMULATE:
            continue
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        log.append(norm.item())
        before_step(seen)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.zero_grad()
            scheduler.step()
        seen.clear()
    log.append(scaler.get_scale())
    return log


def torch_run(kind: str, max_norm: float, often: bool) -> tuple[Model, list[float]]:
    torch.manual_seed(SEED)
    model = Model(
        torch.nn.EmbeddingBag(ITEMS, DIM, mode="sum"),
        torch.nn.EmbeddingBag(USERS, DIM, mode="mean"),
        torch.nn.Embedding(CITIES, DIM, padding_idx=0),
    )
    tables = {name: getattr(model, name).weight for name in ("items", "users", "cities")}
    optimizer = {
        "sgd": lambda: torch.optim.SGD(tables.values(), lr=0.3),
        "adagrad": lambda: torch.optim.Adagrad(tables.values(), lr=0.1),
        "adam": lambda: torch.optim.SparseAdam(tables.values(), lr=0.02),
    }[kind]()

    def make_sparse(seen: list[dict[str, Any]]) -> None:
        """Clipping and scaling need dense gradients, SparseAdam sparse ones of touched rows."""
        if kind == "sgd":
            return
        for name, weight in tables.items():
            ids = torch.cat([batch[name].reshape(-1) for batch in seen]).unique()
            ids = ids[ids != 0] if name == "cities" else ids
            weight.grad = torch.sparse_coo_tensor(
                ids[None], weight.grad[ids], weight.shape, check_invariants=False
            )

    dense = [p for p in model.parameters() if all(p is not weight for weight in tables.values())]
    log = train(model, [optimizer, torch.optim.Adam(dense, lr=0.01)], max_norm, often, make_sparse)
    return model, log


def embedrock_run(
    store: embedrock.Store, kind: str, max_norm: float, often: bool
) -> tuple[Model, list[float]]:
    torch.manual_seed(SEED)  # draws the same initial weights as torch's modules do
    initial = [
        torch.nn.EmbeddingBag(ITEMS, DIM, mode="sum"),
        torch.nn.EmbeddingBag(USERS, DIM, mode="mean"),
        torch.nn.Embedding(CITIES, DIM, padding_idx=0),
    ]
    table = {"store": store, "optimizer": kind}
    model = Model(
        nn.EmbeddingBag(ITEMS, DIM, mode="sum", name=f"{kind}.items", **table),
        nn.EmbeddingBag(None, DIM, mode="mean", name=f"{kind}.users", **table),
        nn.Embedding(CITIES, DIM, padding_idx=0, name=f"{kind}.cities", **table),
    )
    modules = [model.items, model.users, model.cities]
    for module, source in zip(modules, initial, strict=True):
        weights.load(module.table, source)
    optimizer = {
        "sgd": lambda: embedrock.optim.SGD(model, lr=0.3),
        "adagrad": lambda: embedrock.optim.Adagrad(model, lr=0.1),
        "adam": lambda: embedrock.optim.Adam(model, lr=0.02),
    }[kind]()
    dense = torch.optim.Adam(model.parameters(), lr=0.01)  # nothing waits: no rows among them
    return model, train(model, [optimizer, dense], max_norm, often)


def round_square_roots() -> None:
    """Gives torch's optimizers the square root of IEEE 754, which the engine takes."""

    def sqrt_(values: Any) -> Any:
        return values.copy_(torch.from_numpy(np.sqrt(values.detach().numpy())))

    torch.Tensor.sqrt_ = sqrt_


def compare(path: Path, kind: str, max_norm: float, often: bool) -> dict[str, float]:
    """The largest differences between both runs, by what differs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    try:
        return _compare(path, kind, max_norm, often)
    finally:
        torch.set_num_threads(threads)


def _compare(path: Path, kind: str, max_norm: float, often: bool) -> dict[str, float]:
    reference, expected_log = torch_run(kind, max_norm, often)
    differences = {}
    with embedrock.open(path, memory="64MiB") as store:
        model, log = embedrock_run(store, kind, max_norm, often)
        for name, size in (("items", ITEMS), ("users", USERS), ("cities", CITIES)):
            rows = torch.from_numpy(getattr(model, name).table.get(torch.arange(size)))
            expected = getattr(reference, name).weight.detach()
            differences[name] = (rows - expected).abs().max().item()
        differences["norm"] = max(
            abs(a - b) / abs(b) for a, b in zip(log, expected_log, strict=True) if b == b
        )
        for part in ("bottom", "top"):
            mine, theirs = (getattr(m, part).state_dict() for m in (model, reference))
            differences[part] = max(float((mine[k] - theirs[k]).abs().max()) for k in theirs)
        assert sum(value != value for value in log) == sum(value != value for value in expected_log)
        assert len(set(expected_log)) > STEPS  # losses and norms moved
        store.commit(1)
    return differences


@pytest.mark.parametrize(
    "kind", ["adagrad", *(pytest.param(k, marks=pytest.mark.long) for k in ("sgd", "adam"))]
)
@pytest.mark.parametrize("often", [False, True], ids=["rare_ids", "frequent_ids"])
def test_script_with_active_clipping_ends_at_torchs_model_within_rounding(
    tmp_path: Path, kind: str, often: bool
) -> None:
    differences = compare(tmp_path / "store", kind, 0.05, often)
    assert max(differences.values()) < 2e-5, differences


@pytest.mark.long
def test_script_ends_at_torchs_model_bit_for_bit() -> None:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["capability"] == "DEFAULT"
    for kind in KINDS:
        differences = dict(found[kind])
        norm = differences.pop("norm")  # over all rows or touched ones: sums in different order
        assert max(differences.values()) == 0.0, (kind, differences)
        assert norm < 1e-6


if __name__ == "__main__":
    round_square_roots()
    with tempfile.TemporaryDirectory() as directory:
        answer: dict[str, Any] = {
            each: compare(Path(directory) / each, each, 1e9, often=False) for each in KINDS
        }
    answer["capability"] = torch.backends.cpu.get_cpu_capability()
    print(json.dumps(answer))
