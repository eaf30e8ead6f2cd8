"""Trains DLRM of TorchRec on tables that need not fit in memory."""

import torch
from torchrec.models.dlrm import DLRM
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import embedrock
from embedrock.nn import EmbeddingBagCollection, EmbeddingBagConfig

torch.manual_seed(0)
with embedrock.open("torchrec.store", memory="16MiB") as store:
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig("items", 8, ["clicked"], num_embeddings=10_000),
            EmbeddingBagConfig("users", 8, ["user"], num_embeddings=50_000),
        ],
        store=store,
    )
    model = DLRM(
        bags, dense_in_features=4, dense_arch_layer_sizes=[8], over_arch_layer_sizes=[8, 1]
    )
    optimizer = embedrock.optim.Together(
        torch.optim.Adam(embedrock.nn.dense_parameters(model), lr=0.01),
        embedrock.optim.RowWiseAdagrad(model, lr=0.05),
    )
    dense = torch.rand(64, 4)
    lengths = torch.cat([torch.full((64,), 3), torch.ones(64, dtype=torch.long)])
    values = torch.cat([torch.randint(0, 10_000, (192,)), torch.randint(0, 50_000, (64,))])
    sparse = KeyedJaggedTensor(["clicked", "user"], values, lengths=lengths)
    losses = []
    for _ in range(20):
        logits = model(dense, sparse).squeeze(1)
        wanted = (values[192:] % 2).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}")
    embedrock.save(store, model, optimizer, step=20)
