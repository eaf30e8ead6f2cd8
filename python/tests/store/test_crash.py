"""``kill -9`` of a training at random moments: the run that goes on is the run that never stopped.

The file is its own child: run as a program it trains a small model until it is killed, saves every
few steps, and says after each save what tables, dense parameters and optimizers have become.
``EMBEDROCK_KILLS`` sets how often the chain of children is killed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedrock  # noqa: E402
import withtorch  # noqa: E402
from embedrock import nn, optim  # noqa: E402

STEPS_PER_SAVE = 3
HEARD = (3, 0, 2)
"""Lines that a child says at least before it is killed, in turn."""
ITEMS, DIM, BATCH = 6000, 16, 128
DELAY_S_MAX = 0.7
"""The longest life of a child: its store is opened, resumed and saved to some tens of times."""


class Run:
    """Tables with four times more bytes than memory, one of them rounded at random to 2 bytes, a
    dense part, dropout from a generator.
    """

    def __init__(self, path: Path) -> None:
        torch.manual_seed(3)
        self.store = embedrock.open(path, memory="1.5MiB", max_disk_bytes=100 << 20, seed=7)
        tables = [
            nn.EmbeddingBagConfig("items", DIM, ["seen", "bought"], optimizer="adagrad"),
            nn.EmbeddingBagConfig("places", DIM, num_embeddings=ITEMS, optimizer="adagrad"),
            nn.EmbeddingBagConfig(
                "hours", DIM, num_embeddings=ITEMS, dtype=torch.float16, optimizer="adagrad"
            ),
        ]
        self.model = torch.nn.Sequential(
            nn.EmbeddingBagCollection(tables, store=self.store, concatenate=True),
            torch.nn.Linear(4 * DIM, 8),
            torch.nn.Dropout(0.2),
            torch.nn.ReLU(),
            torch.nn.Linear(8, 1),
        )
        rows = optim.Adagrad(self.model, lr=0.1)
        dense = torch.optim.Adam(nn.dense_parameters(self.model), lr=0.01)
        self.optimizers = [rows, dense]

    def train(self, step: int) -> None:
        """One step, whose batch follows from its number."""
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, ITEMS, (4, BATCH, 2), generator=generator)
        features = dict(zip(("seen", "bought", "places", "hours"), ids, strict=True))
        features["seen"] *= 1 << 40
        wanted = torch.randint(0, 2, (BATCH, 1), generator=generator).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(features), wanted)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def digest(self) -> str:
        """Everything that the run has become, in one word."""
        digest = hashlib.sha256()
        for name in ("items", "places", "hours"):
            digest.update(str(self.store.table(name).digest()).encode())
        model = self.model.state_dict()
        # They name the store, which is another in each run.
        model = {name: each for name, each in model.items() if "_extra_state" not in name}
        states = [model, *(o.state_dict() for o in self.optimizers)]
        for place, value in plain(states, ""):
            digest.update(f"{place}={value}".encode())
        digest.update(torch.get_rng_state().numpy().tobytes())
        return digest.hexdigest()


def plain(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Numbers and texts within a state, with their places."""
    if isinstance(value, dict):
        for key in value:
            yield from plain(value[key], f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from plain(part, f"{place}.{i}")
    elif isinstance(value, torch.Tensor):
        yield place, value.numpy().tobytes().hex()
    else:
        yield place, value


def train(path: Path, saves: int) -> None:
    """The child: goes on from the last save and says each next one once it is durable."""
    torch.set_num_threads(1)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    run = Run(path)
    first = embedrock.resume(run.store, run.model, run.optimizers)
    print(f"resumed {first} {run.digest()}", flush=True)
    pending, digest = None, ""
    for step in range(first + 1, first + saves * STEPS_PER_SAVE + 1):
        run.train(step)
        if step % STEPS_PER_SAVE == 0:
            if pending is not None:
                print(f"saved {pending.wait().step} {digest}", flush=True)
            digest = run.digest()
            # Some saves are written while the next steps are trained.
            wait = step // STEPS_PER_SAVE % 3 == 0
            saved = embedrock.save(run.store, run.model, run.optimizers, step, wait=wait)
            pending = saved if isinstance(saved, embedrock.PendingCommit) else None
            if pending is None:
                print(f"saved {step} {digest}", flush=True)
    if pending is not None:
        print(f"saved {pending.wait().step} {digest}", flush=True)
    run.store.close()


class Children:
    """Training processes; those that still run are killed at the end."""

    def __init__(self) -> None:
        self.all: list[withtorch.Process] = []

    def start(self, path: Path, saves: int = 1_000_000) -> withtorch.Process:
        """A process that imports what it needs and waits for ``begin``."""
        self.all.append(withtorch.Process([__file__, str(path), str(saves)]))
        return self.all[-1]

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


def begin(process: withtorch.Process) -> None:
    """Lets a child open its store."""
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("begin\n")
    process.stdin.flush()


def said(process: withtorch.Process) -> Iterator[tuple[str, int, str]]:
    """Word, step and digest of each line. A line that the end cut in two was never said."""
    for line in process.stdout:
        if line.endswith("\n"):
            word, step, digest = line.split()
            yield word, int(step), digest


class Whole:
    """The run that nobody stops and that never saves, in this process."""

    def __init__(self, path: Path) -> None:
        self.run = Run(path)
        self.step = 0
        self.digests = {0: self.run.digest()}

    def at(self, step: int) -> str:
        """Digest of the run after a step at which a child may save."""
        while self.step < step:
            self.step += 1
            self.run.train(self.step)
            if self.step % STEPS_PER_SAVE == 0:
                self.digests[self.step] = self.run.digest()
        return self.digests[step]

    def close(self) -> None:
        """Ends it, with a commit, without which closing would warn."""
        self.run.store.commit(self.step)
        self.run.store.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of torch depend on the number of threads; the children have one."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
def test_killed_trainings_resume_bit_for_bit_at_the_last_save(tmp_path: Path) -> None:
    kills = max(1, int(os.environ.get("EMBEDROCK_KILLS", "3")))
    seed = int(os.environ.get("EMBEDROCK_SEED", "1"))
    moments = random.Random(seed)
    path, saved, resumed = tmp_path / "killed", 0, []
    with Children() as children:
        following = children.start(path)
        whole = Whole(tmp_path / "whole")
        for kill in range(kills + 1):
            process, last = following, kill == kills
            if not last:
                following = children.start(path, 4 if kill + 1 == kills else 1_000_000)
            begin(process)
            delay = moments.uniform(0, DELAY_S_MAX)
            when = f"seed {seed}, after {kill} kills, alive for {delay:.3f} s"
            lines, heard = said(process), []
            if not last:
                # On a busy machine many would be killed before they have saved anything.
                heard = [*itertools.islice(lines, HEARD[kill % len(HEARD)])]
                time.sleep(delay)
                process.kill()
            for word, step, digest in itertools.chain(heard, lines):
                if word == "resumed":
                    # The save in flight was durable, or it was not.
                    assert step in (saved, saved + STEPS_PER_SAVE), f"{when}: {saved} was saved"
                    resumed.append(step)
                else:
                    assert step == saved + STEPS_PER_SAVE, when
                assert digest == whole.at(step), f"{when}: step {step} is not that of the whole run"
                saved = step
            assert process.wait() == (0 if last else -signal.SIGKILL), when
    whole.close()
    report = embedrock.check(path)
    assert report["problems"] == [], report
    # Everything would hold for children that are killed before they do anything.
    assert len(set(resumed)) > min(kills, 3) / 2 and saved > STEPS_PER_SAVE * (kills // 2 + 4)
    print(f"{kills} kills, resumed at {resumed}, then trained to step {saved}")


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]))
