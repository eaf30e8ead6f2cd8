"""Rows that forwards of a table have exposed, and their merged gradient.

Owns, for one table, the tensor that ``parameters()``, ``clip_grad_norm_`` and ``GradScaler`` see:
the rows of all distinct keys that forwards have read since the last optimizer step, and the sum of
their gradients. It never calls the engine. Invariants:

* All modules on one table share one :class:`PendingRows`, and so one parameter. Each key has one
  row in it, however many forwards read it, so a norm over ``parameters()`` is the norm of the
  merged gradient, exactly as for a table held in memory.
* Gradients of a key from several backward passes are added in float32 in the order in which
  autograd delivers them, as in ``.grad`` of a ``torch.nn.Embedding``.
* The parameter object stays the same for the life of the modules; its contents and size change.
  Modules list it only while it holds rows, so ``torch.optim.Adam(model.parameters())`` before the
  first forward takes the dense parameters alone.
* It requires a gradient as long as one of the modules that list it is not frozen. A value set by
  hand ends with the rows.
* Threads may run forwards of one table at once, as serving programs do, even with gradients
  enabled: shared state changes under a lock.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from embedrock._distinct import distinct
from embedrock._rows import WAITING
from embedrock._warnings import warn
from embedrock.errors import MisuseError, UnsupportedError
from embedrock.nn import stepping
from embedrock.table import Table

if TYPE_CHECKING:
    from embedrock._rows import RowTable
    from embedrock.nn.module import RowsModule

__all__ = ["PendingRows", "Visit", "asks_for", "pending_rows"]

Keys = npt.NDArray[np.int64]
P = ParamSpec("P")
R = TypeVar("R")


def _locked(
    method: Callable[Concatenate[PendingRows, P], R],
) -> Callable[Concatenate[PendingRows, P], R]:
    """The method with the lock of its rows held."""

    def called(self: PendingRows, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    functools.update_wrapper(called, method)
    return called


class Visit:
    """One forward's use of a table, from the forward until autograd frees its graph."""

    __slots__ = (
        "__weakref__",
        "done",
        "generation",
        "keys",
        "places",
        "returns",
        "rows",
        "shown",
        "skip",
    )

    def __init__(self, keys: Keys, rows: Tensor, skip: int | None, shown: tuple[RowsModule, str]):
        """Notes ``keys (U,)`` and ``rows (U, D)``; ``skip`` is the place of the padding row."""
        self.keys = keys
        self.rows = rows
        self.skip = skip
        self.shown = shown
        self.places: Keys | None = None
        """The places of the keys in the pending rows; None: they are its first U, in order."""
        self.generation = -1
        """Of which state of the pending rows ``places`` speaks."""
        self.returns = 0
        """Number of times the store had gone back when the rows were read."""
        self.done = False
        """Whether the gradient has arrived."""


class PendingRows:
    """The rows of one table that wait for an optimizer step."""

    def __init__(self, table: RowTable) -> None:
        """Starts with no rows."""
        self.table = table
        self._lock = threading.RLock()
        """Guards all that follows; nothing else is locked or waited for while it is held."""
        nothing = torch.empty(0, table.embedding_dim, dtype=torch.float32, device="cpu")
        self.parameter = nn.Parameter(nothing)
        setattr(self.parameter, WAITING, table.name)
        self.has_optimizer = False
        """Whether an optimizer of embedrock.optim was ever made over the table."""
        self._unclaimed = False
        self._keys: Keys = np.empty(0, np.int64)
        self._received: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._visits: list[weakref.ref[Visit]] = []
        self._shown: weakref.WeakKeyDictionary[RowsModule, str] = weakref.WeakKeyDictionary()
        self._generation = 0
        self._returns = table.store._returns

    def expose(self, visit: Visit) -> Tensor:
        """The rows ``(U, D)`` of a visit that was added, as a tensor whose gradient comes here."""
        exposed: Tensor = _Expose.apply(self.parameter, visit.rows, self, visit)
        return exposed

    @_locked
    def add(self, visit: Visit) -> None:
        """Takes the visit's rows among those that wait; their gradient goes to :meth:`receive`."""
        self._forget_gone()
        visit.returns = self._returns
        self._forget_abandoned()
        if self._unclaimed and not self.has_optimizer:
            self.has_optimizer = True  # said once
            warn(
                f"gradients of table {self.table.name!r} have arrived, but no optimizer of "
                f"embedrock.optim holds its module: nothing trains its rows; make one over the "
                f"model, or call requires_grad_(False) on the module"
            )
        self._place(visit)

    @_locked
    def receive(self, visit: Visit, gradient: Tensor) -> None:
        """Adds the gradient ``(U, D)`` of a visit's rows.

        Errors: ``MisuseError`` for rows that were read before the store went back.
        """
        self._refuse_gone(visit)
        if self.parameter.grad is None:
            self._received[:] = False
        if visit.generation != self._generation:
            self._place(visit)
        visit.done = self._unclaimed = True
        places, count = visit.places, len(self._keys)
        self._note_received(visit)
        merged = self.parameter.grad
        if places is None and len(visit.keys) == count:
            self.parameter.grad = gradient if merged is None else merged.add_(gradient)
            return
        if merged is None:
            merged = gradient.new_zeros(count, gradient.shape[1])
        where = torch.from_numpy(np.arange(len(visit.keys)) if places is None else places)
        merged.index_add_(0, where.to(gradient.device), gradient)
        self.parameter.grad = merged

    @_locked
    def give(self, visit: Visit, gradient: Tensor, node: Any) -> Tensor:
        """The gradient of a visit's rows ``(U, D)`` as that of the whole parameter, for who asked
        for it with ``torch.autograd.grad``: it trains nothing, unless it becomes the parameter's.

        Errors: ``MisuseError`` as for :meth:`receive`; ``UnsupportedError`` for a graph of it, and
        where a later forward has added rows to the parameter.
        """
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"torch.autograd.grad(create_graph=True) over the rows of table "
                f"{self.table.name!r}: there is no second gradient through rows; ask for that of "
                f"the module's output, whose gradient has a graph"
            )
        self._refuse_gone(visit)
        if visit.generation != self._generation:
            self._place(visit)
        shape = (len(self._keys), gradient.shape[1])
        known = getattr(node, "_input_metadata", None)
        if known and tuple(known[0].shape) != shape:
            raise UnsupportedError(
                f"torch.autograd.grad over the rows of table {self.table.name!r} after several "
                f"forwards, of which a later one has added rows; ask before the next forward, or "
                f"call backward for each loss and take the parameter's grad"
            )
        places = visit.places
        self._note_received(visit)
        if places is None and len(visit.keys) == shape[0]:
            return gradient
        where = torch.from_numpy(np.arange(len(visit.keys)) if places is None else places)
        whole = gradient.new_zeros(shape)
        return whole.index_add_(0, where.to(gradient.device), gradient)

    @_locked
    def gradient(self) -> tuple[Keys, Tensor] | None:
        """Distinct keys ``(U,)`` and their merged gradient ``(U, D)``; None when nothing waits.

        Keys that were only read, and padding rows, are left out.
        """
        self._forget_gone()
        gradient = self.parameter.grad
        if gradient is None:
            return None
        taken = self._received
        if taken.all():
            return self._keys, gradient
        taken = taken.copy()
        left_out = np.flatnonzero(~taken)
        rows = gradient[torch.from_numpy(left_out).to(gradient.device)]
        taken[left_out] = (rows != 0).any(dim=1).cpu().numpy()  # a penalty on the parameter itself
        where = np.flatnonzero(taken)
        return self._keys[where], gradient[torch.from_numpy(where).to(gradient.device)]

    @_locked
    def follow_modules(self) -> None:
        """Lets the parameter require a gradient unless all modules that list it are frozen."""
        frozen = [module._frozen for module in self._shown]
        self.parameter.requires_grad_(not frozen or not all(frozen))

    @_locked
    def drop(self) -> None:
        """Forgets rows and gradients; a backward that is still to come exposes its rows anew."""
        if self._is_frozen_by_hand():
            warn(
                f"requires_grad=False was set on rows of table {self.table.name!r} that waited for "
                f"an optimizer step, and ends with them; to freeze the table, call "
                f"requires_grad_(False) on its module or on a model that holds it"
            )
        self._reset(self._keys[:0], None, None)
        self._visits.clear()
        for module, name in self._shown.items():
            module._parameters[name] = None
        self._shown.clear()
        self.follow_modules()

    def _note_received(self, visit: Visit) -> None:
        """Notes that a gradient of the visit's rows is there, but of its padding row."""
        places = visit.places
        self._received[slice(len(visit.keys)) if places is None else places] = True
        if visit.skip is not None:
            self._received[visit.skip if places is None else places[visit.skip]] = False

    def _refuse_gone(self, visit: Visit) -> None:
        """Refuses the gradient of rows that were read before the store went back."""
        self._forget_gone()
        if visit.returns != self._returns:
            raise MisuseError(
                f"backward of a forward on table {self.table.name!r} that was made before the "
                f"store went back to an earlier commit; run the forward again"
            )

    def _forget_gone(self) -> None:
        """Drops rows that were read before the store went back, and their gradients."""
        if self._returns != self.table.store._returns:
            self._returns = self.table.store._returns
            self.drop()

    def _is_frozen_by_hand(self) -> bool:
        """Whether it requires no gradient though a module that lists it is not frozen."""
        return not self.parameter.requires_grad and not all(m._frozen for m in self._shown)

    def _forget_abandoned(self) -> None:
        """Drops what forwards without a backward have left, and gradients that someone cleared."""
        if not self._visits and not len(self._keys):
            return
        if self.parameter.grad is None:
            self._received[:] = False
        visits = [visit for visit in (ref() for ref in self._visits) if visit is not None]
        waiting = [visit for visit in visits if not visit.done]
        if len(visits) == len(self._visits) and (waiting or self._received.any()):
            return
        if not waiting and not self._received.any():
            self.drop()
            return
        kept = np.flatnonzero(self._received)
        where = torch.from_numpy(kept).to(self.parameter.device)
        gradient = self.parameter.grad
        data = self.parameter.detach()[where]
        self._reset(self._keys[kept], data, None if gradient is None else gradient[where])
        self._received[:] = True
        self._visits.clear()
        for visit in waiting:
            self._place(visit)

    def _place(self, visit: Visit) -> None:
        """Finds a place for each of the visit's rows, new ones after all that are there."""
        module, name = visit.shown
        by_hand = self._is_frozen_by_hand()
        module._parameters[name] = self.parameter
        self._shown[module] = name
        if not by_hand:
            self.follow_modules()
        self._visits.append(weakref.ref(visit))
        visit.done = False
        count = len(self._keys)
        if count == 0:
            self._reset(visit.keys, visit.rows, None)
            visit.places, visit.generation = None, self._generation
            return
        if self.parameter.device != visit.rows.device:
            raise MisuseError(
                f"table {self.table.name!r} is used on {self.parameter.device} and on "
                f"{visit.rows.device} within one step; move its modules to one device"
            )
        union, inverse = self._union(np.concatenate([self._keys, visit.keys]))
        visit.places, visit.generation = inverse[count:], self._generation
        if len(union) == count:
            return
        fresh = torch.from_numpy(visit.places >= count).to(visit.rows.device)
        data = torch.cat([self.parameter.detach(), visit.rows[fresh]])
        gradient = self.parameter.grad
        if gradient is not None:
            gradient = torch.cat([gradient, gradient.new_zeros(len(union) - count, data.shape[1])])
        received = np.concatenate([self._received, np.zeros(len(union) - count, np.bool_)])
        self._set(union, data, gradient)
        self._received = received

    def _union(self, keys: Keys) -> tuple[Keys, Keys]:
        """The keys that have a row, and each one's place among them."""
        if self.table.store._each_occurrence:
            return keys, np.arange(len(keys))
        return distinct(keys)

    def _reset(self, keys: Keys, data: Tensor | None, gradient: Tensor | None) -> None:
        self._generation += 1
        if data is None:
            data = self.parameter.new_empty(0, self.table.embedding_dim)
        self._set(keys, data, gradient)
        self._received = np.zeros(len(keys), np.bool_)

    def _set(self, keys: Keys, data: Tensor, gradient: Tensor | None) -> None:
        self._keys = keys
        self.parameter.grad = None
        self.parameter.data = data
        self.parameter.grad = gradient


class _Expose(torch.autograd.Function):  # type: ignore[misc]
    """Hands a forward its rows, and the pending rows their gradient.

    A leaf per forward would leave several tensors for one key, whose norms do not add up to that of
    the merged gradient; one leaf for all cannot grow once a graph refers to it. So the gradient is
    merged by hand, and the parameter is an input for autograd's sake only: a backward that is
    limited to ``inputs=list(model.parameters())`` then still comes by here.
    """

    @staticmethod
    def forward(
        ctx: Any, parameter: Tensor, rows: Tensor, pending: PendingRows, visit: Visit
    ) -> Tensor:
        ctx.pending, ctx.visit = pending, visit
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        node = ctx.next_functions[0][0]
        given = None
        if asks_for(node) is None:
            given = ctx.pending.give(ctx.visit, gradient.detach().contiguous(), node)
        else:
            ctx.pending.receive(ctx.visit, gradient.detach().contiguous())
        return given, None, None, None


def asks_for(node: Any) -> bool | None:
    """Whether the backward under way is to leave a gradient with the parameter of a node; None: to
    give it out, as ``torch.autograd.grad`` does."""
    if node is None:
        return False
    try:
        wanted: bool = torch._C._will_engine_execute_node(node)
    except RuntimeError as error:
        if "autograd.grad()" not in str(error):
            raise
        return None
    return wanted


_REGISTRY: weakref.WeakSet[PendingRows] = weakref.WeakSet()
_REGISTRY_LOCK = threading.Lock()


def pending_rows(table: RowTable) -> PendingRows:
    """The pending rows of a table: one object for all modules that use it."""
    with _REGISTRY_LOCK:
        for each in _REGISTRY:
            if each.table.store is table.store and _identity(each.table) == _identity(table):
                return each
        made = PendingRows(table)
        _REGISTRY.add(made)
        stepping.watch()
        return made


def _identity(table: RowTable) -> object:
    """Identity of a table within its store. A name may become another table's; a handle, which
    tables of this process have, stays valid when the store goes back."""
    return vars(table).get("_handle") if isinstance(table, Table) else table.name
