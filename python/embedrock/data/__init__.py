"""Data sets for the trainer: Criteo's click logs and MovieLens, as batches of 64-bit keys."""

from embedrock.data.batch import Batch, Dataset, Feature, Position
from embedrock.data.errors import DataError

__all__ = ["Batch", "DataError", "Dataset", "Feature", "Position"]
