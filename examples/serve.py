"""Serves rows from a second process while the first one trains."""

import multiprocessing

import numpy as np

import embedrock

KEYS = np.arange(1000)


def serve(wanted, answers):
    """The server: reads at a commit, and moves to the newest one before each request."""
    with embedrock.open("served.store", memory="4MiB", create=False, read_only=True) as reader:
        reader.warm()
        while (key := wanted.get()) is not None:
            reader.refresh()
            answers.put((reader.step, float(reader.table("items").get([key])[0, 0])))


if __name__ == "__main__":
    with embedrock.open("served.store", memory="4MiB", max_held_bytes=1 << 30) as trainer:
        table = trainer.table("items", 8, optimizer="sgd", initializer=0.0)
        table.put(KEYS, np.ones((1000, 8), np.float32))
        trainer.commit(step=1)

        spawn = multiprocessing.get_context("spawn")  # a forked child could not use a store
        wanted, answers = spawn.Queue(), spawn.Queue()
        server = spawn.Process(target=serve, args=(wanted, answers))
        server.start()
        for step in (2, 3):
            table.update(KEYS, np.ones((1000, 8), np.float32), lr=0.25)
            trainer.commit(step)
            wanted.put(7)
            print("step {}: row 7 is {}".format(*answers.get()))
        wanted.put(None)
        server.join()
