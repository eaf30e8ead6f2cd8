"""One model on several machines: tables divided among the ranks of ``torch.distributed``.

:func:`open` opens the stores of all ranks, :class:`Shard` takes the place of a store in modules and
optimizers, :func:`reshard` makes stores for another number of ranks. It needs PyTorch.
"""

from embedrock.distributed.ahead import ShardWindow
from embedrock.distributed.batches import ShardBatches
from embedrock.distributed.opening import open
from embedrock.distributed.resharding import reshard
from embedrock.distributed.shard import Shard
from embedrock.distributed.table import ShardTable

__all__ = ["Shard", "ShardBatches", "ShardTable", "ShardWindow", "open", "reshard"]
