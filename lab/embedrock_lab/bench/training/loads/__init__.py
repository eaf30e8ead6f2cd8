"""Loads: the batches, the model and the rows of a training."""
