"""Allowed keys and rows, and the errors for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import KeyRangeError, MisuseError
from rows import numbered


@pytest.mark.parametrize("shape", [(), (0,), (6,), (2, 3), (1, 2, 3), (3, 0)])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_keys_of_any_shape_give_rows_of_that_shape(
    filled: embedrock.Table, shape: tuple[int, ...], dtype: type
) -> None:
    keys = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    rows = filled.get(keys)
    assert rows.shape == (*shape, 4)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, numbered(keys))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", ">i8", ">u8"])
def test_other_integer_types_are_converted(filled: embedrock.Table, dtype: str) -> None:
    keys = np.array([5, 3, 5]).astype(dtype)
    np.testing.assert_array_equal(filled.get(keys), numbered([5, 3, 5]))


@pytest.mark.parametrize(
    "keys",
    [
        np.arange(20)[::2],
        np.arange(20)[::-1],
        np.arange(12).reshape(3, 4).T,
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.broadcast_to(np.int64(7), (3,)),
        np.frombuffer(b"\0" + np.arange(4).tobytes(), dtype=np.int64, offset=1),
    ],
    ids=["strided", "reversed", "transposed", "fortran", "broadcast", "misaligned"],
)
def test_keys_that_do_not_lie_contiguously_are_read_right(
    filled: embedrock.Table, keys: np.ndarray
) -> None:
    np.testing.assert_array_equal(filled.get(keys), numbered(keys))


def test_rows_that_do_not_begin_at_a_multiple_of_four_are_written_right(
    table: embedrock.Table,
) -> None:
    rows = np.frombuffer(b"\0" + numbered([1, 2]).tobytes(), np.float32, 8, 1).reshape(2, 4)
    assert not rows.flags.aligned
    table.put([1, 2], rows)
    np.testing.assert_array_equal(table.get([1, 2]), numbered([1, 2]))


def test_lists_and_single_ints_are_keys(filled: embedrock.Table) -> None:
    np.testing.assert_array_equal(filled.get([4, 2]), numbered([4, 2]))
    np.testing.assert_array_equal(filled.get(4), numbered(4))
    assert filled.get([]).shape == (0, 4)


def test_minus_one_and_the_largest_uint64_are_the_same_key(table: embedrock.Table) -> None:
    table.put(np.array([-1]), np.full((1, 4), 7, np.float32))
    assert table.contains(np.array([2**64 - 1], np.uint64)).all()
    extremes = np.array([0, 1, -1, 2**63 - 1, -(2**63)])
    table.put(extremes, np.ones((5, 4), np.float32))
    assert len(table) == 5
    seen = np.concatenate(list(table.keys()))
    assert sorted(seen.tolist()) == sorted(extremes.tolist())


def test_contiguous_keys_and_rows_are_not_copied() -> None:
    from embedrock._arrays import as_keys, as_rows

    keys = np.arange(6).reshape(2, 3)
    assert np.shares_memory(as_keys(keys).flat, keys)
    rows = np.zeros((6, 4), np.float32)
    assert np.shares_memory(as_rows(rows, (6, 4), "rows", "meaning"), rows)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.zeros(3, np.float32), "keys are float32, expected int64 or uint64"),
        ([0.5], "keys are float64, expected int64 or uint64"),
        (np.zeros(3, bool), "keys are bool, expected int64 or uint64"),
        (["a"], "keys are <U1, expected int64 or uint64"),
        ([2**70], "keys are object, expected int64 or uint64"),
        (None, "keys are object, expected int64 or uint64"),
        ([[1], [2, 3]], "keys cannot be read as an array"),
    ],
    ids=["float32", "float list", "bool", "text", "huge", "none", "ragged"],
)
def test_keys_of_a_wrong_type_are_refused_by_name(
    table: embedrock.Table, keys: Any, message: str
) -> None:
    for verb in (table.get, table.delete, table.contains, table.lookahead, embedrock.distinct):
        with pytest.raises(MisuseError, match=message):
            verb(keys)


class TestDenseRange:
    @pytest.fixture
    def dense(self, store: embedrock.Store) -> embedrock.Table:
        return store.table("dense", 4, num_embeddings=1000)

    def test_a_negative_key_is_shown_as_the_caller_wrote_it(self, dense: embedrock.Table) -> None:
        keys = np.array([[1, 2], [3, -7]])
        with pytest.raises(KeyRangeError, match=r"keys\[1, 1\] is -7, expected 0 to 999") as caught:
            dense.get(keys)
        assert "'dense'" in str(caught.value)
        assert "num_embeddings=1000" in str(caught.value)

    def test_a_key_past_the_end_is_shown_with_its_place(self, dense: embedrock.Table) -> None:
        keys = np.array([1, 1000, 1001], np.uint64)
        with pytest.raises(KeyRangeError, match=r"keys\[1\] is 1000 \(1 more like it\)"):
            dense.get(keys)

    def test_every_verb_refuses_it_and_changes_nothing(self, dense: embedrock.Table) -> None:
        keys, rows = np.array([5, 1000]), np.ones((2, 4), np.float32)
        calls = [
            lambda: dense.put(keys, rows),
            lambda: dense.update(keys, rows, lr=1.0),
            lambda: dense.modify(keys, lambda values, state: values + 1),
            lambda: dense.delete(keys),
            lambda: dense.store.put([(dense, keys, rows)]),
            lambda: dense.store.update([(dense, keys, rows)], lr=1.0),
            lambda: dense.store.get([(dense, [1]), (dense, keys)]),
        ]
        for call in calls:
            with pytest.raises(KeyRangeError, match=r"keys\[1\] is 1000"):
                call()
        assert len(dense) == 0
        assert dense.store.uncommitted == (0, 0)

    def test_an_index_error_handler_catches_it(self, dense: embedrock.Table) -> None:
        with pytest.raises(IndexError):
            dense.get([-1])


class TestRows:
    def test_float16_is_widened(self, table: embedrock.Table) -> None:
        table.put([1], np.full((1, 4), 0.5, np.float16))
        np.testing.assert_array_equal(table.get(1), np.full(4, 0.5, np.float32))

    def test_nested_lists_are_rows(self, table: embedrock.Table) -> None:
        table.put([1], [[1, 2, 3, 4]])
        np.testing.assert_array_equal(table.get(1), [1, 2, 3, 4])

    def test_rows_that_do_not_lie_contiguously_are_read_right(self, table: embedrock.Table) -> None:
        rows = np.arange(8, dtype=np.float32).reshape(4, 2).T
        table.put([1, 2], rows)
        np.testing.assert_array_equal(table.get([1, 2]), rows)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (np.zeros((2, 4)), r"values are float64, expected float32; .*astype\(np.float32\)"),
            (np.zeros((2, 4), int), "values are int64, expected float32"),
            (np.zeros((2, 3), np.float32), r"values have shape \(2, 3\), expected \(2, 4\)"),
            (np.zeros(4, np.float32), r"expected \(2, 4\): keys.shape \+ \(embedding_dim,\)"),
        ],
        ids=["float64", "int64", "narrow", "flat"],
    )
    def test_wrong_rows_are_refused_by_name(
        self, table: embedrock.Table, rows: np.ndarray, message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            table.put([1, 2], rows)
        with pytest.raises(MisuseError, match=message.replace("values", "gradients")):
            table.update([1, 2], rows, lr=0.1)
        assert len(table) == 0

    def test_state_of_a_wrong_width_is_refused_by_its_name(self, store: embedrock.Store) -> None:
        adam = store.table("adam", 4, optimizer="adam")
        with pytest.raises(MisuseError, match=r"expected \(1, 8\): keys.shape \+ \(state_words,\)"):
            adam.put([1], np.zeros((1, 4), np.float32), state=np.zeros((1, 4), np.float32))


class TestOut:
    def test_the_given_array_is_filled_and_returned(self, filled: embedrock.Table) -> None:
        out = np.full((2, 4), np.nan, np.float32)
        assert filled.get([3, 4], out) is out
        np.testing.assert_array_equal(out, numbered([3, 4]))

    def test_a_pair_is_filled_with_values_and_state(self, filled: embedrock.Table) -> None:
        out = (np.empty((2, 4), np.float32), np.full((2, 4), np.nan, np.float32))
        values, state = filled.get([3, 4], out, state=True)
        assert values is out[0] and state is out[1]
        np.testing.assert_array_equal(state, np.zeros((2, 4)))

    def test_a_part_of_a_larger_array_can_be_filled(self, filled: embedrock.Table) -> None:
        whole = np.zeros((5, 4), np.float32)
        filled.get([3, 4], whole[1:3])
        np.testing.assert_array_equal(whole[1:3], numbered([3, 4]))
        assert not whole[[0, 3, 4]].any()

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            (np.empty((2, 4)), "out is float64, expected float32"),
            (np.empty((2, 3), np.float32), r"out has shape \(2, 3\), expected \(2, 4\)"),
            (np.empty((4, 2), np.float32).T, "out is not C-contiguous"),
            (np.broadcast_to(np.float32(0), (2, 4)), "out is"),
            (np.frombuffer(bytearray(33), np.float32, 8, 1).reshape(2, 4), "out is not C-contig"),
            ([[0.0] * 4] * 2, "out is a list, expected a float32 array to fill"),
        ],
        ids=["dtype", "shape", "order", "broadcast", "misaligned", "list"],
    )
    def test_an_array_that_cannot_be_filled_is_refused(
        self, filled: embedrock.Table, out: Any, message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            filled.get([3, 4], out)

    def test_a_read_only_array_is_refused(self, filled: embedrock.Table) -> None:
        out = np.empty((2, 4), np.float32)
        out.flags.writeable = False
        with pytest.raises(MisuseError, match="out is read-only"):
            filled.get([3, 4], out)

    def test_one_array_for_two_batches_is_refused(self, filled: embedrock.Table) -> None:
        out = np.empty((1, 4), np.float32)
        with pytest.raises(MisuseError, match="out overlaps"):
            filled.store.get([(filled, [1]), (filled, [2])], out=[out, out])


class Exported:
    """An array of some other library: only what DLPack asks for."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] | None = None) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device is not None:
            raise BufferError("the memory of the device cannot be exported")
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device or self.array.__dlpack_device__()


class TestDlpack:
    def test_any_exporter_gives_keys_and_rows(self, table: embedrock.Table) -> None:
        table.put(Exported(np.array([1, 2])), Exported(numbered([1, 2])))
        np.testing.assert_array_equal(table.get(Exported(np.array([2]))), numbered([2]))

    def test_memory_that_the_host_cannot_read_is_named(self, table: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match=r"keys are .*Exported that cannot be read"):
            table.get(Exported(np.array([1]), device=(2, 0)))


class TestDistinct:
    def test_first_occurrence_orders_the_distinct_keys(self) -> None:
        rng = np.random.default_rng(20)
        keys = rng.integers(-50, 50, size=(40, 25))
        first, inverse = embedrock.distinct(keys)
        assert first.tolist() == list(dict.fromkeys(keys.reshape(-1).tolist()))
        assert inverse.shape == keys.shape
        np.testing.assert_array_equal(first[inverse], keys)

    def test_the_type_of_the_keys_stays(self) -> None:
        assert embedrock.distinct(np.array([3, -3]))[0].dtype == np.int64
        unsigned, inverse = embedrock.distinct(np.array([2**64 - 1], np.uint64))
        assert unsigned.dtype == np.uint64 and unsigned[0] == 2**64 - 1
        assert inverse.dtype == np.int64

    def test_no_keys_have_no_distinct_keys(self) -> None:
        first, inverse = embedrock.distinct(np.zeros((0, 3), np.int64))
        assert first.shape == (0,) and inverse.shape == (0, 3)
