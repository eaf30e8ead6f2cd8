"""Torch modules whose rows live in a store.

Drop-in replacements in a forward/backward loop: the same arguments, shapes, outputs and gradients
as torch's modules, with ``store=`` and ``name=`` beside them.

How a step goes: a forward finds the distinct ids, reads their rows with one call of the engine and
computes its output from them with torch's own kernels. ``backward`` leaves the rows' gradient in a
tensor that ``parameters()`` lists; an optimizer of :mod:`embedrock.optim` applies it with one call
and the tensor is gone. Several forwards before a step, of one module or of several that share a
table, are merged by key before anyone looks: ``clip_grad_norm_`` sees the norm of the merged
gradient, as it would with the table in memory.

Outputs and gradients have the bits of torch's modules on the same device, up to the order of two
kinds of sums. Torch's ``EmbeddingBag`` (sum and mean) adds the gradients of an id that occurs three
or more times in a batch in the order of an unstable sort, which depends on the values of the ids.
Here bags on the CPU add them in the order in which the ids occur, as ``Embedding`` does everywhere;
weighted bags, bags with their padding id in them, and ``mean`` of several ids leave it to torch.
And where a table is used by several calls in each of several accumulated backward passes, torch
adds up each pass before it adds the passes; here gradients are added one by one. (An
``EmbeddingBagCollection`` is one call, however many features share a table.)

>>> import torch
>>> model = torch.nn.Sequential(
...     embedrock.nn.EmbeddingBag(None, 8, mode="sum", store=store, name="words"),
...     torch.nn.Linear(8, 1),
... )
>>> tables = embedrock.optim.RowWiseAdagrad(model, lr=0.05)
>>> dense = torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=1e-3)
>>> loss = model(torch.tensor([[1, 2], [3, 1]])).square().mean()
>>> loss.backward()
>>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
>>> tables.step()
>>> dense.step()
>>> len(store.table("words"))
3
"""

from embedrock.nn.collection import EmbeddingBagCollection, EmbeddingBagConfig, Jagged
from embedrock.nn.conversion import convert
from embedrock.nn.embedding import Embedding, EmbeddingBag
from embedrock.nn.grouped_read import ReadTogether, read_together
from embedrock.nn.meta_init import deferred
from embedrock.nn.module import RowsModule, dense_parameters, rows_modules
from embedrock.nn.ranking import TopK
from embedrock.nn.references import by_reference
from embedrock.nn.sampled import sampled_logits, tied
from embedrock.nn.state_dict_guard import loading_dense_only

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "Jagged",
    "ReadTogether",
    "RowsModule",
    "TopK",
    "by_reference",
    "convert",
    "deferred",
    "dense_parameters",
    "loading_dense_only",
    "read_together",
    "rows_modules",
    "sampled_logits",
    "tied",
]
