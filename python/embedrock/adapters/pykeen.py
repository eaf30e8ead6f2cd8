"""PyKEEN over tables: a representation whose rows are in a store, training, and one-scan ranks.

* :class:`Rows` takes the place of ``pykeen.nn.Embedding`` for entities;
* :class:`RowsCallback` steps the optimizer of the rows within PyKEEN's loop, and commits;
* :class:`LookaheadTrainingLoop` announces the rows of coming batches, negatives included;
* :class:`RowsEvaluator` ranks with one scan of the table, to the ranks of ``RankBasedEvaluator``.

PyKEEN makes its optimizer anew when training begins, so it cannot be given ours: the callback hooks
onto the step of whichever optimizer there is. Only training by sLCWA is out of core: LCWA scores
all entities in each step.

Invariant: a checkpoint of PyKEEN has no rows; it names the commit that has them. Loading it brings
the store back to that commit, or fails if the commit is not kept.

Source of the interfaces: PyKEEN 1.11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import embedrock
from embedrock._arguments import shown
from embedrock._optional import missing
from embedrock.errors import MismatchError, MisuseError, UnsupportedError
from embedrock.initializers import InitializerLike
from embedrock.kge.known import Known
from embedrock.kge.model import RowConstraint
from embedrock.kge.ranking import Queries, Ranks, rank_queries
from embedrock.kge.rows import EntityRows
from embedrock.optim.base import RowOptimizer
from embedrock.optimizers import OptimizerLike
from embedrock.store import Store

try:
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.evaluation.rank_based_evaluator import RankBasedMetricResults, RankPack
    from pykeen.models import ERModel
    from pykeen.nn.representation import Representation, constrainer_resolver
    from pykeen.training import SLCWATrainingLoop, TrainingCallback
except ModuleNotFoundError as _error:
    if (_error.name or "").split(".")[0] != "pykeen":
        raise
    raise ModuleNotFoundError(
        missing("embedrock.adapters.pykeen", "PyKEEN", "pykeen"), name="pykeen"
    ) from _error

__all__ = ["LookaheadTrainingLoop", "Rows", "RowsCallback", "RowsEvaluator", "rank"]

_BLOCK, _CHUNK = 32, 1024
"""PyKEEN's interactions compute a tensor of queries x entities x values; this one fits a cache."""
_GATHERED = 8192
_RECEIVED_MAX = 64
"""Batches of ids that wait for an update before they are made distinct. Few enough to be small, and
many enough that this costs little for each."""
_COMMIT, _SINCE, _UPDATES = slice(3, 6), 6, 8
"""Offsets in a module's extra state: the last commit, the batches since, and the updates of its
table, in the layout of ``embedrock.nn.state_dict_guard``."""


class _Restoring(embedrock.nn.Embedding):
    """Rows that a load brings back to the commit beside which the state dict was saved."""

    def set_extra_state(self, state: Any) -> None:
        """Goes back to that commit, where it is kept.

        Errors: ``MismatchError`` where it is not.
        """
        try:
            super().set_extra_state(state)
        except MismatchError:
            if not isinstance(self.store, Store) or not isinstance(state, Tensor):
                raise
            step = _commit_of(state.tolist(), self.store)
            if step is None:
                raise
            self.store.go_back(step)
            super().set_extra_state(state)


def _commit_of(numbers: list[int], store: Store) -> int | None:
    """The step of the commit that has the rows of an extra state, if it is kept."""
    if len(numbers) < _UPDATES or numbers[_SINCE] != 0:
        return None  # rows of the batches behind a commit are gone
    for commit in store.commits():
        if [commit.sequence, commit.step, commit.unix_time] == numbers[_COMMIT]:
            return commit.step
    return None


class Rows(Representation):  # type: ignore[misc]
    """A representation of PyKEEN whose rows are in a table of a store.

    Give it to ``ERModel`` as ``entity_representations``; relations stay in memory. Complex values
    (``dtype=torch.cfloat``) are two float32 each in the table.

    Args:
        max_id: Rows; the ids are below.
        shape: Of one row.
        store: The open store.
        name: The table's name.
        optimizer, initializer, storage: As for :class:`embedrock.nn.Embedding`.
        dtype: Of what is returned: a real or a complex floating-point type.
        constrainer: As for ``pykeen.nn.Embedding``, by name or as a function. It must act on each
            row for itself and leave rows alone that are within: only rows that a step has changed
            are constrained after it, and rows that were never written when they are read.
        kwargs: Of ``pykeen.nn.representation.Representation``: normalizer, regularizer, dropout.

    Shapes: ``indices (*) -> (*, *shape)``; without indices, all rows, in memory.

    As in :class:`embedrock.nn.Embedding` gradients decide whether rows train, not the mode. With
    a constrainer rows of a store that is open to read have none.

    Errors: ``UnsupportedError`` when all rows are asked for in training mode while gradients are
    recorded and they are more than the store's memory, or when such rows get a gradient: training
    by LCWA does so.
    ``MisuseError`` from ``train()`` on rows that were trained before, unless it goes on.

    >>> from embedrock.adapters.pykeen import Rows
    >>> import torch
    >>> rows = Rows(max_id=1000, shape=8, store=store, name="entities", optimizer="sgd")
    >>> rows(torch.tensor([[3, 4], [4, 5]])).shape
    torch.Size([2, 2, 8])
    """

    def __init__(
        self,
        max_id: int,
        shape: int | Sequence[int] = 64,
        *,
        store: Store,
        name: str,
        optimizer: OptimizerLike | None = None,
        initializer: InitializerLike | None = None,
        storage: Any = None,
        dtype: torch.dtype | None = None,
        constrainer: Any = None,
        constrainer_kwargs: Any = None,
        **kwargs: Any,
    ) -> None:
        """Opens the table, or creates it."""
        # The module finds distinct ids itself.
        super().__init__(max_id=max_id, shape=shape, **{"unique": False, **kwargs})
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.is_complex = dtype.is_complex
        self._real = (*self.shape, 2) if self.is_complex else self.shape
        self.rows = _Restoring(
            max_id,
            math.prod(self._real),
            store=store,
            name=name,
            optimizer=optimizer,
            initializer=initializer,
            storage=storage,
            output_dtype=dtype.to_real() if self.is_complex else dtype,
        )
        self._store = store
        self._constrainer = constrainer_resolver.make_safe(constrainer, constrainer_kwargs)
        self._constraint: RowConstraint | None = None
        if self._constrainer is not None:
            self._constraint = RowConstraint(self.rows, self._constrained)
        self._received: list[Tensor] = []
        """Ids whose rows have had gradients since the last step."""
        self._is_made = False

    def reset_parameters(self) -> None:
        """Nothing: rows begin as their initializer says.

        Errors: ``MisuseError`` for the second and later calls when the table has trained rows: a
        training that begins anew would leave them and reset all else.
        """
        made, self._is_made = self._is_made, True
        updates = int(self.rows.get_extra_state()[_UPDATES])
        if made and updates:
            raise MisuseError(
                f"training begins anew, but the rows of table {self.rows.table.name!r} have had "
                f"{updates:,} updates, which stay; pass continue_training=True or a checkpoint, or "
                f"name another table"
            )

    def post_parameter_update(self) -> None:
        """Constrains the rows that have had gradients since the last call."""
        received, self._received = self._received, []
        if self._constraint is not None and received:
            self._constraint.after(torch.cat(received))

    def _note(self, ids: Tensor) -> None:
        """Keeps ids until rows were updated; distinct ones where many backwards come before."""
        self._received.append(ids)
        if len(self._received) >= _RECEIVED_MAX:
            self._received = [torch.cat(self._received).unique()]

    def _plain_forward(self, indices: Tensor | None = None) -> Tensor:
        if indices is None:
            return self._all()
        if self._constraint is None:
            return self._shaped(self.rows(indices))
        flat = indices.detach().reshape(-1).cpu()
        if self.rows._records() and not self._store.read_only:
            self._constraint.before(flat)
            rows = self.rows(indices)
            if rows.requires_grad:
                rows.register_hook(lambda _: self._note(flat))
            return self._shaped(rows)
        found = EntityRows(self.rows, fresh=self._constrained).of(flat.numpy())
        return self._shaped(found.view(*indices.shape, -1))

    def _all(self) -> Tensor:
        """All rows. Errors: ``UnsupportedError``."""
        recorded = self.rows._records()
        size = self.max_id * self.rows.embedding_dim * 4
        # PyKEEN's predictions come here in eval mode, and gradients may be enabled about them.
        if recorded and self.training and size > self._store.stats()["budget_bytes"]:
            raise UnsupportedError(
                f"{_ONLY_SLCWA} ({size:,} bytes of table {self.rows.table.name!r})"
            )
        with torch.no_grad():
            found = self._plain_forward(torch.arange(self.max_id))
        return _NoGradient.apply(found.requires_grad_()) if recorded else found

    def _shaped(self, rows: Tensor) -> Tensor:
        """Flat rows ``(*, width)`` as ``(*, *shape)``."""
        rows = rows.reshape(*rows.shape[:-1], *self._real)
        return torch.view_as_complex(rows) if self.is_complex else rows

    def _constrained(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rows: Tensor = self._constrainer(self._shaped(torch.from_numpy(values)))
        rows = torch.view_as_real(rows) if self.is_complex else rows
        constrained: npt.NDArray[np.float32] = rows.reshape(values.shape).float().numpy()
        return constrained


_ONLY_SLCWA = (
    "all rows are asked for while gradients are recorded, so that every row would have one in each "
    "step: train with the sLCWA loop (training_loop='slcwa'), which samples negatives"
)


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """Rows that must not get a gradient."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        return rows.view_as(rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise UnsupportedError(_ONLY_SLCWA)


class RowsCallback(TrainingCallback):  # type: ignore[misc]
    """Trains the rows of a model within PyKEEN's loop, and commits after epochs.

    The rows step just before PyKEEN's own optimizer, behind its clipping of gradients. A commit has
    the model's dense part, the optimizer of the rows and PyKEEN's own. An early stopper saves the
    best epoch beside its commit, to which the store goes back in the end: open it with ``keep=`` as
    many commits as there may be epochs between the best and the last one, and one.

    Args:
        optimizer: An optimizer of ``embedrock.optim`` over the model.
        commit_every: Epochs between commits; 0 leaves them to the caller.

    >>> from embedrock.adapters.pykeen import Rows, RowsCallback
    >>> from pykeen.datasets import Nations
    >>> from pykeen.models import ERModel
    >>> from pykeen.training import SLCWATrainingLoop
    >>> import torch
    >>> graph = Nations().training
    >>> model = ERModel(
    ...     triples_factory=graph,
    ...     interaction="distmult",
    ...     entity_representations=Rows,
    ...     entity_representations_kwargs={"shape": 8, "store": store, "name": "nations"},
    ...     relation_representations_kwargs={"shape": 8},
    ...     random_seed=1,
    ... )
    >>> rows = embedrock.optim.RowWiseAdagrad(model, lr=0.1)
    >>> dense = torch.optim.Adagrad(embedrock.nn.dense_parameters(model))
    >>> loop = SLCWATrainingLoop(model=model, triples_factory=graph, optimizer=dense)
    >>> losses = loop.train(
    ...     graph, num_epochs=2, batch_size=200, use_tqdm=False, callbacks=RowsCallback(rows)
    ... )
    >>> store.step  # batches
    16
    """

    def __init__(self, optimizer: RowOptimizer, *, commit_every: int = 1) -> None:
        """Hooks onto nothing before training begins."""
        super().__init__()
        if not isinstance(optimizer, RowOptimizer):
            raise MisuseError(f"optimizer is {shown(optimizer)}, expected one of embedrock.optim")
        self.rows = optimizer
        self.commit_every = commit_every
        stores = {id(p.table.store): p.table.store for p in optimizer._pending.values()}
        if len(stores) != 1:
            raise MisuseError(f"the optimizer's tables are in {len(stores)} stores, expected one")
        (self.store,) = stores.values()
        self._hooked: Any = None
        self._hook: Any = None
        self._batches = self.store.step or 0

    def pre_batch(self, **kwargs: Any) -> None:
        """Forgets rows of the batch before, and hooks onto the optimizer that is used now."""
        self.rows.zero_grad()
        if self._hooked is not self.optimizer:
            self._unhook()
            self._hooked = self.optimizer
            self._hook = self.optimizer.register_step_pre_hook(self._step)

    def post_batch(self, epoch: int, batch: Any, **kwargs: Any) -> None:
        """Counts."""
        self._batches += 1

    def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
        """Commits. It comes before a stopper looks, whose callback is behind those of callers."""
        if self.commit_every and epoch % self.commit_every == 0:
            self.commit()

    def post_train(self, losses: list[float], **kwargs: Any) -> None:
        """Lets go of the optimizer."""
        self._unhook()

    def commit(self) -> None:
        """Commits rows, dense part and both optimizers under the number of batches so far."""
        step = max(self._batches, self.store.step or 0)
        embedrock.save(self.store, self.model, [self.rows, self.optimizer], step)

    def _step(self, *_: Any) -> None:
        self.rows.step()

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hooked, self._hook = None, None


class LookaheadTrainingLoop(SLCWATrainingLoop):  # type: ignore[misc]
    """PyKEEN's sLCWA loop, which tells the store what the coming batches read.

    Args:
        lookahead: Of :class:`embedrock.LookaheadLoader`: ``depth``, ``announce``.
        kwargs: Of ``SLCWATrainingLoop``.

    Negatives are drawn earlier than without, from PyKEEN's generator: results differ as with
    another seed.
    """

    def __init__(self, *, lookahead: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Announces nothing before training begins."""
        super().__init__(**kwargs)
        self._lookahead = dict(lookahead or {})
        self.loader: Any = None
        """The loader of the training under way, or of the last one."""

    def _create_training_data_loader(self, *arguments: Any, **kwargs: Any) -> Any:
        loader = super()._create_training_data_loader(*arguments, **kwargs)
        modules = [one.rows for one in self.model.entity_representations if isinstance(one, Rows)]
        if not modules:
            return loader

        def keys_of(batch: Any) -> dict[Any, Any]:
            parts = [batch[name][..., [0, 2]].reshape(-1) for name in ("positives", "negatives")]
            return dict.fromkeys(modules, torch.cat(parts))

        self.loader = embedrock.LookaheadLoader(
            loader, self.model, keys_of=keys_of, **self._lookahead
        )
        return self.loader


class _ModelRows(EntityRows):
    """The rows of a model's entities, as its interaction takes them."""

    def __init__(self, representation: Representation) -> None:
        self._representation = representation
        fresh: Any = None
        module = representation
        if isinstance(representation, Rows):
            module = representation.rows
            fresh = None if representation._constraint is None else representation._constrained
        super().__init__(module, representation.max_id, fresh)

    def of(self, ids: npt.NDArray[Any]) -> Tensor:
        with torch.no_grad():
            place = torch.from_numpy(np.ascontiguousarray(ids, np.int64))
            found: Tensor = self._representation(place.to(self._representation.device))
        return found

    def _placed(self, values: npt.NDArray[np.float32]) -> Tensor:
        rows: Tensor = self._representation._shaped(super()._placed(values))
        if self._representation.normalizer is not None:
            rows = self._representation.normalizer(rows)
        return rows


@torch.no_grad()  # type: ignore[untyped-decorator]
def rank(
    model: ERModel,
    triples: Tensor,
    *,
    known: Iterable[Tensor] = (),
    sides: Sequence[str] = ("head", "tail"),
    block: int = _BLOCK,
    chunk: int = _CHUNK,
) -> Ranks:
    """Filtered ranks of triples by a model of PyKEEN, with one scan of its entities.

    The model may have any interaction of one representation per entity, its entities any
    representation. ``known`` are the triples that are true beside those that are ranked. The rest
    is as for :func:`embedrock.kge.rank`.

    Errors: ``UnsupportedError`` for a model with several representations per entity, or with
    inverse triples.
    """
    if not isinstance(model, ERModel):
        raise MisuseError(f"model is {shown(model)}, expected an ERModel of PyKEEN")
    if len(model.entity_representations) != 1 or getattr(model, "use_inverse_triples", False):
        raise UnsupportedError(
            "the model has several representations per entity, or inverse triples; rank it with "
            "PyKEEN's RankBasedEvaluator and slice_size="
        )
    was_training = model.training
    model.eval()
    try:
        rows = _ModelRows(model.entity_representations[0])
        asked = triples.cpu().numpy()
        filters = [asked, *(one.cpu().numpy() for one in known)]
        queries = {
            side: _queries(model, rows, side, asked, Known.of(side, asked, filters))
            for side in ("head", "tail")
            if side in sides
        }
        found: Ranks = rank_queries(queries, rows, block=block, chunk=chunk)
        return found
    finally:
        model.train(was_training)


def _queries(
    model: ERModel, rows: EntityRows, side: str, asked: npt.NDArray[Any], known: Known
) -> Queries:
    ends, answers = (asked[:, 2], asked[:, 0]) if side == "head" else (asked[:, 0], asked[:, 2])
    relations = torch.from_numpy(np.ascontiguousarray(asked[:, 1]))
    relations = relations.to(model.device)
    blocks = [rows.of(ends[at : at + _GATHERED]) for at in range(0, len(ends), _GATHERED)]
    parts = [torch.cat(blocks) if blocks else rows.of(ends)]
    parts += [one(relations) for one in model.relation_representations]
    interaction: Callable[..., Tensor] = model.interaction

    def score(given: tuple[Tensor, ...], entities: Tensor) -> Tensor:
        end, *of_relation = (part[:, None] for part in given)
        relation = of_relation[0] if len(of_relation) == 1 else tuple(of_relation)
        if side == "head":
            return interaction(h=entities[None], r=relation, t=end)
        return interaction(h=end, r=relation, t=entities[None])

    return Queries(tuple(parts), np.ascontiguousarray(answers, np.int64), score, known)


class RowsEvaluator(RankBasedEvaluator):  # type: ignore[misc]
    """PyKEEN's evaluator by ranks, which reads the entities once for all triples.

    Takes its place in ``pipeline(evaluator=...)`` and in early stoppers. ``batch_size`` and
    ``slice_size`` are not looked at: memory is that of the queries, and of a block of scores.
    """

    def evaluate(
        self,
        model: ERModel,
        mapped_triples: Tensor,
        *arguments: Any,
        additional_filter_triples: Any = None,
        targets: Any = ("head", "tail"),
        restrict_entities_to: Any = None,
        restrict_relations_to: Any = None,
        **kwargs: Any,
    ) -> RankBasedMetricResults:
        """All metrics of the evaluator.

        Errors: ``UnsupportedError`` for a restriction to some entities or relations, and for ranks
        that are not filtered.
        """
        if restrict_entities_to is not None or restrict_relations_to is not None:
            raise UnsupportedError(
                "restrict_entities_to and restrict_relations_to are not supported; select triples "
                "before, or use PyKEEN's RankBasedEvaluator"
            )
        if not self.filtered:
            raise UnsupportedError(
                "filtered=False is not supported; use embedrock.adapters.pykeen.rank, or PyKEEN's "
                "RankBasedEvaluator"
            )
        more = additional_filter_triples
        known = [] if more is None else [more] if isinstance(more, Tensor) else list(more)
        sides = [str(getattr(target, "value", target)) for target in targets]
        found = rank(model, mapped_triples, known=known, sides=sides)
        return RankBasedMetricResults.from_ranks(self.metrics, list(_packs(found)))


def _packs(found: Ranks) -> Iterable[RankPack]:
    """Ranks as PyKEEN's, in its types."""
    for kind in ("optimistic", "realistic", "pessimistic"):
        dtype = np.float32 if kind == "realistic" else np.int64
        for side in (*found.greater, "both"):
            sides = list(found.greater) if side == "both" else [side]
            candidates = np.concatenate([found.candidates[one] for one in sides])
            ranks = found.ranks(kind, side).astype(dtype)  # type: ignore[arg-type]
            yield RankPack(side, kind, ranks, candidates, None)
