"""Requests of several tables on one connection, all on their way before replies are waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from embedrock._verbs import Floats
from embedrock.remote.wire import Refused, Wire

__all__ = ["Pull", "pull_all", "send_all"]

_UNREAD_BYTES = 4 << 20
"""Replies on their way while more is asked for: a server stops to read where too many wait."""

_AROUND_BYTES = 64
"""Of a reply, around rows and positions."""


class Pull(NamedTuple):
    """One request for rows of one table."""

    table: bytes
    """The table's name."""
    keys: memoryview
    """Packed: 8 bytes each."""
    into: Floats
    """(N, D), filled."""

    @property
    def reply_bytes(self) -> int:
        """At most, where every key is missing."""
        return self.into.nbytes + 4 * len(self.into) + _AROUND_BYTES


def pull_all(wire: Wire, pulls: Sequence[Pull], reply_bytes_max: int) -> None:
    """Fills the arrays of all pulls. Errors: ``Refused`` for the first that is."""
    most = min(_UNREAD_BYTES, reply_bytes_max // 2)
    waiting: deque[Pull] = deque()
    unread, refused = 0, None

    def take() -> None:
        nonlocal unread, refused
        pull = waiting.popleft()
        unread -= pull.reply_bytes
        try:
            wire.rows(pull.into, pull.into.shape[1])
        except Refused as error:  # the replies behind it have to be read all the same
            refused = refused or error

    for pull in pulls:
        while waiting and unread + pull.reply_bytes > most:
            take()
        wire.send(b"EMB.PULLB", pull.table, pull.keys)
        waiting.append(pull)
        unread += pull.reply_bytes
    while waiting:
        take()
    if refused is not None:
        raise refused


def send_all(
    wire: Wire,
    requests: Sequence[Sequence[bytes | memoryview]],
    settled: Callable[[int], object],
) -> None:
    """Sends requests that change rows, whose replies are small.

    ``settled`` is called with the places of those that were answered, and where an answer does not
    come with those that may have been made. Errors: ``Refused`` for the first that is.
    """
    refused: dict[int, Refused] = {}
    sent = answered = 0
    try:
        for request in requests:
            had_sent, wire.has_sent = wire.has_sent, False
            try:
                wire.send(*request)
            finally:
                # One of which nothing was put out was not made.
                sent += wire.has_sent
                wire.has_sent = wire.has_sent or had_sent
        for place in range(len(requests)):
            try:
                wire.reply()
                settled(place)
            except Refused as error:
                refused[place] = error
                if error.partly:
                    settled(place)
            answered += 1
    except BaseException:
        for place in range(answered, sent):
            settled(place)
        raise
    if refused:
        raise next(iter(refused.values()))
