"""PyTorch tensors as keys, rows and outputs, without the torch modules."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import ForkedError, MisuseError
from rows import numbered

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_tensors_are_keys_and_rows(table: embedrock.Table) -> None:
    keys = torch.tensor([[1, 2], [2, 3]])
    rows = torch.from_numpy(numbered(keys.numpy())).requires_grad_()
    table.put(keys, rows)
    np.testing.assert_array_equal(table.get(keys), numbered(keys.numpy()))
    narrow = torch.tensor([2], dtype=torch.int32)
    np.testing.assert_array_equal(table.get(narrow), numbered([2]))


def test_parameters_strided_and_conjugate_tensors_are_read(table: embedrock.Table) -> None:
    rows = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2))
    table.put([1, 2], rows.t())
    np.testing.assert_array_equal(table.get([1, 2]), rows.t().detach().numpy())
    table.put([1, 2], torch._neg_view(rows.t()))
    np.testing.assert_array_equal(table.get([1, 2]), -rows.t().detach().numpy())


def test_bfloat16_rows_are_widened(table: embedrock.Table) -> None:
    table.put([1], torch.full((1, 4), 0.5, dtype=torch.bfloat16))
    np.testing.assert_array_equal(table.get([1]), np.full((1, 4), 0.5))


def test_a_tensor_is_filled_through_its_own_memory(filled: embedrock.Table) -> None:
    out = torch.empty(2, 4)
    assert filled.get(torch.tensor([3, 4]), out) is out
    np.testing.assert_array_equal(out.numpy(), numbered([3, 4]))


def test_unusable_tensors_are_named(table: embedrock.Table) -> None:
    with pytest.raises(MisuseError, match="keys are bool, expected int64"):
        table.get(torch.zeros(3, dtype=torch.bool))
    with pytest.raises(MisuseError, match="keys are float32, expected int64"):
        table.get(torch.zeros(3))
    with pytest.raises(MisuseError, match="values are a sparse tensor"):
        table.put([1], torch.zeros(1, 4).to_sparse())
    with pytest.raises(MisuseError, match="values are a tensor without data"):
        table.put([1], torch.zeros(1, 4, device="meta"))
    with pytest.raises(MisuseError, match=r"out is float64, expected float32"):
        table.get([1], torch.zeros(1, 4, dtype=torch.float64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_device_are_copied_to_the_host(table: embedrock.Table) -> None:
    keys = torch.tensor([1, 2], device="cuda")
    table.put(keys, torch.ones(2, 4, device="cuda"))
    np.testing.assert_array_equal(table.get(keys), np.ones((2, 4)))
    with pytest.raises(MisuseError, match="out is on cuda"):
        table.get(keys, torch.empty(2, 4, device="cuda"))


def test_a_forked_loader_worker_that_touches_the_store_is_told_to_pass_keys_on(
    filled: embedrock.Table,
) -> None:
    def rows_of(keys: list[int]) -> torch.Tensor:
        return torch.from_numpy(filled.get(keys))

    def batches(collate: Any) -> list[torch.Tensor]:
        loader = torch.utils.data.DataLoader(
            range(4), 2, num_workers=1, multiprocessing_context="fork", collate_fn=collate
        )
        return list(loader)

    told = f"opened by process {os.getpid()}.*a DataLoader worker should only pass keys on"
    with pytest.raises(ForkedError, match=told):
        batches(rows_of)
    # The parent goes on, with a worker that does as it was told.
    filled.put([1], numbered([5]))
    for keys in batches(torch.tensor):
        filled.update(keys, np.ones((2, 4), np.float32), lr=0.5)
    filled.store.commit(1)
    assert (filled.get([0, 1, 2, 3]) < numbered([0, 5, 2, 3])).all()
