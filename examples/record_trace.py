"""Records what a store is asked for, in bounded memory, and looks at the trace."""

import numpy as np

import embedrock

ROWS = 100_000
random = np.random.default_rng(0)

with embedrock.open("serving.store", memory="16MiB") as store:
    table = store.table("items", 16, num_embeddings=ROWS, optimizer="none")
    with embedrock.trace.record(store, sample=0.5, max_bytes="300kB") as recorder:
        for _ in range(5000):
            first = int(random.random() ** 3 * (ROWS - 1000))
            table.get(first + random.integers(0, 1000, 20))
    recorder.save("trace.npz")
    stats = recorder.stats()
    print(f"{stats['queries']} of {stats['batches']} requests, {stats['thinned']} had no room")

trace = embedrock.trace.Trace.load("trace.npz")
learn, held = trace.split(0.8)
print(f"{learn.queries + held.queries} queries of {trace.stats()['length_max']} keys at most")
