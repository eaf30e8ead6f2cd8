"""Makes a click log of sessions, and trains item vectors: items of a session come close."""

import numpy as np

import embedrock

ITEMS, SESSIONS, DIM = 20_000, 30_000, 32
random = np.random.default_rng(0)
interests = random.permutation(ITEMS).reshape(-1, 40)  # items that the same people like


def session():
    """Twelve items: of one interest, some interests being more common, and two of anything."""
    liked = interests[int(random.random() ** 2 * len(interests))]
    return np.concatenate([random.choice(liked, 10, replace=False), random.integers(0, ITEMS, 2)])


clicks = np.stack([session() for _ in range(SESSIONS)])
with open("clicks.txt", "w") as log:
    log.writelines(" ".join(map(str, items)) + "\n" for items in clicks)

with embedrock.open("items.store", memory="8MiB", page_bytes=4096) as store:
    table = store.table("items", DIM, num_embeddings=ITEMS, optimizer="rowwise_adagrad")
    for batch in np.split(clicks, 30):
        rows = table.get(batch.reshape(-1)).reshape(*batch.shape, DIM)
        pull = rows - rows.mean(axis=1, keepdims=True)  # towards the others of the session
        table.update(batch.reshape(-1), pull.reshape(-1, DIM), lr=0.05)
    store.commit(step=30)
    print(f"{len(clicks):,} sessions in clicks.txt, {len(table):,} rows trained in 30 steps")
