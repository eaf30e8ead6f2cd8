"""The order in which a loader will give its samples, in this pass and in those behind it.

Owns the copy of a sampler: with its generators, which draw in the copy what they will draw in the
loader, and without its data. The loader and the random generators of the process are left as they
were found.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Order", "ends", "equal", "generators_kept", "orders"]

Order = list[npt.NDArray[np.int64]]
"""The indices of the samples of each batch."""


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


def ends(sampler: Any) -> bool:
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
