"""Collective calls of the ranks: agreement on the call, and the payloads between them.

Owns a gloo group of its own, so that no other calls come between, and the error of a rank that
fails or makes a different call. Invariants:

* Every exchange opens with :meth:`Exchange.meet`: one header from each rank to each, of one size,
  whatever the verb. So ranks that call different verbs, or verbs of different tables, are told
  apart before sizes could differ, and all of them raise.
* A rank that fails before a payload still sends its header, with a flag. All ranks then raise the
  same :class:`~embedrock.errors.RankError`, which is also of the kind that the rank had raised.
* After a lost connection or a time-out nobody knows what the others have had: every later call
  raises that error again. So it does where an exception of this rank alone, such as that of Ctrl-C
  or of no memory, has cut off a verb: others may wait for the rest of it.

Only ``all_to_all_single`` and ``all_gather`` of equal sizes are used: gloo has no more that takes
uneven or empty parts.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from embedrock._arguments import number
from embedrock.errors import EmbedrockError, IoError, MismatchError, MisuseError, rank_error

__all__ = ["Exchange", "Met", "Verb", "group_of", "waiting_limit"]

Words = npt.NDArray[np.int64]

_WORDS = 64
"""Of a header: 512 bytes, with the counts of 60 tables."""
_DIGEST, _FAILED, _NOTE, _NUMBER = range(4)
_FIRST_COUNT = 4
_COUNTS = _WORDS - _FIRST_COUNT
_TEXT_BYTES = 2048
"""Of what a rank says of itself where ranks differ or one has failed."""


class Verb(NamedTuple):
    """A rank's call, for comparison with the others."""

    name: str
    tables: tuple[str, ...] = ()
    detail: int = 0
    """A number that has to be the same on all ranks."""
    told: object = ""
    """The value that the number stands for; its text is used in messages."""
    part: str = ""
    """Part of a call that has several, such as ``"end of "``: ranks in different parts are out of
    step, and that error names the part. Other errors belong to the verb, and do not name it."""

    def __str__(self) -> str:
        tables = ", ".join(map(repr, self.tables[:8]))
        more = f" and {len(self.tables) - 8} more" if len(self.tables) > 8 else ""
        of = f" of table{'s' * (len(self.tables) > 1)} {tables}{more}" if self.tables else ""
        return f"{self.name}{of}"


class Met(NamedTuple):
    """Information that the ranks have exchanged."""

    notes: Words
    """(W,) a number of each rank."""
    numbers: npt.NDArray[np.float64]
    """(W,) another one."""
    counts: Words
    """(W, T) what each rank has counted for this one."""


def waiting_limit(timeout: float | None) -> float | None:
    """Seconds that a rank waits for the others. Errors: ``MisuseError``."""
    limit = None if timeout is None else number("timeout", timeout)
    if limit is not None and not 0 < limit < math.inf:
        raise MisuseError(f"timeout is {timeout}, expected seconds above 0, or None")
    return limit


def group_of(group: dist.ProcessGroup | None, timeout: float | None) -> dist.ProcessGroup:
    """A gloo group over the ranks of ``group``, for tensors on the host. Collective.

    Errors: ``MisuseError`` without an initialised process group, or outside of the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise MisuseError(
            "torch.distributed is not initialised; call torch.distributed.init_process_group() "
            "in a program that torchrun has started"
        )
    if dist.get_rank(group) < 0:
        raise MisuseError("this process is not in the group, expected one of its ranks")
    ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    limit = None if timeout is None else datetime.timedelta(seconds=timeout)
    made = dist.new_group(ranks, limit, "gloo", use_local_synchronization=group is not None)
    assert isinstance(made, dist.ProcessGroup)
    return made


class Exchange:
    """The collective calls of one thread over one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Takes a gloo group that nothing else uses."""
        self.group = group
        self.rank = dist.get_rank(group)
        """The rank within the group."""
        self.world = dist.get_world_size(group)
        """Number of ranks."""
        self.bytes_sent = 0
        """To other ranks, headers included."""
        self._broken: str | None = None
        self._verb: Verb | None = None
        """The last one that was begun within this ``with``."""
        self._raised: BaseException | None = None
        """The error that all ranks raise together."""
        self._buffers: dict[str, Tensor] = {}
        self._sent = torch.zeros(self.world, _WORDS, dtype=torch.int64, device="cpu")
        self._received = torch.zeros_like(self._sent)
        self._digests: dict[tuple[str, tuple[str, ...]], int] = {}
        self._busy = threading.Lock()
        self._options = dist.AllToAllOptions()

    @property
    def is_broken(self) -> bool:
        """Whether ranks are out of step, or out of reach, for good."""
        return self._broken is not None

    def __enter__(self) -> Exchange:
        """Begins a verb. Errors: ``MisuseError`` while another thread is within one."""
        if not self._busy.acquire(blocking=False):
            raise MisuseError(
                "another thread is within a verb of the ranks; their order has to be the same on "
                "all ranks, so one thread calls them"
            )
        if self._broken is not None:
            self._busy.release()
            raise IoError(self._broken)
        self._verb = self._raised = None
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Ends it. Between a header and its payload the package raises no error of its own that
        the other ranks do not raise, too."""
        verb, raised = self._verb, self._raised
        self._verb = self._raised = None
        alone = error is not None and error is not raised and not isinstance(error, EmbedrockError)
        if alone and verb is not None and self._broken is None:
            self._broken = (
                f"{verb} on rank {self.rank} of {self.world} was cut off by "
                f"{type(error).__name__}, and the other ranks may wait for the rest of it: start "
                f"all ranks again at their last common commit"
            )
        self._busy.release()

    def meet(
        self,
        verb: Verb,
        *,
        failed: BaseException | None = None,
        beside: str = "",
        note: int = 0,
        number: float = 0.0,
        counts: Words | None = None,
        tables: int = 0,
    ) -> Met:
        """Every rank tells every other what it does; ``counts (W, T)`` has a number for each rank
        and table, where the verb counts something of ``tables``. ``beside`` is told with a failure.

        Errors: ``RankError`` where a rank has failed, on all of them; ``MisuseError`` where they do
        different things, ``MismatchError`` where they do the same in different ways; ``IoError``
        where a rank is gone, or does not come in time.
        """
        self._verb = verb
        sent = self._sent.numpy()
        sent[:, _DIGEST] = self._digest(verb)
        sent[:, _FAILED] = failed is not None
        sent[:, _NOTE] = note
        sent[:, _NUMBER] = np.float64(number).view(np.int64)
        short = tables <= _COUNTS
        if short and counts is not None:
            sent[:, _FIRST_COUNT : _FIRST_COUNT + tables] = counts
        self._all_to_all(verb, self._received, self._sent)
        received = self._received.numpy()
        if received[:, _FAILED].any():
            self.raise_failure(verb, failed, beside)
        if (received[:, _DIGEST] != received[self.rank, _DIGEST]).any():
            self.raise_difference(verb)
        notes, numbers = received[:, _NOTE].copy(), received[:, _NUMBER].copy().view(np.float64)
        if short:
            return Met(notes, numbers, received[:, _FIRST_COUNT : _FIRST_COUNT + tables].copy())
        if counts is None:
            counts = np.zeros((self.world, tables), np.int64)
        return Met(notes, numbers, self.counts(verb, counts))

    def counts(self, verb: Verb, counts: Words) -> Words:
        """The counts of all ranks for this one: ``counts (W, T)`` are this rank's for each
        rank and table."""
        into = torch.zeros(counts.shape, dtype=torch.int64, device="cpu")
        self._all_to_all(verb, into, torch.from_numpy(np.ascontiguousarray(counts)))
        theirs: Words = into.numpy()
        return theirs

    def send(
        self,
        verb: Verb,
        into: Tensor,
        given: Tensor,
        into_splits: Sequence[int],
        given_splits: Sequence[int],
    ) -> None:
        """Fills ``into`` with what the ranks have sent to this one, in their order; splits are how
        many elements come from each and go to each."""
        self._all_to_all(verb, into, given, into_splits, given_splits)

    def buffer(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Memory for ``count`` elements that is kept from call to call."""
        kept = self._buffers.get(name)
        if kept is None or kept.dtype != dtype or kept.numel() < count:
            kept = torch.empty(count + count // 4 + 64, dtype=dtype, device="cpu")
            self._buffers[name] = kept
        return kept[:count]

    def gather(self, verb: Verb, own: bytes, size: int) -> list[bytes]:
        """Bytes of each rank, padded with zeros to ``size``, which is the same on all ranks."""
        padded = np.zeros(size, np.uint8)
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        found = [torch.empty(size, dtype=torch.uint8, device="cpu") for _ in range(self.world)]
        try:
            dist.all_gather(found, torch.from_numpy(padded), group=self.group)
        except RuntimeError as error:
            raise self._lost(verb, error) from error
        return [bytes(one.numpy()) for one in found]

    def _gather_texts(self, verb: Verb, text: str) -> list[str]:
        """A text of each rank, cut where it is too long."""
        found = self.gather(verb, text.encode()[:_TEXT_BYTES], _TEXT_BYTES)
        return [one.rstrip(b"\0").decode(errors="ignore") for one in found]

    def _all_to_all(
        self,
        verb: Verb,
        into: Tensor,
        given: Tensor,
        into_splits: Sequence[int] | None = None,
        given_splits: Sequence[int] | None = None,
    ) -> None:
        own = given.numel() // self.world if given_splits is None else given_splits[self.rank]
        self.bytes_sent += (given.numel() - own) * given.element_size()
        try:
            # The call inside all_to_all_single, without its checks, which cost as much as the
            # exchange.
            work = self.group.alltoall_base(
                into, given, [*(into_splits or ())], [*(given_splits or ())], self._options
            )
            work.wait()
        except RuntimeError as error:
            raise self._lost(verb, error) from error

    def _digest(self, verb: Verb) -> int:
        key = (verb.part + verb.name, verb.tables)
        found = self._digests.get(key)
        if found is None:
            digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
            found = self._digests[key] = int.from_bytes(digest, "little", signed=True)
        return found ^ verb.detail

    def _lost(self, verb: Verb, error: RuntimeError) -> IoError:
        self._broken = (
            f"{verb} on rank {self.rank} of {self.world}: the other ranks were not reached "
            f"({_first_line(error)}); one of them has ended, or did not call it within the "
            f"time-out of the group (embedrock.distributed.open(timeout=...)): start all ranks "
            f"again at their last common commit"
        )
        return IoError(self._broken)

    def raise_failure(self, verb: Verb, failed: BaseException | None, beside: str = "") -> NoReturn:
        """Raises the error of the first rank that has failed, on all: all of them call this.

        Errors: ``RankError``; on a rank that failed with an error of another kind than ours that.
        """
        text = "" if failed is None else f"{type(failed).__name__}\n{failed}"
        texts = self._gather_texts(verb, text)
        rank = next((rank for rank, one in enumerate(texts) if one), self.rank)
        kind, _, message = texts[rank].partition("\n")
        if failed is not None and not isinstance(failed, EmbedrockError):
            self._raised = failed
            raise failed
        told = f"{verb}: rank {rank} of {self.world}: {message}{beside}"
        raise rank_error(kind, told, rank) from failed

    def raise_difference(self, verb: Verb) -> NoReturn:
        """Raises what the ranks do instead of one thing: all of them call this."""
        texts = self._gather_texts(verb, f"{verb.part}{verb}\n{verb.told}")
        other = next((rank for rank, one in enumerate(texts) if one != texts[0]), 0)
        (mine, how), (others, otherwise) = (texts[rank].partition("\n")[::2] for rank in (0, other))
        if mine == others:
            how, otherwise = _differing(how, otherwise)
            raise MismatchError(
                f"{mine}: rank 0 has {how}, rank {other} has {otherwise}; expected the same on all "
                f"ranks"
            )
        raise MisuseError(
            f"ranks call different verbs: rank 0 {mine}, rank {other} {others}; every rank has to "
            f"make the same calls in the same order, one without ids or gradients too"
        )


def _differing(how: str, otherwise: str) -> tuple[str, str]:
    """Of two JSON objects the fields that differ, as texts; of anything else all of it."""
    try:
        mine, others = _fields(json.loads(how)), _fields(json.loads(otherwise))
    except (ValueError, AttributeError):
        return how, otherwise
    names = [name for name in {**mine, **others} if mine.get(name) != others.get(name)]

    def told(fields: dict[str, str]) -> str:
        return ", ".join(f"{name}={fields.get(name, 'nothing')}" for name in names)

    return told(mine), told(others)


def _fields(value: dict[str, Any], of: str = "") -> dict[str, str]:
    """The values of an object and of those within it, as JSON, by name."""
    found: dict[str, str] = {}
    for name, one in value.items():
        if isinstance(one, dict) and one:
            found |= _fields(one, f"{of}{name}.")
        else:
            found[of + name] = json.dumps(one)
    return found


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
