"""``deferred``: building existing models without memory for their big tables.

Owns the description of a weight that was never made: the rows from its initialization, and its
device. Invariant: each visible torch operation that would have changed the weight is carried over
to a table, or recorded as the reason why it cannot be.

A deferred weight is a parameter on torch's ``meta`` device, which has a shape and no values. A
dispatch mode sees what fills it, through views, too. A few functions of ``torch.nn.init`` do
nothing with such tensors before any mode is asked; these tell what they were called for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from embedrock import initializers
from embedrock._arguments import whole
from embedrock.errors import MisuseError

__all__ = ["DeferredWeight", "deferred", "overrides", "weight_of"]

_MARK = "embedrock_deferred"
"""The attribute of a parameter that says what is known of it."""


@dataclass
class DeferredWeight:
    """The known facts of a weight that was never made."""

    storage: Any
    """Torch's storage of the parameter, which its views share."""
    rows: int
    dim: int
    device: torch.device
    """The device of the weight."""
    dtype: torch.dtype
    initializer: dict[str, Any] = field(default_factory=initializers.normal)
    """The last fill of (nearly) all rows."""
    parts: list[tuple[int, int, float]] = field(default_factory=list)
    """Later fills of some rows with one value: from a row, to a row, the value."""
    unclear: str | None = None
    """An operation behind that fill that cannot be carried over."""
    version: int | None = None
    """Torch's count of changes when the block ended; None: it has not ended."""

    def is_of(self, weight: Tensor) -> bool:
        """Whether this is what a parameter is still made of."""
        same: bool = weight.is_meta and _place_of(weight) == self.storage._cdata
        return same

    def was_changed(self, weight: Tensor) -> bool:
        """Whether torch has counted changes of it behind the block."""
        return self.version is not None and weight._version != self.version

    def give_to(self, weight: nn.Parameter) -> None:
        """Lets another parameter of the same storage take the place of the first."""
        setattr(weight, _MARK, self)
        if self.version is not None:
            self.version = weight._version

    def change(self, written: Tensor, operation: str, given: dict[str, Any]) -> None:
        """Notes that an operation has written to the weight, or to a part of it."""
        if written.numel() == 0:
            return
        rows = _rows_of(written, self.dim)
        made = _initializer(operation, given)
        if not self._is_nearly_whole(written.numel()):
            if made is None or "constant" not in made or rows is None:
                self.unclear = f"{operation} of {written.numel():,} of its values"
            else:
                self.parts.append((*rows, made["constant"]))
            return
        begin, end = rows or (0, self.rows)
        if made is not None:
            self.initializer, self.unclear = made, None
            self.parts = [piece for part in self.parts for piece in _outside(part, begin, end)]
            return
        factor, shift = _affine(operation, given)
        scaled = _scaled(self.initializer, factor, shift)
        if scaled is None:
            self.unclear = operation
            return
        self.initializer = scaled
        self.parts = [
            (first, last, value * factor + shift if begin <= first and last <= end else value)
            for first, last, value in self.parts
        ]

    def _is_nearly_whole(self, written: int) -> bool:
        """Whether so many values are all but a few rows, such as those of padding."""
        size = self.rows * self.dim
        missed = size - written
        return 100 * missed <= size or (missed <= 2 * self.dim and 5 * missed <= size)


class _Active(threading.local):
    """The mode of a thread that defers."""

    mode: _Fills | None = None
    min_rows = 0


_active = _Active()
_asking = threading.RLock()  # its last user may be freed by a garbage collection in between
"""Guards the two names that follow."""
_users = 0
"""Number of open blocks, in all threads, and of deferred weights that are alive."""
_originals: list[tuple[Any, str, Any, Any]] = []
"""While there are users: an owner, the name of its attribute, torch's own, and ours."""


@contextlib.contextmanager
def deferred(min_rows: int = 0) -> Iterator[None]:
    """Lets models be built without memory for their embedding tables.

    Within the block, ``torch.nn.Embedding`` and ``EmbeddingBag`` of at least ``min_rows`` rows get
    a weight on torch's ``meta`` device, with a shape and no values. Smaller ones, those with
    ``max_norm`` or ``_weight``, and subclasses with a ``forward`` of their own are as always.
    :func:`convert` then puts tables in their place. Initial rows are what the last fill of (nearly)
    the whole weight would have given: normal, uniform, truncated normal or constant, and so the
    functions of ``torch.nn.init`` that come down to these.

    Initialize weights within the block: what comes behind it is refused by :func:`convert` or,
    through ``weight.data``, not seen. Torch's generator is not used for these weights, so what is
    drawn next differs from a run without the block. It holds for the calling thread.

    Args:
        min_rows: The smallest table that is deferred; give :func:`convert` the same.

    Errors: ``MisuseError``.

    >>> import torch
    >>> with embedrock.nn.deferred(min_rows=1_000_000):
    ...     model = torch.nn.Sequential(torch.nn.Embedding(1_000_000_000, 64))
    >>> model[0].weight.is_meta
    True
    """
    least = whole("min_rows", min_rows, 0)
    before = _active.mode, _active.min_rows
    mode = _Fills()
    _begin_to_ask()
    try:
        _active.mode, _active.min_rows = mode, least
        with mode:
            yield
    finally:
        _active.mode, _active.min_rows = before
        mode.end()
        _end_asking()


def weight_of(weight: Any) -> DeferredWeight | None:
    """The facts of a parameter, if it was deferred."""
    found = getattr(weight, _MARK, None)
    return found if isinstance(found, DeferredWeight) else None


def overrides(kind: type[nn.Module]) -> bool:
    """Whether a subclass of torch's modules looks rows up in its own way."""
    base = nn.Embedding if issubclass(kind, nn.Embedding) else nn.EmbeddingBag
    return kind.forward is not base.forward or kind.__call__ is not base.__call__


class _Fills(TorchDispatchMode):  # type: ignore[misc]
    """Sees what changes deferred weights."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, DeferredWeight] = {}
        self._parameters: list[weakref.ref[Any]] = []
        self._beginning: tuple[nn.Module, torch.device] | None = None

    @contextlib.contextmanager
    def beginning(self, module: nn.Module, device: torch.device) -> Iterator[None]:
        """The constructor of a module, which may fill the weight that it makes."""
        before, self._beginning = self._beginning, (module, device)
        try:
            yield
            self._note()
        finally:
            self._beginning = before

    def find(self, tensor: Any) -> DeferredWeight | None:
        """The deferred weight that a tensor is, or is a view of."""
        if not isinstance(tensor, Tensor) or not tensor.is_meta:
            return None
        self._note()
        return self._known.get(_place_of(tensor))

    def end(self) -> None:
        """Notes how often torch has counted a change of each weight."""
        for weight in (ref() for ref in self._parameters):
            known = weight_of(weight)
            if weight is not None and known is not None:
                known.version = weight._version

    def _note(self) -> None:
        """Begins to watch the weight of a module under construction, once there is one."""
        if self._beginning is None:
            return
        module, device = self._beginning
        weight = module._parameters.get("weight")
        if weight is None or not weight.is_meta or weight_of(weight) is not None:
            return
        rows, dim = weight.shape
        known = DeferredWeight(weight.untyped_storage(), rows, dim, device, weight.dtype)
        setattr(weight, _MARK, known)
        _begin_to_ask()
        weakref.finalize(known, _end_asking).atexit = False
        self._known[_place_of(weight)] = known
        self._parameters.append(weakref.ref(weight))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func._schema.is_mutable or not (self._known or self._beginning):
            return result
        given = {
            argument.name: argument.default_value if argument.has_default_value() else None
            for argument in func._schema.arguments
        }
        given.update(zip(given, args, strict=False))
        given.update(kwargs)
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                operation = str(func.overloadpacket).removeprefix("aten.")
                for written, its in _each(given, argument.name):
                    known = self.find(written)
                    if known is not None:
                        known.change(written, operation, its)
        return result


def _each(given: dict[str, Any], name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The tensors that an operation writes to, each with its own arguments if there are several, as
    for ``torch._foreach_mul_``."""
    if not isinstance(given[name], (list, tuple)):
        yield given[name], given
        return
    for place, written in enumerate(given[name]):
        its = {
            other: value[place] if isinstance(value, (list, tuple)) else value
            for other, value in given.items()
        }
        its.setdefault("other", its.get("scalar", its.get("scalars")))
        yield written, its


def _place_of(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _rows_of(tensor: Tensor, dim: int) -> tuple[int, int] | None:
    """The rows of the weight that a view of it is; None where it has parts of rows."""
    offset, size = tensor.storage_offset(), tensor.numel()
    if not tensor.is_contiguous() or offset % dim or size % dim:
        return None
    return offset // dim, (offset + size) // dim


def _outside(
    part: tuple[int, int, float], begin: int, end: int
) -> Iterator[tuple[int, int, float]]:
    """The remaining parts of a part when rows from ``begin`` to ``end`` are filled again."""
    first, last, value = part
    if first < begin:
        yield first, min(last, begin), value
    if last > end:
        yield max(first, end), last, value


def _initializer(operation: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The initializer of an operation that fills a tensor; None if tables do not have it."""
    operation = operation.removeprefix("_foreach_")
    try:
        if operation == "normal_":
            return initializers.normal(given["mean"], given["std"])
        if operation == "uniform_":
            return initializers.uniform(given["from"], given["to"])
        if operation == "trunc_normal_":
            bounds = given["mean"], given["std"], given["a"], given["b"]
            return initializers.truncated_normal(*bounds)
        if operation == "zero_":
            return initializers.constant(0.0)
        if operation == "fill_":
            return initializers.constant(given["value"])
    except MisuseError:  # numbers that a table does not take
        pass
    return None


def _affine(operation: str, given: dict[str, Any]) -> tuple[float, float]:
    """``x * factor + shift``, which an operation does; NaN where it does something else."""
    operation = operation.removeprefix("_foreach_")
    by, times = given.get("other"), given.get("alpha", 1)
    nothing = (float("nan"), float("nan"))
    if isinstance(by, bool) or not isinstance(by, (int, float)) or given.get("rounding_mode"):
        return nothing
    if operation in ("mul_", "div_"):
        if operation == "div_" and by == 0:
            return nothing
        return (by if operation == "mul_" else 1 / by), 0.0
    if operation in ("add_", "sub_"):
        return 1.0, by * times if operation == "add_" else -by * times
    return nothing


def _scaled(initializer: dict[str, Any], factor: float, shift: float) -> dict[str, Any] | None:
    """Rows of an initializer times a factor plus a shift."""
    ((name, values),) = initializer.items()
    try:
        if name == "constant":
            return initializers.constant(values * factor + shift)
        ends = sorted(values[end] * factor + shift for end in ("low", "high") if end in values)
        if name == "uniform":
            return initializers.uniform(*ends)
        mean, std = values["mean"] * factor + shift, values["std"] * abs(factor)
        if name == "normal":
            return initializers.normal(mean, std)
        return initializers.truncated_normal(
            mean, std, *sorted(values[end] * factor + shift for end in ("a", "b"))
        )
    except MisuseError:  # NaN: no such operation
        return None


def _begin_to_ask() -> None:
    """Lets torch's modules and initializers ask here until as many calls have ended it.

    A deferred weight needs that, too: models move before they are converted, and some functions of
    ``torch.nn.init`` do nothing with a weight without values, and say nothing, so that one behind
    the block would be lost.
    """
    global _users
    with _asking:
        _users += 1
        try:
            if _users > 1:
                # Another library's block that began before ours may have put torch's own back.
                for owner, name, original, ours in _originals:
                    if getattr(owner, name) is original:
                        setattr(owner, name, ours)
                return
            for kind in (nn.Embedding, nn.EmbeddingBag):
                _replace(kind, "__init__", _deferring)
                _replace(kind, "_apply", _sparing)
            for name in ("_no_grad_trunc_normal_", "orthogonal_", "sparse_"):
                _replace(nn.init, name, _telling)
        except BaseException:
            _end_asking()
            raise


def _end_asking() -> None:
    global _users
    with _asking:
        _users -= 1
        while not _users and _originals:
            owner, name, original, ours = _originals.pop()
            # Another library may have wrapped ours, which then does nothing but call torch's.
            if getattr(owner, name) is ours:
                setattr(owner, name, original)


def _replace(owner: Any, name: str, asking: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)  # not every version of torch has all of them
    if original is not None:
        ours = asking(original)
        _originals.append((owner, name, original, ours))
        setattr(owner, name, ours)


def _deferring(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def constructor(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        mode = _active.mode
        asked = {}
        if mode is not None:
            with contextlib.suppress(TypeError):  # torch says it better
                asked = signature.bind(self, *args, **kwargs).arguments
        device = _device_of(asked.get("device"))
        rows = 0
        with contextlib.suppress(TypeError):
            rows = operator.index(asked.get("num_embeddings", 0))
        if (
            mode is None
            or rows < max(1, _active.min_rows)
            or asked.get("max_norm") is not None
            or asked.get("_weight") is not None
            or device is None
            or overrides(type(self))
        ):
            original(self, *args, **kwargs)
            return
        asked["device"] = "meta"
        asked.pop("self")
        with mode.beginning(self, device):
            original(self, **asked)
        self.forward = types.MethodType(forward, self)

    return constructor


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """That of a module whose weight was deferred, which has none while it is not converted.

    A deep copy has it, too. Its name lets a module be pickled: what is unpickled has torch's own.
    """
    if getattr(self._parameters.get("weight"), "is_meta", False):
        raise MisuseError(
            f"this {type(self).__name__} of {self.num_embeddings} rows was built within "
            f"embedrock.nn.deferred() and has no weight: call embedrock.nn.convert(model, store) "
            f"before the model's forward"
        )
    return type(self).forward(self, *args, **kwargs)


def _device_of(asked: Any) -> torch.device | None:
    """The device of a weight; None on ``meta``."""
    with contextlib.suppress(TypeError, RuntimeError):  # torch says it better
        device = torch.empty(0).device if asked is None else torch.device(asked)
        return None if device.type == "meta" else device
    return None


def _sparing(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    @functools.wraps(original)
    def apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        weight = self._parameters.get("weight")
        known = weight_of(weight)
        if known is None or not known.is_of(weight):
            return original(self, fn, recurse)
        moved = fn(torch.empty(0, dtype=known.dtype, device=known.device))
        if not moved.is_meta:
            known.device, known.dtype = moved.device, moved.dtype
        del self._parameters["weight"]
        try:
            return original(self, fn, recurse)
        finally:
            self._parameters["weight"] = weight

    return apply


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``torch.nn.init`` that does nothing with a tensor without values."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fill(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        mode = _active.mode
        known = weight_of(tensor)
        if known is None and mode is not None:
            known = mode.find(tensor)
        if known is None:
            return original(tensor, *args, **kwargs)
        bound = signature.bind(tensor, *args, **kwargs)
        bound.apply_defaults()
        known.change(tensor, original.__name__.removeprefix("_no_grad_"), bound.arguments)
        return tensor

    return fill
