"""Embedrock: embedding tables larger than memory, on a slice of DRAM and an ordinary SSD.

>>> with embedrock.open("quick.store", memory="64MiB") as store:
...     table = store.table("ads", 4, optimizer="adagrad", initializer=0.0)
...     report = table.update([7, 8], np.ones((2, 4), np.float32), lr=0.1)
...     rows = table.get([7, 8, 9])
...     commit = store.commit(step=1)
>>> rows.shape
(3, 4)

Only NumPy is needed for that. Parts that need PyTorch (``embedrock.nn``, ``embedrock.optim``,
``embedrock.save``, ``embedrock.resume``, ``embedrock.Pipeline``, ``embedrock.distributed``) are
imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from embedrock import _logs as _logs
from embedrock import errors, initializers, optimizers
from embedrock._core import __version__
from embedrock._hashing import hash_keys
from embedrock._optional import missing
from embedrock.clip import Clip
from embedrock.commits import Commit, PendingCommit
from embedrock.errors import (
    BudgetWarning,
    EmbedrockError,
    KeysWarning,
    LookaheadWarning,
    PartWarning,
    UncommittedWarning,
)
from embedrock.observe.step_report import StepReport
from embedrock.pipeline.loader import LookaheadLoader
from embedrock.store import (
    ChangedRows,
    Changes,
    Store,
    check,
    close_all,
    copy,
    distinct,
    open,
    resize,
)
from embedrock.table import Table

if TYPE_CHECKING:
    from embedrock import distributed, follow, nn, objects, optim, trace, weights
    from embedrock.checkpoint import resume, save
    from embedrock.kge.partitions.edges import PartitionedEdges
    from embedrock.kge.partitions.negatives import SharedNegatives
    from embedrock.pipeline.schedule import schedule
    from embedrock.pipeline.training import Pipeline
    from embedrock.placement.freezing import freeze
    from embedrock.remote.client import connect

__all__ = [
    "BudgetWarning",
    "ChangedRows",
    "Changes",
    "Clip",
    "Commit",
    "EmbedrockError",
    "KeysWarning",
    "LookaheadLoader",
    "LookaheadWarning",
    "PartWarning",
    "PartitionedEdges",
    "PendingCommit",
    "Pipeline",
    "SharedNegatives",
    "StepReport",
    "Store",
    "Table",
    "UncommittedWarning",
    "__version__",
    "check",
    "close_all",
    "connect",
    "copy",
    "distinct",
    "distributed",
    "errors",
    "follow",
    "freeze",
    "hash_keys",
    "initializers",
    "kge",
    "nn",
    "objects",
    "open",
    "optim",
    "optimizers",
    "placement",
    "resize",
    "resume",
    "save",
    "schedule",
    "trace",
    "weights",
]

# Public names that need PyTorch or that few programs use, and the module that each one comes from.
_LAZY = {
    "PartitionedEdges": "embedrock.kge.partitions.edges",
    "Pipeline": "embedrock.pipeline.training",
    "SharedNegatives": "embedrock.kge.partitions.negatives",
    "connect": "embedrock.remote.client",
    "distributed": "embedrock.distributed",
    "follow": "embedrock.follow",
    "freeze": "embedrock.placement.freezing",
    "kge": "embedrock.kge",
    "nn": "embedrock.nn",
    "objects": "embedrock.objects",
    "optim": "embedrock.optim",
    "placement": "embedrock.placement",
    "resume": "embedrock.checkpoint",
    "save": "embedrock.checkpoint",
    "schedule": "embedrock.pipeline.schedule",
    "trace": "embedrock.trace",
    "weights": "embedrock.weights",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'embedrock' has no attribute {name!r}")
    try:
        module = importlib.import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        raise ModuleNotFoundError(
            missing(f"embedrock.{name}", "PyTorch", "torch"), name="torch"
        ) from error
    value = module if module.__name__ == f"embedrock.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
