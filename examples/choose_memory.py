"""Says for several budgets how many rows were found in memory, and what would be possible."""

import numpy as np

import embedrock

ROWS = 50_000
random = np.random.default_rng(0)
batches = [(random.random(2048) ** 2 * ROWS).astype(np.int64) for _ in range(200)]
gradients = np.ones((2048, 64), np.float32)

for memory in ("10%", "25%", "50%"):
    with embedrock.open(f"memory-{memory}.store", memory=memory) as store:
        table = store.table("items", 64, num_embeddings=ROWS, optimizer="rowwise_adagrad")
        table.put(np.arange(ROWS), np.zeros((ROWS, 64), np.float32))
        store.commit(step=0)
        with store.record() as recording:
            for keys in batches:
                table.update(keys, gradients, lr=0.01)
        report = recording.report()
        used = sum(store.stats()["memory"].values())
        print(
            f"{memory} is {used / 2**20:.1f} MiB: {report['hit_rate']:.0%} of the rows were "
            f"in memory, {report['optimal_hit_rate']:.0%} at best"
        )
        store.commit(step=1)
