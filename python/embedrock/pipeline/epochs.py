"""Schedules of epochs: made at the beginning of each pass, of the order that its batches will have.

Owns what is known of a loader's order. Two kinds of loaders have one that is known:

* batches in a list: the same order in each pass;
* loaders with a ``batch_sampler``, a ``dataset`` and a ``collate_fn`` (PyTorch's ``DataLoader``):
  the sampler is copied, with its generator, and asked for the indices of this pass and of the next.

Nothing here changes what a pass gives: random generators are left as they were found.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from embedrock.ahead import Schedule
from embedrock.errors import MisuseError
from embedrock.pipeline.keys import FlatKeys, KeyFinder
from embedrock.pipeline.schedule import Batch, Maker
from embedrock.pipeline.scheduled import PassSchedule, keys_by_name
from embedrock.store import Store

__all__ = ["EpochSchedules", "stretch_of", "temporary_schedule"]

Order = list[npt.NDArray[np.int64]]
"""The indices of the samples of each batch."""

_CHECKED = 16
"""Samples whose keys are looked at one by one, to see what those of a batch are made of."""
_DEARER = 8.0
"""Keys of samples are asked for one by one where that takes no longer than so many passes of
batches."""
_NO_KEYS = np.empty(0, np.uint64)
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
        self._stores = stores
        self._depth = depth
        self._stretch_batches: int | None = None
        self._stretch = 0
        self._made: tuple[Order, Schedule] | None = None
        """The order that repeats, and its schedule."""
        self._samples: _Samples | None = None
        self._ahead: _Ahead | None = None
        self._is_sampled = all(
            getattr(loader, name, None) is not None
            for name in ("batch_sampler", "dataset", "collate_fn")
        )
        sampler = getattr(loader, "batch_sampler", None)
        if not (_ends(sampler) if self._is_sampled else isinstance(loader, Sequence)):
            raise MisuseError(
                f"schedule='epoch' needs to know the order of {type(loader).__name__} before a "
                f"pass begins: pass a DataLoader with batches of a dataset that has a length, or a "
                f"list of batches; or make the schedule with embedrock.schedule()"
            )

    def next(self, tell: Callable[[str], None]) -> PassSchedule | None:
        """The schedule of the pass that begins. The first one looks at all batches, or samples.
        None where it cannot be made, which ``tell`` is told: the pass then goes as without."""
        try:
            with generators_kept():
                schedule = self._of_samples() if self._is_sampled else self._of_batches()
        except Exception as error:  # of the dataset, of keys_of, of the disk
            tell(
                f"there is no schedule for this pass: {type(error).__name__}: {error}; it goes on "
                f"without, with the same results"
            )
            return None
        if schedule is None:
            return None
        first, self._stretch = self._stretch, self._stretch + schedule.stretches
        return PassSchedule(schedule, first, tell)

    def close(self) -> None:
        """Ends what is being made for the next pass."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def __del__(self) -> None:
        """As :meth:`close`."""
        if hasattr(self, "_ahead"):
            self.close()

    def _of_batches(self) -> Schedule | None:
        """Of a list of batches."""
        if not len(self._loader):  # type: ignore[arg-type]
            return None
        if self._made is None:
            batches = (keys_by_name(self._finder(batch)) for batch in self._loader)
            self._made = ([], self._schedule(batches, "repeat"))
        return self._made[1]

    def _of_samples(self) -> Schedule | None:
        coming = orders(self._loader, 3)
        this, behind = coming[0], coming[1:2]
        if not this:
            return None
        if self._samples is None or not all(map(self._samples.has, coming)):
            self.close()
            known = None if self._samples is None else self._samples.indices
            self._samples = _Samples(self._loader, self._finder, self._folder, coming, known)
        if behind and equal(this, behind[0]):
            if self._made is None or not equal(self._made[0], this):
                schedule = self._schedule(self._samples.batches(this), "repeat")
                self._made = (this, schedule)
            return self._made[1]
        made, self._ahead = self._ahead, None
        found = None if made is None else made.take(coming[:2])
        schedule = self._schedule_of(coming[:2]) if found is None else found
        if self._samples.are_kept and len(coming) == 3:
            # That of the next pass, while this one trains.
            self._ahead = _Ahead(coming[1:], self._schedule_of)
        return schedule

    def _schedule_of(
        self, coming: list[Order], is_stopped: Callable[[], bool] = lambda: False
    ) -> Schedule:
        assert self._samples is not None
        behind = self._samples.batches(coming[1]) if len(coming) > 1 else None
        return self._schedule(self._samples.batches(coming[0]), behind, is_stopped)

    def _schedule(
        self,
        batches: Iterable[Batch],
        behind: Iterable[Batch] | Literal["repeat"] | None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Schedule:
        if self._stretch_batches is None:
            # Kept: where a row is used in the next pass, this one says in its own stretches.
            self._stretch_batches, batches = stretch_of(batches, self._stores, self._depth)
        tables = [name for store in self._stores for name in store.tables]
        return temporary_schedule(
            batches,
            self._folder,
            self._stretch_batches,
            tables,
            behind=behind,
            is_stopped=is_stopped,
        )


class _Stopped(Exception):
    """A schedule is not wanted any more."""


class _Ahead:
    """A schedule that is made on a thread of its own, with what time others leave."""

    def __init__(
        self,
        coming: list[Order],
        make: Callable[[list[Order], Callable[[], bool]], Schedule],
    ) -> None:
        """Begins. It touches nothing of the loader."""
        self._coming, self._make = coming, make
        self._pid = os.getpid()
        self._found: Schedule | None = None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedrock schedule", daemon=True)
        self._thread.start()

    def take(self, coming: list[Order]) -> Schedule | None:
        """The schedule; None where it is of other passes than these, or failed."""
        if self._pid != os.getpid():  # a forked child does not have the thread
            return None
        if len(coming) != len(self._coming) or not all(map(equal, coming, self._coming)):
            self.stop()
            return None
        self._thread.join()
        return self._found

    def stop(self) -> None:
        """Ends the thread, which removes its files."""
        self._is_stopped.set()
        if self._pid == os.getpid() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        with contextlib.suppress(Exception):  # whoever makes it again hears of it
            self._found = self._make(self._coming, self._is_stopped.is_set)


def temporary_schedule(
    batches: Iterable[Batch],
    folder: Path,
    stretch_batches: int,
    tables: Iterable[str],
    *,
    behind: Iterable[Batch] | Literal["repeat"] | None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Schedule:
    """A schedule in a file without a name, of batches that use some of these tables.

    Errors: ``MisuseError`` where there is no batch; ``IoError``, ``FullError``.
    """

    def go_on(*_: object) -> None:
        if is_stopped():
            raise _Stopped

    with tempfile.TemporaryDirectory(prefix=".schedule-", dir=folder) as made:
        maker = Maker(Path(made, "schedule"), stretch_batches)
        maker.begin(tables)
        for batch in batches:
            go_on()
            maker.add(batch)
        if behind is not None and not isinstance(behind, str):
            maker.end()
            for batch in behind:
                go_on()
                maker.add(batch)
        return maker.finish(repeats=isinstance(behind, str), progress=go_on)


def stretch_of(
    batches: Iterable[Batch], stores: Iterable[Store], depth: int
) -> tuple[int, Iterable[Batch]]:
    """Batches whose rows together fill an eighth of the caches, by the first of them; three such
    stretches are announced at least. And the batches, from the first on."""
    batches = iter(batches)
    first = list(islice(batches, _LOOKED_AT))
    facts = [store.stats() for store in stores]
    cached = sum(one["cache_capacity"] for of_store in facts for one in of_store["classes"])
    rows = sum(len(np.unique(keys)) for batch in first for keys in batch.values())
    of_batch = max(rows / max(len(first), 1), 1)
    most = min(cached / _STRETCH_OF_CACHE / of_batch, depth / _STRETCHES_AHEAD)
    return max(int(most), _STRETCH_BATCHES_LEAST), chain(first, batches)


class _Samples:
    """The keys of the samples of a dataset, each looked at once where those of a batch are those of
    its samples, one after another; otherwise the keys of each batch.

    The dataset is asked in a worker process: files that it has opened, and what else it keeps, are
    for the loader as if nobody had asked.
    """

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


def orders(loader: Any, passes: int = 2) -> list[Order]:
    """The samples of the batches of the pass that begins, and of those behind it: fewer than asked
    for where these depend on what happens until then."""
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    for sampler in _chain(loader.batch_sampler):
        for data in ("data_source", "dataset"):
            if hasattr(sampler, data):  # never copied
                memo[id(getattr(sampler, data))] = getattr(sampler, data)
    for owner in (loader, *_chain(loader.batch_sampler)):
        generator = getattr(owner, "generator", None)
        if generator is not None and id(generator) not in memo:
            memo[id(generator)] = _copied(generator)
    sampler = copy.deepcopy(loader.batch_sampler, memo)
    generator = getattr(loader, "generator", None)
    own = None if generator is None else memo[id(generator)]
    with_epoch = [one for one in _chain(sampler) if hasattr(one, "set_epoch")]
    if getattr(loader, "_iterator", None) is None:  # workers that stay have theirs
        _draw_base_seed(own)
    state = _torch_state()
    found = [_indices(sampler)]
    depends = state is not None and not bool((state == _torch_state()).all())
    for _ in range(passes - 1):
        for one in with_epoch:  # of ranks: the order follows from the epoch
            one.set_epoch(getattr(one, "epoch", 0) + 1)
        if depends and not with_epoch:
            break
        if not getattr(loader, "persistent_workers", False):
            _draw_base_seed(own)
        found.append(_indices(sampler))
    return found


def _chain(sampler: Any) -> Iterator[Any]:
    """A sampler, and those within it."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        yield sampler
        seen.add(id(sampler))
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner


def _copied(generator: Any) -> Any:
    """A generator that will draw the same numbers."""
    import torch

    if not isinstance(generator, torch.Generator):
        return copy.deepcopy(generator)
    found = torch.Generator(generator.device)
    found.set_state(generator.get_state())
    return found


def _draw_base_seed(generator: Any) -> None:
    """Draws what a ``DataLoader`` draws when a pass begins."""
    if "torch" in sys.modules:
        import torch

        torch.empty((), dtype=torch.int64).random_(generator=generator)


def _ends(sampler: Any) -> bool:
    """Whether it has a length: that of a dataset that is a stream has none, and no end."""
    try:
        return len(sampler) >= 0
    except Exception:  # of the sampler's own, too
        return False


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
