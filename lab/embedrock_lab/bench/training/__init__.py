"""A model trained beside itself: over a store and in memory, at less memory than its rows.

``ways`` runs a load in rounds, plain and with look-ahead (``loops``, ``models``); ``twins`` trains
a model and its twin to the end (``kge``, ``recommend``); ``gnn`` has the loops of PyTorch
Geometric. A load is a model, its batches and its rows.
"""
