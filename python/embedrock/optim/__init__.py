"""Optimizers of tables: ``torch.optim.Optimizer`` over modules of :mod:`embedrock.nn`.

Owns the step: it collects the pending rows of every module and hands keys and gradients to the
engine in one call. The arithmetic and the optimizer state are in the engine, beside each row, and
become durable with it; a ``state_dict`` here holds hyperparameters and step counts only.
Invariants: a step is all or nothing in each store (the engine checks every batch before the first
row changes), and it forgets the rows that it applied.

Dense parameters keep their torch optimizer beside it; :class:`Together` makes one of both, for
trainers that take one. Learning rate schedulers of torch, ``GradScaler``, step hooks and parameter
groups (one learning rate for some modules, another for the rest) work as with any optimizer.

Gradients are clipped in one of two places. ``torch.nn.utils.clip_grad_norm_(model.parameters())``
before the step works as with any model, since the waiting rows are among its parameters. Or the
engine does it while it applies them: ``clip=embedrock.Clip(...)``, which also has a bound for each
row, and counts the gradients of ``dense=`` parameters with its norm and scales them too.
"""

from embedrock.optim._adagrad import Adagrad, RowWiseAdagrad
from embedrock.optim._adam import Adam, AdamW, RowWiseAdam
from embedrock.optim._ftrl import FTRL
from embedrock.optim._sgd import SGD
from embedrock.optim.base import RowOptimizer
from embedrock.optim.together import Together

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "RowOptimizer",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "Together",
]
