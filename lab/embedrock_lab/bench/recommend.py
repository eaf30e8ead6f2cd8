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

import argparse
import gzip
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import embedrock
from embedrock.errors import MisuseError
from embedrock_lab.bench.common import Report, add_common, import_torch, workspace
from embedrock_lab.measure.machine import device_facts

__all__ = ["Clicks", "add_arguments", "made", "read", "run"]

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
CHECKED_ROWS = 4096


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this bench."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the two files")
    parser.add_argument("--users", type=int, default=4000, help="of made data")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the clicks")
    parser.add_argument("--dim", type=int, default=64, help="float32 values of a row")
    parser.add_argument("--batch", type=int, default=4096, help="clicks of a step")
    parser.add_argument("--negatives", type=int, default=256, help="items drawn for each batch")
    parser.add_argument("--lr", type=float, default=0.1, help="of Adagrad")
    parser.add_argument("--memory", default="25%", help="of the tables")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    add_common(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
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
    with workspace(options, TABLE_BYTES) as place:
        found = _contest(report, options, place / "store", clicks)
    report.results["loops"] = found
    report.figure("recall_20", found["store"]["recall"])
    report.figure("recall_20_gap", found["store"]["recall"] - found["in memory"]["recall"])
    rates = [found[label]["samples_per_s"] for label in ("store", "in memory")]
    report.figure("speed_vs_memory_recommend", rates[0] / rates[1])
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


class _Batches:
    """Clicks and drawn items of all epochs: the same for every loop over them."""

    def __init__(self, clicks: Clicks, options: argparse.Namespace) -> None:
        sizes = [len(items) for items in clicks.known.values()]
        self._who = np.repeat(np.array(list(clicks.known)), sizes)
        self._what = np.concatenate(list(clicks.known.values()))
        self._items = clicks.items
        self._options = options

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Users (B,), and their items with the drawn ones behind (B + N,)."""
        import torch

        options = self._options
        random = np.random.default_rng([options.seed, 1])
        for _ in range(options.epochs):
            order = random.permutation(len(self._who))
            for begin in range(0, len(order), options.batch):
                places = order[begin : begin + options.batch]
                drawn = random.integers(0, self._items, options.negatives)
                items = np.concatenate([self._what[places], drawn])
                yield torch.from_numpy(self._who[places]), torch.from_numpy(items)


def _contest(
    report: Report, options: argparse.Namespace, place: Path, clicks: Clicks
) -> dict[str, dict[str, Any]]:
    """Both loops, one after the other."""
    import torch

    batches, found = _Batches(clicks, options), {}
    shapes = {"users": (clicks.users, options.dim), "items": (clicks.items, options.dim)}
    with embedrock.open(place, options.memory, seed=options.seed) as store:
        start = embedrock.initializers.normal(std=SPREAD)
        ours, theirs = torch.nn.Module(), torch.nn.Module()
        for name, shape in shapes.items():
            module = embedrock.nn.Embedding(
                *shape, store=store, name=name, optimizer="adagrad", initializer=start
            )
            first = torch.from_numpy(store.table(name).get(np.arange(shape[0])))
            ours.add_module(name, module)
            theirs.add_module(
                name, torch.nn.Embedding.from_pretrained(first, freeze=False, sparse=True)
            )
        loader = embedrock.LookaheadLoader(
            batches, ours, keys_of=lambda batch: {ours.users: batch[0], ours.items: batch[1]}
        )
        tables = embedrock.optim.Adagrad(ours, lr=options.lr)
        sparse = torch.optim.Adagrad(theirs.parameters(), lr=options.lr)
        for label, model, optimizer, given in (
            ("store", ours, tables, loader),
            ("in memory", theirs, sparse, batches),
        ):
            one = _train(model, optimizer, given, options)
            best = _best_of_store if label == "store" else _best_in_memory
            begin = perf_counter()
            one |= {"recall": _recall(model, clicks, best), "rank_s": perf_counter() - begin}
            found[label] = one
            report.say(
                f"{label}: {one['samples_per_s']:,.0f} samples/s, recall {one['recall']:.4f}"
            )
        report.device = device_facts(store)
        store.commit(1)
        stats = store.stats()
        found["store"] |= {"hit_rate": stats["hit_rate"], "budget_bytes": stats["budget_bytes"]}
        for name in shapes:
            for keys, values in store.table(name).items(CHECKED_ROWS):
                unlike = (store.table(name).get(keys) != values).any(axis=1)
                report.results["mismatches"] += int(unlike.sum())
    return found


def _train(model: Any, optimizer: Any, batches: Any, options: argparse.Namespace) -> dict[str, Any]:
    from torch.nn import functional as F

    samples, losses = 0, []
    begin = perf_counter()
    for who, what in batches:
        of_user = model.users(who)
        clicked, other = model.items(what).split([len(who), options.negatives])
        margins = (of_user * clicked).sum(dim=1, keepdim=True) - of_user @ other.T
        sizes = sum(rows.square().sum() for rows in (of_user, clicked, other))
        loss = -F.logsigmoid(margins).mean(dim=1).sum() + SMALL * sizes
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += len(who)
        losses.append(float(loss.detach()) / len(who))
    seconds = perf_counter() - begin
    tenth = max(1, len(losses) // 10)
    return {
        "samples_per_s": samples / seconds,
        "train_s": seconds,
        "loss_first": float(np.mean(losses[:tenth])),
        "loss": float(np.mean(losses[-tenth:])),
    }


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
