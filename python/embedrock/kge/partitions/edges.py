"""``PartitionedEdges``: batches of edges in an order for which few rows have to move."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from embedrock._arguments import between, choice, instance, shown, whole, whole_or_none
from embedrock._arrays import as_host
from embedrock.errors import MismatchError, MisuseError, UnsupportedError
from embedrock.kge.batches import TripleBatch
from embedrock.kge.partitions.buckets import Buckets, blocks, check_ends, digest_of, sort_edges
from embedrock.kge.partitions.cut import Cut
from embedrock.kge.partitions.epochs import Epoch, Order
from embedrock.kge.partitions.negatives import SharedNegatives, drawn
from embedrock.kge.partitions.order import ORDERS, beta_swaps, least_swaps
from embedrock.kge.partitions.residency import Residency
from embedrock.kge.partitions.sizes import checked_sizes, chosen_sizes
from embedrock.table import Table

__all__ = ["EdgeBatch", "PartitionedEdges"]

_NEGATIVES = 4
"""A purpose of random numbers beside those of ``epochs``."""


@dataclass(frozen=True)
class EdgeBatch(TripleBatch):
    """B edges and N negatives. ``relations`` are zeros where edges have none."""

    negative_heads: Tensor | None = None
    """``(N,)``, where heads and tails have a table each: ``negatives`` are tails then."""


class PartitionedEdges(IterableDataset[EdgeBatch]):  # type: ignore[misc]
    """Batches of edges, ordered so that the rows of their ends are in memory for long.

    The rows of the table are cut into partitions by their ids, the edges into buckets by the
    partitions of their ends. A few partitions are in the buffer, in memory; their buckets are
    trained, shuffled together, then one partition is swapped for another. Every edge comes exactly
    once an epoch. Out of core that reads and writes the table a few times an epoch, in long
    requests, where a random order reads rows one by one.

    Iterating begins at the position, behind the batch that was given last; one iteration ends with
    the epoch, or, where ``epochs`` says how many there are, with the last of them. Batches are
    functions of edges, sizes, seed and step: a run that goes on by ``load_state_dict`` gets those
    it would have got. They do depend on ``partitions`` and ``buffer``: with ``"auto"`` on the
    memory of the store. Say how many partitions there are, and batches are the same at any budget;
    a smaller one reads more.

    The cost of this order: edges of a state have something in common, so models may end a little
    worse than with all edges shuffled. ``"comet"`` draws the combinations of partitions anew every
    epoch and costs less than ``"beta"``; ``"random"`` is the control, without partitions.

    Edges are sorted once, into a file beside the store (``<store>.<digest>.edges``, 12 to 24 bytes
    an edge), which is made anew when edges, partitions, ``resident`` or seed are others. Sorting
    takes memory for a block of edges, 100 MB, and 5 bytes per row where ``resident`` is above 0.

    **Workers.** It may be given to a ``DataLoader`` with ``batch_size=None``. Workers share the
    batches among them and give the same, in the same order, but do not touch the store: partitions
    are announced to it, and counted, only where the loader has no workers. A worker has a copy of
    the position; ``set_epoch`` says in the process that trains which epoch comes next.

    Args:
        edges: ``(N, 2)`` heads and tails, or ``(N, 3)`` heads, relations and tails: whole numbers,
            an array or a memory map.
        table: A dense table or its module, or ``{"head": ..., "tail": ...}`` if heads and tails
            have a table each.
        partitions: Number of partitions; ``"auto"``: chosen by the memory of the store.
        buffer: Partitions in memory at a time; None: with ``"auto"`` chosen by memory, otherwise a
            quarter of them.
        order: ``"comet"``, ``"beta"`` or ``"random"``.
        resident: The share of rows that stay for the whole run, those of the most edges; their
            edges need only the partition of the other end.
        negatives: Number of rows that each batch is scored against; None: none.
        batch_size: Edges of a batch; the last one of a state may have fewer.
        seed: Of orders and negatives.
        epochs: Epochs of one iteration, from the first on; None: an iteration is one epoch.

    Errors: ``MisuseError``; ``UnsupportedError`` for a growing table, whose keys have no order to
    be cut by; ``KeyRangeError`` with the place of an edge beyond the table; ``CorruptError`` naming
    a damaged bucket file, which may be removed.

    Blocking: making it reads all edges once for their digest, and twice more to sort them.

    >>> edges = np.random.default_rng(0).integers(0, 1000, (5000, 2))
    >>> ends = store.table("ends", 8, num_embeddings=1000, optimizer="adagrad")
    >>> loader = embedrock.PartitionedEdges(
    ...     edges, ends, partitions=8, order="beta", batch_size=512,
    ...     negatives=embedrock.SharedNegatives(64),
    ... )
    >>> sum(len(batch) for batch in loader)
    5000
    >>> loader.stats()["swaps"], loader.stats()["epoch"]["swaps_least"]
    (27, 27)
    """

    def __init__(
        self,
        edges: npt.NDArray[Any],
        table: Any,
        *,
        batch_size: int,
        partitions: int | str = "auto",
        buffer: int | None = None,
        order: str = "comet",
        resident: float = 0.0,
        negatives: SharedNegatives | None = None,
        seed: int = 0,
        epochs: int | None = None,
    ) -> None:
        """Sorts the edges, where no bucket file of them is there."""
        self.edges = _checked_edges(edges)
        self._tables = _tables(table)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.order = choice("order", order, ORDERS)
        self.resident = between("resident", resident, 0, 1)
        self.negatives = None
        if negatives is not None:
            self.negatives = instance("negatives", negatives, SharedNegatives)
        self.seed = whole("seed", seed, 0)
        self.epochs = whole_or_none("epochs", epochs, 0)
        self._process = os.getpid()
        rows = [_rows_of(each) for each in self._tables]
        if isinstance(partitions, str) and partitions == "auto":
            if buffer is not None:
                raise MisuseError("buffer is for a number of partitions; here they are 'auto'")
            sizes = chosen_sizes(self._tables, sum(rows), self.order, self.resident)
        else:
            sizes = checked_sizes(partitions, buffer, sum(rows), self.order)
        self.partitions, self.buffer, logical = sizes
        if len(rows) == 2 and self.partitions < 2:
            self.partitions = self.buffer = 2
        joint = len(rows) == 1
        cut = Cut.of(rows[0], rows[-1], joint=joint, partitions=self.partitions)
        self._order = Order(self.order, self.buffer, logical, self.batch_size, self.seed)
        facts = f"1 {rows} {joint} {self.partitions} {self.resident!r} {self.seed}"
        self.digest = digest_of(self.edges, facts)
        """Identifies the edges and their partitioning."""
        self.path = _file_of(self._tables[0], self.digest)
        """The bucket file."""
        self._buckets = self._opened(cut)
        hubs = self._buckets.hubs
        self._cut = Cut(cut.heads, cut.tails, joint, cut.firsts, hubs, None)
        self._epochs: dict[int, Epoch] = {}
        self._ends = [0]
        self._step = 0
        self._residency: Residency | None = Residency(self._tables, self._cut)

    def __iter__(self) -> Iterator[EdgeBatch]:
        """The batches from the position on, to the end of the epoch or of the last one."""
        worker = get_worker_info()
        number, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        residency = self._residency if os.getpid() == self._process and worker is None else None
        begin, last = self._step, self.epochs
        if last is None:
            last = self._place(begin)[0] + 1
        try:
            while (found := self._place(self._step))[0] < last:
                yield from self._epoch_from(*found, begin, number, of, residency)
        finally:
            if residency is not None:
                residency.leave()

    def _epoch_from(
        self,
        number: int,
        batch: int,
        begin: int,
        worker: int,
        workers: int,
        residency: Residency | None,
    ) -> Iterator[EdgeBatch]:
        epoch = self._epoch(number)
        first, at = epoch.find(batch)
        state = -1
        for place in range(first, len(epoch.chunks)):
            chunk = epoch.chunks[place]
            mine = range(at, epoch.batches_of(place))
            if all((self._step + i - begin) % workers != worker for i in range(len(mine))):
                self._step += len(mine)
                at = 0
                continue
            if residency is not None and chunk.state != state:
                residency.enter(epoch.plan, chunk.state, announce=self.order != "random")
            state = chunk.state
            edges = epoch.read(chunk, self._buckets)
            for inside in mine:
                step = self._step
                self._step += 1
                if (step - begin) % workers == worker:
                    yield self._batch(epoch, chunk.state, edges, inside, step)
            at = 0

    def __len__(self) -> int:
        """Batches of an iteration from the beginning: of all epochs, or of the one at hand."""
        if self.epochs is not None:
            return self._end_of(self.epochs - 1) if self.epochs else 0
        return len(self._epoch(self._place(self._step)[0]))

    def __repr__(self) -> str:
        facts = self.stats()
        epoch = facts["epoch"]
        return (
            f"<embedrock.PartitionedEdges of {len(self.edges):,} edges, {self.order}, "
            f"{self.buffer} of {self.partitions} partitions, {epoch['swaps']} swaps an epoch "
            f"(BETA {epoch['swaps_beta']}, at least {epoch['swaps_least']}), "
            f"{epoch['passes']:.2f} passes; so far {facts['swaps']} swaps, "
            f"{facts['bytes_read'] / 1e9:.2f} GB read, {facts['bytes_written'] / 1e9:.2f} written>"
        )

    def epoch_of(self, step: int) -> int:
        """The epoch of a batch, by its number."""
        return self._place(step)[0]

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, the first of which is 0."""
        self._step = self._end_of(whole("epoch", epoch, 0) - 1)

    def state_dict(self) -> dict[str, Any]:
        """The position behind the batch that was given last, and what batches depend on."""
        return {"step": self._step, **self._fixed()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to a position.

        Errors: ``MismatchError`` when it is one among other batches.
        """
        if not isinstance(state_dict, Mapping) or "step" not in state_dict:
            raise MisuseError(
                f"state_dict is {shown(state_dict)}, expected that of PartitionedEdges"
            )
        for name, value in self._fixed().items():
            if state_dict.get(name) != value:
                raise MismatchError(
                    f"{name} is {value}, but the position is one among batches with "
                    f"{state_dict.get(name)}; pass that as it was"
                )
        self._step = whole("step", state_dict["step"], 0)

    def stats(self) -> dict[str, Any]:
        """The cost so far, compared with the least possible.

        ``partitions``, ``buffer``, ``resident_rows``; of the epoch at hand (``epoch``) its number,
        ``states``, ``swaps`` behind the first filling, those of BETA where all pairs have edges
        (``swaps_beta``), no order having fewer than ``swaps_least``; ``passes``, rows that swaps
        bring by rows of the table, ``passes_beta`` and ``passes_least`` of BETA and of the least.
        Of all iterations here: ``entered`` partitions, the ``swaps`` among them, ``announced`` ones
        and those ``refused`` for want of memory, ``bytes_read`` and ``bytes_written`` by the store
        meanwhile.
        """
        number = self._place(self._step)[0]
        if self.epochs is not None:
            number = min(number, max(self.epochs - 1, 0))
        plan = self._epoch(number).plan
        sizes = np.diff(self._cut.firsts)
        moved = sum(int(sizes[list(entered)].sum()) for entered in plan.entered[1:])
        beta = beta_swaps(self.partitions, self.buffer)
        least = least_swaps(self.partitions, self.buffer)
        residency = self._residency
        return {
            "partitions": self.partitions,
            "buffer": self.buffer,
            "order": self.order,
            "resident_rows": len(self._cut.hubs),
            "epoch": {
                "number": number,
                "states": len(plan.states),
                "swaps": plan.swaps,
                "swaps_beta": beta,
                "swaps_least": least,
                "passes": moved / self._cut.rows,
                "passes_beta": beta / self.partitions,
                "passes_least": least / self.partitions,
            },
            **(Residency.nothing() if residency is None else residency.stats()),
        }

    def close(self) -> None:
        """Closes the bucket file and lets go of what it announced; a second time does nothing."""
        if self._residency is not None and os.getpid() == self._process:
            self._residency.leave()
        self._buckets.close()

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is spawned: without the store, which stays where it is."""
        return {
            **self.__dict__,
            "_tables": None,
            "_residency": None,
            "_buckets": None,
            "edges": np.empty((0, self.edges.shape[1]), self.edges.dtype),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._buckets = Buckets(self.path, self.digest)

    def _opened(self, cut: Cut) -> Buckets:
        if not self.path.exists():
            if self.resident > 0:
                degrees = np.zeros(cut.rows, np.uint32)
                for first, block in blocks(self.edges):
                    check_ends(first, block, cut)
                    for ends in cut.ends(block):
                        np.add.at(degrees, ends, 1)
                cut = cut.with_hubs(self.resident, degrees)
                del degrees
            sort_edges(self.path, self.digest, self.edges, cut, self.seed)
        return Buckets(self.path, self.digest)

    def _fixed(self) -> dict[str, Any]:
        how = self.negatives
        return {
            "digest": self.digest.hex(),
            "partitions": self.partitions,
            "buffer": self.buffer,
            "order": self.order,
            "resident": self.resident,
            "batch_size": self.batch_size,
            "negatives": None if how is None else [how.count, how.degree],
            "seed": self.seed,
        }

    def _epoch(self, number: int) -> Epoch:
        if number not in self._epochs:
            while len(self._epochs) > 1:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[number] = Epoch(number, self._buckets.table, self._order)
        return self._epochs[number]

    def _end_of(self, epoch: int) -> int:
        """The step behind the last of an epoch."""
        while len(self._ends) < epoch + 2:
            self._ends.append(self._ends[-1] + len(self._epoch(len(self._ends) - 1)))
        return self._ends[epoch + 1]

    def _place(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and its number there."""
        while self._ends[-1] <= step:
            self._end_of(len(self._ends) - 1)
        epoch = int(np.searchsorted(self._ends, step, side="right")) - 1
        return epoch, step - self._ends[epoch]

    def _batch(
        self, epoch: Epoch, state: int, edges: npt.NDArray[Any], inside: int, step: int
    ) -> EdgeBatch:
        chosen = edges[inside * self.batch_size : (inside + 1) * self.batch_size]
        columns = torch.from_numpy(chosen.astype(np.int64).T.copy())
        heads, tails = columns[0], columns[-1]
        relations = columns[1] if len(columns) == 3 else torch.zeros_like(heads)
        negatives, negative_heads = torch.empty(0, dtype=torch.int64, device="cpu"), None
        if self.negatives is not None:
            random = self._order.random(_NEGATIVES, step)
            ranges = [self._cut.range_of(partition) for partition in epoch.plan.states[state]]
            ends = edges[:, [0, -1]]
            tail_ranges, hubs = ranges, self._cut.hubs
            if not self._cut.joint:
                of_heads = self._cut.heads
                head_hubs = hubs[hubs < of_heads]
                head_ranges = [each for each in ranges if each[0] < of_heads]
                negative_heads = torch.from_numpy(
                    drawn(self.negatives, head_ranges, head_hubs, ends[:, 0], random)
                )
                tail_ranges = [(a - of_heads, b - of_heads) for a, b in ranges if a >= of_heads]
                hubs, ends = hubs[hubs >= of_heads] - of_heads, ends[:, 1]
            negatives = torch.from_numpy(
                drawn(self.negatives, tail_ranges, hubs, ends.reshape(-1), random)
            )
        return EdgeBatch(heads, relations, tails, negatives, step, epoch.number, negative_heads)


def _checked_edges(edges: Any) -> npt.NDArray[Any]:
    found = as_host(edges, "edges")
    if found.ndim != 2 or found.shape[1] not in (2, 3) or found.dtype.kind not in "iu":
        raise MisuseError(
            f"edges has shape {found.shape} and dtype {found.dtype}, expected whole numbers "
            f"(N, 2), heads and tails, or (N, 3), heads, relations and tails"
        )
    if not len(found):
        raise MisuseError("edges has none, expected at least one")
    return found


def _tables(given: Any) -> tuple[Table, ...]:
    if not isinstance(given, Mapping):
        return (_table_of("table", given),)
    if set(given) != {"head", "tail"}:
        raise MisuseError(
            f"table has the names {sorted(map(str, given))}, expected 'head' and 'tail'"
        )
    found = tuple(_table_of(f"table of {name}s", given[name]) for name in ("head", "tail"))
    if found[0].store is not found[1].store:
        raise MisuseError("table: heads and tails are in two stores, expected one for both")
    return found[:1] if found[0] is found[1] else found


def _table_of(name: str, given: Any) -> Table:
    found = getattr(given, "table", given)
    if not isinstance(found, Table):
        raise MisuseError(
            f"{name} is {shown(given)}, expected a table of a store that is open here, or its "
            f"embedrock.nn.Embedding"
        )
    return found


def _rows_of(table: Table) -> int:
    if table.num_embeddings is None:
        raise UnsupportedError(
            f"table {table.name!r} is a growing one: its keys have no order in which they could be "
            f"cut into partitions; make it with num_embeddings="
        )
    return table.num_embeddings


def _file_of(table: Table, digest: bytes) -> Path:
    place = Path(table.store.path)
    return place.with_name(f"{place.name}.{digest.hex()[:16]}.edges")
