"""The base of the optimizers of tables: parameter groups, and the step over all modules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from embedrock._arguments import choice, flag, function, iterated, number, shown
from embedrock._arrays import as_keys
from embedrock._rows import CollectiveStore, RowStore, RowTable
from embedrock._states import same_tables
from embedrock._verbs import NON_FINITE, NonFinite
from embedrock.clip import Clip, bounds, coefficient
from embedrock.errors import MismatchError, MisuseError, NonFiniteError, UnsupportedError
from embedrock.nn import small
from embedrock.nn.fetch import to_host
from embedrock.nn.module import rows_modules
from embedrock.nn.pending import PendingRows
from embedrock.optimizers import OptimizerSpec, factors, pair_of_betas, resolve
from embedrock.pipeline.grouped_read import GroupedRead
from embedrock.pipeline.run import Run
from embedrock.table import Table

__all__ = ["Modules", "RowOptimizer", "accumulator"]

Modules: TypeAlias = nn.Module | Iterable[nn.Module] | Iterable[dict[str, Any]]
_Batch: TypeAlias = tuple[PendingRows, Any, Tensor, dict[str, Any]]
"""Rows, keys, gradients and the parameter group; keys None: there is no gradient here, but the
store is one of several processes, all of which make the step."""


class RowOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """The base of all optimizers of tables.

    ``modules`` is a model (all modules of ``embedrock.nn`` within it are taken), several models, or
    a list of groups ``{"params": model or models, "lr": ...}``.

    ``step`` and ``zero_grad`` forget the rows that wait; a step without waiting rows does nothing.
    With an :class:`embedrock.distributed.Shard` it is a call that all ranks make, one without rows
    too, and counts where any of them has some.
    A step that ``GradScaler`` skips for infinities applies nothing and counts nothing.
    ``non_finite`` says what a NaN or infinite gradient does without a scaler: ``"refuse"`` raises
    and changes nothing, ``"skip"`` leaves those rows out, ``"apply"`` applies them.

    ``clip`` bounds gradients as the engine applies them (:class:`embedrock.Clip`); its norm is that
    of all tables of the optimizer, and of the parameters in ``dense``, whose gradients are scaled
    with it: that is ``torch.nn.utils.clip_grad_norm_`` over both. Step this optimizer first then,
    and unscale both before, where there is a ``GradScaler``.

    Errors: ``MismatchError`` when a table's rows carry another optimizer's state;
    ``NonFiniteError`` from ``step``, which then has changed no row and keeps the gradients;
    ``FullError``, ``IoError``.

    Blocking: ``step`` waits for the pages of rows that left memory since the forward, and for the
    CUDA device when gradients are there.

    Durability: with ``embedrock.save`` or ``Store.commit``.
    """

    kind: ClassVar[str]
    """The name of the engine's optimizer."""
    _own_hyper: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that only this optimizer has."""

    def __init__(
        self,
        modules: Modules,
        defaults: dict[str, Any],
        non_finite: NonFinite = "refuse",
        clip: Clip | None = None,
        dense: Iterable[Tensor] = (),
    ) -> None:
        """Takes the modules; subclasses bring their defaults."""
        self.non_finite = choice("non_finite", non_finite, NON_FINITE)
        bounds(clip, 0.0)
        self.clip = clip
        self.dense = _dense_parameters(dense)
        if self.dense and (clip is None or clip.norm is None):
            raise MisuseError("dense parameters are given without clip=Clip(norm=...)")
        self.norm: float | None = None
        """The norm that the last step scaled, before it did; None without such a bound."""
        self._pending: dict[int, PendingRows] = {}
        self._left: list[tuple[small.Weights, dict[str, Any]]] = []
        """Small tables of the models that torch trains, with the group of those in the store."""
        super().__init__(_groups(modules), defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Takes more modules: ``{"params": model or models, "lr": ...}``."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            given = shown(param_group)
            raise MisuseError(f'param_group is {given}, expected a dict with "params": modules')
        group = {**self.defaults, **param_group}
        self._validate(group)
        pendings = _pendings(param_group["params"])
        for pending in pendings:
            if id(pending.parameter) in self._pending:
                name = pending.table.name
                raise MisuseError(
                    f"table {name!r} is in more than one parameter group; name its module in one"
                )
            self._check_table(pending.table, group)
        names = [pending.table.name for pending in pendings]
        super().add_param_group(
            {**param_group, "params": [pending.parameter for pending in pendings], "tables": names}
        )
        left = small.left(param_group["params"])
        if left:
            self._left.append((left, self.param_groups[-1]))
        for pending in pendings:
            pending.has_optimizer = True
            self._pending[id(pending.parameter)] = pending

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the waiting gradients, one optimizer step for each distinct key, and drops them.

        ``closure`` evaluates the model again and returns the loss, which is returned.
        """
        loss = None
        function("closure", closure, "no arguments that returns the loss")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._left:
            left, self._left = self._left, []
            small.note_tables(self, left)
        waiting: dict[int, tuple[RowStore, list[_Batch]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                pending = self._pending[id(parameter)]
                store = pending.table.store
                gradient: tuple[Any, Tensor] | None = pending.gradient()
                if gradient is None and store._collective:
                    gradient = (None, parameter.new_empty(0, pending.table.embedding_dim))
                if gradient is None:
                    continue
                _, batches = waiting.setdefault(id(store), (store, []))
                batches.append((pending, *gradient, group))
        with _refusing(store for store, _ in waiting.values()):
            stores = [(*each, self._parts(each[1])) for each in waiting.values()]
        self._apply(stores)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the rows that wait and their gradients."""
        for pending in self._pending.values():
            pending.drop()

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters and step counts, with the names that the tables have now."""
        self._name_tables()
        state: dict[str, Any] = super().state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores hyperparameters and step counts. Tables may have been renamed since.

        Errors: ``MismatchError`` when they were saved for other tables.
        """
        groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
        if not isinstance(groups, list) or not all(isinstance(one, Mapping) for one in groups):
            raise MisuseError(
                f"state_dict is {shown(state_dict)}, expected what state_dict() has returned"
            )
        self._name_tables()
        for group, saved in zip(self.param_groups, groups, strict=False):
            if not same_tables(group, saved):
                raise MismatchError(
                    f"the saved state is of tables {saved.get('tables')}, this optimizer has "
                    f"{group['tables']}; make it over the same modules in the same order"
                )
            self._validate({**self.defaults, **saved})
        try:
            super().load_state_dict(state_dict)
        except (KeyError, TypeError, ValueError) as error:
            raise MismatchError(f"the saved state does not fit this optimizer: {error}") from error
        self._name_tables()

    def __getstate__(self) -> Any:
        """Refuses to be copied or pickled."""
        raise MisuseError(
            f"{type(self).__name__} cannot be copied or pickled: its rows live in the store; make "
            f"it anew and use state_dict() and load_state_dict()"
        )

    def _name_tables(self) -> None:
        """Brings the names of tables in the groups up to date, and notes those that they were
        created with where these are others."""
        for group in self.param_groups:
            tables = [self._pending[id(parameter)].table for parameter in group["params"]]
            group["tables"] = names = [table.name for table in tables]
            first = [getattr(table, "_first_name", table.name) for table in tables]
            group.pop("first_names", None)
            if first != names:
                group["first_names"] = first

    def _parts(self, batches: Sequence[_Batch]) -> list[Any]:
        """The batches of one store as the engine takes them."""
        gradients = [
            gradient.neg() if group["maximize"] else gradient for _, _, gradient, group in batches
        ]
        parts = []
        for (pending, keys, _, group), rows in zip(batches, to_host(gradients), strict=True):
            given = self._factors(pending.table, group, self._steps(pending) + 1)
            if keys is None:
                parts.append(pending.table.store._absent_part(pending.table, given))
                continue
            parts.append(pending.table._update_part(as_keys(keys), rows, given))
        return parts

    def _apply(self, stores: Sequence[tuple[RowStore, list[_Batch], list[Any]]]) -> None:
        """Makes the step in every store, within the bounds."""
        norms, dense = [0.0] * len(stores), _Dense([])
        if self.clip is not None and self.clip.norm is not None:
            with _refusing(store for store, *_ in stores):
                dense = _Dense(p.grad for p in self.dense if p.grad is not None)
                self.norm = dense.norm
                accepted = self._accepts(dense.norm)
            if not accepted:
                for _, batches, _ in stores:
                    self._drop(batches)
                return
            if len(stores) > 1:
                within = bounds(self.clip, 0.0)
                norms = [
                    store._gradient_norm(parts, self.non_finite, within)
                    for store, _, parts in stores
                ]
        for i, (store, batches, parts) in enumerate(stores):
            others = math.hypot(dense.norm, *norms[:i], *norms[i + 1 :])
            within = bounds(self.clip, others)
            settled: set[int] = set()
            try:
                self.norm = self._change(store, batches, parts, within, settled)
                if not store._collective:
                    settled.update(range(len(batches)))
            finally:
                self._settle([batches[place] for place in sorted(settled)])
        if self.norm is not None and self.clip is not None and self.clip.norm is not None:
            dense.scale(coefficient(self.clip.norm, self.norm))

    def _change(
        self,
        store: RowStore,
        batches: Sequence[_Batch],
        parts: list[Any],
        within: Any,
        settled: set[int],
    ) -> float | None:
        """Makes the step in one store, or hands it to the pipeline that works on the store; returns
        the norm that it scaled, for which the step has to be waited for."""
        run, together = store._listeners.find(Run), store._listeners.find(GroupedRead)
        if together is not None and not store._collective:
            together.changed([(pending.table.name, keys) for pending, keys, _, _ in batches])
        if run is None:
            return store._update(parts, self.non_finite, within, settled.add)
        changed = [(pending.table, keys) for pending, keys, _, _ in batches]
        step = run.step(parts, self.non_finite, within, changed)
        if self.clip is None or self.clip.norm is None:
            return None
        run.settle()
        return step.norm

    def _accepts(self, norm: float) -> bool:
        """Whether rows can be scaled with dense gradients of this norm; False leaves them out."""
        if math.isfinite(norm) or self.non_finite == "apply":
            return True
        if self.non_finite == "refuse":
            raise NonFiniteError(f"the norm of the dense gradients is {norm}; no row has changed")
        return False

    def _settle(self, batches: Sequence[_Batch]) -> None:
        """Counts the step on these tables, and forgets its gradients."""
        for pending, _, _, _ in batches:
            self.state[pending.parameter]["step"] = self._steps(pending) + 1
        self._drop([batch for batch in batches if batch[1] is not None])

    @staticmethod
    def _drop(batches: Sequence[_Batch]) -> None:
        for pending, _, _, _ in batches:
            pending.drop()

    def _steps(self, pending: PendingRows) -> int:
        """Number of steps that this optimizer has made on a table."""
        return int(self.state[pending.parameter].get("step", 0))

    def _factors(self, table: RowTable, group: dict[str, Any], step: int) -> dict[str, Any]:
        """By the engine's names, for the ``step``-th step of this optimizer on a table."""
        return factors(
            table.optimizer["kind"],
            float(group["lr"]),
            float(group.get("eps", 0.0)),
            group.get("betas", (0.9, 0.999)),
            float(group.get("weight_decay", 0.0)),
            {name: group[name] for name in self._own_hyper},
        )

    def _check_table(self, table: RowTable, group: dict[str, Any]) -> None:
        """Refuses a table whose rows carry the state of another optimizer."""
        store = table.store
        if self.clip is not None and store._elsewhere is not None and not store._collective:
            raise UnsupportedError(
                f"clip is given, but table {table.name!r} is at a server, whose updates do not "
                f"bound gradients; call torch.nn.utils.clip_grad_norm_(model.parameters(), ...) or "
                f"clip_grad_value_ before step()"
            )
        wanted = self._fixed()
        stored: dict[str, Any] = {**table.optimizer}
        same = all(stored[name] == value for name, value in wanted.items() if value is not None)
        if same and stored["kind"] in self._kinds():
            if isinstance(table, Table):
                table.store._name_optimizer(table._handle)
            return
        if isinstance(table, Table):
            given = {name: value for name, value in wanted.items() if value is not None}
            chosen = resolve(cast("OptimizerSpec", {"kind": self.kind, **given}))
            if table.store._take_optimizer(table, chosen):
                return
        name = type(self).__name__
        if stored["kind"] in self._kinds():
            differ = next(n for n, v in wanted.items() if v is not None and stored[n] != v)
            raise MismatchError(
                f"table {table.name!r} was created with {differ}={stored[differ]!r}, "
                f"embedrock.optim.{name} has {wanted[differ]!r}; pass what is stored, or create "
                f"the table anew with the other"
            )
        fitting = _CLASSES.get(stored["kind"])
        way_out = f"use embedrock.optim.{fitting}, or" if fitting else "to train it,"
        raise MismatchError(
            f"table {table.name!r} was created with optimizer={stored['kind']!r}, "
            f"embedrock.optim.{name} needs {self.kind!r}; {way_out} create the table with "
            f"optimizer={self.kind!r}, an argument of Embedding, convert and Store.table: rows "
            f"that are committed, or of a table whose optimizer was named, keep their own"
        )

    def _kinds(self) -> tuple[str, ...]:
        """The engine's optimizers whose rows this one can train."""
        return (self.kind,)

    def _fixed(self) -> dict[str, Any]:
        """The arguments with which the table must have been created; None: any."""
        return {}

    @staticmethod
    def _validate(group: dict[str, Any]) -> None:
        """Refuses hyperparameters that no step could take."""
        for name in ("lr", "eps", "weight_decay", "lr_decay", "momentum", "l1", "l2", "beta"):
            value = number(name, group.get(name, 0.0))
            if not 0.0 <= value < math.inf:
                raise MisuseError(f"{name} is {value}, expected a finite number of 0 or more")
        for name in ("maximize", "nesterov"):
            flag(name, group.get(name, False))
        for beta in pair_of_betas(group.get("betas", (0.0, 0.0))):
            if not 0.0 <= beta < 1.0:
                raise MisuseError(f"betas are {group['betas']}, expected numbers from 0 to below 1")


def _refusing(stores: Iterable[RowStore]) -> AbstractContextManager[None]:
    """Reports errors raised before a step to the processes that wait for it, by the first store
    that several processes share: all of them step that one first."""
    first = next((store for store in stores if store._collective), None)
    return nullcontext() if first is None else cast(CollectiveStore, first)._refusing("update")


def accumulator(given: Any) -> float | None:
    """The initial sums of squares of a table; None: as stored."""
    return None if given is None else number("initial_accumulator_value", given)


def _dense_parameters(dense: Any) -> list[Tensor]:
    """The parameters that are given as dense ones: those whose ``grad`` a backward fills."""
    if isinstance(dense, Tensor):
        # Iterating over it would give views of its rows, which have no gradient.
        raise MisuseError(f"dense is {shown(dense)}, expected a list of parameters: [parameter]")
    parameters = iterated("dense", dense, "a list of parameters")
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise MisuseError(f"dense has {shown(parameter)}, expected parameters")
        if not parameter.is_leaf:
            raise MisuseError(
                f"dense has a tensor of shape {tuple(parameter.shape)} that was computed from "
                f"others, which have the gradient; expected parameters"
            )
    return parameters


class _Dense:
    """Gradients of dense parameters that count with those of rows."""

    def __init__(self, gradients: Iterable[Tensor]) -> None:
        self.gradients = list(gradients)
        norms = [torch.linalg.vector_norm(gradient).double() for gradient in self.gradients]
        first = norms[0].device if norms else None
        together = [norm.to(first) for norm in norms]
        self.norm = torch.linalg.vector_norm(torch.stack(together)).item() if norms else 0.0

    def scale(self, factor: float) -> None:
        for gradient in self.gradients:
            gradient.mul_(factor)


_CLASSES = {
    "sgd": "SGD",
    "momentum": "SGD",
    "adagrad": "Adagrad",
    "rowwise_adagrad": "RowWiseAdagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "rowwise_adam": "RowWiseAdam",
    "ftrl": "FTRL",
}


def _groups(modules: Modules) -> list[dict[str, Any]]:
    """The argument of a constructor as groups, not yet resolved to tables."""
    if isinstance(modules, nn.Module):
        return [{"params": modules}]
    if isinstance(modules, (Tensor, str, bytes)):
        raise MisuseError(
            f"modules is {type(modules).__name__}, expected a model or modules of embedrock.nn"
        )
    given = iterated("modules", modules, "a model or modules of embedrock.nn")
    if given and all(isinstance(group, dict) for group in given):
        return [dict(group) for group in given]
    return [{"params": given}]


def _pendings(modules: Any) -> list[PendingRows]:
    """The pending rows of every table within the modules, each once."""
    models = [modules]
    if not isinstance(modules, nn.Module):
        models = iterated("modules", modules, "a model or modules of embedrock.nn")
    for model in models:
        if not isinstance(model, nn.Module):
            raise MisuseError(
                f"modules hold {shown(model)}, expected a model or modules of "
                f"embedrock.nn; parameters go to a torch optimizer "
                f"(embedrock.nn.dense_parameters(model))"
            )
    found: dict[int, PendingRows] = {}
    for model in models:
        for module in rows_modules(model):
            found.update({id(pending): pending for pending in module._pending.values()})
    if not found:
        raise MisuseError("modules hold no embedrock.nn module, expected at least one")
    return list(found.values())
