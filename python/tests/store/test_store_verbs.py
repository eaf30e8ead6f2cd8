"""The verbs as Python callers see them: semantics, callbacks, several tables, iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import embedrock
from embedrock.errors import (
    BudgetError,
    MismatchError,
    MisuseError,
    NonFiniteError,
    NotFoundError,
)
from rows import numbered


class TestPut:
    def test_the_last_of_equal_keys_wins(self, table: embedrock.Table) -> None:
        table.put([5, 6, 5], numbered([1, 2, 3]))
        np.testing.assert_array_equal(table.get([5, 6]), numbered([3, 2]))

    def test_state_of_an_existing_row_stays_unless_it_is_reset(
        self, table: embedrock.Table
    ) -> None:
        ones = np.ones((1, 4), np.float32)
        table.put([1], ones, state=ones * 9)
        table.put([1], ones * 2)
        np.testing.assert_array_equal(table.get([1], state=True)[1], ones * 9)
        table.put([1], ones * 2, reset_state=True)
        np.testing.assert_array_equal(table.get([1], state=True)[1], ones * 0)

    def test_state_and_reset_state_exclude_each_other(self, table: embedrock.Table) -> None:
        ones = np.ones((1, 4), np.float32)
        with pytest.raises(MisuseError, match="not both"):
            table.put([1], ones, state=ones, reset_state=True)

    def test_infinite_values_are_refused_before_a_row_changes(self, table: embedrock.Table) -> None:
        rows = np.ones((2, 4), np.float32)
        rows[1, 2] = np.inf
        with pytest.raises(NonFiniteError):
            table.put([1, 2], rows)
        assert len(table) == 0

    def test_an_unknown_choice_is_refused_by_name(self, table: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match="non_finite is 'ignore', expected 'refuse'"):
            table.put([1], np.ones((1, 4), np.float32), non_finite="ignore")  # type: ignore


class TestUpdate:
    def test_gradients_of_equal_keys_are_summed_first(self, store: embedrock.Store) -> None:
        table = store.table("sgd", 4, optimizer="sgd", initializer=0.0)
        gradients = numbered([1, 2, 3])
        report = table.update([7, 8, 7], gradients, lr=0.5)
        assert report == {"rows": 2, "skipped": 0}
        np.testing.assert_array_equal(table.get(7), -0.5 * (gradients[0] + gradients[2]))

    def test_nan_gradients_are_refused_skipped_or_applied(self, store: embedrock.Store) -> None:
        table = store.table("sgd", 4, optimizer="sgd", initializer=0.0)
        gradients = np.ones((2, 4), np.float32)
        gradients[1, 0] = np.nan
        with pytest.raises(NonFiniteError):
            table.update([1, 2], gradients, lr=1.0)
        assert len(table) == 0
        report = table.update([1, 2], gradients, lr=1.0, non_finite="skip")
        assert report == {"rows": 1, "skipped": 1}
        np.testing.assert_array_equal(table.get([1, 2]), [[-1.0] * 4, [0.0] * 4])
        table.update([1, 2], gradients, lr=1.0, non_finite="apply")
        assert np.isnan(table.get(2)).any()

    def test_row_wise_gradients_are_refused_skipped_or_applied(
        self, store: embedrock.Store
    ) -> None:
        table = store.table("row-wise", 4, optimizer="rowwise_adagrad", initializer=0.0)
        other = store.table("other", 4, optimizer="rowwise_adagrad", initializer=0.0)
        gradients = numbered([1, 2, 3])
        gradients[1, 3] = np.nan
        with pytest.raises(NonFiniteError, match="1 of 3 rows"):
            table.update([1, 2, 3], gradients, lr=1.0)
        assert len(table) == 0
        report = table.update([1, 2, 3], gradients, lr=1.0, non_finite="skip")
        assert report == {"rows": 2, "skipped": 1}
        other.update([1, 3], gradients[[0, 2]], lr=1.0)
        np.testing.assert_array_equal(table.get([1, 2, 3]), other.get([1, 2, 3]))
        huge = np.full((1, 4), 1e30, np.float32)  # finite, though its square is not
        assert table.update([4], huge, lr=1.0) == {"rows": 1, "skipped": 0}
        table.update([2], gradients[1:2], lr=1.0, non_finite="apply")
        assert np.isnan(table.get(2)).any()

    @pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "rowwise_adam"])
    def test_row_wise_steps_take_gradients_within_their_bounds(
        self, store: embedrock.Store, optimizer: str
    ) -> None:
        table = store.table("clipped", 4, optimizer=optimizer, initializer=0.0)
        other = store.table("other", 4, optimizer=optimizer, initializer=0.0)
        gradients = numbered([1, -2, 3])
        table.update([1, 2, 1], gradients, lr=1.0, clip=embedrock.Clip(value=1.5))
        sums = np.stack([gradients[0] + gradients[2], gradients[1]])
        other.update([1, 2], sums.clip(-1.5, 1.5), lr=1.0)
        np.testing.assert_array_equal(table.get([1, 2]), other.get([1, 2]))

    def test_each_optimizer_takes_its_own_hyperparameters(self, store: embedrock.Store) -> None:
        table = store.table("momentum", 4, optimizer="momentum", initializer=0.0)
        ones = np.ones((1, 4), np.float32)
        for _ in range(2):
            table.update([1], ones, lr=1.0, momentum=0.5, nesterov=True)
        assert table.get([1], state=True)[1].tolist() == [[1.5] * 4]
        np.testing.assert_array_equal(table.get([1]), [[-(1.5 + 1.75)] * 4])
        ftrl = store.table("ftrl", 4, optimizer=embedrock.optimizers.ftrl(0.0), initializer=0.0)
        store.update([(ftrl, [1], ones)], lr=0.5, lr_power=0.0, l1=0.25, l2=0.5, beta=1.0)
        np.testing.assert_allclose(ftrl.get([1]), [[-0.75 / ((1 + 1) / 0.5 + 1)] * 4], rtol=1e-6)
        with pytest.raises(MisuseError, match=r"'ftrl' takes no momentum.*l1, l2, beta"):
            store.update([(ftrl, [1], ones)], lr=0.5, momentum=0.5)
        with pytest.raises(MisuseError, match="'momentum' takes no momentom"):
            table.update([1], ones, lr=1.0, momentom=0.5)

    def test_gradients_are_clipped_after_equal_keys_were_summed(
        self, store: embedrock.Store
    ) -> None:
        first = store.table("first", 4, optimizer="sgd", initializer=0.0)
        second = store.table("second", 2, optimizer="sgd", initializer=0.0)
        batches = [
            (first, [7, 8, 7], np.array([[3.0] * 4, [0.5] * 4, [-5.0] * 4], np.float32)),
            (second, [1], np.array([[0.0, 10.0]], np.float32)),
        ]
        assert store.gradient_norm(batches) == pytest.approx((16 + 1 + 100) ** 0.5)
        clip = embedrock.Clip(value=1.0, row_norm=1.5)
        assert store.gradient_norm(batches, clip=clip) == pytest.approx((2.25 + 1 + 1) ** 0.5)
        assert len(first) == len(second) == 0
        clip = embedrock.Clip(value=1.0, row_norm=1.5, norm=1.25)
        report = store.update(batches, lr=1.0, clip=clip, other_norm=2.0**0.5)
        assert report == {"rows": 3, "skipped": 0, "norm": pytest.approx(2.5)}
        np.testing.assert_allclose(first.get([7, 8])[:, 0], [0.375, -0.25], rtol=1e-5)
        np.testing.assert_allclose(second.get([1]), [[0.0, -0.5]], rtol=1e-5)

    def test_what_is_not_finite_is_found_before_clipping(self, store: embedrock.Store) -> None:
        table = store.table("sgd", 4, optimizer="sgd", initializer=0.0)
        gradients = np.ones((2, 4), np.float32)
        gradients[1, 0] = np.inf
        clip = embedrock.Clip(value=1.0, norm=1.0)
        with pytest.raises(NonFiniteError):
            table.update([1, 2], gradients, lr=1.0, clip=clip)
        report = table.update([1, 2], gradients, lr=1.0, clip=clip, non_finite="skip")
        assert report == {"rows": 1, "skipped": 1, "norm": 2.0}
        with pytest.raises(NonFiniteError, match="other_norm is inf"):
            table.update([1], gradients[:1], lr=1.0, clip=clip, other_norm=np.inf)
        assert len(table) == 1

    def test_bounds_that_nothing_can_keep_are_refused(self, table: embedrock.Table) -> None:
        for name, bound in (("value", 0.0), ("row_norm", np.nan), ("norm", np.inf)):
            with pytest.raises(MisuseError, match=f"clip {name} is"):
                embedrock.Clip(**{name: bound})
        gradients = np.ones((1, 4), np.float32)
        with pytest.raises(MisuseError, match="other_norm is 1"):
            table.update([1], gradients, lr=1.0, clip=embedrock.Clip(value=1.0), other_norm=1.0)
        with pytest.raises(MisuseError, match=r"expected embedrock\.Clip"):
            table.update([1], gradients, lr=1.0, clip=1.0)  # type: ignore[arg-type]

    def test_a_table_without_optimizer_takes_no_updates(self, store: embedrock.Store) -> None:
        table = store.table("plain", 4, optimizer="none")
        with pytest.raises(MisuseError, match="put or modify"):
            table.update([1], np.ones((1, 4), np.float32), lr=1.0)


class TestModify:
    def test_the_function_sees_each_distinct_row_once_in_first_occurrence_order(
        self, filled: embedrock.Table
    ) -> None:
        seen: list[np.ndarray] = []

        def double(values: np.ndarray, state: np.ndarray) -> None:
            seen.append(values.copy())
            assert state.shape == (2, 4)
            values *= 2

        filled.modify([[9, 4], [9, 9]], double)
        assert len(seen) == 1
        np.testing.assert_array_equal(seen[0], numbered([9, 4]))
        np.testing.assert_array_equal(filled.get([9, 4]), 2 * numbered([9, 4]))

    def test_values_or_a_pair_may_be_returned(self, filled: embedrock.Table) -> None:
        filled.modify([1], lambda values, state: values + 1)
        np.testing.assert_array_equal(filled.get([1]), numbered([1]) + 1)
        filled.modify([1], lambda values, state: (values, state + 5))
        values, state = filled.get([1], state=True)
        np.testing.assert_array_equal(values, numbered([1]) + 1)
        np.testing.assert_array_equal(state, np.full((1, 4), 5.0))

    def test_an_exception_passes_unchanged_and_changes_nothing(
        self, filled: embedrock.Table
    ) -> None:
        raised = ZeroDivisionError("of the caller")

        def fail(values: np.ndarray, state: np.ndarray) -> None:
            values[:] = -1
            state[:] = -1
            raise raised

        before = filled.digest()
        with pytest.raises(ZeroDivisionError) as caught:
            filled.modify([1, 2, 1000], fail)
        assert caught.value is raised
        assert filled.digest() == before
        assert len(filled) == 100
        np.testing.assert_array_equal(filled.get([1, 2]), numbered([1, 2]))

    def test_ctrl_c_inside_the_function_changes_nothing(self, filled: embedrock.Table) -> None:
        def interrupt(values: np.ndarray, state: np.ndarray) -> None:
            values[:] = -1
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            filled.modify([1], interrupt)
        np.testing.assert_array_equal(filled.get([1]), numbered([1]))

    def test_nan_is_refused_and_changes_nothing(self, filled: embedrock.Table) -> None:
        with pytest.raises(NonFiniteError, match="nothing changed"):
            filled.modify([1, 2], lambda values, state: values * np.float32("nan"))
        np.testing.assert_array_equal(filled.get([1, 2]), numbered([1, 2]))

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda v, s: v[:1], r"returned values have shape \(1, 4\), expected \(2, 4\)"),
            (lambda v, s: v.astype(float), "returned values are float64, expected float32"),
            (lambda v, s: (v, s[:, :1]), r"returned state have shape \(2, 1\), expected \(2, 4\)"),
            (lambda v, s: (v, s, v), "function returned 3 arrays"),
        ],
    )
    def test_a_wrong_answer_is_refused_and_changes_nothing(
        self, filled: embedrock.Table, function: Any, message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            filled.modify([1, 2], function)
        np.testing.assert_array_equal(filled.get([1, 2]), numbered([1, 2]))

    def test_what_is_not_callable_is_refused(self, filled: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match="function is 3, expected a callable"):
            filled.modify([1], 3)  # type: ignore[arg-type]

    def test_calling_the_same_store_from_inside_is_refused(self, filled: embedrock.Table) -> None:
        for inner in (
            lambda: filled.get([1]),
            lambda: filled.put([1], np.zeros((1, 4), np.float32)),
            lambda: filled.modify([2], lambda values, state: None),
            lambda: len(filled),
            lambda: filled.store.commit(1),
            lambda: filled.store.close(),
        ):
            with pytest.raises(MisuseError, match="called the store that is calling it"):
                filled.modify([1], lambda values, state, inner=inner: inner())
        assert len(filled) == 100

    def test_the_arrays_may_be_kept_and_another_store_called(
        self, filled: embedrock.Table, tmp_path: Any
    ) -> None:
        kept: list[np.ndarray] = []
        with embedrock.open(tmp_path / "other.store", memory="64MiB") as other:
            copied = other.table("copy", 4)

            def keep(values: np.ndarray, state: np.ndarray) -> None:
                copied.put([1], values)
                kept.append(values)

            filled.modify([1], keep)
            np.testing.assert_array_equal(copied.get([1]), numbered([1]))
            other.commit(1)
        filled.put([1], np.zeros((1, 4), np.float32))
        np.testing.assert_array_equal(kept[0], numbered([1]))


class TestDeleteAndContains:
    def test_a_deleted_key_reads_as_initial_again(self, store: embedrock.Store) -> None:
        table = store.table("normal", 4, initializer=embedrock.initializers.normal())
        initial = table.get([1, 2])
        table.put([1, 2], numbered([1, 2]))
        assert table.delete([2, 2, 3]) == 1
        np.testing.assert_array_equal(table.get([2]), initial[1:])
        assert table.contains([[1, 2], [3, 1]]).tolist() == [[True, False], [False, True]]
        assert len(table) == 1
        assert 1 in table and 2 not in table

    def test_truncated_normal_rows_lie_between_its_ends(self, store: embedrock.Store) -> None:
        initializer = embedrock.initializers.truncated_normal(std=0.02, a=-0.04, b=0.03)
        table = store.table("cut", 8, initializer=initializer)
        rows = table.get(np.arange(5000))
        assert rows.min() >= np.float32(-0.04) and rows.max() <= np.float32(0.03)
        assert abs(rows.mean() + 0.00175) < 3e-4 and abs(rows.std() - 0.0160) < 3e-4
        assert store.table("cut").initializer == initializer
        for bad in ({"std": 0.0}, {"a": 2.0, "b": 2.0}, {"b": np.inf}):
            with pytest.raises(MisuseError):
                embedrock.initializers.truncated_normal(**bad)
        with pytest.raises(MisuseError, match="more than 37 standard deviations"):
            far = embedrock.initializers.truncated_normal(a=50.0, b=60.0)
            store.table("far", 8, initializer=far)

    def test_reading_stores_nothing(self, table: embedrock.Table) -> None:
        table.get(np.arange(1000))
        table.lookahead(np.arange(1000))
        assert len(table) == 0
        assert table.store.uncommitted == (0, 0)


class TestItems:
    @pytest.mark.parametrize("batch_size", [1, 7, 100, 1000])
    def test_every_written_row_comes_once(self, filled: embedrock.Table, batch_size: int) -> None:
        filled.delete([17])
        found: dict[int, np.ndarray] = {}
        for keys, values, state in filled.items(batch_size, state=True):
            assert keys.dtype == np.int64
            assert len(keys) <= batch_size
            assert values.shape == state.shape == (len(keys), 4)
            assert not found.keys() & set(keys.tolist())
            found.update(zip(keys.tolist(), values, strict=True))
        assert sorted(found) == [key for key in range(100) if key != 17]
        for key, row in found.items():
            np.testing.assert_array_equal(row, numbered(key))

    def test_an_empty_table_yields_nothing(self, table: embedrock.Table) -> None:
        assert list(table.items()) == []
        assert list(table.keys()) == []

    def test_writing_to_the_table_ends_its_iteration_with_an_error(
        self, filled: embedrock.Table
    ) -> None:
        batches = filled.items(10)
        next(batches)
        filled.put([1], numbered([1]))
        with pytest.raises(MisuseError, match="ads"):
            list(batches)

    def test_a_batch_size_below_one_is_refused_at_the_call(self, table: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match="batch_size is 0"):
            table.items(0)

    def test_digests_of_equal_tables_are_equal(self, store: embedrock.Store) -> None:
        one, two = (store.table(name, 4, initializer=0.0) for name in ("one", "two"))
        keys = np.arange(50)
        one.put(keys, numbered(keys))
        for key in keys[::-1]:
            two.put([key], numbered([key]))
        assert one.digest() == two.digest()
        two.put([3], numbered([4]))
        assert one.digest() != two.digest()

    @pytest.mark.parametrize("growing", [False, True])
    def test_a_digest_tells_how_many_rows_it_has_seen(
        self, store: embedrock.Store, growing: bool
    ) -> None:
        rows = 100_000
        table = store.table("many", 4, None if growing else 2 * rows)
        table.put(np.arange(rows), numbered(np.arange(rows)))
        seen: list[tuple[int, int]] = []
        digest = table.digest(lambda done, total: seen.append((done, total)))
        assert digest == table.digest()
        assert seen[0] == (0, rows) and seen[-1] == (rows, rows)
        assert len(seen) >= 4 and seen == sorted(seen)

    def test_an_exception_of_the_progress_ends_a_digest(self, filled: embedrock.Table) -> None:
        raised = ZeroDivisionError("of the caller")

        def progress(done: int, total: int) -> None:
            raise raised

        with pytest.raises(ZeroDivisionError) as caught:
            filled.digest(progress)
        assert caught.value is raised
        assert filled.digest() == filled.digest()


class TestSeveralTables:
    def test_one_call_serves_tables_of_different_width(self, store: embedrock.Store) -> None:
        tables = [store.table(f"t{dim}", dim, initializer=0.0) for dim in (2, 4, 4, 16)]
        tables[2] = store.table("t4b", 4, initializer=0.0)
        store.put([(table, [1, 2], numbered([i, i], table.embedding_dim))
                   for i, table in enumerate(tables)])  # fmt: skip
        answers = store.get([(table, [[2], [1]]) for table in tables])
        for i, (table, rows) in enumerate(zip(tables, answers, strict=True)):
            expected = numbered([[i], [i]], table.embedding_dim)
            np.testing.assert_array_equal(rows, expected)

    def test_outputs_are_filled_and_returned(self, filled: embedrock.Table) -> None:
        out = np.empty((2, 4), np.float32)
        first, second = filled.store.get([(filled, [1, 2]), (filled, [3])], out=[out, None])
        assert first is out
        np.testing.assert_array_equal(first, numbered([1, 2]))
        np.testing.assert_array_equal(second, numbered([3]))

    def test_updates_of_all_tables_are_checked_before_the_first_row_changes(
        self, store: embedrock.Store
    ) -> None:
        one, two = (store.table(name, 4, optimizer="sgd", initializer=0.0) for name in "ab")
        good, bad = np.ones((1, 4), np.float32), np.full((1, 4), np.nan, np.float32)
        with pytest.raises(NonFiniteError):
            store.update([(one, [1], good), (two, [1], bad)], lr=1.0)
        assert len(one) == len(two) == 0
        report = store.update([(one, [1], good), (two, [1, 2], good.repeat(2, 0))], lr=1.0)
        assert report == {"rows": 3, "skipped": 0}

    def test_a_table_of_another_store_is_refused(
        self, filled: embedrock.Table, tmp_path: Any
    ) -> None:
        with embedrock.open(tmp_path / "other.store", memory="64MiB") as other:
            with pytest.raises(MisuseError, match="belongs to another store"):
                other.get([(filled, [1])])
            with pytest.raises(MisuseError, match="expected a Table"):
                other.get([("ads", [1])])  # type: ignore[list-item]

    def test_a_wrong_number_of_outputs_is_refused(self, filled: embedrock.Table) -> None:
        with pytest.raises(MisuseError, match="out has 0 arrays, expected 1"):
            filled.store.get([(filled, [1])], out=[])


class TestBudget:
    def test_a_budget_that_cannot_work_names_the_bytes_that_would(self, tmp_path: Any) -> None:
        with embedrock.open(tmp_path / "small.store", memory="1MiB", page_bytes=4096) as store:
            with pytest.raises(BudgetError, match=r"table 't': .*give at least memory=") as caught:
                store.table("t", 64, num_embeddings=1_000_000)
            assert store.tables == {}
        enough = str(caught.value).rsplit("=", 1)[1].strip('"')
        with embedrock.open(tmp_path / "enough.store", memory=enough, page_bytes=4096) as store:
            assert store.table("t", 64, num_embeddings=1_000_000).get([1]).shape == (1, 64)

    def test_a_percentage_of_a_growing_table_needs_its_expected_rows(self, tmp_path: Any) -> None:
        with embedrock.open(tmp_path / "s", memory="10%") as store:
            with pytest.raises(BudgetError, match="give expected_rows="):
                store.table("t", 64)
            assert store.tables == {}


class TestTables:
    def test_an_existing_table_opens_as_stored(self, store: embedrock.Store) -> None:
        adam = embedrock.optimizers.adam(bias_correction="row")
        made = store.table("t", 8, 100, optimizer=adam, initializer=0.5)
        for again in (store.table("t"), store.table("t", 8, 100), store.tables["t"]):
            assert again.embedding_dim == 8 and again.num_embeddings == 100
            assert again.optimizer == made.optimizer == adam
            assert again.initializer == {"constant": 0.5}
            assert again.state_words == 17 and again.row_bytes == 100
            assert again.dtype == "float32"

    @pytest.mark.parametrize(
        "other",
        [
            {"embedding_dim": 16},
            {"num_embeddings": 200},
            {"num_embeddings": None},
            {"optimizer": "sgd"},
            {"initializer": 0.25},
        ],
        ids=lambda other: next(iter(other)),
    )
    def test_other_parameters_than_stored_are_refused(
        self, store: embedrock.Store, other: dict[str, Any]
    ) -> None:
        given: dict[str, Any] = {"embedding_dim": 8, "num_embeddings": 100}
        store.table("t", **given, optimizer="adam", initializer=0.5)
        with pytest.raises(MismatchError, match="t"):
            store.table("t", **{**given, **other})

    def test_a_missing_table_is_named_with_those_there_are(self, table: embedrock.Table) -> None:
        said = r"no table 'adz' \(it has 'ads'; did you mean 'ads'"
        with pytest.raises(NotFoundError, match=said):
            table.store.table("adz")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"embedding_dim": 0}, "embedding_dim is 0, expected 1 or more"),
            ({"embedding_dim": 2.5}, "embedding_dim is 2.5, expected a whole number"),
            ({"embedding_dim": 4, "num_embeddings": -1}, "num_embeddings is -1"),
            ({"embedding_dim": 4, "dtype": "int16"}, "dtype is int16, expected one of float32"),
            ({"embedding_dim": 4, "optimizer": "lamb"}, "optimizer is 'lamb', expected one of"),
            (
                {"embedding_dim": 4, "optimizer": {"kind": "sgd", "momentum": 0.9}},
                "'sgd' has no option 'momentum'",
            ),
            ({"embedding_dim": 4, "initializer": "zeros"}, "initializer is 'zeros', expected"),
            ({"embedding_dim": 4, "initializer": float("nan")}, "value is nan"),
        ],
    )
    def test_unusable_parameters_are_refused_by_name(
        self, store: embedrock.Store, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(MisuseError, match=message):
            store.table("t", **options)
        assert store.tables == {}

    def test_every_optimizer_has_its_state(self, store: embedrock.Store) -> None:
        words = {"none": 0, "sgd": 0, "adagrad": 8, "rowwise_adagrad": 1, "adam": 16}
        for kind, expected in words.items():
            table = store.table(kind, 8, optimizer=kind)
            assert table.state_words == expected
            assert table.row_bytes == 4 * (8 + expected)
            assert table.get([1], state=True)[1].shape == (1, expected)

    def test_adagrad_starts_from_its_initial_accumulator(self, store: embedrock.Store) -> None:
        spec = embedrock.optimizers.adagrad(initial_accumulator=0.1)
        table = store.table("t", 4, optimizer=spec)
        np.testing.assert_array_equal(
            table.get([1], state=True)[1], np.full((1, 4), 0.1, np.float32)
        )


@pytest.mark.parametrize("policy", ["lru", pytest.param("lfu", marks=pytest.mark.long)])
def test_what_a_step_reads_is_still_in_memory_when_it_is_updated(
    tmp_path: Path, policy: Literal["lru", "lfu"]
) -> None:
    """Also where rows that are popular fill the cache and a step's rows are a quarter of it."""
    rows, dim = 60_000, 16
    with embedrock.open(tmp_path / "store", "64MiB") as store:
        table = store.table("rows", dim, rows, optimizer="adagrad")
        table.put(np.arange(rows), np.ones((rows, dim), np.float32))
        store.commit(0)
    with embedrock.open(tmp_path / "store", "1500KiB", create=False, policy=policy) as store:
        table = store.table("rows")
        capacity = store.stats()["classes"][0]["cache_capacity"]
        assert capacity < rows // 7
        popular = np.arange(capacity // 2)
        rng = np.random.default_rng(1)
        gradients = np.ones((capacity // 4, dim), np.float32)
        again = 0
        for step in range(30):
            table.get(popular)
            keys = rng.choice(np.arange(capacity, rows), capacity // 4, replace=False)
            table.get(keys)
            before = store.stats()["misses"]
            table.update(keys, gradients, lr=0.01)
            again += store.stats()["misses"] - before if step > 10 else 0
        store.commit(1)
    assert again < 0.03 * 19 * (capacity // 4)
