"""Makes a store fail in five ways, and gets on each time."""

from pathlib import Path

import numpy as np

import embedrock
from embedrock.errors import BudgetError, CorruptError, FullError, LockedError

keys, ones = np.arange(20_000), np.ones((20_000, 32), np.float32)

# A budget that is too small: the message has the bytes that work.
with embedrock.open("small.store", memory="64KiB") as store:
    try:
        store.table("items", 32, num_embeddings=20_000)
    except BudgetError as error:
        print("BudgetError:", error)

# A store that is open: one handle writes, others read.
with embedrock.open("broken.store", memory="4MiB") as store:
    table = store.table("items", 32, optimizer="none")
    table.put(keys, ones)
    store.commit(step=1)
    table.put(keys, 2 * ones)
    store.commit(step=2)
    try:
        embedrock.open("broken.store", memory="8MiB")
    except LockedError as error:
        print("LockedError:", error)
    embedrock.copy("broken.store", "backup.store")

# A disk that is full: nothing has changed, and a commit makes room.
with embedrock.open("full.store", memory="1MiB", max_disk_bytes=6 << 20, keep=1) as store:
    table = store.table("items", 32, optimizer="none")
    step = 0
    for first in range(0, 200_000, 1000):
        some = keys[:1000] + first % 20_000
        try:
            table.put(some, ones[:1000])
        except FullError:
            step += 1
            store.commit(step)
            table.put(some, ones[:1000])
    store.commit(step + 1)
    print(f"FullError: {step} times, and a commit made room")

# Damage: every page is checked when it is read, and `check` reads all of them.
path = Path("broken.store/rows-0")
damaged = bytearray(path.read_bytes())
damaged[damaged.index((2 * ones[0]).tobytes())] ^= 1
path.write_bytes(damaged)
report = embedrock.check("broken.store")
print(report["problem_count"], "problem:", report["problems"][0]["message"])
with embedrock.open("broken.store", memory="4MiB") as store:
    try:
        store.table("items").get(keys)
    except CorruptError as error:
        print("CorruptError:", error)

# The way out: an earlier commit that is whole, or a copy.
bad = {problem["step"] for problem in report["problems"]}
with embedrock.open("broken.store", memory="4MiB", read_only=True) as store:
    good = [commit.step for commit in store.commits() if commit.step not in bad]
with embedrock.open("broken.store", memory="4MiB", step=good[-1]) as store:
    print("back at step", store.step, "with", store.table("items").get([7])[0, 0])
with embedrock.open("backup.store", memory="4MiB") as store:
    print("or a copy, at step", store.step, "with", store.table("items").get([7])[0, 0])
