"""The shared part of modules over tables: device, temporary parameters, and refusals.

Owns the module's side of the pending rows. It never fetches rows. Invariants: the rows live in the
store, so a module's ``state_dict`` identifies them and contains none; a module can be copied or
pickled only by reference; its own state can be made again from the store and the constructor's
arguments.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from embedrock import initializers, optimizers
from embedrock._arguments import shown, text
from embedrock._arrays import crossing_dtype, dtype_name
from embedrock._references import is_by_reference
from embedrock._rows import RowStore, RowTable
from embedrock.errors import MisuseError, UnsupportedError
from embedrock.nn import state_dict_guard
from embedrock.nn.pending import PendingRows, pending_rows
from embedrock.nn.references import reduced

__all__ = ["RowsModule", "TableArguments", "dense_parameters", "output_dtype", "rows_modules"]

Self = TypeVar("Self", bound="RowsModule")


@dataclass(frozen=True, kw_only=True)
class TableArguments:
    """A module's description of its table, as ``Store.table`` takes it."""

    name: str
    embedding_dim: int
    num_embeddings: int | None
    expected_rows: int | None
    optimizer: optimizers.OptimizerLike | None
    initializer: initializers.InitializerLike | None
    dtype: Any
    rounding: Literal["stochastic", "nearest"] | None
    storage: Literal["log", "lsm", "pmem"] | None
    capacity: int | None


class RowsModule(nn.Module):  # type: ignore[misc]
    """The base of ``Embedding``, ``EmbeddingBag`` and ``EmbeddingBagCollection``.

    **Parameters.** ``parameters()`` lists one tensor per table from a forward under gradients to
    the optimizer's ``step`` or ``zero_grad``: the rows ``(U, embedding_dim)`` float32 of the U
    distinct keys that were read, and after ``backward`` their gradient. At other times it lists
    nothing. ``clip_grad_norm_(model.parameters(), ...)`` and ``GradScaler`` work as with torch's
    modules; a list of parameters that was made before the forward has no rows in it.
    ``torch.autograd.grad(loss, list(model.parameters()))`` gives the gradients of rows out, as
    methods that weigh several losses ask for; set as ``grad`` of the parameter they train its rows.

    **Modes.** As in torch, gradients decide and ``train()`` and ``eval()`` change nothing here: a
    forward exposes rows when gradients are enabled and the module is not frozen. Under
    ``torch.no_grad()`` and ``torch.inference_mode()`` the output requires no gradient and nothing
    is kept. A forward under gradients whose output nobody uses keeps a copy of its rows until the
    next one, and one whose output is kept as long as the output is.

    **Freezing.** ``requires_grad_(False)`` on the module, or on any model that holds it, freezes
    its tables for forwards through it until ``requires_grad_(True)``, whether rows wait or not.
    Setting ``parameter.requires_grad = False`` in a loop over ``parameters()`` does not freeze
    them: tables are listed there only while their rows wait, so it ends with these rows, and a
    warning says so.

    **State dicts.** ``state_dict()`` has no rows: it says which they were, as a tensor under
    ``_extra_state``. ``load_state_dict`` of one that was saved beside other rows is refused with
    ``MismatchError``, ``strict`` or not: dense parameters and rows would be of different steps.
    Of rows that ranks share updates alone are compared, and any rank's state dict is for all. Rows
    at a server are not looked at, which others change meanwhile. ``store.go_back(step)``
    brings the rows of a commit back; :func:`embedrock.nn.loading_dense_only` loads the dense part
    alone.

    **Device and dtype.** Ids may be on any device; outputs are on the module's, which ``device=``
    and ``.to(device)`` set. Rows are float32 here, whatever the table stores, and so are their
    gradients; outputs have the dtype that the module was made with. Changing it afterwards
    (``.half()``) is refused with ``UnsupportedError``.

    **Graphs.** ``torch.compile`` leaves lookups out of its graphs. ``torch.jit``, ``torch.export``
    and ONNX are refused with ``UnsupportedError``.

    **Servers.** The store may be one of :func:`embedrock.connect`: forwards read the rows of the
    server, and several programs may train one set of tables.

    **Ranks.** The store may be an :class:`embedrock.distributed.Shard`, whose rows are divided
    among the ranks of ``torch.distributed``; a forward is then a call that all ranks make, one
    without ids too. ``DistributedDataParallel`` may be round the model or its dense part.

    **Processes.** One process writes to a store. Without a shard ``DistributedDataParallel``, and
    always ``DataParallel``, is refused with ``UnsupportedError``, ``copy.deepcopy`` and pickling
    with ``MisuseError``; within :func:`embedrock.nn.by_reference` modules pickle as a reference to
    their table.
    """

    def __init__(self, store: RowStore, device: torch.device | str | int | None) -> None:
        """Remembers the store and where outputs go."""
        super().__init__()
        if not isinstance(store, RowStore):
            raise MisuseError(
                f"store is {shown(store)}, expected a store from embedrock.open or "
                f"embedrock.connect, or an embedrock.distributed.Shard"
            )
        self.store = store
        self._place: Tensor
        self.register_buffer("_place", _empty_on(device), persistent=False)
        self._pending: dict[str, PendingRows] = {}
        self._frozen = False

    @property
    def device(self) -> torch.device:
        """The device of outputs."""
        return self._place.device

    @property
    def tables(self) -> list[RowTable]:
        """The tables that the module reads and trains."""
        return [pending.table for pending in self._pending.values()]

    def __deepcopy__(self, memo: object) -> RowsModule:
        """Itself by reference, or refused: a copy would train the same rows."""
        if is_by_reference():
            return self
        raise MisuseError(
            f"{self._named()} cannot be copied: {_MAKE_ANEW}; to average the dense parameters "
            f"(AveragedModel, EMA, SWA), copy within embedrock.nn.by_reference(), where copies "
            f"share the rows"
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """By reference, or refused: the rows are in the store."""
        if not is_by_reference():
            raise MisuseError(
                f"{self._named()} cannot be pickled: {_MAKE_ANEW}; embedrock.nn.by_reference() "
                f"pickles where the rows are"
            )
        attributes = {name: value for name, value in vars(self).items() if name not in _MADE}
        return reduced(self, self._arguments(), attributes, self._named())

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments, apart from the store, to make the module again."""
        raise UnsupportedError(f"{self._named()} says nothing of how it is made again")

    def __getattr__(self, name: str) -> Any:
        """Explains what to use instead of ``weight``."""
        if name == "weight":
            raise AttributeError(
                f"{self._named()} has no weight in memory: read rows with .table.get(keys), write "
                f"them with .table.put(keys, values), rank them with topk of an Embedding, or use "
                f"embedrock.weights (docs/models.md has what takes the place of a weight)"
            )
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses a ``weight``, which no forward would look at."""
        if name == "weight":
            raise AttributeError(
                f"{self._named()} cannot take a weight: its rows live in the store; modules of one "
                f"name share their rows, .table.put(keys, values) writes some, and "
                f"embedrock.weights.load(module.table, source) all"
            )
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> NoReturn:
        """Refused: ``torch.jit.script`` calls it."""
        raise self._no_graph("torch.jit.script")

    def _refuse_graph(self) -> None:
        """Refuses a forward that is recorded: its graph would hold the rows of these ids."""
        if torch.jit.is_tracing():
            raise self._no_graph("torch.jit.trace, or ONNX's export,")
        if _is_exporting():
            raise self._no_graph("torch.export")

    def _no_graph(self, tool: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._named()} cannot be part of a graph that {tool} makes: its rows live in the "
            f"store; export the dense part with rows as its input and look them up beside it, or "
            f"put embedrock.weights.to_torch(module.table) in this module's place (docs/models.md)"
        )

    def _add_table(self, slot: str, wanted: TableArguments) -> RowTable:
        """Opens or creates a table and keeps room for its pending rows under the name ``slot``."""
        initializer = wanted.initializer
        if initializer is None and not self.store._has_table(text("name", wanted.name)):
            initializer = initializers.normal()
        table = self.store.table(
            wanted.name,
            wanted.embedding_dim,
            wanted.num_embeddings,
            expected_rows=wanted.expected_rows,
            optimizer=wanted.optimizer,
            initializer=initializer,
            dtype=wanted.dtype,
            rounding=wanted.rounding,
            storage=wanted.storage,
            capacity=wanted.capacity,
        )
        self._pending[slot] = pending_rows(table)
        self._parameters[slot] = None
        return self._pending[slot].table

    def _freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        for pending in self._pending.values():
            pending.follow_modules()

    def _records(self) -> bool:
        """Whether a forward made now exposes its rows to an optimizer."""
        self._refuse_graph()
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled() or self._frozen:
            return False
        self._refuse_data_parallel()
        return True

    def _refuse_data_parallel(self) -> None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        size = distributed.get_world_size()
        alone = size == 1 or self.store._collective
        if not alone and nn.parallel.DistributedDataParallel._active_ddp_module is not None:
            raise UnsupportedError(
                f"{self._named()} runs inside DistributedDataParallel with {size} processes, which "
                f"would leave each one with gradients of its own; give its module an "
                f"embedrock.distributed.Shard as its store, or train with one process"
            )

    def _replicate_for_data_parallel(self) -> NoReturn:
        raise UnsupportedError(
            f"{self._named()} runs inside DataParallel, whose replicas would train copies of rows; "
            f"wrap only the dense part of the model"
        )

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        dtype = self._place.dtype
        if dtype != torch.float32:
            self._place = self._place.float()
            raise UnsupportedError(
                f"{self._named()} was to become {dtype}, but the dtype of rows is fixed with their "
                f"table; convert the dense part only, make the module with output_dtype=, or run "
                f"the model under torch.autocast"
            )
        return self

    def get_extra_state(self) -> Tensor:
        """Identity of the module's present rows, as an int64 tensor: the whole content of its
        ``state_dict``.

        Errors: ``ClosedError``, ``ForkedError``.
        """
        return state_dict_guard.rows_now(self.store, self.tables)

    def set_extra_state(self, state: Any) -> None:
        """Checks that the rows are those of a ``state_dict``.

        Errors: ``MismatchError`` where they are not, with the way to have them, unless within
        :func:`embedrock.nn.loading_dense_only`.
        """
        state_dict_guard.check(state, self.store, self.tables, self._named())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """No rows and no optimizer state, which are in the store: only which they are."""
        destination[prefix + state_dict_guard.KEY] = self.get_extra_state()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Refuses rows, as torch refuses tensors of another size, and a state dict that was saved
        beside other rows, strict or not."""
        for key in state_dict:
            if not key.startswith(prefix):
                continue
            if key == prefix + state_dict_guard.KEY:
                self.set_extra_state(state_dict[key])
                continue
            if key.rpartition(".")[2] == "weight":
                error_msgs.append(
                    f"{key!r} holds rows, which live in the store: import them with "
                    f"embedrock.weights.load(table, state_dict[{key!r}]) and leave them out here"
                )
            else:
                unexpected_keys.append(key)

    def _named(self) -> str:
        names = ", ".join(repr(table.name) for table in self.tables)
        return f"{type(self).__name__} of table {names}"


_MADE = {"store", "table", "_lookups", "_pending", "_parameters", "_buffers", "_modules"}
"""Attributes that a constructor makes from the store."""

_MAKE_ANEW = (
    "its rows live in the store; make the module anew from the store, and keep the model's "
    "progress with embedrock.save and embedrock.resume"
)


# Older versions of PyTorch do not say.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def output_dtype(table: RowTable, asked: torch.dtype | None) -> torch.dtype:
    """The dtype of a module's outputs: what is asked for, or that of the table's rows.

    Errors: ``MisuseError`` for anything but float32, float16 and bfloat16.
    """
    wanted = crossing_dtype(table.dtype) if asked is None else asked
    dtype: torch.dtype = getattr(torch, dtype_name(wanted, "output_dtype"))
    return dtype


def _empty_on(device: Any) -> Tensor:
    try:
        return torch.empty(0, device=device, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise MisuseError(
            f"device is {shown(device)}, expected a device that PyTorch has here: {error}"
        ) from error


def open_padding_row(table: RowTable, padding_idx: int | None) -> int | None:
    """The padding key as a key of the table, its row zero from the start as torch's is.

    Errors: ``MisuseError`` when it lies outside a dense table.
    """
    if padding_idx is None:
        return None
    size = table.num_embeddings
    try:
        key = operator.index(padding_idx)
    except Exception:  # of the object's own, too
        key = None
    fits = key is not None and not isinstance(padding_idx, bool)
    if key is None or not fits or not -(2**63) <= key < 2**64:
        raise MisuseError(
            f"padding_idx is {shown(padding_idx)}, expected an id of 64 bits, signed or not"
        )
    if size is not None:
        if not -size <= key < size:
            raise MisuseError(
                f"padding_idx is {key}, expected {-size} to {size - 1}: table {table.name!r} has "
                f"num_embeddings={size}"
            )
        key %= size
    if key not in table:
        table.put([key], np.zeros((1, table.embedding_dim), np.float32))
    return key


def rows_modules(model: nn.Module) -> Iterator[RowsModule]:
    """The modules within a model whose rows live in a store, in the order of ``modules()``."""
    if not isinstance(model, nn.Module):
        raise MisuseError(f"model is {shown(model)}, expected a torch.nn.Module")
    return (module for module in model.modules() if isinstance(module, RowsModule))


_requires_grad_of_torch = nn.Module.requires_grad_


@functools.wraps(_requires_grad_of_torch)
def _requires_grad_(self: nn.Module, requires_grad: bool = True) -> nn.Module:
    _requires_grad_of_torch(self, requires_grad)
    for module in rows_modules(self):
        module._freeze(not requires_grad)
    return self


# A model freezes what its parameters() lists and tells its parts nothing. Tables are not listed
# while no rows wait, so that torch's optimizers do not take them; they have to be told here.
nn.Module.requires_grad_ = _requires_grad_


def dense_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a model that are not rows of tables: what a torch optimizer takes.

    >>> import torch
    >>> model = torch.nn.Sequential(
    ...     embedrock.nn.EmbeddingBag(None, 4, store=store, name="words"), torch.nn.Linear(4, 1)
    ... )
    >>> [tuple(parameter.shape) for parameter in embedrock.nn.dense_parameters(model)]
    [(1, 4), (1,)]
    """
    rows = {
        id(pending.parameter)
        for module in rows_modules(model)
        for pending in module._pending.values()
    }
    return (parameter for parameter in model.parameters() if id(parameter) not in rows)
