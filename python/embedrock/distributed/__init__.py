"""One model on several machines: tables divided among the ranks of ``torch.distributed``.

:class:`Shard` takes the place of a store in modules and optimizers. It needs PyTorch.
"""

from embedrock.distributed.ahead import ShardWindow
from embedrock.distributed.batches import ShardBatches
from embedrock.distributed.shard import Shard
from embedrock.distributed.table import ShardTable

__all__ = ["Shard", "ShardBatches", "ShardTable", "ShardWindow"]
