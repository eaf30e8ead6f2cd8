"""Training a graph whose order may be chosen: partition by partition, so that few rows move.

The rows of a table are cut into partitions, edges into buckets by the partitions of their ends. A
few partitions are in memory, the buffer; the buckets of all pairs that are there are trained, then
one partition is swapped for another.
"""

from embedrock.kge.partitions.buckets import Buckets
from embedrock.kge.partitions.edges import EdgeBatch, PartitionedEdges
from embedrock.kge.partitions.negatives import SharedNegatives
from embedrock.kge.partitions.order import ORDERS, beta_swaps, least_swaps

__all__ = [
    "ORDERS",
    "Buckets",
    "EdgeBatch",
    "PartitionedEdges",
    "SharedNegatives",
    "beta_swaps",
    "least_swaps",
]
