"""``EmbeddingBagCollection``: many features over many tables, one engine call for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedrock._arguments import flag, iterated, shown, text
from embedrock._arrays import dtype_name
from embedrock._rows import RowStore, RowTable
from embedrock.errors import MisuseError
from embedrock.initializers import InitializerLike
from embedrock.nn import keyed
from embedrock.nn.bags import Bag, InBags, check_bags, check_mode, in_bags, pool_bags
from embedrock.nn.embedding import Rounding, Storage
from embedrock.nn.fetch import Ask, Found, expose, read, uncompiled
from embedrock.nn.module import RowsModule, TableArguments, open_padding_row
from embedrock.nn.pool import Bags, Part, bags_of, pool
from embedrock.optimizers import OptimizerLike

__all__ = ["EmbeddingBagCollection", "EmbeddingBagConfig", "Jagged"]

Jagged: TypeAlias = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""One feature of a batch: ``(B, N)`` ids, or ``(values, offsets)``, or these and weights."""
_JOINED = ""
"""Instead of the name of a feature: all of them in one tensor."""


@dataclass(frozen=True)
class EmbeddingBagConfig:
    """One table of a collection, and the features that read it."""

    name: str
    """The table's name in the store."""
    embedding_dim: int
    """Values per row."""
    feature_names: Sequence[str] = field(default=())
    """Features that look rows up in this table; empty: one feature of the table's name."""
    num_embeddings: int | None = None
    """Rows of a dense table; None for a growing table of arbitrary 64-bit ids."""
    mode: str = "sum"
    """``"sum"``, ``"mean"`` or ``"max"``."""
    padding_idx: int | None = None
    """An id that is left out of bags and never trained."""
    optimizer: OptimizerLike | None = None
    """As for ``Embedding``."""
    initializer: InitializerLike | None = None
    """As for ``Embedding``."""
    expected_rows: int | None = None
    """Number of rows that a growing table will reach."""
    dtype: torch.dtype | None = None
    """As for ``Embedding``."""
    rounding: Rounding | None = None
    """As for ``Embedding``."""
    storage: Storage | None = None
    """As for ``Embedding``."""
    capacity: int | None = None
    """As for ``Embedding``."""


class EmbeddingBagCollection(RowsModule):
    """Bags of many features over many tables.

    All features of a batch are read with one call of the engine, so that their reads overlap. A
    table's distinct ids are found across all of its features, so a row is read once.

    Args:
        tables: The tables and their features.
        store: The open store, or one of a server (``embedrock.connect``).
        include_last_offset: Offsets have ``B + 1`` entries, the last one being the end of the last
            bag; values after it are left out.
        concatenate: Return one tensor instead of a dict.
        is_weighted: Use the weights of a ``KeyedJaggedTensor``, which must have some.
        device: Device of the outputs.
        output_dtype: The dtype of outputs; None: float32.

    Shapes: ``features {name: (values (N,), offsets (B,))}``, or ``(values, offsets,
    per_sample_weights (N,))`` with mode ``"sum"``, or ids ``(B, N)`` ``-> {name: (B,
    embedding_dim)}``; with ``concatenate`` ``(B, sum of embedding_dim)`` in the order of
    :attr:`output_names`. A feature that several tables read comes out as ``feature@table``.

    A ``KeyedJaggedTensor`` of TorchRec gives a ``KeyedTensor``, of the features that tables read.
    To trace a model by ``torch.fx``, make the class a leaf:
    ``torchrec.fx.Tracer(leaf_modules=["EmbeddingBagCollection"])``.

    Errors: ``MisuseError`` for features that are missing or unknown, and for offsets that do not
    rise from 0 to at most the number of values; ``UnsupportedError`` for a
    ``KeyedJaggedTensor`` of variable stride or with inverse indices; otherwise as for
    ``Embedding``.

    Blocking: a forward waits for the pages of rows not in memory, of all tables at once.

    Source: the class of that name in TorchRec.

    >>> import torch
    >>> bags = embedrock.nn.EmbeddingBagCollection(
    ...     [
    ...         embedrock.nn.EmbeddingBagConfig("items", 4, ["clicked", "bought"]),
    ...         embedrock.nn.EmbeddingBagConfig("country", 2, num_embeddings=200),
    ...     ],
    ...     store=store,
    ... )
    >>> output = bags({
    ...     "clicked": (torch.tensor([5, 6, 5]), torch.tensor([0, 2])),
    ...     "bought": (torch.tensor([6]), torch.tensor([0, 0])),
    ...     "country": torch.tensor([[12], [49]]),
    ... })
    >>> {name: tuple(rows.shape) for name, rows in output.items()}
    {'clicked': (2, 4), 'bought': (2, 4), 'country': (2, 2)}
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        store: RowStore,
        include_last_offset: bool = False,
        concatenate: bool = False,
        is_weighted: bool = False,
        device: torch.device | str | int | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        """Opens the tables, or creates them."""
        super().__init__(store, device)
        tables = iterated("tables", tables, "a list of embedrock.nn.EmbeddingBagConfig")
        _check_names(tables)
        self.include_last_offset = flag("include_last_offset", include_last_offset)
        self.concatenate = flag("concatenate", concatenate)
        self._is_weighted = flag("is_weighted", is_weighted)
        wanted = dtype_name("float32" if output_dtype is None else output_dtype, "output_dtype")
        self.output_dtype: torch.dtype = getattr(torch, wanted)
        self._lookups: list[tuple[str, EmbeddingBagConfig, int | None]] = []
        self._shared = _read_by_several(tables)
        for i, config in enumerate(tables):
            arguments = TableArguments(
                name=config.name,
                embedding_dim=config.embedding_dim,
                num_embeddings=config.num_embeddings,
                expected_rows=config.expected_rows,
                optimizer=config.optimizer,
                initializer=config.initializer,
                dtype=config.dtype,
                rounding=config.rounding,
                storage=config.storage,
                capacity=config.capacity,
            )
            table = self._add_table(f"rows{i}", arguments)
            padding = open_padding_row(table, config.padding_idx)
            self._lookups.append((f"rows{i}", config, padding))

    def _arguments(self) -> dict[str, Any]:
        names = ("include_last_offset", "concatenate", "device", "output_dtype")
        made = {name: getattr(self, name) for name in names}
        made["is_weighted"] = self._is_weighted
        return {"tables": [config for _, config, _ in self._lookups], **made}

    @property
    def feature_names(self) -> list[str]:
        """All features, each once, in the order of the tables."""
        found = [name for _, config, _ in self._lookups for name in _features(config)]
        return [*dict.fromkeys(found)]

    @property
    def output_names(self) -> list[str]:
        """The features as they come out, in the order of the tables: that of the concatenated
        output."""
        return [name for _, config, _ in self._lookups for name in self._outputs(config)]

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables and their features, as models of TorchRec ask for them."""
        return [
            replace(config, feature_names=[*_features(config)]) for _, config, _ in self._lookups
        ]

    def is_weighted(self) -> bool:
        """Whether the weights of a ``KeyedJaggedTensor`` are used."""
        return self._is_weighted

    def keys_of(self, features: Any) -> dict[RowTable, npt.NDArray[np.int64]]:
        """The keys that a forward with these features reads, ``(N,)`` by table, for look-ahead."""
        plain, last = self._plain(features)
        asks, _ = self._asks(self._in_bags(self._bags(plain), last))
        return {self._pending[ask.slot].table: ask.ids for ask in asks}

    def forward(self, features: Any) -> Any:
        """One row per bag and feature: of a dict a dict, or a tensor with ``concatenate``; of a
        ``KeyedJaggedTensor`` a ``KeyedTensor``."""
        plain, last = self._plain(features)
        if not keyed.is_keyed(features):
            return self._rows(plain, last, self.concatenate)
        rows = self._rows(plain, last, True)
        dims = [config.embedding_dim for _, config, _ in self._lookups for _ in _features(config)]
        return keyed.answer(features, self.output_names, dims, rows)

    def _plain(self, features: Any) -> tuple[Any, bool]:
        """Features as a dict, also those of a ``KeyedJaggedTensor``, and whether offsets have the
        end of the last bag."""
        if not keyed.is_keyed(features):
            return features, self.include_last_offset
        return keyed.bags_of(features, self.feature_names, weighted=self._is_weighted), True

    def _rows(self, features: Any, last: bool, concatenate: bool) -> Any:
        bags = self._bags(features)
        output: dict[str, Tensor]
        output, left = uncompiled(EmbeddingBagCollection._look_up)(self, bags, last, concatenate)
        for name, feature, mode, found, places, bag in left:
            output[name] = self._pool(feature, mode, found, places, bag)
        joined = output.pop(_JOINED, None)
        if joined is not None:
            return joined.to(self.output_dtype)
        by_name = {name: output[name].to(self.output_dtype) for name in self.output_names}
        return torch.cat(list(by_name.values()), dim=1) if concatenate else by_name

    def _look_up(
        self, given: Mapping[str, Bag], last: bool, concatenate: bool
    ) -> tuple[dict[str, Tensor], list[tuple[str, str, str, Found, Tensor, Bag]]]:
        """Outputs that are pooled together, by name or joined, and the parts for torch to pool one
        by one: output, feature, mode, rows, places and bags."""
        bags = self._in_bags(given, last)
        asks, lengths = self._asks(bags)
        parts = read(self, asks)
        groups: dict[tuple[int, int], list[tuple[int, str, Bags]]] = {}
        alone = []
        for i, ((_, config, _), part) in enumerate(zip(self._lookups, parts, strict=True)):
            of_feature = self._bags_at_once(config, part, bags)
            if of_feature is None:
                alone.append(i)
            else:
                group = (of_feature.total, config.embedding_dim)
                groups.setdefault(group, []).append((i, self._outputs(config)[0], of_feature))
        joined = concatenate and len(groups) == 1 and not alone
        output: dict[str, Tensor] = {}
        for members in groups.values():
            pooled = pool([parts[i] for i, _, _ in members], [one for *_, one in members], joined)
            names = [_JOINED] if joined else [name for _, name, _ in members]
            output.update(zip(names, pooled, strict=True))
        left = []
        for i, found in zip(alone, expose(self, [parts[i] for i in alone]), strict=True):
            _, config, _ = self._lookups[i]
            places = found.inverse.split(lengths[i])
            outputs = zip(self._outputs(config), _features(config), places, strict=True)
            for name, feature, some in outputs:
                left.append((name, feature, config.mode, found, some, bags[feature].bag))
        return output, left

    def _outputs(self, config: EmbeddingBagConfig) -> list[str]:
        """The names of a table's features in the output."""
        return [
            f"{name}@{config.name}" if name in self._shared else name for name in _features(config)
        ]

    def _bags_at_once(
        self, config: EmbeddingBagConfig, part: Part, bags: Mapping[str, InBags]
    ) -> Bags | None:
        """The bags of a table's only feature, where they can be pooled with those of others."""
        if self.device.type != "cpu" or len(_features(config)) != 1 or part.padding is not None:
            return None
        if part.visit is not None and not part.trains:
            return None  # it was frozen by hand: its output requires no gradient
        bag, _, begins = bags[_features(config)[0]]
        return bags_of(bag.ids, begins, bag.weights, config.mode)

    def extra_repr(self) -> str:
        """The description that ``print`` shows."""
        return ",\n".join(str(config) for _, config, _ in self._lookups)

    def _in_bags(self, bags: Mapping[str, Bag], last: bool) -> dict[str, InBags]:
        """The bags with their offsets checked, and their ids on the host."""
        named = {f"feature {name!r}": bag for name, bag in bags.items()}
        found = in_bags(named, last)
        return dict(zip(bags, found.values(), strict=True))

    def _asks(self, bags: Mapping[str, InBags]) -> tuple[list[Ask], list[list[int]]]:
        """The reads from each table, and how many ids of it belong to each of its features."""
        asks, lengths = [], []
        for slot, config, padding in self._lookups:
            ids = [bags[name].flat for name in _features(config)]
            asks.append(Ask(slot, ids[0] if len(ids) == 1 else np.concatenate(ids), padding))
            lengths.append([len(some) for some in ids])
        return asks, lengths

    def _pool(
        self,
        name: str,
        mode: str,
        found: Found,
        places: Tensor,
        bag: Bag,
    ) -> Tensor:
        return pool_bags(
            f"feature {name!r}",
            places.view(bag.ids.shape),
            found.rows,
            bag,
            mode=mode,
            padding_idx=found.padding,
        )

    def _bags(self, features: Mapping[str, Jagged]) -> dict[str, Bag]:
        """Every feature as (ids, offsets, weights) of the right shapes."""
        if not isinstance(features, Mapping):
            raise MisuseError(f"features is {shown(features)}, expected a dict of feature to bags")
        names = self.feature_names
        missing = [name for name in names if name not in features]
        unknown = [name for name in features if name not in names]
        if missing or unknown:
            raise MisuseError(
                f"features {missing or unknown} are {'missing' if missing else 'unknown'}, "
                f"expected exactly {names}; an empty feature is a tensor of no values with "
                f"offsets of zeros"
            )
        bags = {}
        for _, config, _ in self._lookups:
            for name in _features(config):
                given = features[name]
                parts = (given, None) if isinstance(given, Tensor) else given
                if not isinstance(parts, (tuple, list)) or len(parts) not in (2, 3):
                    several = isinstance(parts, (tuple, list))
                    told = f"has {len(parts)} parts" if several else f"is {shown(given)}"
                    raise MisuseError(
                        f"feature {name!r} {told}, expected (values, offsets) or "
                        f"(values, offsets, per_sample_weights)"
                    )
                ids, offsets, weights = (*parts, None)[:3]
                check_bags(f"feature {name!r}", ids, offsets, weights, config.mode)
                bags[name] = Bag(ids, offsets, weights)
        return bags


def _features(config: EmbeddingBagConfig) -> Sequence[str]:
    return config.feature_names or (config.name,)


def _check_names(tables: Sequence[EmbeddingBagConfig]) -> None:
    for config in tables:
        if not isinstance(config, EmbeddingBagConfig):
            raise MisuseError(
                f"tables hold {shown(config)}, expected embedrock.nn.EmbeddingBagConfig"
            )
        check_mode(config.mode)
        name = text("name of a table", config.name)
        features = config.feature_names
        several = isinstance(features, (list, tuple))
        if not several or not all(isinstance(one, str) for one in features):
            raise MisuseError(
                f"table {name!r}: feature_names is {shown(features)}, expected a list of names"
            )
    for what, names in (
        ("table", [config.name for config in tables]),
        *((f"table {config.name!r}: feature", [*_features(config)]) for config in tables),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise MisuseError(
                f"{what} {twice[0]!r} occurs twice; list all features of a table once"
            )


def _read_by_several(tables: Sequence[EmbeddingBagConfig]) -> set[str]:
    """Features that several tables read."""
    names = [name for config in tables for name in _features(config)]
    return {name for name in names if names.count(name) > 1}
