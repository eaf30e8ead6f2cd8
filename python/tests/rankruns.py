"""A training of several ranks whose ranks are killed, and what it has become after each save.

The file is its own child: run as a program it is one rank, which trains over a shard and saves
every few steps. :class:`Chain` starts all ranks, kills one, ends the others as ``torchrun`` does,
and starts all again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import withtorch

STEPS_PER_SAVE = 2
ITEMS, DIM, BATCH = 400, 4, 16
_PATIENCE_S = 120


class Rank:
    """A rank's process, and what it has said: word, step and digest of each line."""

    def __init__(self, words: Sequence[str], errors: IO[Any]) -> None:
        self.process = withtorch.Process([__file__, *words], errors=errors)
        self.lines: list[tuple[str, int, str]] = []

    def hear(self, word: str, count: int) -> None:
        """Waits until it has said a word so often, or has ended."""
        while sum(line[0] == word for line in self.lines) < count:
            line = self.process.stdout.readline()
            if not line:
                return
            if line.endswith("\n"):
                first, step, digest = line.split()
                self.lines.append((first, int(step), digest))

    def end(self) -> int:
        """Reads to its end. Returns its status."""
        self.hear("", 1)
        return self.process.wait(_PATIENCE_S)


class Chain:
    """Lives of a run in one folder, each with all its ranks."""

    def __init__(self, folder: Path, name: str, world: int = 2) -> None:
        self.path, self._folder, self.world = folder / name, folder, world
        self._lives = itertools.count()
        self.saved: dict[tuple[int, int], str] = {}
        """Digests by rank and step, of saves that were said."""
        self.resumed: list[int] = []
        """The step at which each life began that came so far."""

    def live(
        self,
        until: int,
        *,
        kill: Callable[[list[Rank]], int] | None = None,
        points: Sequence[str] = (),
    ) -> list[int]:
        """One life to a step. ``kill`` waits, and says whom to kill; the others are killed, too.
        ``points`` are where ranks kill themselves; the others raise an error then. Returns the
        statuses of the ranks."""
        life = next(self._lives)
        meeting = self._folder / f"{self.path.name}-meeting-{life}"
        with tempfile.TemporaryFile("w+") as errors:
            facts = [str(self.path), str(meeting), str(self.world), str(until)]
            points = [*points, *[""] * (self.world - len(points))]
            ranks = [Rank([*facts, str(rank), points[rank]], errors) for rank in range(self.world)]
            try:
                if kill is not None:
                    ranks[kill(ranks)].process.kill()
                    time.sleep(0.02 * (life % 3))  # others go on as far as they can
                    for rank in ranks:
                        rank.process.kill()
                statuses = [rank.end() for rank in ranks]
            finally:
                for rank in ranks:
                    rank.process.kill()
            errors.seek(0)
            said = errors.read()
        expected = {0} if kill is None else {0, -signal.SIGKILL}
        expected |= {1, -signal.SIGKILL} if any(points) else set()
        assert set(statuses) <= expected, f"life {life}: {statuses}\n{said}"
        self._note(life, ranks)
        return statuses

    def _note(self, life: int, ranks: Sequence[Rank]) -> None:
        begun = {line[1] for rank in ranks for line in rank.lines if line[0] == "resumed"}
        assert len(begun) <= 1, f"life {life}: ranks resumed at steps {begun}"
        said = max((step for _, step in self.saved), default=0)
        assert min(begun, default=said) >= said, f"life {life}: {begun}, and {said} was saved"
        self.resumed.extend(begun)
        for place, rank in enumerate(ranks):
            for word, step, digest in rank.lines:
                known = self.saved.setdefault((place, step), digest)
                what = f"life {life}: rank {place} {word} at step {step}"
                assert known == digest, f"{what} is not what it was when it was saved before"


def _digest(model: Any, optimizers: Sequence[Any], shard: Any) -> str:
    """Everything that the run has become on this rank, in one word."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(shard.store.tables):
        digest.update(f"{name}={shard.store.table(name).digest()}".encode())
    states = [model.state_dict(), *(one.state_dict() for one in optimizers)]
    for place, value in _plain(states, ""):
        if "_extra_state" not in place:  # it names the store, which is another in each run
            digest.update(f"{place}={value}".encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(value, dict):
        for key in value:
            yield from _plain(value[key], f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _plain(part, f"{place}.{i}")
    elif isinstance(value, torch.Tensor):
        yield place, value.numpy().tobytes().hex()
    else:
        yield place, value


def _arm(point: str) -> None:
    """Kills this process before or after so many commits of its store or writes of a manifest."""
    from embedrock.distributed import commits
    from embedrock.store import Store

    place, what, number = point.split(":")
    owner: Any = {"commit": Store, "write_manifest": commits}[what]
    function, counted = getattr(owner, what), itertools.count(1)

    def dying(*arguments: Any, **named: Any) -> Any:
        is_last = next(counted) == int(number)
        if is_last and place == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, what, dying)


def train(path: str, meeting: str, world: int, until: int, rank: int, point: str) -> None:
    """One rank: goes on from the last common save, and says each next one once it is durable."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import embedrock
    from embedrock import nn, optim
    from embedrock.distributed import open as open_ranks

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    if point:
        _arm(point)
    with open_ranks(path, "2MiB", seed=7) as shard:
        torch.manual_seed(3)
        tables = [
            nn.EmbeddingBagConfig("items", DIM, ["seen", "bought"], optimizer="adagrad"),
            nn.EmbeddingBagConfig(
                "hours", DIM, num_embeddings=ITEMS, dtype=torch.float16, optimizer="adagrad"
            ),
        ]
        bags = nn.EmbeddingBagCollection(tables, store=shard, concatenate=True)
        rest = torch.nn.Sequential(
            torch.nn.Linear(3 * DIM, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        model = torch.nn.ModuleList([bags, rest])
        dense = DistributedDataParallel(rest)
        optimizers = [
            optim.Adagrad(model, lr=0.1),
            torch.optim.Adam(rest.parameters(), lr=0.01),
        ]
        first = embedrock.resume(shard, model, optimizers)
        torch.manual_seed(3 + rank) if first == 0 else None
        print(f"resumed {first} {_digest(model, optimizers, shard)}", flush=True)
        for step in range(first + 1, until + 1):
            generator = torch.Generator().manual_seed(world * step + rank)
            ids = torch.randint(0, ITEMS, (3, BATCH, 2), generator=generator)
            features = dict(zip(("seen", "bought", "hours"), ids, strict=True))
            features["seen"] *= 1 << 40
            wanted = torch.randint(0, 2, (BATCH, 1), generator=generator).float()
            scores = dense(bags(features))
            torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            if step % STEPS_PER_SAVE == 0:
                digest = _digest(model, optimizers, shard)
                embedrock.save(shard, model, optimizers, step, meta={"rank": rank})
                print(f"saved {step} {digest}", flush=True)
    dist.destroy_process_group()


def manifests(path: Path) -> list[dict[str, Any]]:
    """The manifests in a folder of stores, oldest first."""
    return [json.loads(file.read_text()) for file in sorted(path.glob("manifest-*.json"))]


if __name__ == "__main__":
    _path, _meeting, _world, _until, _rank, _point = sys.argv[1:]
    train(_path, _meeting, int(_world), int(_until), int(_rank), _point)
