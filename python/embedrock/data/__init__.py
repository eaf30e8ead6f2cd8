"""Data sets for the trainer: click logs and MovieLens, as batches of 64-bit keys."""

from embedrock.data.arrow_sources import arrow
from embedrock.data.batch import Batch, Dataset, Feature, Position
from embedrock.data.errors import DataError

__all__ = ["Batch", "DataError", "Dataset", "Feature", "Position", "arrow"]
