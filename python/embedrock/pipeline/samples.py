"""The keys of a dataset's samples, for schedules: asked for once where that is enough.

Owns how a dataset is asked. That is done in a worker process, as a ``DataLoader`` has: files that
the dataset has opened, and what else it keeps, are for the loader as if nobody had asked.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock.pipeline.keys import FlatKeys, KeyFinder
from embedrock.pipeline.orders import Order
from embedrock.pipeline.schedule import Batch
from embedrock.pipeline.scheduled import keys_by_name

__all__ = ["Samples"]

_CHECKED = 16
"""Samples whose keys are looked at one by one, to see what those of a batch are made of."""
_DEARER = 8.0
"""Keys of samples are asked for one by one where that takes no longer than so many passes of
batches."""
_CHUNK = 1024
"""Samples whose keys are asked for together."""
_NO_KEYS = np.empty(0, np.uint64)


class Samples:
    """The keys of the samples of a dataset, each looked at once where those of a batch are those of
    its samples, one after another; otherwise the keys of each batch, each time."""

    def __init__(
        self,
        loader: Any,
        finder: KeyFinder,
        folder: Path,
        coming: list[Order],
        known: npt.NDArray[np.int64] | None,
    ) -> None:
        """Looks at the samples of some passes, and at those that were known before."""
        self._loader, self._finder, self._folder = loader, finder, folder
        parts = [batch for order in coming for batch in order]
        self.indices = np.unique(np.concatenate([*parts, *([] if known is None else [known])]))
        """The indices of its samples, ascending."""
        self._keys: dict[str, _Equal] | dict[str, _Ragged] | None = self._kept(coming[0])

    @property
    def are_kept(self) -> bool:
        """Whether the dataset is not asked again."""
        return self._keys is not None

    def has(self, order: Order) -> bool:
        """Whether it has all samples of an order, or asks for them when they come."""
        if self._keys is None or not order:
            return True
        return bool(np.isin(np.concatenate(order), self.indices).all())

    def batches(self, order: Order) -> Iterator[Batch]:
        """The keys of the batches of these samples."""
        if self._keys is None:
            yield from self._of(order)
            return
        for indices in order:
            places = np.searchsorted(self.indices, indices)
            yield {name: keys.of(places) for name, keys in self._keys.items()}

    def _of(self, order: Order) -> Iterator[Batch]:
        """The keys of batches of these samples, as the loader would make them."""
        import torch

        loader = self._loader
        context = getattr(loader, "multiprocessing_context", None)
        asked = torch.utils.data.DataLoader(
            loader.dataset,
            batch_sampler=_Lists(order),
            collate_fn=loader.collate_fn,
            num_workers=1,
            worker_init_fn=getattr(loader, "worker_init_fn", None),
            multiprocessing_context="fork" if context is None else context,
            generator=torch.Generator(),
        )
        for batch in asked:
            yield keys_by_name(self._finder(batch))

    def _kept(self, order: Order) -> dict[str, _Equal] | dict[str, _Ragged] | None:
        checked = list(islice(order, 1 + _CHECKED // max(len(order[0]), 1)))
        lengths = dict[str, set[int]]()
        singles = [indices[at : at + 1] for indices in checked for at in range(len(indices))]
        try:
            begun = perf_counter()
            together = list(self._of(checked))
            between = perf_counter()
            single = iter(list(self._of(singles)))
            single_s = perf_counter() - between
        except Exception:  # of a function that makes no batch of one sample
            return None
        for indices, keys in zip(checked, together, strict=True):
            parts = list(islice(single, len(indices)))
            for name, of_table in keys.items():
                of_parts: list[FlatKeys] = [one.get(name, _NO_KEYS) for one in parts]
                if not np.array_equal(np.concatenate([_NO_KEYS, *of_parts]), of_table):
                    return None
                lengths.setdefault(name, set()).update(map(len, of_parts))
        are_equal = all(len(one) == 1 for one in lengths.values())
        if are_equal and (equal := self._equal({n: min(one) for n, one in lengths.items()})):
            return equal
        if single_s > _DEARER * (between - begun):
            return None
        return self._ragged([*lengths])

    def _equal(self, widths: dict[str, int]) -> dict[str, _Equal] | None:
        """The keys of all samples, asked for together; None where one has more or fewer."""
        count = len(self.indices)
        found = {
            name: _Equal(_array(self._folder, count * width).reshape(count, width))
            for name, width in widths.items()
        }
        chunks = [self.indices[begin : begin + _CHUNK] for begin in range(0, count, _CHUNK)]
        for number, keys in enumerate(self._of(chunks)):
            some = slice(number * _CHUNK, number * _CHUNK + len(chunks[number]))
            for name, of_table in keys.items():
                if name not in found or of_table.size != len(chunks[number]) * widths[name]:
                    return None
                found[name].keys[some] = of_table.reshape(len(chunks[number]), -1)
        return found

    def _ragged(self, names: list[str]) -> dict[str, _Ragged] | None:
        """The keys of all samples, asked for one by one; None where one is of another table."""
        count = len(self.indices)
        offsets = {name: np.zeros(count + 1, np.int64) for name in names}
        with contextlib.ExitStack() as stack:
            files = {}
            for name in names:
                files[name] = stack.enter_context(
                    tempfile.TemporaryFile(prefix=".samples-", dir=self._folder)
                )
            for place, keys in enumerate(self._of([*self.indices[:, None]])):
                if not {*keys} <= {*names}:
                    return None
                for name in names:
                    of_table = keys.get(name, _NO_KEYS)
                    files[name].write(of_table.tobytes())
                    offsets[name][place + 1] = offsets[name][place] + len(of_table)
            found = {}
            for name, file in files.items():
                file.flush()
                many = int(offsets[name][-1])
                values = np.memmap(file, np.uint64, "r", shape=many) if many else _NO_KEYS
                found[name] = _Ragged(values, offsets[name])
            return found


class _Lists:
    """Batches of indices, as a ``DataLoader`` takes them."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self._order)


@dataclass
class _Equal:
    """Keys of one table: as many of each sample."""

    keys: FlatKeys
    """(samples, keys of a sample) uint64."""

    def of(self, indices: npt.NDArray[np.int64]) -> FlatKeys:
        """Those of some samples, one after another."""
        found: FlatKeys = self.keys[indices].reshape(-1)
        return found


@dataclass
class _Ragged:
    """Keys of one table: of sample ``i`` those between two offsets."""

    values: FlatKeys
    offsets: npt.NDArray[np.int64]

    def of(self, indices: npt.NDArray[np.int64]) -> FlatKeys:
        """Those of some samples, one after another."""
        begins, ends = self.offsets[indices], self.offsets[indices + 1]
        if len(indices) == 1:
            return np.asarray(self.values[begins[0] : ends[0]])
        lengths = ends - begins
        before = np.cumsum(lengths) - lengths
        places = np.arange(lengths.sum()) + np.repeat(begins - before, lengths)
        found: FlatKeys = self.values[places]
        return found


def _array(folder: Path, count: int) -> FlatKeys:
    """An array in a file that is gone with it: what does not fit into memory is on disk."""
    if count == 0:
        return np.empty(0, np.uint64)
    with tempfile.TemporaryFile(prefix=".samples-", dir=folder) as file:
        file.truncate(count * 8)
        found: FlatKeys = np.memmap(file, np.uint64, "r+", shape=count)
    return found
