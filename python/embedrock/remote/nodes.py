"""The servers of a cluster: which one has which bucket, and connections to each."""

from __future__ import annotations

import binascii
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedrock import _core, _logs
from embedrock._arguments import flag
from embedrock._arrays import ArrayLike, as_keys
from embedrock._ranks import BUCKETS
from embedrock.errors import CorruptError, IoError, MisuseError
from embedrock.remote.pool import Pool
from embedrock.remote.wire import Refused, Wire

__all__ = ["Address", "Map", "Nodes", "buckets_of", "shown_address"]

_log = _logs.of("remote")
_passed = _logs.Limit()

_SLOTS = 16_384
_SLOT_OF_BUCKET = np.array(
    [binascii.crc_hqx(b"%04d" % bucket, 0) % _SLOTS for bucket in range(BUCKETS)]
)
"""The slot of a bucket is that of its four digits: CRC-16/XMODEM, as in Redis Cluster."""

Address = tuple[str, int]


def buckets_of(keys: ArrayLike, *, dense: bool) -> npt.NDArray[np.uint16]:
    """The bucket of each key, 0 to 1,023, by which servers of a cluster divide their tables.

    ``dense`` is whether the table has ``num_embeddings``. Any client of Redis Cluster finds the
    server of the key 17 of the table "user" by the name ``user:{0017}:17``, with the bucket in four
    digits.

    Shapes: ``keys (*,) -> buckets (*,) uint16``.

    >>> embedrock.remote.buckets_of([17, 1041], dense=True)
    array([17, 17], dtype=uint16)
    """
    asked = as_keys(keys)
    return _core.buckets_of(asked.flat, flag("dense", dense)).reshape(asked.shape)


class Map(NamedTuple):
    """Assignment of buckets to servers."""

    addresses: list[Address]
    owners: npt.NDArray[np.intp]
    """(1024,), places in ``addresses``."""


def shown_address(address: Address) -> str:
    """An address for messages."""
    return f"{address[0]}:{address[1]}"


class Nodes:
    """Pools of connections by server, and the newest map that one of them has told."""

    def __init__(self, seeds: list[Address], pool_of: Callable[[Address], Pool]) -> None:
        """Asks the first of ``seeds`` that answers when the map is first needed."""
        self._seeds, self._pool_of = seeds, pool_of
        # Guards what follows; held while a server is asked for the map.
        self._lock = threading.RLock()
        self._pools: dict[Address, Pool] = {}
        self._map: Map | None = None
        self._answered: Address | None = None
        self._is_dense: dict[bytes, bool] = {}

    def map(self) -> Map:
        """The map. Errors: as :meth:`learn`, where there is none yet."""
        with self._lock:
            return self._map or self.learn()

    def forget_map(self) -> None:
        """The next call asks for the map again: a server was not reached."""
        with self._lock:
            self._map = None

    def learn(self, first: Address | None = None) -> Map:
        """Asks for the map: ``first``, then who told it last, then all others.

        Errors: ``IoError`` when no server is reached, ``MisuseError`` of one that is in no cluster
        or refuses who asks, ``CorruptError`` for a map that is none.
        """
        failure: IoError | None = None
        with self._lock:
            known = [first, self._answered, *self._seeds, *self._pools]
            for address in dict.fromkeys(one for one in known if one is not None):
                try:
                    told = self.ask(address, b"CLUSTER", b"SLOTS")
                except Refused as refused:
                    raise _named(refused, address) from None
                except IoError as error:
                    failure = failure or error
                    passed = "server %s cannot be asked for the map of its cluster: %s"
                    _passed.log(_log, logging.WARNING, passed, shown_address(address), error)
                    continue
                self._map, self._answered = _map_of(told, address), address
                return self._map
        raise failure or MisuseError("there is no server to ask")

    def is_dense(self, table: bytes) -> bool:
        """Whether a table has ``num_embeddings``. Errors: ``Refused`` where it is not there."""
        with self._lock:
            if table not in self._is_dense:
                for address in self.map().addresses:
                    try:
                        told = self.ask(address, b"EMB.TABLES")
                    except IoError:
                        continue
                    infos = [dict(zip(info[::2], info[1::2], strict=True)) for info in told]
                    found = {info[b"name"]: info[b"num_embeddings"] is not None for info in infos}
                    self._is_dense.update(found)
                    break
            if table not in self._is_dense:
                raise Refused(f"NOTFOUND no table {table.decode(errors='replace')!r}")
            return self._is_dense[table]

    def lend(self, address: Address) -> Wire:
        """A connection to a server, which has to come back by :meth:`take_back`."""
        return self._pool(address).lend()

    def take_back(self, address: Address, wire: Wire, *, is_usable: bool) -> None:
        """Takes a connection back, of which no reply is on its way where it is usable."""
        self._pool(address).take_back(wire, is_usable=is_usable)

    def ask(self, address: Address, *arguments: bytes | memoryview) -> Any:
        """The reply of one server on a connection of its own. Errors: ``Refused``, ``IoError``."""
        wire = self.lend(address)
        is_usable = False
        try:
            found = wire.call(*arguments)
            is_usable = True
        except Refused:
            is_usable = True
            raise
        finally:
            self.take_back(address, wire, is_usable=is_usable)
        return found

    def made(self) -> int:
        """Number of connections made, to all servers together."""
        with self._lock:
            return sum(pool.made() for pool in self._pools.values())

    def close(self) -> None:
        """Closes all connections; those in use when their calls end."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()

    def _pool(self, address: Address) -> Pool:
        with self._lock:
            if address not in self._pools:
                self._pools[address] = self._pool_of(address)
            return self._pools[address]


def _named(refused: Refused, address: Address) -> Exception:
    error = refused.mirrored()
    return type(error)(f"server {shown_address(address)}: {error}")


def _map_of(told: Any, asked: Address) -> Map:
    """The map that a server has told; one without a host is the server that was asked."""
    places: dict[Address, int] = {}
    of_slots = np.full(_SLOTS, -1, np.intp)
    try:
        for begin, end, (host, port, *_), *_ in _listed(told):
            address = (host.decode() if host else asked[0], int(port))
            of_slots[begin : end + 1] = places.setdefault(address, len(places))
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptError(
            f"server {shown_address(asked)} sent a map of its cluster that is none: {error}"
        ) from error
    owners = of_slots[_SLOT_OF_BUCKET]
    if (owners < 0).any():
        raise CorruptError(
            f"server {shown_address(asked)} sent a map without a server for bucket "
            f"{int(np.argmin(owners))}"
        )
    return Map(list(places), owners)


def _listed(told: Any) -> Iterable[Any]:
    if not isinstance(told, list):
        raise TypeError(f"expected a list, got {told!r}")
    return told
