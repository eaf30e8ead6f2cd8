"""Hiding the disk: look-ahead and its loader, permits, overlapped training.

:class:`LookaheadLoader` wraps any loader of batches and tells the store which rows the coming ones
will read. A callable names the keys of a batch, ``keys_of(batch) -> {table: keys}``:

* for a table, or its name: an array or tensor of any shape, or a list or tuple of them;
* for a module of :mod:`embedrock.nn`: what its ``forward`` will be called with, one argument or a
  tuple of them, jagged ids included.

A model whose batches are dicts (or tuples with dicts in them) with the names of its features or
tables needs none; nor does one with a method ``keys_of(batch)`` of its own.

>>> batch = {"heads": np.array([4, 9]), "tails": np.array([9, 1]), "negatives": np.zeros((2, 3))}
>>> def keys_of(batch):  # of knowledge graphs: all entities are rows of one table
...     return {"entities": [batch["heads"], batch["tails"], batch["negatives"].astype(np.int64)]}
>>> [keys.shape for keys in keys_of(batch)["entities"]]
[(2,), (2,), (2, 3)]
"""

from embedrock.pipeline.keys import KeysOf
from embedrock.pipeline.loader import LookaheadLoader

__all__ = ["KeysOf", "LookaheadLoader"]
