"""Traces that are replayed on Embedrock and other systems, each in a process of its own.

``comparison`` runs one workload on all systems (``race``, ``ycsb``, ``memory``, ``lookahead``);
``recdb`` has loops of its own, and shares systems, processes and rows with it.
"""
