"""A connection to a cluster: requests go in parts to the servers that have their keys.

It has the methods of a connection to one server, so that tables need not know the number of
servers. Parts of a request are sent to all servers before waiting for the first reply. A server
that does not (or no longer) have the requested keys names their owner, before it changes anything;
such a part is sent there, with the newest map. A request without an answer is never sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from embedrock import _core
from embedrock.errors import EmbedrockError, IoError
from embedrock.remote.nodes import Address, Nodes, shown_address
from embedrock.remote.wire import Refused, Wire

__all__ = ["RoutedWire"]

_BY_KEY = {b"EMB.PULLB", b"EMB.PUSH", b"EMB.UPDATE", b"EMB.LOOKAHEAD", b"EMB.HOT"}
_EVERYWHERE = {b"EMB.COMMIT", b"EMB.REFRESH", b"EMB.SWITCH", b"EMB.CREATE"}
_MOVES_MAX = 8
"""Number of times that a part is forwarded: servers read a new map within moments of each other."""
_PAUSE_S = 0.02
"""Before a part is sent on for the second time, and twice as long each time after."""

T = TypeVar("T")
Positions = npt.NDArray[np.intp]
Word = bytes | memoryview


class Part(NamedTuple):
    """One server's part of a request."""

    address: Address
    positions: Positions
    """Of its keys among those of the request."""
    words: list[Word]


class Request(NamedTuple):
    """A request whose replies are still to be read."""

    words: tuple[Word, ...]
    parts: list[Part]
    unsent: dict[Address, Refused | EmbedrockError]
    """Why a part could not be sent."""


class Failure(NamedTuple):
    """A part that went wrong."""

    part: Part
    error: Refused | EmbedrockError
    refusal: Refused | None = None
    """By which the server has sent the part elsewhere, where nobody was found to take it."""


class RoutedWire(Wire):
    """Connections to the servers of a cluster, as one, for one call."""

    def __init__(self, nodes: Nodes) -> None:
        """Connects to servers as requests need them."""
        self.name = "cluster"
        self.is_broken = self.has_sent = False
        self._nodes = nodes
        self._wires: dict[Address, Wire] = {}
        self._waiting: deque[Request] = deque()

    def close(self) -> None:
        """Gives the connections up, whatever is on its way on them."""
        self._release(is_usable=False)

    def give_back(self) -> None:
        """Gives the connections back, for other calls."""
        self._release(is_usable=not self._waiting)

    def is_stale(self) -> bool:
        """False: it is made for each call, of connections that are not."""
        return False

    def send(self, *arguments: Word) -> None:
        """Sends one request, in as many parts as there are servers that it concerns.

        Errors: ``IoError``; ``has_sent`` says whether a part of it may have arrived.
        """
        command = bytes(arguments[0])
        if command in _BY_KEY:
            parts = self._parts(arguments, np.arange(len(arguments[2]) // 8))
        elif command in _EVERYWHERE:
            words = self._with_step(arguments) if command == b"EMB.COMMIT" else [*arguments]
            none = np.arange(0)
            parts = [Part(address, none, words) for address in self._nodes.map().addresses]
        else:
            parts = [Part(self._anyone(), np.arange(0), [*arguments])]
        if len(parts) > 1 and command in (b"EMB.PUSH", b"EMB.UPDATE"):
            _check_finite(arguments)
        # All are reached before the first is told anything: most failures change nothing so.
        wires = [self._wire(part.address) for part in parts]
        request = Request(arguments, parts, {})
        self._waiting.append(request)
        for part, wire in zip(parts, wires, strict=True):
            self.has_sent = True
            try:
                wire.send(*part.words)
            except (Refused, EmbedrockError) as error:
                wire.is_broken = True
                request.unsent[part.address] = error

    def reply(self) -> Any:
        """The next reply: counts of all servers, or what one of them says. Errors: ``Refused``."""
        request = self._waiting.popleft()
        made: list[tuple[Part, Any]] = []
        failures = self._settle(request, lambda wire, _: wire.reply(), made.append)
        if failures:
            raise _failed(request, [part for part, _ in made], failures)
        values = [value for _, value in made]
        if bytes(request.words[0]) in (b"EMB.PUSH", b"EMB.UPDATE"):
            return _summed(values)
        if bytes(request.words[0]) in (b"EMB.COMMIT", b"EMB.REFRESH", b"EMB.SWITCH"):
            steps = [value for value in values if value is not None]
            return max(steps, key=lambda flat: int(flat[1]), default=None)
        return values[0]

    def rows(self, out: npt.NDArray[np.float32], dim: int) -> npt.NDArray[np.uint32]:
        """The next reply, of ``EMB.PULLB``, into ``out``. Returns the missing positions."""
        request = self._waiting.popleft()
        missing: list[npt.NDArray[Any]] = []

        def read(wire: Wire, part: Part) -> npt.NDArray[np.uint32]:
            if len(part.positions) == len(out):  # in order, all of them
                return wire.rows(out, dim)
            rows = np.empty((len(part.positions), dim), np.float32)
            absent = wire.rows(rows, dim)
            out[part.positions] = rows
            return absent

        def note(done: tuple[Part, npt.NDArray[np.uint32]]) -> None:
            part, absent = done
            missing.append(part.positions[absent])

        failures = self._settle(request, read, note)
        if failures:
            raise failures[0].error
        return np.sort(np.concatenate(missing)).astype("<u4")

    def _settle(
        self,
        request: Request,
        read: Callable[[Wire, Part], T],
        done: Callable[[tuple[Part, T]], object],
    ) -> list[Failure]:
        """Reads the replies of all parts. Those of keys that have moved are sent on. Returns what
        has failed for good; replies of other parts were read all the same."""
        failures: list[Failure] = []
        moved: list[tuple[Part, Refused]] = []
        hint = None
        began = time.monotonic()
        for part in request.parts:
            try:
                if part.address in request.unsent:
                    raise request.unsent[part.address]
                done((part, read(self._wires[part.address], part)))
            except Refused as refused:
                if refused.code != "MOVED":
                    failures.append(Failure(part, refused))
                    continue
                moved.append((part, refused))
                hint = _address_of(refused) or hint
            except EmbedrockError as error:
                failures.append(Failure(part, error))
        for turn in range(_MOVES_MAX):
            if not moved:
                break
            time.sleep(_PAUSE_S * 2**turn if turn else 0)
            left = np.sort(np.concatenate([part.positions for part, _ in moved]))
            try:
                self._nodes.learn(hint)
                parts = self._parts(request.words, left, is_first=False)
            except EmbedrockError as error:
                failures += [Failure(part, error, refused) for part, refused in moved]
                break
            moved = []
            for part in parts:
                try:
                    done((part, self._send_on(part, read)))
                except Refused as refused:
                    is_last = turn == _MOVES_MAX - 1
                    if refused.code == "MOVED" and is_last:
                        refused.sent_on_s = time.monotonic() - began
                    if refused.code != "MOVED" or is_last:
                        failures.append(Failure(part, refused))
                        continue
                    moved.append((part, refused))
                    hint = _address_of(refused) or hint
                except EmbedrockError as error:
                    failures.append(Failure(part, error))
        return failures

    def _send_on(self, part: Part, read: Callable[[Wire, Part], T]) -> T:
        """Sends a part on a connection of its own: others may have replies on their way."""
        wire = self._nodes.lend(part.address)
        is_usable = False
        try:
            wire.send(*part.words)
            found = read(wire, part)
            is_usable = True
        except Refused:
            is_usable = True
            raise
        finally:
            self._nodes.take_back(part.address, wire, is_usable=is_usable)
        return found

    def _parts(
        self, words: tuple[Word, ...], positions: Positions, *, is_first: bool = True
    ) -> list[Part]:
        """A request about these of its keys, by server."""
        command, table, packed, *rest = words
        keys = np.frombuffer(packed, "<u8")
        servers = self._nodes.map()
        buckets = _core.buckets_of(
            np.ascontiguousarray(keys[positions], np.uint64), self._nodes.is_dense(bytes(table))
        )
        owners = servers.owners[buckets]
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(len(servers.addresses)), "right")
        parts = []
        for place, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            # Each server counts the steps of a table, so that each one is told of every step.
            if begin == end and not (is_first and command == b"EMB.UPDATE"):
                continue
            these = positions[order[begin:end]]
            own: list[Word] = [command, table, keys[these].view(np.uint8).data]
            if command in (b"EMB.PUSH", b"EMB.UPDATE"):
                rows = np.frombuffer(rest[0], np.uint8).reshape(len(keys), -1 if len(keys) else 0)
                own += [np.ascontiguousarray(rows[these]).reshape(-1).data, *rest[1:]]
            parts.append(Part(servers.addresses[place], these, own))
        return parts or [Part(self._anyone(), positions, [*words])]

    def _with_step(self, words: tuple[Word, ...]) -> list[Word]:
        """A commit with its step: without one that of the newest server and one more."""
        if len(words) > 1:
            return [*words]
        steps = [0]
        for address in self._nodes.map().addresses:
            told = self._nodes.ask(address, b"INFO", b"Store").decode()
            lines = [line.partition(":") for line in told.splitlines()]
            steps += [int(value) for name, _, value in lines if name == "commit_step"]
        return [*words, b"%d" % (max(steps) + 1)]

    def _anyone(self) -> Address:
        """A server that can be reached. Errors: ``IoError`` of the last where none can."""
        addresses = [*self._wires, *self._nodes.map().addresses]
        for address in addresses[:-1]:
            try:
                self._wire(address)
            except IoError:
                continue
            return address
        self._wire(addresses[-1])
        return addresses[-1]

    def _wire(self, address: Address) -> Wire:
        if address not in self._wires:
            self._wires[address] = self._nodes.lend(address)
        return self._wires[address]

    def _release(self, *, is_usable: bool) -> None:
        wires, self._wires = self._wires, {}
        for address, wire in wires.items():
            self._nodes.take_back(address, wire, is_usable=is_usable and not wire.is_broken)


def _check_finite(words: tuple[Word, ...]) -> None:
    """Refuses rows that one server would refuse, when others would have taken theirs."""
    _, table, packed, rows, *options = words
    given = dict(zip(map(bytes, options[::2]), map(bytes, options[1::2]), strict=True))
    if given.get(b"NONFINITE", b"refuse") != b"refuse":
        return
    keys, values = np.frombuffer(packed, "<u8"), np.frombuffer(rows, "<f4")
    finite = np.isfinite(values)
    if not finite.all():
        bad = np.flatnonzero(~finite.reshape(len(keys), -1).all(axis=1))
        raise Refused(
            f"NONFINITE values of {len(bad)} of {len(keys)} rows for table "
            f"{bytes(table).decode()!r} are NaN or infinite, the first for key {keys[bad[0]]}; "
            f"nothing was changed"
        )


def _address_of(refused: Refused) -> Address | None:
    """The owner of the keys, of ``MOVED slot host:port``."""
    host, _, port = refused.said.rpartition(" ")[2].rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None


def _summed(values: list[Any]) -> list[Any]:
    """Counts of all servers as those of one."""
    counts: dict[bytes, int] = {}
    for flat in values:
        for name, count in zip(flat[::2], flat[1::2], strict=True):
            counts[name] = counts.get(name, 0) + int(count)
    return [word for pair in counts.items() for word in pair]


def _failed(request: Request, made: list[Part], failures: list[Failure]) -> Exception:
    """The error if parts have failed: which servers have applied theirs, and which have not."""
    first = next((f for f in failures if not isinstance(f.error, Refused)), failures[0])
    is_refused = isinstance(first.error, Refused)
    if bytes(request.words[0]) in _BY_KEY:
        made = [part for part in made if len(part.positions)]
    if is_refused and not made:
        return first.error
    command = bytes(request.words[0]).decode()

    def of(part: Part) -> str:
        keys = f" ({len(part.positions)} keys)" if len(part.positions) else ""
        return f"server {shown_address(part.address)}{keys}"

    told = [f"{command} was made by " + (", ".join(map(of, made)) or "no server")]
    for part, error, refusal in failures:
        if isinstance(error, Refused):
            told.append(f"{of(part)} refused it: {error.said}")
        elif refusal is not None:
            told.append(f"{of(part)} refused it: {refusal}")
        else:
            told.append(f"whether {of(part)} has made it is not known")
    said = "; ".join(told)
    if isinstance(first.error, Refused):
        refused = Refused(f"{first.error.code} {said}")
        refused.partly = True
        return refused
    error = type(first.error)(f"{first.error}; {said}")
    if isinstance(error, OSError) and isinstance(first.error, OSError):
        error.errno = first.error.errno
    return error
