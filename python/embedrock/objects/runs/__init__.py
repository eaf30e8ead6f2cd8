"""Runs of ranks in object storage: the stores of all ranks, pushed and pulled at one commit.

Each store has a place below the URL as if it were pushed by itself; the manifest of the run, which
comes last, names one push of each (``docs/formats/objects.md``). Nothing here imports PyTorch.
"""
