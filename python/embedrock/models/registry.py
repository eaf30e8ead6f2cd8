"""The models of `embedrock train`: papers, options with their defaults, and what they need.

Those of clicks are `MODELS`, those of the nodes of a graph `NODE_MODELS`.

This module does not import PyTorch, so that `embedrock train --help` is quick. A model's module is
imported when the model is made. Invariant: beside its data, a model depends on its options alone.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from embedrock.errors import MisuseError

#: Layers of the deep part, unless a paper has others: those of DLRM's top for Criteo.
_HIDDEN = (512, 256)


def _option(default: Any, said: str, *, least: float = 1, choices: tuple[str, ...] = ()) -> Any:
    """A field of options: its default, what it is, and what it may be."""
    return field(default=default, metadata={"said": said, "least": least, "choices": choices})


@dataclass(frozen=True)
class NoOptions:
    """Of DLRM, whose layers are those of a recipe."""


@dataclass(frozen=True)
class DCNv2Options:
    """Of DCN-v2."""

    cross_layers: int = _option(3, "cross layers")
    low_rank: int = _option(0, "rank of their matrices; 0: full ones", least=0)
    structure: str = _option(
        "stacked", "how cross and deep part stand", choices=("stacked", "parallel")
    )
    hidden: tuple[int, ...] = _option(_HIDDEN, "layers of the deep part")


@dataclass(frozen=True)
class DeepFMOptions:
    """Of DeepFM."""

    hidden: tuple[int, ...] = _option((400, 400, 400), "layers of the deep part")


@dataclass(frozen=True)
class PNNOptions:
    """Of PNN."""

    product: str = _option("inner", "the product layer", choices=("inner", "outer", "both"))
    hidden: tuple[int, ...] = _option(_HIDDEN, "layers behind the products, D1 first")


@dataclass(frozen=True)
class WideDeepOptions:
    """Of Wide & Deep."""

    hidden: tuple[int, ...] = _option((1024, 512, 256), "layers of the deep part")


@dataclass(frozen=True)
class MMoEOptions:
    """Of MMoE."""

    experts: int = _option(8, "experts, which all targets share")
    expert: tuple[int, ...] = _option((256, 128), "layers of an expert")
    tower: tuple[int, ...] = _option((64,), "layers of a target's tower")


@dataclass(frozen=True)
class DIENOptions:
    """Of DIEN."""

    max_history: int = _option(50, "latest items of a history")
    auxiliary: float = _option(1.0, "weight of the auxiliary loss", least=0)
    hidden: tuple[int, ...] = _option((200, 80), "layers behind the interest")


@dataclass(frozen=True)
class GraphSAGEOptions:
    """Of GraphSAGE."""

    neighbors: tuple[int, ...] = _option(
        (10, 10), "neighbours that are drawn of a node, by layer; 0: all", least=0
    )
    hidden: int = _option(64, "values of a node between layers")
    aggregator: str = _option(
        "mean", "what is made of the neighbours", choices=("mean", "max", "sum")
    )
    dropout: float = _option(0.5, "share of values that is dropped before each layer", least=0)


@dataclass(frozen=True)
class GATOptions:
    """Of GAT."""

    neighbors: tuple[int, ...] = _option(
        (10, 10), "neighbours that are drawn of a node, by layer; 0: all", least=0
    )
    hidden: int = _option(8, "values of a head between layers")
    heads: int = _option(8, "heads of attention of all layers but the last")
    dropout: float = _option(0.6, "share of values and of attention that is dropped", least=0)


@dataclass(frozen=True)
class Kind:
    """A model, before it is made."""

    name: str
    title: str
    paper: str
    #: Its module in `embedrock.models`, and its class there.
    module: str
    cls: str
    options: type
    #: Values of a row beside the vector: the weight of an id in a linear part.
    extra_values: int = 0
    #: Whether it predicts several targets; otherwise exactly one.
    several_targets: bool = False
    #: Whether it reads histories, in their order.
    sequences: bool = False

    def row_dim(self, embedding_dim: int) -> int:
        """Values of a table's row for vectors of this width."""
        return embedding_dim + self.extra_values

    def defaults(self) -> dict[str, Any]:
        """Its options, by name."""
        return asdict(self.options())

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options, with those that are given: as texts of a command line, as JSON has them, or
        as they are.

        Errors: MisuseError for one that the model has not, and for values out of range.
        """
        known = {one.name: one for one in fields(self.options)}
        found = self.defaults()
        for name, value in given.items():
            if name not in known:
                has = ", ".join(f"{n}={_text(v)}" for n, v in found.items()) or "none"
                raise MisuseError(f"model {self.name} has no option {name!r}; it has {has}")
            found[name] = _value(self.name, known[name], value)
        return found

    def make(self, shape: Any, embeddings: Any, options: Mapping[str, Any]) -> Any:
        """The model, over these embeddings (`embedrock.models.base.Shape`)."""
        module = importlib.import_module(f"embedrock.models.{self.module}")
        return getattr(module, self.cls)(shape, embeddings, self.options(**options))


MODELS = {
    kind.name: kind
    for kind in (
        Kind(
            "dlrm",
            "DLRM",
            "Naumov et al., Deep Learning Recommendation Model, 2019",
            "dlrm",
            "DLRM",
            NoOptions,
        ),
        Kind(
            "dcn_v2",
            "DCN-v2",
            "Wang et al., DCN V2: Improved Deep & Cross Network, WWW 2021",
            "dcn_v2",
            "DCNv2",
            DCNv2Options,
        ),
        Kind(
            "deepfm",
            "DeepFM",
            "Guo et al., DeepFM: A Factorization-Machine based Neural Network, IJCAI 2017",
            "deepfm",
            "DeepFM",
            DeepFMOptions,
            extra_values=1,
        ),
        Kind(
            "pnn",
            "PNN",
            "Qu et al., Product-based Neural Networks for User Response Prediction, ICDM 2016",
            "pnn",
            "PNN",
            PNNOptions,
        ),
        Kind(
            "wide_deep",
            "Wide & Deep",
            "Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016",
            "wide_deep",
            "WideDeep",
            WideDeepOptions,
            extra_values=1,
        ),
        Kind(
            "mmoe",
            "MMoE",
            "Ma et al., Multi-gate Mixture-of-Experts, KDD 2018",
            "mmoe",
            "MMoE",
            MMoEOptions,
            several_targets=True,
        ),
        Kind(
            "dien",
            "DIEN",
            "Zhou et al., Deep Interest Evolution Network, AAAI 2019",
            "dien",
            "DIEN",
            DIENOptions,
            sequences=True,
        ),
    )
}

NODE_MODELS = {
    kind.name: kind
    for kind in (
        Kind(
            "graphsage",
            "GraphSAGE",
            "Hamilton et al., Inductive Representation Learning on Large Graphs, NIPS 2017",
            "nodes",
            "GraphSAGE",
            GraphSAGEOptions,
        ),
        Kind(
            "gat",
            "GAT",
            "Veličković et al., Graph Attention Networks, ICLR 2018",
            "nodes",
            "GAT",
            GATOptions,
        ),
    )
}


def kind_of(name: str, models: Mapping[str, Kind] = MODELS) -> Kind:
    """The model of this name. Errors: MisuseError, which names those that there are."""
    if name not in models:
        raise MisuseError(f"model is {name!r}, expected one of {', '.join(models)}")
    return models[name]


def described(kind: Kind) -> str:
    """A model and its options with their defaults, in a line."""
    said = [f"{one.name}={_text(one.default)} ({_meaning(one)})" for one in fields(kind.options)]
    return f"{kind.name}: {kind.title}" + ("; " + ", ".join(said) if said else "")


def _meaning(one: Any) -> str:
    choices = " or ".join(one.metadata["choices"])
    return f"{one.metadata['said']}: {choices}" if choices else str(one.metadata["said"])


def _text(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _value(model: str, one: Any, given: Any) -> Any:
    """A value of an option, of the type of its default."""
    wanted, least, choices = one.default, one.metadata["least"], one.metadata["choices"]
    expected = f"a whole number from {least}"
    value: Any = None
    try:
        if isinstance(wanted, tuple):
            expected = "sizes of layers, as 512-256"
            parts = given.split("-") if isinstance(given, str) else given
            value = tuple(int(part) for part in parts)
            fits = len(value) > 0 and min(value) >= least
        elif choices:
            expected, value = f"one of {', '.join(choices)}", given
            fits = value in choices
        elif isinstance(wanted, float):
            expected, value = f"a finite number, {least} or more", float(given)
            fits = least <= value < math.inf
        else:
            value = int(given)
            fits = value >= least and value == float(given)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise MisuseError(f"{one.name} of model {model} is {given!r}, expected {expected}")
    return value
