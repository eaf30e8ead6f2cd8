"""``convert``: tables instead of a model's embedding modules.

Owns the choice of modules that can be replaced, the reasons against others, and the transfer of
rows into the store. Invariants: everything is checked before the first table is made, so a refusal
leaves model and store as they were; and a weight that is also used elsewhere is never replaced.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from embedrock._arguments import flag, function, shown, text, whole
from embedrock._arrays import dtype_name
from embedrock._rows import RowStore, RowTable
from embedrock.errors import MismatchError, MisuseError, UnsupportedError
from embedrock.initializers import InitializerLike
from embedrock.nn import small
from embedrock.nn.embedding import Embedding, EmbeddingBag
from embedrock.nn.meta_init import DeferredWeight, overrides, weight_of
from embedrock.nn.module import RowsModule
from embedrock.optimizers import OptimizerLike
from embedrock.table import Table

__all__ = ["convert"]

Select: TypeAlias = Callable[[str, nn.Module], object]
_BLOCK_BYTES = 16 << 20  # long enough for full device speed, small beside any budget
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass
class _Weight:
    """A weight that becomes a table."""

    name: str
    """The table's name."""
    data: Tensor
    """The values, or a tensor of the shape without; not the parameter itself."""
    trains: bool
    known: DeferredWeight | None
    modules: dict[str, nn.Module] = field(default_factory=dict)
    """The modules that use it, by their first path in the model."""
    exists: bool = False
    """Whether the store has the table already."""


def convert(
    model: nn.Module,
    store: RowStore,
    *,
    select: Select | None = None,
    min_rows: int = 0,
    optimizer: OptimizerLike | None = None,
    dtype: torch.dtype | None = None,
    prefix: str = "",
    load: bool = True,
) -> dict[str, RowsModule]:
    """Replaces by tables a model's ``torch.nn.Embedding`` and ``EmbeddingBag``.

    The model is changed in place; its code stays as it is. Subclasses that leave ``forward`` as it
    is are replaced, too. A module that occurs several times in the model stays one module, and
    modules that share a weight share a table. Arguments, device, training mode and frozen weights
    are carried over; gradients need not be ``sparse``.

    A table gets the rows of the weight, or, if the model was built within :func:`deferred`, initial
    rows from the distribution that the weight would have been filled with. A table that exists in
    the store, with the rows of an earlier run, keeps them: use it with a deferred weight or with
    ``load=False``. Rows of a deferred weight with a value of their own, such as that of padding,
    are written if the table has none yet, as after an interruption.

    Call it before anything takes the model's parameters: optimizers, lists of weights for a
    penalty. Make optimizers of ``embedrock.nn.dense_parameters(model)`` and of
    ``embedrock.optim`` afterwards.

    Args:
        model: The model that holds the modules.
        store: The open store, or one of a server (``embedrock.connect``).
        select: ``select(path, module)`` says whether to replace a module; None: all.
        min_rows: Smaller tables stay as they are, which is faster. They are dense parameters then,
            so that an optimizer of these trains them, at its rate: give them one of their own
            (``docs/how-to/convert.md`` has the lines). Rates ten times apart are warned of.
        optimizer: As for ``Embedding``.
        dtype: Dtype of the stored rows: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``;
            None is the dtype of the weight, which outputs have in any case.
        prefix: Prefix of the names of tables, before a module's path in the model.
        load: Whether rows of weights are written to tables. False leaves existing tables as they
            are, and new ones at ``normal(0, 1)``.

    Returns the new modules by their path, ``{"embeddings.user": Embedding(...)}``; none where there
    is nothing to replace, as in a model that was converted before.

    Errors: ``UnsupportedError`` for what has no equal in a table: ``max_norm``, a ``forward`` of a
    subclass, hooks, parametrizations, other dtypes, and initializations that cannot be carried
    over. ``MisuseError`` where something else holds a weight: an optimizer, another module, a list,
    and where rows of an existing table would be overwritten. ``MismatchError`` for a table that
    exists with another shape. The model is as it was then. Otherwise those of ``Store.table`` and
    ``Table.put``.

    Blocking: writes the weights in blocks.

    Durability: with the next commit.

    >>> import torch
    >>> with embedrock.nn.deferred(min_rows=1000):
    ...     model = torch.nn.Sequential(torch.nn.Embedding(5000, 4), torch.nn.Linear(4, 1))
    >>> embedrock.nn.convert(model, store, min_rows=1000, optimizer="sgd")
    {'0': Embedding(5000, 4, name='0', optimizer='sgd')}
    >>> model(torch.tensor([7, 4999])).shape
    torch.Size([2, 1])
    """
    if not isinstance(model, nn.Module):
        raise MisuseError(f"model is {shown(model)}, expected a torch.nn.Module")
    if not isinstance(store, RowStore):
        raise MisuseError(
            f"store is {shown(store)}, expected a store from embedrock.open or embedrock.connect"
        )
    function("select", select, "a path and a module")
    least = whole("min_rows", min_rows, 0)
    text("prefix", prefix)
    loads = flag("load", load)
    if dtype is not None:
        dtype_name(dtype, "dtype")
    places = _places(model, select, least)
    for path, module in _first(places).items():
        _refuse_unequal(path, module)
    weights = _take_weights(model, places, prefix)
    try:
        for weight in weights:
            _check_table(weight, store, loads)
        made: dict[int, RowsModule] = {}
        for weight in weights:
            made |= _make(weight, store, optimizer, dtype, loads)
    except BaseException:
        _give_back(weights)
        raise
    for path, module in places.items():
        parent, _, name = path.rpartition(".")
        model.get_submodule(parent)._modules[name] = made[id(module)]
    for weight in weights:
        for path, module in weight.modules.items():
            _leave(module, path)
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.num_embeddings < least:
            small.leave(module)
    return {path: made[id(module)] for path, module in places.items()}


def _places(model: nn.Module, select: Select | None, least: int) -> dict[str, nn.Module]:
    """The modules to replace, by each of their paths."""
    found, left = {}, []
    chosen: dict[int, bool] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if id(module) not in chosen:
            chosen[id(module)] = module.num_embeddings >= least and (
                select is None or bool(select(path, module))
            )
        if chosen[id(module)]:
            found[path] = module
        elif weight_of(module._parameters.get("weight")) is not None:
            left.append(path)
    if left:
        raise MisuseError(
            f"{left[0]} ({_kind(model.get_submodule(left[0]))}) was built within deferred() and "
            f"has no weight in memory, but select= or min_rows={least} leaves it as it is; give "
            f"deferred the same min_rows, or convert it too"
        )
    if "" in found:
        raise MisuseError(
            f"model is a {_kind(model)} itself, which cannot be replaced from within; convert a "
            f"model that holds it, such as torch.nn.Sequential(model)"
        )
    return found


def _first(places: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Each module once, under its first path."""
    seen: dict[int, str] = {}
    for path, module in places.items():
        seen.setdefault(id(module), path)
    return {path: places[path] for path in seen.values()}


def _refuse_unequal(path: str, module: Any) -> None:
    """Errors: ``UnsupportedError``, ``MisuseError`` for what would be another model."""
    named = f"{path} ({_kind(module)})"
    leave = "leave it as it is with select="
    if overrides(type(module)):
        raise UnsupportedError(
            f"{named} looks rows up in its own forward, which a table would not run; {leave}, or "
            f"call an embedrock.nn.Embedding in that forward"
        )
    if module.max_norm is not None:
        raise UnsupportedError(
            f"{named} has max_norm={module.max_norm}, which rewrites rows in a forward; {leave}, "
            f"or set max_norm=None and clip rows with Table.modify"
        )
    others = [name for name in module._parameters if name != "weight"] + [
        name for name, _ in (*module.named_buffers(), *module.named_children()) if name
    ]
    weight = module._parameters.get("weight")
    if weight is None or others:
        told = f"{', '.join(others)} beside its weight" if weight is not None else "no plain weight"
        raise UnsupportedError(
            f"{named} has {told}, a parametrization for example, of which a table knows nothing; "
            f"{leave}"
        )
    hooks = [name for name in _HOOKS if getattr(module, name, None)]
    hooks += [
        f"weight.{name}"
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
        if getattr(weight, name, None)
    ]
    if hooks:
        raise UnsupportedError(
            f"{named} has hooks ({', '.join(hooks)}); convert the model first and register them "
            f"with the new module, or {leave}"
        )
    if weight.grad is not None:
        raise MisuseError(
            f"{named} has a gradient that no optimizer has applied; call the optimizer's step, or "
            f"model.zero_grad()"
        )
    shape = (module.num_embeddings, module.embedding_dim)
    if tuple(weight.shape) != shape:
        raise MismatchError(
            f"{named} has a weight of shape {tuple(weight.shape)}, expected {shape}: those of its "
            f"num_embeddings and embedding_dim"
        )
    known = weight_of(weight)
    if known is None and weight.is_meta:
        raise MisuseError(
            f"{named} has a weight without values, which was not made within deferred() or was "
            f"copied since; build the model within embedrock.nn.deferred() and convert that"
        )
    kept = weight.dtype if known is None else known.dtype
    if kept not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(
            f"{named} has a weight of {kept}, and tables store float32, float16 or bfloat16; build "
            f"the model in float32, or {leave}"
        )
    if known is not None:
        _refuse_unclear(named, weight, known)


def _refuse_unclear(named: str, weight: Any, known: DeferredWeight) -> None:
    """Errors: ``UnsupportedError`` for an initialization that a table cannot have."""
    unclear = known.unclear
    if not known.is_of(weight):
        unclear = "another tensor that its data was set to"
    elif known.was_changed(weight):
        unclear = "something behind the block of deferred()"
    if unclear is not None:
        raise UnsupportedError(
            f"{named} is filled by {unclear}, which cannot be carried over to a table that "
            f"is not in memory; end the block of deferred() with a normal, uniform or constant "
            f"fill of the whole weight, as torch.nn.init.normal_(module.weight, std=0.01) is, or "
            f"build it in memory"
        )


def _take_weights(model: nn.Module, places: dict[str, nn.Module], prefix: str) -> list[_Weight]:
    """Takes the parameters out of their modules, once nothing else holds them.

    Errors: ``MisuseError`` where something does; the modules have their parameters then.
    """
    weights: dict[int, _Weight] = {}
    references: list[weakref.ref[Any]] = []
    parameter: Any = None
    for path, module in _first(places).items():
        parameter = module._parameters["weight"]
        weight = weights.get(id(parameter))
        if weight is None:
            weight = weights[id(parameter)] = _Weight(
                name=prefix + path,
                data=parameter.data,
                trains=parameter.requires_grad,
                known=weight_of(parameter),
            )
            references.append(weakref.ref(parameter))
        weight.modules[path] = module
    taken = list(weights.values())
    parameter = None  # the last name for one of them
    try:
        for weight in taken:
            for module in weight.modules.values():
                module._parameters["weight"] = None
        if any(ref() is not None for ref in references):
            gc.collect()  # objects that only a reference cycle keeps
    except BaseException:  # Ctrl-C
        _give_back(taken)
        raise
    held = [(weight, ref()) for weight, ref in zip(taken, references, strict=True)]
    if all(parameter is None for _, parameter in held):
        return taken
    for weight, parameter in held:
        _give_back([weight], parameter)
    weight, parameter = next(pair for pair in held if pair[1] is not None)
    del held, references
    path = next(iter(weight.modules))
    raise MisuseError(
        f"the weight of {path} ({_kind(weight.modules[path])}) is held by "
        f"{_holders(model, weight, parameter)}, which would continue with a weight that no longer "
        f"counts; convert the model before anything takes its parameters, let go of them first, or "
        f"leave the module as it is with select="
    )


def _give_back(weights: list[_Weight], parameter: Any = None) -> None:
    """Puts weights back in their modules, as they were."""
    for weight in weights:
        again = parameter
        if again is None:
            again = nn.Parameter(weight.data, requires_grad=weight.trains)
            if weight.known is not None:
                weight.known.give_to(again)
        for module in weight.modules.values():
            module._parameters["weight"] = again


def _holders(model: nn.Module, weight: _Weight, parameter: Any) -> str:
    """The other holders of a parameter, in words."""
    own = {id(module) for module in weight.modules.values()}
    tied = [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, other in module._parameters.items()
        if other is parameter and id(module) not in own
    ]
    if tied:
        return f"{', '.join(tied)}, which is tied to it"
    optimizers = {
        type(thing).__name__
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer)
        and any(parameter is one for group in thing.param_groups for one in group["params"])
    }
    if optimizers:
        return f"an optimizer ({', '.join(sorted(optimizers))}) that was made before"
    names = [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules") and _has(value, parameter)
    ]
    if names:
        return f"the model's {', '.join(names)}"
    return "something else: a variable, a list or the graph of a loss"


def _has(value: Any, parameter: Any, depth: int = 3) -> bool:
    """Whether a list, within lists, has a parameter."""
    if value is parameter:
        return True
    inner = value.values() if isinstance(value, dict) else value
    inside = isinstance(value, (list, tuple, dict)) and depth > 0
    return inside and any(_has(one, parameter, depth - 1) for one in inner)


def _check_table(weight: _Weight, store: RowStore, loads: bool) -> None:
    """Errors: ``MismatchError``, ``MisuseError`` for a table that cannot be the weight's."""
    weight.exists = store._has_table(text("name of a table", weight.name))
    if not weight.exists:
        return
    table: RowTable = store.table(weight.name)
    there, wanted = (table.num_embeddings, table.embedding_dim), tuple(weight.data.shape)
    path = next(iter(weight.modules))
    if there != wanted:
        rows = "grows" if there[0] is None else f"has {there[0]:,} rows"
        raise MismatchError(
            f"table {weight.name!r} exists, {rows} and {there[1]} values per row; {path} has "
            f"{wanted[0]:,} rows and {wanted[1]} values; choose other names with prefix="
        )
    if loads and weight.known is None:
        raise MisuseError(
            f"table {weight.name!r} exists, and the weight of {path} would be written over its "
            f"rows; load=False keeps the rows of the table, prefix= gives other names, "
            f"embedrock.weights.load overwrites"
        )


def _make(
    weight: _Weight,
    store: RowStore,
    optimizer: OptimizerLike | None,
    dtype: torch.dtype | None,
    loads: bool,
) -> dict[int, RowsModule]:
    """The table of a weight and its modules, by the identity of those that they replace."""
    known, new = weight.known, not weight.exists
    rows, dim = weight.data.shape
    kept = weight.data.dtype if known is None else known.dtype
    initializer: InitializerLike | None = None
    if new and known is not None:
        initializer = known.initializer
    arguments: dict[str, Any] = {
        "store": store,
        "name": weight.name,
        "optimizer": optimizer,
        "initializer": initializer,
        "dtype": dtype if dtype is not None or weight.exists else kept,
        "device": weight.data.device if known is None else known.device,
        "output_dtype": kept,
    }
    if known is not None and (new or (loads and not getattr(store, "read_only", False))):
        _fill(weight, known, arguments)
    made: dict[int, RowsModule] = {}
    for module in weight.modules.values():
        made[id(module)] = _same(module, rows, dim, arguments)
        made[id(module)].train(module.training)
        if not weight.trains:
            made[id(module)].requires_grad_(False)
    if loads and known is None:
        table = next(iter(made.values())).tables[0]
        for begin, end in _blocks(0, rows, dim):
            block = weight.data[begin:end].to("cpu", torch.float32).contiguous()
            table.put(np.arange(begin, end), block.numpy())
    return made


def _fill(weight: _Weight, known: DeferredWeight, arguments: dict[str, Any]) -> None:
    """Writes the rows that begin otherwise than the initializer says, before a module reads them.

    Each is written once, with what it stays at, and those that are written are left alone. So a
    table whose convert was interrupted has no wrong row, and the next convert writes what it lacks.
    """
    rows, dim = weight.data.shape
    names = ("name", "optimizer", "initializer", "dtype")
    table = arguments["store"].table(
        embedding_dim=dim, num_embeddings=rows, **{name: arguments[name] for name in names}
    )
    for first, last, value in reversed(known.parts):  # of two fills the later one counts
        for begin, end in _blocks(first, last, dim):
            _put_unwritten(table, np.arange(begin, end), value)
    # A module makes its padding row zero where it is new. In memory it is zero only if it was
    # filled with zeros.
    paddings = {module.padding_idx for module in weight.modules.values()} - {None}
    _put_unwritten(table, np.array(sorted(paddings), np.int64), None)


def _put_unwritten(table: Any, keys: Any, value: float | None) -> None:
    """Writes the keys that have no row yet: this value, or None for what they read as."""
    if isinstance(table, Table):
        left = keys[~table.contains(keys)]
    else:
        left = keys[~table.get(keys, found=True)[1]]
    if len(left):
        shape = (len(left), table.embedding_dim)
        table.put(left, table.get(left) if value is None else np.full(shape, value, np.float32))


def _same(module: Any, rows: int, dim: int, arguments: dict[str, Any]) -> RowsModule:
    """A module over the table with the arguments of one of torch's."""
    made: RowsModule
    common = {
        "padding_idx": module.padding_idx,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        **arguments,
    }
    if isinstance(module, nn.Embedding):
        made = Embedding(rows, dim, **common)
    else:
        last = module.include_last_offset
        made = EmbeddingBag(rows, dim, mode=module.mode, include_last_offset=last, **common)
    for name, value in vars(module).items():  # of subclasses, and of who has set one by hand
        if not hasattr(made, name):
            setattr(made, name, value)
    return made


def _blocks(first: int, last: int, dim: int) -> Iterator[tuple[int, int]]:
    size = max(1, _BLOCK_BYTES // (dim * 4))
    return ((begin, min(begin + size, last)) for begin in range(first, last, size))


def _leave(module: nn.Module, path: str) -> None:
    """Lets a module that was replaced say so to whoever has kept it."""

    def refuse(module: nn.Module, given: Any) -> None:
        raise MisuseError(
            f"this {_kind(module)} was replaced by a table at {path}, and its weight is gone; use "
            f"the model's, or make a new one for another model"
        )

    module.register_forward_pre_hook(refuse)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
