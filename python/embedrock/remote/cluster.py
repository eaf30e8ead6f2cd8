"""Several servers that share the keys of their tables, in place of one."""

from __future__ import annotations

import ssl

from embedrock.remote.nodes import Address, Nodes, shown_address
from embedrock.remote.pool import Pool
from embedrock.remote.routed import RoutedWire
from embedrock.remote.wire import Wire

__all__ = ["Cluster"]


class Cluster(Pool):
    """Connections to the servers of a cluster; what is run with one sees all tables whole."""

    def __init__(
        self,
        seeds: list[Address],
        credentials: tuple[bytes, bytes] | None,
        tls: ssl.SSLContext | None,
        *,
        size: int,
        timeout: float | None,
        retries: int,
        keepalive: float | None = None,
    ) -> None:
        """Connects when it is first used; any of ``seeds`` tells which servers there are."""
        self._seeds = seeds
        super().__init__(
            seeds[0],
            credentials,
            tls,
            size=size,
            timeout=timeout,
            retries=retries,
            keepalive=keepalive,
        )
        self.name = ",".join(map(shown_address, seeds))

    def _begin(self) -> None:
        super()._begin()
        self._nodes = Nodes(self._seeds, self._pool_of)

    def _pool_of(self, address: Address) -> Pool:
        # A call has one connection to a server, and another one while it sends something on.
        return Pool(
            address,
            self._credentials,
            self._tls,
            size=2 * self._size,
            timeout=self._timeout,
            retries=0,
            keepalive=self._keepalive,
        )

    def made(self) -> int:
        """Number of connections made, to all servers together."""
        return self._nodes.made()

    def close(self) -> None:
        """Closes all connections; those in use when their calls end."""
        super().close()
        self._nodes.close()

    def _connect(self) -> Wire:
        self._nodes.map()
        return RoutedWire(self._nodes)

    def _give(self, wire: Wire | None) -> None:
        if isinstance(wire, RoutedWire):
            wire.give_back()

    def _drop(self, wire: Wire | None) -> None:
        # A server that is not reached may have handed its keys over.
        self._nodes.forget_map()
        super()._drop(wire)
