"""Packs features of a graph for mini-batches sampled ahead, counts pages, and trains from them."""

import argparse
import warnings

import numpy as np
import torch
import torch.nn.functional as F

import embedrock
from embedrock.placement import pack

KINDS, HIDDEN, FAN_OUTS, PAGE_BYTES = 4, 32, (10, 5), 4096
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--edges", help="a graph instead of a made one: two node ids a line")
parser.add_argument("--nodes", type=int, default=12_000, help="nodes of the made graph")
parser.add_argument("--dim", type=int, default=128, help="float32 features of a node")
parser.add_argument("--train", type=float, default=0.02, help="share of nodes to train on")
parser.add_argument("--batch", type=int, default=64, help="nodes of a mini-batch")
parser.add_argument("--replicate", type=float, default=0.1, help="share of rows stored again")
options = parser.parse_args()


def graph(random):
    """(where the neighbours of each node begin, all neighbours); few nodes have very many."""
    if options.edges:
        edges = np.loadtxt(options.edges, np.int64)
    else:
        nodes = options.nodes
        source = np.repeat(np.arange(nodes), 8)
        popular = (nodes * random.random(len(source)) ** 3).astype(np.int64)
        near = (source + random.integers(1, 100, len(source))) % nodes
        target = np.where(random.random(len(source)) < 0.8, near, popular)
        edges = random.permutation(nodes)[np.stack([source, target], 1)]  # ids say nothing
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    return np.searchsorted(both[:, 0], np.arange(both.max() + 2)), both[:, 1]


def sample(starts, neighbours, seeds, random):
    """Mini-batches of an epoch: (nodes, where each layer's nodes and their neighbours lie)."""
    batches = []
    for begin in range(0, len(seeds), options.batch):
        layers = [seeds[begin : begin + options.batch]]
        for fan_out in FAN_OUTS:
            of = layers[-1].reshape(-1)
            degree = starts[of + 1] - starts[of]
            drawn = (random.random((len(of), fan_out)) * degree[:, None]).astype(np.int64)
            drawn = np.minimum(starts[of][:, None] + drawn, len(neighbours) - 1)
            layers.append(np.where(degree[:, None] > 0, neighbours[drawn], of[:, None]))
        flat = np.concatenate([layer.reshape(-1) for layer in layers])
        nodes, places = np.unique(flat, return_inverse=True)
        cuts = np.cumsum([layer.size for layer in layers])[:-1]
        batches.append((nodes, [torch.from_numpy(p) for p in np.split(places.reshape(-1), cuts)]))
    return batches


class GraphSAGE(torch.nn.Module):
    """Two layers of means over neighbours."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2 * options.dim, HIDDEN)
        self.second = torch.nn.Linear(2 * HIDDEN, KINDS)

    def forward(self, rows, places):
        """Rows of a mini-batch (nodes, dim) -> logits (seeds, KINDS)."""
        seeds, near, far = (rows[p] for p in places)
        around = far.view(len(near), FAN_OUTS[1], -1).mean(1)
        inner = F.relu(self.first(torch.cat([near, around], 1)))
        around = near.view(len(seeds), FAN_OUTS[0], -1).mean(1)
        outer = F.relu(self.first(torch.cat([seeds, around], 1)))
        inner = inner.view(len(seeds), FAN_OUTS[0], -1).mean(1)
        return self.second(torch.cat([outer, inner], 1))


def train(batches, read):
    """(accuracy, parameters) after three passes over the batches; ``read(nodes)`` has the rows."""
    torch.manual_seed(0)
    model = GraphSAGE()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        right = 0
        for nodes, places in batches:
            wanted = kinds[torch.from_numpy(nodes)[places[0]]]
            logits = model(torch.from_numpy(read(nodes)), places)
            F.cross_entropy(logits, wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
            right += int((logits.argmax(1) == wanted).sum())
    return right / sum(len(places[0]) for _, places in batches), model.state_dict()


def opened(path, cached):
    """A reader whose cache has room for a share of the rows, or the smallest that there is."""
    store = embedrock.open(path, memory="0.01%", read_only=True)
    stats = store.stats()
    (nodes,) = stats["classes"]
    more = int(cached * len(features)) - nodes["cache_capacity"]
    if more <= 0:
        return store
    store.close()
    each = nodes["cache_bytes"] / nodes["cache_capacity"]
    return embedrock.open(path, memory=stats["budget_bytes"] + int(more * each), read_only=True)


def count(path, queries, cached):
    """(pages, missed rows per page, MB on disk) of the second of two passes, per query."""
    with opened(path, cached) as store:
        (table,) = store.tables.values()
        for _ in range(2):
            before = store.stats()
            for keys in queries:
                table.get(keys)
        after = store.stats()
        pages, missed = (after[name] - before[name] for name in ("pages_read", "misses"))
        return pages / len(queries), missed / pages, after["disk_bytes"] / 1e6


def write(path, rows):
    """A store with one table of these rows."""
    with embedrock.open(path, memory="64MiB") as store:
        table = store.table("nodes", options.dim, num_embeddings=len(rows), optimizer="none")
        table.put(np.arange(len(rows)), rows)
        store.commit(step=1)


warnings.simplefilter("ignore", embedrock.BudgetWarning)  # of the smallest budget
random = np.random.default_rng(0)
starts, neighbours = graph(random)
count_nodes = len(starts) - 1
kinds = torch.from_numpy(random.integers(0, KINDS, count_nodes))
features = random.standard_normal((count_nodes, options.dim), np.float32)
features[:, :KINDS] += F.one_hot(kinds, KINDS).numpy()
seeds = random.permutation(count_nodes)[: int(options.train * count_nodes)]
# Sampled ahead: this epoch, which is to be trained, and others of the same seeds.
randoms = [np.random.default_rng(n) for n in range(3)]
epoch, *others = (sample(starts, neighbours, r.permutation(seeds), r) for r in randoms)
batches = [nodes for nodes, _ in epoch]
rows = sum(map(len, batches))
print(f"{count_nodes} nodes, {len(batches)} batches of {rows / len(batches):.0f} rows")

write("graph.store", features)
trace = embedrock.trace.Trace.of(batches, table="nodes")
other = embedrock.trace.Trace.of((nodes for each in others for nodes, _ in each), table="nodes")
per_page = (PAGE_BYTES - 32) // (4 * options.dim + 10)  # or pack(..., store="graph.store")
plans = {
    "order of ids": None,
    "other batches": pack(other, rows_per_page=per_page, replicate=options.replicate),
    "these batches": pack(trace, rows_per_page=per_page, replicate=options.replicate),
}
print("frozen by       cache  pages a batch  rows a page     MB")
for name, plan in plans.items():
    path = f"{name.replace(' ', '-')}.store"
    embedrock.freeze("graph.store", path, plan=plan, page_bytes=PAGE_BYTES)
    for cached in (0, 0.1):
        pages, found, size = count(path, batches, cached)
        print(f"{name:<15} {cached:>5.0%} {pages:>14.1f} {found:>12.2f} {size:>6.1f}")

# The layout of DiskGNN: hot rows stay in memory, the others are written again for each batch.
for cached in (0, 0.1):
    hot = np.argsort(-np.bincount(np.concatenate(batches), minlength=count_nodes), kind="stable")
    cold = np.ones(count_nodes, np.bool_)
    cold[hot[: int(cached * count_nodes)]] = False
    parts = [nodes[cold[nodes]] for nodes in batches]
    write(f"copies-{cached}.store", features[np.concatenate(parts)])
    packed = f"packed-{cached}.store"
    embedrock.freeze(f"copies-{cached}.store", packed, page_bytes=PAGE_BYTES)
    queries = np.split(np.arange(sum(map(len, parts))), np.cumsum([len(p) for p in parts])[:-1])
    pages, found, size = count(packed, queries, 0)
    print(f"{'copies':<15} {cached:>5.0%} {pages:>14.1f} {found:>12.2f} {size:>6.1f}")

with opened("these-batches.store", 0.1) as store:
    found = train(epoch, store.table("nodes").get)
expected = train(epoch, lambda nodes: features[nodes])
same = all(torch.equal(expected[1][name], found[1][name]) for name in expected[1])
print(f"accuracy {found[0]:.3f}, in memory {expected[0]:.3f}, same bits: {same}")
