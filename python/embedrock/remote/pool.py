"""Connections to a server that threads share, one call at a time each.

An exception may come at any instant, from a handler of a signal for example: a connection on which
a reply may be is closed then or goes with its owner, and its place is free again.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from typing import TypeVar

from embedrock import _logs
from embedrock.errors import ClosedError, IoError
from embedrock.remote.places import Place, Places
from embedrock.remote.wire import Refused, Wire

__all__ = ["Pool"]

T = TypeVar("T")
_log = _logs.of("remote")


class Pool:
    """Up to ``size`` connections; callers beyond that wait for one."""

    def __init__(
        self,
        address: tuple[str, int],
        credentials: tuple[bytes, bytes] | None,
        tls: ssl.SSLContext | None,
        *,
        size: int,
        timeout: float | None,
        retries: int,
        keepalive: float | None = None,
    ) -> None:
        """Connects when it is first used."""
        self.name = f"{address[0]}:{address[1]}"
        self._address, self._credentials, self._tls = address, credentials, tls
        self._size, self._timeout, self._retries = size, timeout, retries
        self._keepalive = keepalive
        self._repeats = _logs.Limit()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free = Places(self._size)
        self._made = 0
        self._idle: list[Wire] = []
        self._is_closed = False

    def run(self, function: Callable[[Wire], T], *, repeats: bool) -> T:
        """The result of ``function`` for a connection.

        When a connection fails, what may be repeated is tried again with a new one. All else is
        tried again only while nothing of it was sent, so that no update is made twice.
        """
        place = self._wait()
        try:
            return self._run(function, repeats)
        finally:
            self._free.leave(place)

    def made(self) -> int:
        """Number of connections made: a new connection may lead to another server."""
        return self._made

    def lend(self) -> Wire:
        """A connection for the caller alone, which has to come back by :meth:`take_back`."""
        place = self._wait()
        try:
            wire = self._take()
        except BaseException:
            self._free.leave(place)
            raise
        wire.place = place
        wire.has_sent = False
        return wire

    def take_back(self, wire: Wire, *, is_usable: bool) -> None:
        """Takes a connection back. One that is not usable, for a reply may be on it, is closed."""
        place, wire.place = wire.place, None
        if is_usable:
            self._give(wire)
        else:
            self._drop(wire)
        if place is not None:
            self._free.leave(place)

    def _wait(self) -> Place:
        """Waits for a connection to be free."""
        if self._pid != os.getpid():
            self._begin()  # a forked child has connections of its own
        place = self._free.take(self._timeout)
        if place is None:
            raise IoError(
                f"no connection to server {self.name} became free within {self._timeout} s: all "
                f"{self._size} are in use; connect(..., connections=) allows more"
            )
        return place

    def _run(self, function: Callable[[Wire], T], repeats: bool) -> T:
        left = self._retries
        while True:
            wire = None
            try:
                wire = self._take()
                wire.has_sent = False
                found = function(wire)
            except Refused as refused:
                self._give(wire)
                raise refused.mirrored() from None
            except IoError as error:
                was_sent = wire is not None and wire.has_sent
                self._drop(wire)
                if left == 0 or (was_sent and not repeats):
                    raise
                left -= 1
                again = "server %s: a call is tried again with a new connection: %s"
                self._repeats.log(_log, logging.WARNING, again, self.name, error)
            except BaseException:
                # A reply may still be on its way: nobody else may read it.
                self._drop(wire)
                raise
            else:
                self._give(wire)
                return found

    def close(self) -> None:
        """Closes all connections; those in use when their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _take(self) -> Wire:
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClosedError(f"the connections to server {self.name} were closed")
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                return self._connect()
            if not wire.is_stale():
                return wire
            wire.close()

    def _connect(self) -> Wire:
        self._made += 1
        wire = Wire(*self._address, self._timeout, self._tls, self._keepalive)
        try:
            if self._credentials is not None:
                wire.call(b"AUTH", *self._credentials)
        except BaseException:
            wire.close()
            raise
        _log.debug("server %s: connected, for the %d. time", self.name, self._made)
        return wire

    def _give(self, wire: Wire | None) -> None:
        if wire is None:
            return
        with self._lock:
            keeps = not (self._is_closed or wire.is_broken)
            if keeps:
                self._idle.append(wire)
        if not keeps:
            wire.close()

    def _drop(self, wire: Wire | None) -> None:
        if wire is not None:
            wire.close()
