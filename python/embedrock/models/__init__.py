"""Models in plain PyTorch whose embeddings come as a module, on storage or in memory."""
