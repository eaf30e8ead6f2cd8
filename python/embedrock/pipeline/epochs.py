"""Schedules of epochs: made at the beginning of each pass, of the order that its batches will have.

Owns what is known of a loader's order. Two kinds of loaders have one that is known:

* batches in a list, or anything that can be gone through again: the same order in each pass;
* loaders with a ``batch_sampler``, a ``dataset`` and a ``collate_fn`` (PyTorch's ``DataLoader``):
  the sampler is copied, with its generator, and asked for the indices of this pass and of the next.

Nothing here changes what a pass gives: random generators are left as they were found.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embedrock.ahead import Schedule
from embedrock.errors import MisuseError
from embedrock.pipeline.keys import FlatKeys, KeyFinder
from embedrock.pipeline.schedule import Batch, Maker
from embedrock.pipeline.scheduled import PassSchedule
from embedrock.store import Store

__all__ = ["EpochSchedules", "cache_rows_of", "temporary_schedule"]

Order = list[npt.NDArray[np.int64]]
"""The indices of the samples of each batch."""

_CHECKED = 16
"""Samples whose keys are looked at one by one, to see what those of a batch are made of."""
_CHUNK = 1024
"""Samples whose keys are asked for together."""
_STRETCH_OF_CACHE = 8
"""A stretch's rows fill this part of the cache, at most."""
_STRETCHES_AHEAD = 3
"""Stretches that are announced ahead, at least."""
_STRETCH_BATCHES_LEAST = 4
_LOOKED_AT = 8
"""Batches by which the length of stretches is chosen."""


class EpochSchedules:
    """The schedules of a loader's passes.

    Errors: ``MisuseError`` for a loader whose order nobody can know before.
    """

    def __init__(
        self, loader: Iterable[Any], finder: KeyFinder, stores: Sequence[Store], depth: int
    ) -> None:
        """Looks at nothing yet. ``depth`` batches are announced ahead; temporary files are beside
        the first of the stores."""
        self._loader = loader
        self._finder = finder
        self._folder = stores[0].path.parent
        self._cache_rows = cache_rows_of(stores)
        self._depth = depth
        self._stretch = 0
        self._made: tuple[Order | None, Schedule] | None = None
        """The order of the last pass, of samples, and its schedule."""
        self._samples: _Samples | None = None
        self._is_sampled = all(
            getattr(loader, name, None) is not None
            for name in ("batch_sampler", "dataset", "collate_fn")
        )
        if self._is_sampled:
            is_known = _ends(loader.batch_sampler)  # type: ignore[attr-defined]
        else:
            is_known = not hasattr(loader, "dataset") and not hasattr(loader, "__next__")
        if not is_known:
            raise MisuseError(
                f"schedule='epoch' needs to know the order of {type(loader).__name__} before a "
                f"pass begins: pass a DataLoader over a dataset with a length, or batches that can "
                f"be gone through again; or make the schedule with embedrock.schedule()"
            )

    def next(self, tell: Callable[[str], None]) -> PassSchedule:
        """The schedule of the pass that begins. The first one looks at all batches, or samples.

        Errors: what the loader or ``keys_of`` raises; ``IoError``, ``FullError``.
        """
        with generators_kept():
            schedule = self._of_samples() if self._is_sampled else self._of_batches()
        first, self._stretch = self._stretch, self._stretch + schedule.stretches
        return PassSchedule(schedule, first, tell)

    def _of_batches(self) -> Schedule:
        """Of batches that come again in the same order."""
        if self._made is None:
            batches = (self._keys(batch) for batch in self._loader)
            self._made = (None, self._schedule(batches, None))
        return self._made[1]

    def _of_samples(self) -> Schedule:
        this, behind = orders(self._loader)
        if self._made is not None and self._made[0] is not None and equal(self._made[0], this):
            return self._made[1]  # it repeats
        if self._samples is None:
            self._samples = _Samples(self._loader, self._finder, self._folder)
        repeats = behind is not None and equal(this, behind)
        later = None if behind is None or repeats else self._samples.batches(behind)
        schedule = self._schedule(self._samples.batches(this), later, repeats=repeats)
        self._made = (this if repeats else None, schedule)
        return schedule

    def _keys(self, batch: Any) -> Batch:
        return {part.table.name: part.keys for part in self._finder(batch)}

    def _schedule(
        self, batches: Iterable[Batch], behind: Iterable[Batch] | None, *, repeats: bool = True
    ) -> Schedule:
        return temporary_schedule(
            batches,
            self._folder,
            behind="repeat" if repeats and behind is None else behind,
            cache_rows=self._cache_rows,
            depth=self._depth,
        )


def temporary_schedule(
    batches: Iterable[Batch],
    folder: Path,
    *,
    behind: Iterable[Batch] | Literal["repeat"] | None,
    cache_rows: int,
    depth: int,
) -> Schedule:
    """A schedule in a file without a name, in stretches of which an eighth of ``cache_rows`` holds
    one and ``depth`` announced batches have three.

    Errors: ``IoError``, ``FullError``.
    """
    batches = iter(batches)
    first = list(islice(batches, _LOOKED_AT))
    with tempfile.TemporaryDirectory(prefix=".schedule-", dir=folder) as made:
        maker = Maker(Path(made, "schedule"), _stretch_batches(first, cache_rows, depth))
        for batch in (*first, *batches):
            maker.add(batch)
        count = maker.batches
        for batch in () if behind is None or isinstance(behind, str) else behind:
            maker.add(batch)
        return maker.finish(count, repeats=isinstance(behind, str))


def cache_rows_of(stores: Iterable[Store]) -> int:
    """Rows that fit into the caches of stores."""
    facts = [store.stats() for store in stores]
    return sum(one["cache_capacity"] for of_store in facts for one in of_store["classes"])


def _stretch_batches(batches: Sequence[Batch], cache_rows: int, depth: int) -> int:
    """Batches whose rows together fill an eighth of the cache."""
    rows = sum(len(np.unique(keys)) for batch in batches for keys in batch.values())
    of_batch = max(rows / max(len(batches), 1), 1)
    most = min(cache_rows / _STRETCH_OF_CACHE / of_batch, depth / _STRETCHES_AHEAD)
    return max(int(most), _STRETCH_BATCHES_LEAST)


class _Samples:
    """The keys of the samples of a dataset, each looked at once where that is enough."""

    def __init__(self, loader: Any, finder: KeyFinder, folder: Path) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._finder = finder
        self._keys: dict[str, npt.NDArray[np.uint64]] | None = None
        """``(samples, keys of a sample)`` of each table, where samples have equally many."""
        if self._is_regular():
            self._keys = self._read(folder)

    def batches(self, order: Order) -> Iterator[Batch]:
        """The keys of the batches of these samples."""
        for indices in order:
            if self._keys is None:
                yield self._of(indices)
            else:
                yield {name: keys[indices].reshape(-1) for name, keys in self._keys.items()}

    def _of(self, indices: Iterable[Any]) -> Batch:
        """The keys of a batch of these samples, as the loader would make it."""
        indices = [int(index) for index in indices]
        if hasattr(self._dataset, "__getitems__"):
            samples = self._dataset.__getitems__(indices)
        else:
            samples = [self._dataset[index] for index in indices]
        return {part.table.name: part.keys for part in self._finder(self._collate(samples))}

    def _is_regular(self) -> bool:
        """Whether the keys of a batch are those of its samples, one after another, equally many."""
        if len(self._dataset) < _CHECKED:
            return False
        step = len(self._dataset) // _CHECKED
        indices = [step * place for place in range(_CHECKED)]
        together, single = self._of(indices), [self._of([index]) for index in indices]
        for name, keys in together.items():
            parts: list[FlatKeys] = [one.get(name, keys[:0]) for one in single]
            if len({len(part) for part in parts}) != 1:
                return False
            if not np.array_equal(np.concatenate(parts), keys):
                return False
        return True

    def _read(self, folder: Path) -> dict[str, npt.NDArray[np.uint64]] | None:
        """The keys of all samples, in temporary files; None where one has more or fewer."""
        count, found = len(self._dataset), dict[str, npt.NDArray[np.uint64]]()
        for begin in range(0, count, _CHUNK):
            end = min(begin + _CHUNK, count)
            keys = self._of(range(begin, end))
            if not found:
                for name, of_table in keys.items():
                    width = len(of_table) // (end - begin)
                    found[name] = _array(folder, (count, width))
            for name, of_table in keys.items():
                if name not in found or of_table.size != (end - begin) * found[name].shape[1]:
                    return None
                found[name][begin:end] = of_table.reshape(end - begin, -1)
        return found


def _array(folder: Path, shape: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """An array in a file that is gone with it: what does not fit into memory is on disk."""
    with tempfile.TemporaryFile(prefix=".samples-", dir=folder) as file:
        file.truncate(max(shape[0] * shape[1] * 8, 8))
        return np.memmap(file, np.uint64, "r+", shape=shape) if shape[1] else np.empty(shape, "u8")


def orders(loader: Any) -> tuple[Order, Order | None]:
    """The samples of the batches of the pass that begins, and of the one behind it; None where that
    depends on what happens until then."""
    dataset = loader.dataset
    sampler = copy.deepcopy(loader.batch_sampler, {id(dataset): dataset})
    if getattr(loader, "_iterator", None) is None:  # workers that stay have theirs
        _draw_base_seed(loader, sampler)
    state = _torch_state()
    this = _indices(sampler)
    depends = state is not None and not bool((state == _torch_state()).all())
    inner = getattr(sampler, "sampler", sampler)
    if hasattr(inner, "set_epoch"):  # of ranks: the order follows from the epoch
        inner.set_epoch(getattr(inner, "epoch", 0) + 1)
    elif depends:
        return this, None
    elif not getattr(loader, "persistent_workers", False):
        _draw_base_seed(loader, sampler)
    return this, _indices(sampler)


def _ends(sampler: Any) -> bool:
    """Whether it has a length: that of a dataset that is a stream has none, and no end."""
    try:
        return len(sampler) >= 0
    except Exception:  # of the sampler's own, too
        return False


def _draw_base_seed(loader: Any, sampler: Any) -> None:
    """Draws what a ``DataLoader`` draws when a pass begins, of a copy of its generator where the
    sampler has the same."""
    generator = getattr(loader, "generator", None)
    if "torch" not in sys.modules or not hasattr(loader, "generator"):
        return
    import torch

    if generator is None:
        torch.empty((), dtype=torch.int64).random_()
        return
    inner = getattr(loader.batch_sampler, "sampler", loader.batch_sampler)
    if getattr(inner, "generator", None) is generator:
        copied = getattr(sampler, "sampler", sampler).generator
        torch.empty((), dtype=torch.int64).random_(generator=copied)


def _indices(sampler: Iterable[Any]) -> Order:
    return [np.asarray(batch, np.int64).reshape(-1) for batch in sampler]


def _torch_state() -> Any:
    if "torch" not in sys.modules:
        return None
    import torch

    return torch.random.get_rng_state()


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Random generators of the process are as before when the block ends."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), _torch_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch_state is not None:
            import torch

            torch.random.set_rng_state(torch_state)


def equal(one: Order, other: Order) -> bool:
    """Whether two orders are the same."""
    return len(one) == len(other) and all(map(np.array_equal, one, other))
