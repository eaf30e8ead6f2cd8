"""Adapters to libraries around PyTorch, a module for each: ``embedrock.adapters.pyg`` and others.

A module imports its library when it is imported itself; none is needed by the package.
"""
