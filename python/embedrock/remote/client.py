"""``embedrock.connect``: the tables of a server, as if they were here."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from embedrock._arguments import flag, named_path_or_none, seconds, shown, text, whole
from embedrock.errors import MisuseError, NotFoundError
from embedrock.remote.cluster import Cluster
from embedrock.remote.pool import Pool
from embedrock.remote.table import RemoteTable
from embedrock.remote.wire import Wire

__all__ = ["RemoteStore", "connect"]

_PORT = 6380
_LIMITS = ("max-keys", "max-request-bytes", "max-reply-bytes")


def connect(
    url: str | Sequence[str],
    *,
    cluster: bool = False,
    timeout: float | None = 10.0,
    connections: int = 8,
    retries: int = 2,
    tls_ca: str | os.PathLike[str] | None = None,
) -> RemoteStore:
    """The tables of a server that ``embedrock serve`` has started, or of several that share them.

    Args:
        url: ``redis://[:password@]host[:port]``, or ``rediss://`` for one with TLS. What a
            password has of ``:/@%`` is written as per cent and two digits. The port is 6380
            without one. A list of several is a cluster, of which one has to answer.
        cluster: Whether the server has a part of the keys, and others the rest (``embedrock serve
            --cluster``). Every server has the same password, and TLS or none. A batch goes to all
            servers that have keys of it at a time, so that an update that fails may have been made
            by some of them: the error says by which.
        timeout: Seconds that a connection, a send and each part of a reply may take; None waits.
        connections: Most connections at a time: threads beyond that wait for one.
        retries: How often a read is tried again, with a new connection, when its connection fails.
            Writes are never sent twice.
        tls_ca: A PEM file with the certificates that the server's is checked with; None takes
            those of the system.

    Errors: ``MisuseError`` for the arguments and a wrong password, ``IoError`` when the server is
    not reached, ``CorruptError`` when something else than a server of Embedrock answers.

    Blocking: asks the server for its limits.
    """
    urls = [url] if isinstance(url, str) else _list_of(url)
    parts = [_parts_of(one) for one in urls]
    seeds, (*_, credentials, is_tls) = [(host, port) for host, port, *_ in parts], parts[0]
    if any((login, tls) != (credentials, is_tls) for _, _, login, tls in parts):
        raise MisuseError("url has several servers, expected one password and scheme for all")
    authority = named_path_or_none("tls_ca", tls_ca)
    if authority is not None and not is_tls:
        raise MisuseError("tls_ca is for rediss:// URLs, which encrypt")
    context = None
    if is_tls:
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise MisuseError(f"tls_ca {authority} cannot be read: {error}") from error
    size, tries = whole("connections", connections, 1), whole("retries", retries, 0)
    wait = seconds("timeout", timeout)
    if flag("cluster", cluster) or not isinstance(url, str):
        pool: Pool = Cluster(seeds, credentials, context, size=size, timeout=wait, retries=tries)
    else:
        pool = Pool(seeds[0], credentials, context, size=size, timeout=wait, retries=tries)
    return RemoteStore(pool)


def _list_of(urls: Any) -> list[str]:
    if not isinstance(urls, (list, tuple)) or not urls:
        raise MisuseError(f"url is {shown(urls)}, expected a text, or a list of several")
    return [text("url", url) for url in urls]


def _parts_of(url: str) -> tuple[str, int, tuple[bytes, bytes] | None, bool]:
    """Host, port, user and password, and whether to encrypt."""
    expected = "expected redis://[:password@]host[:port] or rediss://..."
    url = text("url", url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise MisuseError(f"url is {_hidden(url)}, {expected} ({error})") from None
    is_plain = parts.path in ("", "/", "/0") and not parts.query and not parts.fragment
    if parts.scheme not in ("redis", "rediss") or not host or not is_plain:
        raise MisuseError(f"url is {_hidden(url)}, {expected}")
    credentials = None
    if parts.password is not None:
        user = unquote(parts.username or "") or "default"
        credentials = (user.encode(), unquote(parts.password).encode())
    return host, _PORT if port is None else port, credentials, parts.scheme == "rediss"


def _hidden(url: str) -> str:
    """A URL for messages, without what may be its password."""
    before, at, after = url.rpartition("@")
    return shown(f"{before.partition('://')[0]}://...@{after}" if at else url)


class RemoteStore:
    """A server's store: ``store["user"]`` is a table of it.

    Any number of threads may use it; each call has a connection of its own. Use it as a context
    manager, or :meth:`close` it.
    """

    def __init__(self, pool: Pool) -> None:
        """Not for callers: :func:`connect` makes it."""
        self._pool = pool
        found = pool.run(lambda wire: wire.call(b"CONFIG", b"GET", b"*"), repeats=True)
        texts = [part.decode() for part in found]
        config = dict(zip(texts[::2], texts[1::2], strict=True))
        self._limits = {name: int(config[name]) for name in _LIMITS if name in config}

    def __repr__(self) -> str:
        return f"<embedrock.RemoteStore at {self._pool.name}>"

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> RemoteTable:
        """The table of that name. Errors: ``NotFoundError``."""
        return self.table(name)

    def table(self, name: str) -> RemoteTable:
        """The table of that name. Errors: ``NotFoundError``."""
        wanted = text("name", name)
        tables = self._tables()
        if wanted not in tables:
            there = ", ".join(repr(other) for other in tables) or "none"
            raise NotFoundError(
                f"server {self._pool.name} has no table {wanted!r}; there are: {there}"
            )
        return RemoteTable(self._pool, tables[wanted], self._limits)

    def tables(self) -> list[RemoteTable]:
        """All tables, in order of creation."""
        return [RemoteTable(self._pool, info, self._limits) for info in self._tables().values()]

    def commit(self, step: int | None = None) -> int:
        """Makes all changes of all clients durable, and returns the commit's step.

        ``step`` is one more than the last commit's when it is None. Errors: ``MisuseError`` of a
        server that only reads; those of :meth:`embedrock.Store.commit`. Blocking: until it is
        durable, for at most ``timeout``; where that passes, it may have been made.
        """
        words = [] if step is None else [b"%d" % whole("step", step, 0)]
        return int(_pairs(self._call(b"EMB.COMMIT", *words, repeats=False))["step"])

    def refresh(self) -> int | None:
        """Has a server that reads move to the newest commit; its step, or None if it was there."""
        found = self._call(b"EMB.REFRESH", repeats=True)
        return None if found is None else int(_pairs(found)["step"])

    def close(self) -> None:
        """Closes the connections. Later calls raise ``ClosedError``."""
        self._pool.close()

    def _tables(self) -> dict[str, dict[str, Any]]:
        found = [_pairs(table) for table in self._call(b"EMB.TABLES", repeats=True)]
        return {table["name"]: table for table in found}

    def _call(self, *arguments: bytes, repeats: bool) -> Any:
        def call(wire: Wire) -> Any:
            return wire.call(*arguments)

        return self._pool.run(call, repeats=repeats)


def _pairs(flat: list[Any]) -> dict[str, Any]:
    """A map of version 2 of the protocol, with texts for bytes."""
    values = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(values[::2], values[1::2], strict=True))
