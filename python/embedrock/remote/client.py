"""``embedrock.connect``: the tables of a server, as if they were here."""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from embedrock import initializers as _initializers
from embedrock import optimizers as _optimizers
from embedrock._arguments import (
    flag,
    named_path_or_none,
    number,
    seconds,
    shown,
    text,
    whole,
)
from embedrock._arrays import ArrayLike, Keys, as_keys, as_out
from embedrock._listeners import Listeners
from embedrock._names import beside
from embedrock._rows import Bounds
from embedrock._verbs import NonFinite
from embedrock.errors import (
    CorruptError,
    KeyRangeError,
    MismatchError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.remote.batches import pull_all, send_all
from embedrock.remote.cluster import Cluster
from embedrock.remote.hot import Sampler
from embedrock.remote.pool import Pool
from embedrock.remote.table import RemoteTable, UpdatePart, promote
from embedrock.remote.wire import Wire
from embedrock.store.batches import arrays_for, batches_of
from embedrock.store.specs import asked_of

__all__ = ["RemoteStore", "connect"]

_PORT = 6380
_LIMITS = ("max-keys", "max-request-bytes", "max-reply-bytes")
_NO_WINDOW = "table.lookahead(keys) announces keys to the server, which reads their rows ahead"
_IN_COMMIT = "it is part of a commit: read it where the store is open"
_OF_SERVER = "the server counts for all its clients: /metrics and INFO"
_ELSEWHERE = {
    "window": _NO_WINDOW,
    "lookahead": _NO_WINDOW,
    "permits": "a bound of staleness holds among the threads of one process",
    "put": "write table by table: store[name].put(keys, values)",
    "update": "update table by table: store[name].update(keys, gradients, lr=...)",
    "state": _IN_COMMIT,
    "meta": _IN_COMMIT,
    "stats": _OF_SERVER,
    "record": _OF_SERVER,
}
"""The members of local stores that remote ones lack, and why."""
_MADE_ANEW = (CorruptError, KeyRangeError, MismatchError, MisuseError, NotFoundError)
"""The errors for a table that was recreated or has grown."""

T = TypeVar("T")


def connect(
    url: str | Sequence[str],
    *,
    cluster: bool = False,
    timeout: float | None = 10.0,
    connections: int = 8,
    retries: int = 2,
    tls_ca: str | os.PathLike[str] | None = None,
    sample: float | None = None,
    tcp_keepalive: float | None = 300.0,
) -> RemoteStore:
    """The tables of a server that ``embedrock serve`` has started, or of several that share them.

    Args:
        url: ``redis://[:password@]host[:port]``, or ``rediss://`` for one with TLS. The characters
            ``:/@%`` of a password are written as per cent and two digits. The default port is 6380.
            A list of several is a cluster, of which one has to answer.
        cluster: Whether the server has a part of the keys, and others the rest (``embedrock serve
            --cluster``). Every server has the same password, and TLS or none. A batch goes to all
            servers that have its keys at the same time, so that some of them may have made an
            update that fails: the error names them.
        timeout: Seconds that a connection, a send and each part of a reply may take; None waits.
        connections: Limit on simultaneous connections: threads beyond that wait for one.
        retries: Number of retries of a read, with a new connection, when its connection fails.
            Writes are never sent twice.
        tls_ca: A PEM file with the certificates that the server's is checked with; None takes
            those of the system.
        sample: Seconds from one *hot set* to the next; None sends none. With it, tables sample
            about one ``get`` of sixteen and count the most frequent keys. A thread of the client
            sends up to 4,096 of each table to the server, which brings their rows into memory
            before they are asked for again. One client of many is enough; 10 is a good time. If a
            set cannot be sent, a warning says so once, and ``get`` goes on.
        tcp_keepalive: Seconds of silence after which the system asks the server's machine whether
            it is still there, so that balancers and firewalls do not forget the connection, and a
            machine that is gone is found out; None does not ask.

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
    wait, silence = seconds("timeout", timeout), seconds("tcp_keepalive", tcp_keepalive)
    if flag("cluster", cluster) or not isinstance(url, str):
        pool: Pool = Cluster(
            seeds,
            credentials,
            context,
            size=size,
            timeout=wait,
            retries=tries,
            keepalive=silence,
        )
    else:
        pool = Pool(
            seeds[0],
            credentials,
            context,
            size=size,
            timeout=wait,
            retries=tries,
            keepalive=silence,
        )
    sampler = None if sample is None else _sampler(sample, pool)
    return RemoteStore(pool, sampler)


def _sampler(every: float, pool: Pool) -> Sampler:
    found = number("sample", every)
    if not 0 < found <= threading.TIMEOUT_MAX:
        raise MisuseError(f"sample is {found}, expected seconds above 0, or None for no hot sets")
    return Sampler(found, lambda table, keys: promote(pool, table, keys))


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
    manager, or :meth:`close` it. Modules of :mod:`embedrock.nn` take it as their ``store``.
    """

    _returns = 0  # only the process with the store can go back
    _collective = _each_occurrence = False
    _elsewhere: str | None = (
        "at a server: train in a plain loop, which reads at each forward and updates at each step; "
        "rows are durable with commit(), and the dense part is kept with torch.save"
    )

    def __init__(self, pool: Pool, sampler: Sampler | None = None) -> None:
        """Not for callers: :func:`connect` makes it."""
        self._pool, self._sampler = pool, sampler
        self._listeners = Listeners()
        found = pool.run(lambda wire: wire.call(b"CONFIG", b"GET", b"*"), repeats=True)
        texts = [part.decode() for part in found]
        config = dict(zip(texts[::2], texts[1::2], strict=True))
        self._limits = {name: int(config[name]) for name in _LIMITS if name in config}
        # The server's description of its tables, and the number of connections made until then.
        self._known: tuple[int, dict[str, dict[str, Any]]] = (-1, {})

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
        """The table of that name, as the server has told of it before.

        The server is asked for its tables once, and again where something says that they may be
        others: a new connection, a :meth:`refresh`, :meth:`switch` or :meth:`table` of this store,
        a request that the server refuses. :meth:`table` and :attr:`tables` ask always.

        Errors: ``NotFoundError``.
        """
        wanted = text("name", name)
        made, tables = self._known
        if made != self._pool.made() or wanted not in tables:
            return self.table(wanted)
        return self._table_of(tables[wanted])

    def __contains__(self, name: object) -> bool:
        """Whether the server has a table of that name. Blocking: asks it."""
        return isinstance(name, str) and self._has_table(name)

    def __iter__(self) -> Iterator[str]:
        """The names of all tables, in order of creation. Blocking: asks the server."""
        return iter(self._tables())

    if not TYPE_CHECKING:  # to type checkers a name that is not there is an error

        def __getattr__(self, name: str) -> Any:
            """Says why what a store that is here has is not there."""
            reason = _ELSEWHERE.get(name)
            said = f"'RemoteStore' has no {name!r}"
            raise AttributeError(f"{said}: {reason}" if reason else said, name=name, obj=self)

    def table(
        self,
        name: str,
        embedding_dim: int | None = None,
        num_embeddings: int | None = None,
        *,
        expected_rows: int | None = None,
        optimizer: _optimizers.OptimizerLike | None = None,
        initializer: _initializers.InitializerLike | None = None,
        dtype: Any = None,
        rounding: Literal["stochastic", "nearest"] | None = None,
        storage: Literal["log", "lsm", "pmem"] | None = None,
        capacity: int | None = None,
    ) -> RemoteTable:
        """The table of that name; with ``embedding_dim`` created if there is none.

        The arguments are those of :meth:`embedrock.Store.table`, with the same meaning. Only a
        server that writes creates tables.

        Errors: ``NotFoundError`` without ``embedding_dim`` and table; ``MismatchError`` when it has
        other parameters; ``MisuseError`` of a server that only reads and has no such table;
        otherwise as :meth:`embedrock.Store.table`.

        Durability: a new table is durable with the server's next commit.
        """
        wanted = text("name", name)
        if embedding_dim is None and num_embeddings is not None:
            raise MisuseError(f"table {name!r}: num_embeddings needs embedding_dim beside it")
        if embedding_dim is not None:
            asked = asked_of(
                embedding_dim,
                num_embeddings,
                expected_rows=expected_rows,
                optimizer=optimizer,
                initializer=initializer,
                dtype=dtype,
                rounding=rounding,
                storage=storage,
                capacity=capacity,
            )
            # A table that is there already is what was asked for: this may be sent twice.
            self._call(b"EMB.CREATE", wanted.encode(), json.dumps(asked).encode(), repeats=True)
        tables = self._tables()
        if wanted not in tables:
            raise NotFoundError(
                f"server {self._pool.name} has no table {wanted!r} ({beside(wanted, tables)})"
            )
        return self._table_of(tables[wanted])

    @property
    def tables(self) -> dict[str, RemoteTable]:
        """All tables by name, in order of creation."""
        return {name: self._table_of(info) for name, info in self._tables().items()}

    def get(
        self, batches: Sequence[tuple[RemoteTable, ArrayLike]], out: Sequence[Any] | None = None
    ) -> list[Any]:
        """Rows of several tables, as :meth:`RemoteTable.get` for each.

        All requests are on their way before the first reply is waited for.

        Shapes: ``[(table, keys (*,)), ...] -> [rows (*, embedding_dim) float32, ...]``.

        Blocking: until the rows are here. After a failed connection it is tried again.
        """
        found = self._keys_of(batches_of(batches, 2))
        given = [None] * len(found) if out is None else arrays_for(found, out)
        answers, pulls = [], []
        for i, ((table, keys), array) in enumerate(zip(found, given, strict=True)):
            shape, meaning = table._shape(keys)
            new = np.empty(shape, np.float32) if array is None else array
            answers.append(new)
            pulls += table._pulls(keys, as_out(new, shape, meaning, f"out[{i}]"))
        most = self._limits.get("max-reply-bytes", 1 << 20)
        self._run(lambda wire: pull_all(wire, pulls, most), repeats=True)
        for table, keys in found:
            table._look(keys)
        return answers

    def commit(self, step: int | None = None) -> int:
        """Makes all changes of all clients durable, and returns the commit's step.

        ``step`` is one more than the last commit's when it is None. Errors: ``MisuseError`` of a
        server that only reads; those of :meth:`embedrock.Store.commit`. Blocking: until it is
        durable, for at most ``timeout``; where that passes, it may have been made.
        """
        words = [] if step is None else [b"%d" % whole("step", step, 0)]
        return int(_pairs(self._call(b"EMB.COMMIT", *words, repeats=False))["step"])

    def refresh(self) -> int | None:
        """Has a server that reads move to the newest commit; its step, or None if it was there.

        It follows the newest from then on, also where :meth:`switch` had it stay at another.
        """
        found = self._call(b"EMB.REFRESH", repeats=True)
        self._forget_tables()
        return None if found is None else int(_pairs(found)["step"])

    def switch(self, step: int) -> int:
        """Has a server that reads move to the last commit of ``step``, back or forth; its step.

        It stays there for all clients until :meth:`refresh` has it follow the newest again. Errors:
        ``NotFoundError`` with the steps that are kept; ``MisuseError`` of a server that writes.
        """
        found = self._call(b"EMB.SWITCH", b"%d" % whole("step", step, 0), repeats=True)
        self._forget_tables()
        return int(_pairs(found)["step"])

    def close(self) -> None:
        """Closes the connections. Later calls raise ``ClosedError``."""
        if self._sampler is not None:
            self._sampler.close()
        self._pool.close()

    def _table_of(self, info: dict[str, Any]) -> RemoteTable:
        return RemoteTable(self, self._pool, info, self._limits, self._sampler)

    def _has_table(self, name: str) -> bool:
        return name in self._tables()

    def _keys_of(self, batches: Sequence[Any]) -> list[tuple[RemoteTable, Keys]]:
        """The tables and keys of batches, which must be of this store."""
        for table, *_ in batches:
            if not isinstance(table, RemoteTable) or table._store is not self:
                raise MisuseError(f"a batch is of {shown(table)}, expected a table of {self!r}")
        return [(table, as_keys(keys)) for table, keys in batches]

    def _update(
        self,
        parts: Sequence[UpdatePart],
        non_finite: NonFinite,
        within: Bounds,
        settled: Callable[[int], object],
    ) -> float | None:
        """One optimizer step on several tables, one request for each, never sent twice.

        A server's checks of a request are made here before the first one is sent, but for those
        that only the server can make: of a full disk, for example. ``settled`` is called with the
        indexes of applied parts, and if no answer comes with those of parts that may be.
        """
        if within is not None:
            raise UnsupportedError(f"updates of {self!r} do not bound gradients")
        requests = [part.table._update_request(part, non_finite, None) for part in parts]
        if non_finite == "refuse" and len(parts) > 1:
            for part in parts:
                part.check_finite()
        self._run(lambda wire: send_all(wire, requests, settled), repeats=False)
        for part in parts:
            part.table._tell_changed(part.keys)
        return None

    def _gradient_norm(self, parts: list[Any], non_finite: NonFinite, within: Bounds) -> float:
        raise UnsupportedError(f"{self!r} does not tell the norm of gradients")

    def _tables(self) -> dict[str, dict[str, Any]]:
        found = [_pairs(table) for table in self._call(b"EMB.TABLES", repeats=True)]
        tables = {table["name"]: table for table in found}
        self._known = self._pool.made(), tables
        return tables

    def _forget_tables(self) -> None:
        """The tables of the server may be others now."""
        self._known = (-1, {})

    def _call(self, *arguments: bytes, repeats: bool) -> Any:
        def call(wire: Wire) -> Any:
            return wire.call(*arguments)

        return self._pool.run(call, repeats=repeats)

    def _run(self, function: Callable[[Wire], T], *, repeats: bool) -> T:
        """As :meth:`Pool.run`, of requests about tables as they are known here."""
        try:
            return self._pool.run(function, repeats=repeats)
        except _MADE_ANEW:
            self._forget_tables()
            raise


def _pairs(flat: list[Any]) -> dict[str, Any]:
    """A map of version 2 of the protocol, with texts for bytes."""
    values = [part.decode() if isinstance(part, bytes) else part for part in flat]
    return dict(zip(values[::2], values[1::2], strict=True))
