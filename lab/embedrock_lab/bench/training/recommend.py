"""``recommend``: matrix factorization (BPR) out of core and in memory, and how well it recommends.

Users and items have rows in a store at ``--memory``; the twin has ``torch.nn.Embedding``, the same
first rows, batches, negatives and optimizer. ``recall_20`` is the share of a user's held-out items
among the 20 items that score highest, without those of training, the mean of all users;
``recall_20_gap`` that less the twin's. ``speed_vs_memory_recommend`` is samples/s of the store's
loop, with look-ahead, divided by those of the twin's, one after the other.

``--data`` names a folder with ``train_queries.txt.gz`` and ``test_queries.txt.gz``, a line for each
user: user, tab, items. Without, users are made who like one of 20 kinds of items.

*Source*: Rendle et al., BPR, 2009; the measure and Gowalla's split: Wang et al., NGCF, 2019.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.errors import MisuseError
from embedrock_lab.bench.common import Report, import_torch, workspace
from embedrock_lab.bench.options import Common, option
from embedrock_lab.bench.training.load import Shape, Tables
from embedrock_lab.bench.training.twins import IN_MEMORY, STORE, Twins, compare, speed

__all__ = ["Clicks", "Options", "made", "read", "run"]

Ids = npt.NDArray[np.int64]

BEST = 20
FIGURES = ["recall_20", "recall_20_gap", "speed_vs_memory_recommend"]
FILES = ("train_queries.txt.gz", "test_queries.txt.gz")
MEMORY_BYTES, TABLE_BYTES = 1 << 30, 1 << 30
SPREAD = 0.1
"""Deviation of first rows."""
SMALL = 0.005
"""Weight of the squares of rows."""
USERS_AT_ONCE = 1024
KINDS, LIKED, LEARNED = 20, 16, 12


@dataclass(frozen=True)
class Clicks:
    """Items of users, those to learn from and those to be found."""

    name: str
    known: dict[int, Ids]
    wanted: dict[int, Ids]

    @property
    def users(self) -> int:
        """Rows of users."""
        return max(max(self.known), max(self.wanted)) + 1

    @property
    def items(self) -> int:
        """Rows of items."""
        every = itertools.chain(self.known.values(), self.wanted.values())
        return max(int(one.max()) for one in every if len(one)) + 1


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Options of this bench."""

    data: Path | None = option(None, "folder with the two files", metavar="DIR")
    users: int = option(4000, "of made data")
    epochs: int = option(30, "passes over the clicks")
    dim: int = option(64, "float32 values of a row")
    batch: int = option(4096, "clicks of a step")
    negatives: int = option(256, "items drawn for each batch")
    lr: float = option(0.1, "of Adagrad")
    memory: str = option("25%", "of the tables")
    threads: int = option(1, "of PyTorch")


def run(options: Options) -> dict[str, Any]:
    """Measures, and returns the report."""
    report = Report("recommend", options)
    torch = import_torch(report, FIGURES, MEMORY_BYTES)
    if torch is None:
        return report.finish()
    torch.set_num_threads(options.threads)
    clicks = made(options.users, options.seed) if options.data is None else read(options.data)
    count = sum(map(len, clicks.known.values()))
    facts = {"data": clicks.name, "users": clicks.users, "items": clicks.items, "clicks": count}
    report.results |= facts
    report.say(f"{clicks.name}: {count:,} clicks of {clicks.users:,} users")
    twins = _Twins(clicks, options)
    with workspace(options, TABLE_BYTES) as place:
        found = compare(report, twins, place / "store", options.memory, options.seed)
    report.results["loops"] = found
    report.figure("recall_20", found[STORE]["recall"])
    report.figure("recall_20_gap", found[STORE]["recall"] - found[IN_MEMORY]["recall"])
    report.figure("speed_vs_memory_recommend", speed(found, twins))
    return report.finish()


def made(users: int, seed: int) -> Clicks:
    """Users who like one of 20 kinds of items: twelve to learn from, and four to be found."""
    random = np.random.default_rng(seed)
    liked = [random.permutation(30)[:LIKED] * KINDS + user % KINDS for user in range(users)]
    known = dict(enumerate(items[:LEARNED] for items in liked))
    return Clicks("made", known, dict(enumerate(items[LEARNED:] for items in liked)))


def read(folder: Path) -> Clicks:
    """The clicks of a folder. Errors: ``MisuseError`` naming a file that is not there or a line."""
    return Clicks(folder.name, *(_lines(folder / name) for name in FILES))


def _lines(file: Path) -> dict[int, Ids]:
    if not file.is_file():
        raise MisuseError(f"{file} is not there; --data expects {' and '.join(FILES)}")
    found: dict[int, Ids] = {}
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                user, items = line.rstrip("\n").split("\t")
                found[int(user)] = np.array(items.split(), np.int64)
            except ValueError as error:
                raise MisuseError(
                    f"{file}, line {number}: {error}; expected a user, a tab, items"
                ) from error
    return found


class _Twins(Twins):
    """Factors of users and items."""

    unit, shown, name, summed = "samples", ("recall", "recall"), "", True
    initializer = embedrock.initializers.normal(std=SPREAD)

    def __init__(self, clicks: Clicks, options: Options) -> None:
        self._clicks, self._options, self.lr = clicks, options, options.lr
        sizes = [len(items) for items in clicks.known.values()]
        self._who = np.repeat(np.array(list(clicks.known)), sizes)
        self._what = np.concatenate(list(clicks.known.values()))
        rows = {"users": clicks.users, "items": clicks.items}
        self.tables = {name: Shape(count, options.dim) for name, count in rows.items()}

    def model(self, tables: Tables) -> Any:
        import torch

        model = torch.nn.Module()
        for name in self.tables:
            model.add_module(name, tables.embedding(name))
        return model

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Users (B,), and their items with those that were drawn behind (B + N,)."""
        import torch

        options = self._options
        random = np.random.default_rng([options.seed, 1])
        for _ in range(options.epochs):
            order = random.permutation(len(self._who))
            for begin in range(0, len(order), options.batch):
                places = order[begin : begin + options.batch]
                drawn = random.integers(0, self._clicks.items, options.negatives)
                items = np.concatenate([self._what[places], drawn])
                yield torch.from_numpy(self._who[places]), torch.from_numpy(items)

    def keys_of(self, model: Any, batch: Any) -> Any:
        return {model.users: batch[0], model.items: batch[1]}

    def loss(self, model: Any, batch: Any) -> tuple[Any, int]:
        from torch.nn import functional as F

        who, what = batch
        of_user = model.users(who)
        clicked, other = model.items(what).split([len(who), self._options.negatives])
        margins = (of_user * clicked).sum(dim=1, keepdim=True) - of_user @ other.T
        sizes = sum(rows.square().sum() for rows in (of_user, clicked, other))
        return -F.logsigmoid(margins).mean(dim=1).sum() + SMALL * sizes, len(who)

    def quality(self, model: Any, stored: bool) -> dict[str, Any]:
        best = _best_of_store if stored else _best_in_memory
        return {"recall": _recall(model, self._clicks, best)}


def _recall(model: Any, clicks: Clicks, best_of: Any) -> float:
    """The mean share of a user's held-out items among the best."""
    import torch

    asked = [user for user, items in clicks.wanted.items() if len(items)]
    known = [clicks.known.get(user, np.zeros(0, np.int64)) for user in asked]
    with torch.no_grad():
        best = best_of(model, torch.tensor(asked), known)
    shares = [
        len({*found} & {*clicks.wanted[user].tolist()}) / len(clicks.wanted[user])
        for user, found in zip(asked, best.tolist(), strict=True)
    ]
    return float(np.mean(shares))


def _best_of_store(model: Any, asked: Any, known: list[Ids]) -> Any:
    return model.items.topk(model.users(asked).detach(), BEST, exclude=known).ids


def _best_in_memory(model: Any, asked: Any, known: list[Ids]) -> Any:
    import torch

    found = []
    for begin in range(0, len(asked), USERS_AT_ONCE):
        some = slice(begin, begin + USERS_AT_ONCE)
        scores = model.users(asked[some]) @ model.items.weight.T
        for row, items in zip(scores, known[some], strict=True):
            row[torch.from_numpy(items)] = -torch.inf
        found.append(scores.topk(BEST).indices)
    return torch.cat(found)
