"""Messages for mistakes of users: optimizers, loaders, a loss that is no number, recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embedrock
from embedrock.errors import MisuseError, NonFiniteError


class TestOptimizers:
    # torch.optim.Adam ended in "'type' object is not iterable".
    @pytest.mark.parametrize(
        ("name", "meant"),
        [("Adam", "adam"), ("AdamW", "adamw"), ("Adagrad", "adagrad"), ("SGD", "sgd")],
    )
    def test_one_of_torch_is_told_of_its_name(
        self, store: embedrock.Store, name: str, meant: str
    ) -> None:
        torch = pytest.importorskip("torch")
        kind = getattr(torch.optim, name)
        made = kind([torch.nn.Parameter(torch.zeros(1))])
        said = f'expected a name or one of embedrock.optimizers: "{meant}"; embedrock.optim has'
        for given in (kind, made):
            with pytest.raises(MisuseError) as caught:
                store.table("t", 4, optimizer=given)
            assert said in str(caught.value)

    def test_one_of_embedrock_optim_is_told_of_its_name(self, store: embedrock.Store) -> None:
        pytest.importorskip("torch")
        with pytest.raises(MisuseError, match=r': "rowwise_adagrad"; embedrock.optim has'):
            store.table("t", 4, optimizer=embedrock.optim.RowWiseAdagrad)  # type: ignore[arg-type]

    @pytest.mark.parametrize("given", [dict, embedrock.optimizers.adam, 3, object()])
    def test_anything_else_is_refused_in_words(self, store: embedrock.Store, given: Any) -> None:
        with pytest.raises(MisuseError, match=r"expected a name or one of embedrock.optimizers"):
            store.table("t", 4, optimizer=given)


# `if loader:` asked for its length, which not every loader has.
def test_a_loader_without_a_length_is_true(store: embedrock.Store) -> None:
    torch = pytest.importorskip("torch")
    module = embedrock.nn.Embedding(50, 4, store=store, name="t", optimizer="sgd")
    for batches in (iter([torch.tensor([1])]), []):
        assert bool(embedrock.LookaheadLoader(batches, module))
        assert bool(embedrock.Pipeline(module, batches))


class TestNotFinite:
    # The first remedy was to skip such rows, which hides a model that has diverged.
    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (1, "the gradient of 1 of 3 rows of table 't' is NaN or infinite, the first for key 7"),
            (2, "gradients of 2 of 3 rows of table 't' are NaN or infinite, the first for key 7"),
        ],
    )
    def test_a_gradient_points_to_the_loss_first(
        self, store: embedrock.Store, bad: int, said: str
    ) -> None:
        table = store.table("t", 2)
        gradients = np.zeros((3, 2), np.float32)
        gradients[:bad, 1] = (np.nan, np.inf)[:bad]
        with pytest.raises(NonFiniteError) as caught:
            table.update([7, 8, 9], gradients, lr=0.1)
        message = str(caught.value)
        assert message.startswith(said + "; nothing was changed")
        assert "the loss is probably not finite: lower the learning rate or clip" in message
        assert message.index("the loss") < message.index("skip")

    def test_values_are_called_values(self, store: embedrock.Store) -> None:
        with pytest.raises(NonFiniteError) as caught:
            store.table("t", 1).put([5], [[np.nan]])
        assert str(caught.value) == (
            "values of 1 of 1 rows of table 't' are NaN or infinite, the first for key 5; nothing "
            'was changed; pass non_finite="skip" to leave such rows out'
        )


# Messages of the engine had "t", all others 't'.
def test_messages_quote_tables_alike(store: embedrock.Store) -> None:
    store.table("t", 4, 10)
    said = []
    for call in (
        lambda: store.table("t", 5, 10),
        lambda: store.table("t").get([10]),
        lambda: store.table("u", 4, dtype="float16", initializer=1e6),
        lambda: store.table("none"),
    ):
        with pytest.raises(embedrock.EmbedrockError) as caught:
            call()
        said.append(str(caught.value))
    assert [message for message in said if "'" not in message or '"' in message] == []


class TestRecordings:
    def test_a_recording_says_what_it_is(self, store: embedrock.Store) -> None:
        table = store.table("t", 4)
        with store.record() as recording:
            table.get([1])
            assert repr(recording) == "<embedrock.Recording 1 batches, running>"
        assert repr(recording) == "<embedrock.Recording 1 batches, ended>"

    # 0.15 stood beside a hit rate of 0.29, and a note that it meant nothing.
    def test_an_optimum_that_means_nothing_is_none(self, store: embedrock.Store) -> None:
        table = store.table("t", 4, 5000)
        table.put(np.arange(5000), np.ones((5000, 4), np.float32))
        store.commit(1)
        with store.record() as recording:
            for key in range(6):
                table.get([key])
        found = recording.report()
        assert any("record longer" in note for note in found["notes"])
        assert found["optimal_hit_rate"] is None and found["hit_rate"] == 1


# A class was told by the file that it is in: "a store.store.Store".
def test_a_class_of_the_package_is_told_by_its_public_place(store: embedrock.Store) -> None:
    for given, told in (
        (store, "a store.Store"),
        (store.table("t", 4), "a table.Table"),
        (store.permits(0), "an ahead.Permits"),
    ):
        with pytest.raises(MisuseError, match=f"step is {told}, expected a whole number"):
            store.commit(given)  # type: ignore[arg-type]
