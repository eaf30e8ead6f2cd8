"""``Embedding`` and ``EmbeddingBag``: torch's modules with their rows in a store."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from embedrock._arguments import flag, shown
from embedrock._rows import RowStore, RowTable
from embedrock.errors import UnsupportedError
from embedrock.initializers import InitializerLike
from embedrock.nn import ranking
from embedrock.nn.bags import Bag, check_bags, check_mode, in_bags, pool_bags
from embedrock.nn.fetch import Ask, Found, expose, fetch, host_ids, read, uncompiled
from embedrock.nn.module import RowsModule, TableArguments, open_padding_row, output_dtype
from embedrock.nn.pool import bags_of, gather, pool
from embedrock.optimizers import OptimizerLike

__all__ = ["Embedding", "EmbeddingBag"]

Rounding: TypeAlias = Literal["stochastic", "nearest"]
Storage: TypeAlias = Literal["log", "lsm", "pmem"]


class _OneTable(RowsModule):
    """A module over a single table."""

    def __init__(
        self,
        store: RowStore,
        wanted: TableArguments,
        padding_idx: int | None,
        device: torch.device | str | int | None,
        asked: torch.dtype | None,
    ) -> None:
        super().__init__(store, device)
        self.table: RowTable = self._add_table("rows", wanted)
        self.output_dtype = output_dtype(self.table, asked)
        self.embedding_dim = wanted.embedding_dim
        self.padding_idx = open_padding_row(self.table, padding_idx)

    @property
    def num_embeddings(self) -> int | None:
        """Rows of the table; None of a growing one."""
        return self.table.num_embeddings

    def grow(self, num_embeddings: int) -> None:
        """Gives the table more ids, ``0..num_embeddings`` from here on; all modules over it follow.

        Rows and their optimizer state stay, new ids have initial rows and state. Durable with the
        next commit, as :meth:`embedrock.Table.grow`, which says what it raises.

        Errors: ``UnsupportedError`` where the rows are not in a store of this process.

        >>> days = embedrock.nn.Embedding(365, 4, store=store, name="days")
        >>> days.grow(366)
        >>> days.num_embeddings
        366
        """
        table: Any = self.table
        if not hasattr(type(table), "grow"):
            raise UnsupportedError(
                f"{self._named()} cannot grow: its table is one of a server; grow it where the "
                f"store is written to, or end the server and run "
                f"embedrock grow STORE {table.name!r} {num_embeddings}"
            )
        table.grow(num_embeddings)

    def _arguments(self) -> dict[str, Any]:
        names = ("num_embeddings", "embedding_dim", "padding_idx", "device", "output_dtype")
        return {"name": self.table.name, **{name: getattr(self, name) for name in names}}

    def scores(self, queries: Tensor, ids: Any = None) -> Tensor:
        """Dot products of queries with all rows, ``queries @ weight.T``, or with those of ``ids``.

        Rows never trained are scored as they read. Nothing is recorded for gradients:
        :func:`embedrock.nn.sampled_logits` is for training. The answer has a column for each row:
        :meth:`topk` does without it.

        Args:
            queries: One vector for each query, which is computed with as float32.
            ids: Ids in the order of the columns; None: all of a dense table, in theirs.

        Shapes: ``queries (Q, embedding_dim), ids (N,) -> (Q, N) float32``.

        Errors: ``MisuseError`` for queries of another shape or that are not finite, for a growing
        table without ``ids``, and when the table is written to meanwhile; ``FullError`` where
        changed rows have no room on the disk.

        Blocking: as for :meth:`topk`; of a server's dense table, in the order of ids.

        >>> import torch
        >>> items = embedrock.nn.Embedding(1000, 4, store=store, name="items")
        >>> items.scores(torch.randn(2, 4)).shape
        torch.Size([2, 1000])
        >>> items.scores(torch.randn(2, 4), ids=[7, 8, 7]).shape
        torch.Size([2, 3])
        """
        return ranking.scores(self, queries, ids)

    def topk(
        self,
        queries: Tensor,
        k: int,
        *,
        exclude: Any = None,
        ids: Any = None,
        block: int = ranking.BLOCK,
    ) -> ranking.TopK:
        """The k rows with the largest dot products of each query, largest first, of equal ones the
        smaller id first.

        Ranked are all ids of a dense table, those that were never trained as they read, and all
        written rows of a growing one, or ``ids``; not the row of ``padding_idx``. These are the
        rows of ``table.items(unwritten=True)``, and of a growing table of ``table.items()``.

        Args:
            queries: One vector for each query, which is computed with as float32.
            k: Number of rows, 2**20 at most.
            exclude: Ids that a query leaves out, such as those that its user knows already: a list
                with ids or None for each query, a tensor ``(Q, N)``, or ``(ids, offsets (Q + 1,))``
                as tensors. Ids that are not in the table have no effect.
            ids: The ids to rank; None: all.
            block: Rows that are read at once: memory is that of a block and of 16 MiB of scores.

        Shapes: ``queries (Q, embedding_dim) -> scores (Q, k) float32, ids (Q, k) int64``. If fewer
        than k rows are left, the score is -inf and the id -1.

        Errors: ``MisuseError`` for queries of another shape or that are not finite, and when the
        table is written to meanwhile; ``FullError`` where changed rows have no room on the disk;
        ``UnsupportedError`` for all rows of a growing table at a server.

        Blocking: reads the table once for all queries, in the order in which it is stored; rows
        that have changed are written first, without a commit.

        >>> import torch
        >>> items = embedrock.nn.Embedding(1000, 4, store=store, name="items")
        >>> query = torch.from_numpy(items.table.get([7]))
        >>> found = items.topk(query, 3, exclude=[[7, 8]])
        >>> found.scores.shape, found.ids.shape, 7 in found.ids
        (torch.Size([1, 3]), torch.Size([1, 3]), False)
        """
        return ranking.topk(self, queries, k, exclude, ids, block)

    def _ask(self, flat: npt.NDArray[np.int64]) -> Ask:
        return Ask("rows", flat, self.padding_idx)

    def _rows(self, ids: Tensor) -> tuple[Found, Tensor]:
        """The distinct rows, and their places in the shape of the ids."""
        self._refuse_graph()
        (found,) = fetch(self, [self._ask(*host_ids({"input": ids}))])
        return found, found.inverse.view(ids.shape)


class Embedding(_OneTable):
    """``torch.nn.Embedding`` whose rows live in a table of a store.

    Arguments are torch's, in torch's order, then the table's. ``num_embeddings=None`` makes a
    table of arbitrary 64-bit ids that grows by itself. ``sparse`` is accepted and makes no
    difference: only touched rows have gradients, and they are seen as dense tensors of touched
    rows. ``max_norm`` is refused with ``UnsupportedError``.

    Args:
        num_embeddings: Rows of the table, whose ids are ``0..num_embeddings``; None for any ids.
        embedding_dim: Values per row.
        padding_idx: An id whose row is zero from the start and never trained.
        max_norm: Not supported; None.
        norm_type: Only with ``max_norm``.
        scale_grad_by_freq: Divide gradients by the number of occurrences of their id in the batch.
        sparse: Accepted for compatibility.
        store: The open store, or one of a server (``embedrock.connect``).
        name: The table's name; two modules of one name share their rows.
        optimizer: A name or description of ``embedrock.optimizers``; None keeps that of an existing
            table and gives a new one row-wise Adagrad.
        initializer: Rows that were never written, as ``embedrock.initializers`` describes them;
            None keeps that of an existing table and gives a new one torch's ``normal(0, 1)``.
        expected_rows: Number of rows that a growing table will reach: sizes its index and the
            budget.
        device: Device of the outputs.
        dtype: Dtype of the stored rows: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``;
            None keeps that of an existing table and gives a new one float32.
        output_dtype: The dtype of outputs; None: that of the table. Sums, of bags and of
            gradients, are made in float32 whatever it is.
        rounding: Rounding of updates to float16 and bfloat16, as ``Store.table`` describes.
        storage: Storage of rows that are not in memory, as ``Store.table`` describes: ``"lsm"`` is
            for small rows or very many, ``"pmem"`` for persistent memory.
        capacity: Rows for which a table with ``storage="pmem"`` has room.

    Shapes: ``input (*) int64 or int32 -> (*, embedding_dim)``.

    Errors: ``KeyRangeError`` for ids outside a dense table; ``MismatchError`` when the stored table
    has other parameters.

    Blocking: construction may read; a forward waits for the pages of rows not in memory, and with
    ids on a CUDA device for that device.

    Durability: rows change at the optimizer's step and are durable with ``embedrock.save``.

    >>> import torch
    >>> embedding = embedrock.nn.Embedding(1000, 4, store=store, name="users", optimizer="sgd")
    >>> optimizer = embedrock.optim.SGD(embedding, lr=0.5)
    >>> before = embedding.table.get(7)
    >>> embedding(torch.tensor([[7, 8], [7, 7]])).sum().backward()
    >>> [tuple(rows.shape) for rows in embedding.parameters()]
    [(2, 4)]
    >>> optimizer.step()
    >>> (before - embedding.table.get(7)).round(3)
    array([1.5, 1.5, 1.5, 1.5], dtype=float32)
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        store: RowStore,
        name: str,
        optimizer: OptimizerLike | None = None,
        initializer: InitializerLike | None = None,
        expected_rows: int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
        rounding: Rounding | None = None,
        storage: Storage | None = None,
        capacity: int | None = None,
    ) -> None:
        """Opens the table, or creates it."""
        _refuse_unsupported(name, max_norm)
        flag("sparse", sparse)
        scale = flag("scale_grad_by_freq", scale_grad_by_freq)
        wanted = TableArguments(
            name=name,
            embedding_dim=embedding_dim,
            num_embeddings=num_embeddings,
            expected_rows=expected_rows,
            optimizer=optimizer,
            initializer=initializer,
            dtype=dtype,
            rounding=rounding,
            storage=storage,
            capacity=capacity,
        )
        _refuse_scaling(store, name, scale)
        super().__init__(store, wanted, padding_idx, device, output_dtype)
        self.scale_grad_by_freq = scale

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "scale_grad_by_freq": self.scale_grad_by_freq}

    def keys_of(self, input: Tensor) -> dict[RowTable, npt.NDArray[np.int64]]:
        """The keys that a forward with these ids reads, ``(N,)`` by table, for look-ahead."""
        return {self.table: host_ids({"input": input})[0]}

    def forward(self, input: Tensor) -> Tensor:
        """The rows of the ids: ``(*) -> (*, embedding_dim)``."""
        if self.device.type == "cpu" and not self.scale_grad_by_freq:
            gathered: Tensor = uncompiled(Embedding._gather)(self, input)
            return gathered.to(self.output_dtype)
        found, places = self._rows(input)
        output = F.embedding(
            places, found.rows, found.padding, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return output.to(self.output_dtype)

    def _gather(self, input: Tensor) -> Tensor:
        self._refuse_graph()
        (part,) = read(self, [self._ask(*host_ids({"input": input}))])
        return gather(part, input.shape)

    def extra_repr(self) -> str:
        """The description that ``print`` shows."""
        return _describe(self.table, self.padding_idx)


class EmbeddingBag(_OneTable):
    """``torch.nn.EmbeddingBag`` whose rows live in a table of a store.

    Arguments are torch's, in torch's order, then the table's, as for :class:`Embedding`.
    ``_weight`` must be None: ``embedrock.weights.load`` imports existing rows.

    Shapes: ``input (B, N)``, or ``input (N,), offsets (B,)`` (``(B + 1,)`` with
    ``include_last_offset``), ``per_sample_weights`` of the shape of ``input`` with ``mode="sum"``
    ``-> (B, embedding_dim)``. Empty bags give zeros. With ``include_last_offset`` the last offset
    is where the last bag ends, and ids behind it are left out.

    Errors, Blocking, Durability: as for :class:`Embedding`. ``max_norm`` is refused, and so are
    offsets that do not rise from 0 to at most the number of ids (``MisuseError``).

    >>> import torch
    >>> bag = embedrock.nn.EmbeddingBag(None, 4, mode="sum", store=store, name="words")
    >>> bag(torch.tensor([4, 2**62, -1, 4]), torch.tensor([0, 3])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        store: RowStore,
        name: str,
        optimizer: OptimizerLike | None = None,
        initializer: InitializerLike | None = None,
        expected_rows: int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
        rounding: Rounding | None = None,
        storage: Storage | None = None,
        capacity: int | None = None,
    ) -> None:
        """Opens the table, or creates it."""
        _refuse_unsupported(name, max_norm, _weight)
        check_mode(mode)
        flag("sparse", sparse)
        scale, last = (
            flag("scale_grad_by_freq", scale_grad_by_freq),
            flag("include_last_offset", include_last_offset),
        )
        wanted = TableArguments(
            name=name,
            embedding_dim=embedding_dim,
            num_embeddings=num_embeddings,
            expected_rows=expected_rows,
            optimizer=optimizer,
            initializer=initializer,
            dtype=dtype,
            rounding=rounding,
            storage=storage,
            capacity=capacity,
        )
        _refuse_scaling(store, name, scale)
        super().__init__(store, wanted, padding_idx, device, output_dtype)
        self.mode = mode
        self.include_last_offset = last
        self.scale_grad_by_freq = scale

    def _arguments(self) -> dict[str, Any]:
        names = ("scale_grad_by_freq", "mode", "include_last_offset")
        return {**super()._arguments(), **{name: getattr(self, name) for name in names}}

    def keys_of(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> dict[RowTable, npt.NDArray[np.int64]]:
        """The keys that a forward with these bags reads, ``(N,)`` by table, for look-ahead."""
        check_bags("input", input, offsets, per_sample_weights, self.mode)
        bag = Bag(input, offsets, per_sample_weights)
        return {self.table: in_bags({"input": bag}, self.include_last_offset)["input"].flat}

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """One row per bag: ``(B, embedding_dim)``."""
        check_bags("input", input, offsets, per_sample_weights, self.mode)
        given = Bag(input, offsets, per_sample_weights)
        looked_up: Tensor | tuple[Found, Tensor, Bag]
        looked_up = uncompiled(EmbeddingBag._look_up)(self, given)
        if isinstance(looked_up, Tensor):
            return looked_up.to(self.output_dtype)
        found, places, bag = looked_up
        output = pool_bags(
            "input",
            places,
            found.rows,
            bag,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            padding_idx=found.padding,
        )
        return output.to(self.output_dtype)

    def _look_up(self, given: Bag) -> Tensor | tuple[Found, Tensor, Bag]:
        """The output, or what torch makes it from: rows, their places in the ids' shape, bags."""
        self._refuse_graph()
        bag, flat, begins = in_bags({"input": given}, self.include_last_offset)["input"]
        bags = None
        if self.device.type == "cpu" and not self.scale_grad_by_freq:
            bags = bags_of(bag.ids, begins, bag.weights, self.mode)
        (part,) = read(self, [self._ask(flat)])
        if bags is not None and part.padding is None:
            return pool([part], [bags], joined=True)[0]
        (found,) = expose(self, [part])
        return found, found.inverse.view(bag.ids.shape), bag

    def extra_repr(self) -> str:
        """The description that ``print`` shows."""
        return f"{_describe(self.table, self.padding_idx)}, mode={self.mode!r}"


def _refuse_scaling(store: RowStore, name: str, scale: bool) -> None:
    """Refuses a count of equal ids where each has a row of its own."""
    if scale and getattr(store, "_each_occurrence", False):
        raise UnsupportedError(
            f"table {name!r}: scale_grad_by_freq counts equal ids of the batch of one rank, which "
            f"a shard with presum=False does not bring together; make the shard with presum=True"
        )


def _refuse_unsupported(name: str, max_norm: Any, weight: Any = None) -> None:
    if max_norm is not None:
        raise UnsupportedError(
            f"table {name!r}: max_norm is {shown(max_norm)}, which would rewrite rows in a "
            f"forward; clip rows with Table.modify instead"
        )
    if weight is not None:
        raise UnsupportedError(
            f"table {name!r}: _weight is given; import rows with embedrock.weights.load"
        )


def _describe(table: RowTable, padding: int | None) -> str:
    rows = "growing" if table.num_embeddings is None else table.num_embeddings
    parts = [f"{rows}, {table.embedding_dim}, name={table.name!r}"]
    parts.append(f"optimizer={table.optimizer['kind']!r}")
    if table.dtype != "float32":
        parts.append(f"dtype={table.dtype}")
    if padding is not None:
        parts.append(f"padding_idx={padding}")
    return ", ".join(parts)
