"""Arguments that look usable and are not: they are refused, not taken for something else."""

from __future__ import annotations

import array
import decimal
import fractions
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedrock
from embedrock import nn, weights
from embedrock.errors import MisuseError
from rows import numbered

KEYS = np.array([1, 2])


class TestMasks:
    # NumPy's conversion to a plain array drops the mask.
    @pytest.mark.parametrize("many", [False, True])
    def test_masked_elements_are_refused_in_keys_and_rows(
        self, filled: embedrock.Table, many: bool
    ) -> None:
        keys: Any = np.ma.array([1, 2], mask=[True, False])
        rows: Any = np.ma.array(numbered([1, 2]), mask=np.eye(2, 4))
        if many:
            keys, rows = [keys, keys], [rows[0], rows[1]]
        calls = [
            lambda: filled.get(keys),
            lambda: filled.delete(keys),
            lambda: filled.put(KEYS, rows),
            lambda: filled.update(KEYS, rows, lr=1.0),
            lambda: filled.modify(KEYS, lambda values, state: rows),
            lambda: embedrock.distinct(keys),
            lambda: weights.load(filled, rows if not many else np.ma.array(rows), keys=KEYS),
        ]
        for call in calls:
            with pytest.raises(MisuseError, match="masked"):
                call()
        np.testing.assert_array_equal(filled.get(KEYS), numbered(KEYS))

    # A list of lists was looked at one level deep, and np.ma.masked became NaN.
    def test_masked_elements_are_refused_in_lists_of_any_depth(
        self, filled: embedrock.Table
    ) -> None:
        masked = np.ma.array([1, 2, 3, 4], np.float32, mask=[1, 0, 0, 0])
        keys = np.ma.array([1, 2], mask=[True, False])
        calls = [
            lambda: filled.put([[1, 2]], [[masked, np.ones(4, np.float32)]]),
            lambda: filled.put([[1, 2]], ((masked, [5.0] * 4),)),
            lambda: filled.put([[[1]]], [[[[np.ma.masked, 1, 1, 1]]]]),
            lambda: filled.put([1], [[np.ma.masked, 1, 1, 1]]),
            lambda: filled.get([[keys], [keys]]),
        ]
        for call in calls:
            with pytest.raises(MisuseError, match="masked"):
                call()
        np.testing.assert_array_equal(filled.get(KEYS), numbered(KEYS))
        whole = np.ma.array(numbered([5, 6]), mask=False)
        filled.put([[1, 2]], [[whole[0], whole[1]]])
        np.testing.assert_array_equal(filled.get(KEYS), numbered([5, 6]))

    def test_a_list_within_itself_is_no_array(self, filled: embedrock.Table) -> None:
        endless: list[Any] = [1]
        endless.append(endless)
        with pytest.raises(MisuseError):
            filled.get(endless)

    def test_masked_arrays_without_masked_elements_are_arrays(
        self, filled: embedrock.Table
    ) -> None:
        np.testing.assert_array_equal(filled.get(np.ma.array(KEYS)), numbered(KEYS))
        filled.put(KEYS, np.ma.array(numbered([5, 6]), mask=False))
        np.testing.assert_array_equal(filled.get(KEYS), numbered([5, 6]))

    def test_a_masked_array_is_not_filled(self, filled: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match=r"out is a masked array.*out\.data"):
            filled.get(KEYS, out=np.ma.zeros((2, 4), np.float32))


class TestStateOfACommit:
    # bytes(5) is five zero bytes, bytes([1, 2]) two bytes.
    @pytest.mark.parametrize(
        "content", [5, [1, 2], "text", np.int64(5), np.arange(3), None, torch.zeros(2), 1.5]
    )
    def test_what_is_no_bytes_is_refused_by_name(
        self, filled: embedrock.Table, content: Any
    ) -> None:
        store = filled.store
        with pytest.raises(MisuseError, match=r"state\['epoch'\] is .*expected bytes; encode it"):
            store.commit(7, state={"epoch": content})
        with pytest.raises(MisuseError, match="expected a dict of names to bytes"):
            store.commit(7, state=content if content is not None else 5)
        assert store.step is None or store.step < 7

    def test_every_kind_of_bytes_is_stored(self, filled: embedrock.Table) -> None:
        given = {"a": b"1", "b": bytearray(b"2"), "c": memoryview(b"345")[::2]}
        filled.store.commit(7, state=given)
        assert filled.store.state() == {"a": b"1", "b": b"2", "c": b"35"}


class TestTensors:
    @pytest.mark.filterwarnings("ignore:.*nested tensors")
    @pytest.mark.parametrize("kind", ["sparse", "conjugate", "negative", "meta", "jagged"])
    def test_a_tensor_that_is_no_plain_memory_is_not_filled(
        self, filled: embedrock.Table, kind: str
    ) -> None:
        out = {
            "sparse": lambda: torch.zeros(2, 4).to_sparse(),
            "conjugate": lambda: torch.zeros(2, 4, dtype=torch.complex64).conj(),
            "negative": lambda: torch.zeros(2, 4, dtype=torch.complex64).conj().imag,
            "meta": lambda: torch.zeros(2, 4, device="meta"),
            "jagged": lambda: torch.nested.nested_tensor([torch.zeros(4), torch.zeros(3)]),
        }[kind]()
        with pytest.raises(MisuseError, match="out is"):
            filled.get(KEYS, out=out)

    def test_a_tensor_with_a_gradient_is_filled_without_it_only(
        self, filled: embedrock.Table
    ) -> None:
        out = torch.zeros(2, 4, requires_grad=True)
        with pytest.raises(MisuseError, match=r"requires a gradient.*out\.detach\(\)"):
            filled.get(KEYS, out=out)
        with torch.no_grad():
            assert filled.get(KEYS, out=out) is out
        np.testing.assert_array_equal(out.detach().numpy(), numbered(KEYS))

    # The values that backward needed were others when it came.
    def test_autograd_knows_that_a_tensor_was_filled(self, filled: embedrock.Table) -> None:
        out, weight = torch.zeros(2, 4), torch.ones(2, 4, requires_grad=True)
        loss = (weight * out).sum()
        filled.get(KEYS, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_a_quantized_tensor_is_no_keys(self, filled: embedrock.Table) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                keys = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
            except (AttributeError, RuntimeError) as error:
                pytest.skip(f"this PyTorch has no quantized tensors: {error}")
        with pytest.raises(MisuseError, match="quantized"):
            filled.get(keys)


class TestRows:
    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ([["1", "2", "3", "4"]] * 2, "values are <U1, expected float32"),
            ([[True] * 4] * 2, "values are bool, expected float32"),
            ([[1], [2, 3]], "values cannot be read as an array"),
            (np.zeros((2, 4), object), "values are object"),
            (None, "values are object"),
        ],
    )
    def test_what_is_no_numbers_is_no_rows(
        self, filled: embedrock.Table, rows: Any, message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            filled.put(KEYS, rows)

    def test_a_matrix_of_keys_is_an_array(self, filled: embedrock.Table) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            keys = np.matrix([[1, 2], [3, 4]])
        np.testing.assert_array_equal(filled.get(keys), numbered(np.asarray(keys)))
        np.testing.assert_array_equal(filled.contains(keys), np.ones((2, 2), bool))

    @pytest.mark.parametrize("source", [torch.ones(2, 4, dtype=torch.int64), np.ones((2, 4), int)])
    def test_whole_numbers_are_no_rows_to_load(self, filled: embedrock.Table, source: Any) -> None:
        with pytest.raises(MisuseError, match="source is int64, expected floating-point rows"):
            weights.load(filled, source, keys=KEYS)


class TestNumbers:
    # The bias of a step before the first cannot be corrected: rows became NaN.
    def test_a_step_counts_from_one(self, store: embedrock.Store) -> None:
        table = store.table("adam", 4, optimizer="adam", initializer=0.0)
        with pytest.raises(MisuseError, match="step is 0, expected 1 or more"):
            table.update(KEYS, np.ones((2, 4), np.float32), lr=0.1, step=0)
        assert len(table) == 0

    @pytest.mark.parametrize(
        ("hyper", "message"),
        [
            ({"lr": None}, "lr is None, expected a number"),
            ({"lr": "0.1"}, "lr is '0.1', expected a number"),
            ({"lr": True}, "lr is True, expected a number"),
            ({"lr": [0.1]}, "lr is a list, expected a number"),
            ({"lr": 10**400}, "lr is an int, expected a number"),
            # float() reads the bytes of a buffer as a text.
            ({"lr": array.array("B", b"3")}, "lr is an array.array, expected a number"),
            ({"lr": memoryview(b"3")}, "lr is a memoryview, expected a number"),
            ({"lr": np.array("3")}, "lr is a numpy.ndarray, expected a number"),
            ({"lr": np.array(b"3")}, "lr is a numpy.ndarray, expected a number"),
            ({"lr": np.array("3", object)}, "lr is a numpy.ndarray, expected a number"),
            ({"lr": np.array(True)}, "lr is a numpy.ndarray, expected a number"),
            ({"lr": np.complex64(1)}, r"lr is np.complex64.*, expected a number"),
            ({"betas": 1}, "betas are 1, expected a pair of numbers"),
            ({"betas": (0.9,)}, "betas are a tuple, expected a pair of numbers"),
            ({"betas": (0.9, "x")}, r"betas\[1\] is 'x', expected a number"),
            ({"eps": "x"}, "eps is 'x', expected a number"),
            ({"weight_decay": 1j}, "weight_decay is 1j, expected a number"),
            ({"clip": 1.0}, r"clip is 1.0, expected embedrock\.Clip"),
            ({"other_norm": None}, "other_norm is None, expected a number"),
            ({"non_finite": 3}, "non_finite is 3, expected 'refuse', 'skip' or 'apply'"),
        ],
    )
    def test_what_an_update_is_given_wrongly_is_named(
        self, store: embedrock.Store, hyper: dict[str, Any], message: str
    ) -> None:
        table = store.table("adam", 4, optimizer="adam", initializer=0.0)
        with pytest.raises(MisuseError, match=message):
            table.update(KEYS, np.ones((2, 4), np.float32), **{"lr": 0.1, **hyper})
        assert len(table) == 0

    @pytest.mark.parametrize(
        "lr",
        [
            1,
            np.float32(1),
            np.int8(1),
            np.array(1),
            np.array(1.0, np.float16),
            torch.tensor(1.0),
            torch.tensor(1),
            decimal.Decimal(1),
            fractions.Fraction(1),
        ],
    )
    def test_every_kind_of_number_is_one(self, store: embedrock.Store, lr: Any) -> None:
        table = store.table("plain", 4, optimizer="sgd", initializer=0.0)
        table.update(KEYS, np.ones((2, 4), np.float32), lr=lr)
        np.testing.assert_array_equal(table.get(KEYS), -np.ones((2, 4)))

    def test_a_batch_size_is_a_number_and_costs_no_more_than_there_is(
        self, filled: embedrock.Table
    ) -> None:
        with pytest.raises(MisuseError, match="batch_size is None, expected a whole number"):
            filled.items(batch_size=None)  # type: ignore[call-overload]
        keys, _ = next(iter(filled.items(2**62)))
        assert len(keys) == len(filled)

    def test_flags_are_true_or_false(self, filled: embedrock.Table, tmp_path: Path) -> None:
        with pytest.raises(MisuseError, match="state is 'no', expected True or False"):
            filled.get(KEYS, state="no")  # type: ignore[call-overload]
        with pytest.raises(MisuseError, match="create is 'no', expected True or False"):
            embedrock.open(tmp_path / "new", create="no")  # type: ignore[arg-type]
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (torch.tensor([0.0, 1.5]), "offsets of torch.float32 .*expected a tensor"),
        ([0, 1], "offsets that are a list"),
        (torch.tensor([1, 2]), "offsets that begin with 1, expected where bags begin, rising fr"),
        (torch.tensor([0, 9]), "offsets that end with 9, expected .* at most 3, the number of its"),
    ],
)
def test_bags_begin_where_offsets_say_or_are_refused(
    store: embedrock.Store, offsets: Any, message: str
) -> None:
    bag = nn.EmbeddingBag(None, 4, mode="sum", store=store, name="bag")
    with pytest.raises(MisuseError, match=message):
        bag(torch.tensor([1, 2, 3]), offsets)
