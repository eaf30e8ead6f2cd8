"""`embedrock serve STORE`: the tables of a store over the Redis protocol."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from embedrock.cli import logs, output
from embedrock.errors import EmbedrockError, LockedError, MisuseError

if TYPE_CHECKING:
    from embedrock.store import Store

_LOOK_S = 0.5
"""Seconds between checks whether the server still runs."""
_SPARE_FILES = 256
"""Open files that are left to the store and to threads, beside those that are open already."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve a store to programs in any language, over the Redis protocol",
        description=(
            "Serves the tables of a store to any Redis client, and to "
            "embedrock.connect(...). By default it only reads, and follows the commits of a "
            "trainer. With --writable it is the store's only writer, accepts rows and "
            "gradients, and commits on a timer and when it stops. Other machines can "
            "connect only with a password and TLS. Ctrl-C or SIGTERM stops it after it has "
            "answered the requests received. SIGHUP makes it reload its certificate, "
            "password and map, and never stops it."
        ),
        epilog=(
            "example: embedrock serve my.store --listen 127.0.0.1:6380\n"
            "         redis-cli -p 6380 EMB.PULL user 17 42 99\n"
            "docs/how-to/server.md has more"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument(
        "--listen",
        default="127.0.0.1:6380",
        metavar="HOST:PORT",
        help="where clients connect; port 0 takes a free one (127.0.0.1:6380)",
    )
    command.add_argument(
        "--writable", action="store_true", help="accept rows, gradients and commits from clients"
    )
    command.add_argument(
        "--memory",
        default="10%",
        help='memory for the tables: "10%%" of their rows, or "2GiB"; growing tables without '
        "expected_rows need it in bytes (10%%)",
    )
    output.add_folders(command, ", and where those of new ones are made")
    command.add_argument(
        "--step",
        type=_step,
        metavar="N",
        help=(
            "serve the commit of this step, and stay there until a client sends EMB.SWITCH or "
            "EMB.REFRESH (follow the newest)"
        ),
    )
    command.add_argument("--warm", action="store_true", help="fill the memory before listening")
    command.add_argument(
        "--threads", type=output.positive, metavar="N", help="number of threads (one per core)"
    )
    command.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="a file with the password for clients; a final line break is ignored",
    )
    command.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM; turns on TLS"
    )
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    command.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve a status page, /metrics and /healthz here over HTTP (no)",
    )
    command.add_argument(
        "--cluster",
        type=Path,
        metavar="MAP",
        help="share the keys with other servers as in this map, .toml or .json",
    )
    command.add_argument(
        "--cluster-node",
        metavar="ID",
        help="the node of MAP that this server is (the one with its address)",
    )
    command.add_argument(
        "--commit-every",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help=(
            "time between commits with --writable, in seconds, such as 60 or 60s; 0: only at "
            "the end and on demand (60s)"
        ),
    )
    command.add_argument(
        "--refresh-every",
        type=_seconds,
        default=5.0,
        metavar="TIME",
        help="time between checks for a trainer's commit, in seconds; 0: only on demand (5s)",
    )
    command.add_argument(
        "--gather",
        choices=("auto", "copy", "vectored", "zerocopy"),
        default="auto",
        help="how rows are sent; auto measures the modes at the start (auto)",
    )
    command.add_argument(
        "--verbose", action="store_true", help="report at the start how rows will be sent"
    )
    logs.add(command, "info", "one an event")
    limits = command.add_argument_group("limits")
    limits.add_argument(
        "--max-connections",
        type=output.positive,
        default=10_000,
        metavar="N",
        help="maximum number of connections (10000)",
    )
    limits.add_argument(
        "--max-keys",
        type=output.positive,
        default=1 << 20,
        metavar="N",
        help="maximum number of keys in a request (1048576)",
    )
    limits.add_argument(
        "--max-request-bytes",
        type=output.size,
        default=64 << 20,
        metavar="B",
        help="maximum size of a request (64MiB)",
    )
    limits.add_argument(
        "--max-reply-bytes",
        type=output.size,
        default=64 << 20,
        metavar="B",
        help="maximum size of a reply, and of all replies that a client has not read (64MiB)",
    )
    limits.add_argument(
        "--client-memory",
        type=output.size,
        metavar="B",
        help=(
            "maximum memory for requests and replies of all clients, in addition to --memory; "
            "beyond it the largest user is disconnected (four times --max-reply-bytes)"
        ),
    )
    limits.add_argument(
        "--idle",
        type=_seconds,
        default=3600.0,
        metavar="TIME",
        help="time after which a silent connection is closed, in seconds; 0: never (3600s)",
    )
    limits.add_argument(
        "--stall",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help=(
            "the same within a request or its reply, also at less than 1 KiB per second, and "
            "before the password (60s)"
        ),
    )
    limits.add_argument(
        "--tcp-keepalive",
        type=_seconds,
        default=300.0,
        metavar="TIME",
        help=(
            "silence after which keep-alive probes are sent to a client's machine; without an "
            "answer the connection is closed; 0: never (300s)"
        ),
    )
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal comes."""
    from embedrock import _core, _logs
    from embedrock.store.opening import open_part
    from embedrock.store.parts import part_of

    output.refuse_missing_store(arguments.store)
    logs.from_engine(arguments.log_level)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise MisuseError("--tls-cert and --tls-key go together: a certificate and its key")
    if arguments.writable and arguments.step is not None:
        raise MisuseError(
            "--step is for a server that reads: one that writes goes on at the newest commit; "
            "`embedrock copy --step` makes a store of an earlier one"
        )
    tls = None if arguments.tls_cert is None else (arguments.tls_cert, arguments.tls_key)
    if arguments.cluster_node is not None and arguments.cluster is None:
        raise MisuseError("--cluster-node names a node of a map: it goes with --cluster MAP")
    cluster = None if arguments.cluster is None else (arguments.cluster, arguments.cluster_node)
    stop, reread = threading.Event(), threading.Event()
    handlers = {
        number: signal.signal(number, _setter(stop)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, _setter(reread))
    try:
        with open_part(
            arguments.store,
            arguments.memory,
            create=False,
            read_only=not arguments.writable,
            step=arguments.step,
            cold_directory=arguments.cold_directory,
            pmem_path=arguments.pmem_path,
        ) as store:
            buckets = part_of(store)
            if cluster is None and buckets is not None:
                _refuse_part(store, buckets)
            made_with = _made_with(store) if buckets is None else (buckets, False)
            if arguments.warm:
                store.warm()
            _tell_of_regions(store)
            server = _core.Server(
                store._core,
                arguments.listen,
                threads=arguments.threads,
                password=_password(arguments.password_file),
                tls=tls,
                metrics=arguments.metrics,
                cluster=cluster,
                max_connections=_connections(arguments.max_connections),
                max_keys=arguments.max_keys,
                max_request_bytes=arguments.max_request_bytes,
                max_reply_bytes=arguments.max_reply_bytes,
                client_memory=arguments.client_memory,
                tcp_keepalive=arguments.tcp_keepalive,
                idle=arguments.idle,
                stall=arguments.stall,
                commit_every=arguments.commit_every,
                refresh_every=arguments.refresh_every,
                gather=arguments.gather,
                buckets=made_with,
            )
            try:
                _tell(arguments, server)
                while not stop.wait(_LOOK_S) and server.is_running():
                    _logs.flush()  # lines that nobody read until now
                    if reread.is_set():
                        reread.clear()
                        _reread(arguments, server)
                _say("embedrock: stopping")
            finally:
                server.stop()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


def _made_with(store: Store) -> tuple[str, bool] | None:
    """The buckets that a copy was made with, and whether it has changed since; None for all."""
    from embedrock.store.copied import copied_from, last_facts

    note = copied_from(store.path)
    if note is None or note.buckets is None:
        return None
    return note.buckets, last_facts(store) != note.copy


def _refuse_part(store: Any, buckets: str) -> None:
    """Refuses the store of one rank by itself: clients would get initial rows of others' keys."""
    from embedrock._ranks import BUCKETS

    raise MisuseError(
        f"{store.path} is the store of one rank, with the buckets {buckets} of {BUCKETS:,}: by "
        f"itself it would answer initial rows for keys in others. Serve the stores of all "
        f'ranks with --cluster MAP, in which this server has buckets = "{buckets}" '
        f"(docs/how-to/cluster.md), or one store that is made of them: embedrock reshard "
        f"{store.path.parent} NEW --ranks 1"
    )


def _tell_of_regions(store: Any) -> None:
    """Says which tables no client will get rows of: another process has their regions."""
    for name, table in store.tables.items():
        if table.storage == "pmem":
            try:
                table.get([0])
            except LockedError as error:
                _say(f"embedrock: table {name!r} is not served: {error}")


def _setter(stop: threading.Event) -> Any:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    return handle


def _reread(arguments: argparse.Namespace, server: Any) -> None:
    """Reads again what may change while it runs, and says how that went: a bad file changes
    nothing."""
    parts: list[tuple[str, Callable[[], object]]] = []
    if arguments.tls_cert is not None:
        parts.append(("certificate", server.reload_certificate))
    if arguments.password_file is not None:
        parts.append(("password", lambda: server.set_password(_password(arguments.password_file))))
    if arguments.cluster is not None:
        parts.append(("map of the cluster", server.reload_map))
    for what, read in parts:
        try:
            read()
            _say(f"embedrock: the {what} was read again")
        except (EmbedrockError, OSError) as error:
            _say(f"embedrock: the {what} stays the one before: {error}")
    if not parts:
        _say("embedrock: SIGHUP: this server has no certificate, password or map to read again")
    _warn(server)


def _warn(server: Any) -> None:
    """Says what whoever runs the server should know."""
    warning = server.warning()
    if warning is not None:
        _say(f"embedrock: warning: {warning}")


def _connections(wanted: int) -> int:
    """Number of possible connections: each is an open file, and a process has a limit of these.

    Raises that limit if the system allows it. Errors: MisuseError if none is left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = _open_files() + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted + taken:
        return wanted
    raised = wanted + taken if hard == resource.RLIM_INFINITY else min(wanted + taken, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    most = min(wanted, soft - taken)
    if most < 1:
        raise MisuseError(
            f"this process may have {soft} files open, and needs {taken} beside connections; raise "
            f"the limit (`ulimit -n`)"
        )
    if most < wanted:
        _say(
            f"embedrock: at most {most} connections instead of {wanted}: this process may have "
            f"{soft} files open; raise the limit (`ulimit -n`)"
        )
    return most


def _open_files() -> int:
    """Files that are open; 0 where the system does not tell."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def _say(text: str) -> None:
    """Tells whoever reads standard error; that nobody does is no failure of the server."""
    from embedrock.report.progress import tell

    tell(sys.stderr, f"{text}\n")


def _tell(arguments: argparse.Namespace, server: Any) -> None:
    """Says where it listens: programs that started it wait for this line."""
    does = "reads and writes" if arguments.writable else "reads"
    over = " over TLS" if arguments.tls_cert is not None else ""
    print(f"{arguments.store}: serving at {server.address()}{over}, {does}", flush=True)
    metrics = server.metrics_address()
    if metrics is not None:
        print(f"status page at http://{metrics}/, metrics at http://{metrics}/metrics", flush=True)
    if arguments.verbose:
        _say(f"embedrock: bytes of a row, and how such rows get into sockets: {server.gather()}")
    _warn(server)


def _password(path: Path | None) -> str | None:
    """The password in a file. Errors: MisuseError for a file that has none, or is not UTF-8."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise MisuseError(
            f"{path} is not UTF-8 at byte {error.start}, expected one line of text"
        ) from None
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise MisuseError(f"{path} holds no password, expected one line")
    return password


def _seconds(text: str) -> float:
    """A time of at least 0 in seconds, as "60" or "60s". For argparse's `type`."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds; examples: 60, 60s, 0.5s")
    return value


def _step(text: str) -> int:
    """The step of a commit. For argparse's `type`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no step, expected a whole number")
    return int(text)
