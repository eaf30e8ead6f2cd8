"""One connection to a server: requests as bytes, replies as Python's values or into arrays.

The protocol is that of Redis, version 2 and 3; ``docs/formats/wire.md`` has what Embedrock's own
commands carry.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from embedrock import errors
from embedrock.errors import CorruptError, EmbedrockError, IoError, MisuseError
from embedrock.remote.places import Place

__all__ = ["Refused", "Wire"]

_BUFFER_BYTES = 8192
"""Read at once of a reply whose length is not known yet; rows behind it go where they belong."""
_DEPTH_MAX = 8
_LINE_MAX = 64 << 10
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""Why a handshake fails with a server that does not encrypt."""
_HEADER = struct.Struct("<III")
_LAYOUT = 1
"""Layout version 1, rows of float32."""
_CLASSES: dict[str, type[EmbedrockError]] = {
    name.removesuffix("Error").upper(): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, EmbedrockError)
}


class Refused(Exception):
    """An error reply, whose connection goes on."""

    def __init__(self, text: str) -> None:
        """Takes the line of the reply."""
        super().__init__(text)
        self.code, _, self.said = text.partition(" ")
        self.partly = False
        """Whether some of several servers have made it."""
        self.sent_on_s: float | None = None
        """For how long it was sent to the server that has the keys, and was refused there, too."""

    def mirrored(self) -> EmbedrockError:
        """The exception that the same error has of a store that is open here."""
        if self.code == "MOVED" and not self.partly:
            other = self.said.rpartition(" ")[2]
            if self.sent_on_s is not None:
                return IoError(
                    f"servers of the cluster have read different maps, as they do while a bucket "
                    f"moves: for {self.sent_on_s:.0f} s each said that another has the keys, "
                    f"{other} at last. Nothing was changed. It passes once all have read the new "
                    f"map (EMB.CLUSTER RELOAD); ask again then"
                )
            return MisuseError(
                f"the server shares its keys with others, and {other} has those: connect with "
                f"cluster=True"
            )
        # Of servers that have not all read a map, which passes.
        kind = IoError if self.code == "MOVED" else _CLASSES.get(self.code, MisuseError)
        # Words of the protocol are arguments here.
        said = self.said.replace("NONFINITE SKIP", 'non_finite="skip"')
        return kind(said or self.code)


def _keep_alive(plain: socket.socket, seconds: float) -> None:
    """Has the system ask the other side of a silent connection whether it is there.

    It does so after so many seconds, and gives it up when three questions, a third of the time
    apart, are not answered.
    """
    idle, between = max(1, int(seconds)), max(1, int(seconds / 3))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), idle),
        (("TCP_KEEPINTVL",), between),
        (("TCP_KEEPCNT",), 3),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            plain.setsockopt(socket.IPPROTO_TCP, option, min(value, 32_767))


class Wire:
    """A socket, and its buffer of unused input.

    Errors of the socket raise ``IoError``; the connection is of no use afterwards.
    """

    place: Place | None = None
    """Of its pool, while it is lent."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float | None,
        tls: ssl.SSLContext | None,
        keepalive: float | None = None,
    ) -> None:
        """Connects. Errors: ``IoError``."""
        self.name = f"{host}:{port}"
        self._timeout = timeout
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0
        self.is_broken = False
        self.has_sent = False
        try:
            plain = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise self._lost(error, "cannot connect") from error
        except ValueError as error:  # a name that no resolver accepts
            raise MisuseError(f"{host!r} is no name of a host: {error}") from error
        self._socket: socket.socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive:
                _keep_alive(plain, keepalive)
            if tls is not None:
                self._socket = tls.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            lost = self._lost(error, "cannot connect")
            if getattr(error, "reason", None) in _NO_TLS:
                lost.args = (f"{lost}; it does not speak TLS: connect with redis://",)
            raise lost from error

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def is_stale(self) -> bool:
        """Whether the server has closed it meanwhile, or sent what nobody asked for."""
        if self._begin < self._end:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, *arguments: bytes | memoryview) -> None:
        """Sends one request."""
        parts: list[bytes | memoryview] = []
        head = b"*%d\r\n" % len(arguments)
        for argument in arguments:
            parts.append(head + b"$%d\r\n" % len(argument))
            parts.append(argument)
            head = b"\r\n"
        parts.append(head)
        self.has_sent = True
        try:
            self._send_all(parts)
        except OSError as error:
            # The server may have given a reason before it closed the connection.
            self._raise_last_words()
            raise self._lost(error, "cannot send") from error

    def call(self, *arguments: bytes | memoryview) -> Any:
        """Sends one request and returns its reply. Errors: ``Refused``."""
        self.send(*arguments)
        return self.reply()

    def reply(self) -> Any:
        """The next reply. Errors: ``Refused`` for one that is an error."""
        found = self._value(_DEPTH_MAX)
        if isinstance(found, Refused):
            raise found
        return found

    def rows(self, out: npt.NDArray[np.float32], dim: int) -> npt.NDArray[np.uint32]:
        """The next reply, of ``EMB.PULL``, into ``out``. Returns the missing positions."""
        kind, text = self._line()
        if kind != b"$":
            found = self._value_of(kind, text, _DEPTH_MAX)
            raise found if isinstance(found, Refused) else self._strange("rows", found)
        length, count = self._length(text), len(out)
        head = bytearray(_HEADER.size)
        if length < len(head):
            raise self._strange(f"a header of {len(head)} bytes", length)
        self._fill(memoryview(head))
        layout, rows, missing = _HEADER.unpack(head)
        expected = len(head) + 4 * missing + 4 * dim * count
        if (layout, rows) != (_LAYOUT, count) or missing > count or length != expected:
            raise self._strange(
                f"layout {_LAYOUT} and {count} rows of {dim} values",
                f"layout {layout}, {rows} rows, {missing} missing, {length} bytes",
            )
        positions = np.empty(missing, "<u4")
        self._fill(positions.view(np.uint8).data)
        self._fill(out.reshape(-1).view(np.uint8).data)
        self._end_of_line()
        return positions

    def _send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.sendall(b"".join(parts))
            return
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        while views:
            sent = self._socket.sendmsg(views[:64])
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _raise_last_words(self) -> None:
        try:
            self._socket.settimeout(0.2)
            found = self._value(_DEPTH_MAX)
        except (OSError, EmbedrockError):
            return
        if isinstance(found, Refused):
            self.is_broken = True
            raise found

    def _value(self, depth: int) -> Any:
        kind, text = self._line()
        return self._value_of(kind, text, depth)

    def _value_of(self, kind: bytes, text: bytes, depth: int) -> Any:
        if kind == b"+":
            return text.decode("utf-8", "replace")
        if kind == b"-":
            return Refused(text.decode("utf-8", "replace"))
        if kind == b":":
            return self._number(text)
        if kind == b"_":
            return None
        if kind not in (b"$", b"*", b"%"):
            raise self._strange("a reply of RESP 2 or 3", kind + text[:40])
        length = self._length(text, least=-1)
        if length < 0:
            return None
        if kind == b"$":
            return self._bulk(length)
        if depth == 0:
            raise self._strange(f"replies nested {_DEPTH_MAX} deep", "deeper ones")
        if kind == b"*":
            return [self._value(depth - 1) for _ in range(length)]
        return {self._value(depth - 1): self._value(depth - 1) for _ in range(length)}

    def _bulk(self, length: int) -> bytes:
        # Nothing is allocated for bytes that are only promised.
        parts, left = [], length
        while left:
            part = bytearray(min(left, 1 << 20))
            self._fill(memoryview(part))
            parts.append(part)
            left -= len(part)
        self._end_of_line()
        return b"".join(parts)

    def _number(self, text: bytes) -> int:
        try:
            return int(text)
        except ValueError:
            raise self._strange("a number", text) from None

    def _length(self, text: bytes, least: int = 0) -> int:
        length = self._number(text)
        if not least <= length < 1 << 32:
            raise self._strange("a length", text)
        return length

    def _line(self) -> tuple[bytes, bytes]:
        line = b""
        while True:
            held = bytes(self._buffer[self._begin : self._end])
            end = held.find(b"\n")
            if end >= 0:
                line += held[: end + 1]
                self._begin += end + 1
                break
            line += held
            if len(line) > _LINE_MAX:
                raise self._strange("a line", line[:40])
            self._begin = self._end = 0
            self._end = self._receive(self._buffer)
        if len(line) < 3 or not line.endswith(b"\r\n"):
            raise self._strange("a line", line[:40])
        return line[:1], line[1:-2]

    def _end_of_line(self) -> None:
        end = bytearray(2)
        self._fill(memoryview(end))
        if end != b"\r\n":
            raise self._strange("the end of a line", bytes(end))

    def _fill(self, view: memoryview) -> None:
        while len(view):
            held = self._end - self._begin
            if held:
                count = min(held, len(view))
                view[:count] = self._buffer[self._begin : self._begin + count]
                self._begin += count
            elif len(view) < _BUFFER_BYTES:
                self._begin, self._end = 0, self._receive(self._buffer)
                continue
            else:
                count = self._receive(view)
            view = view[count:]

    def _receive(self, view: memoryview) -> int:
        try:
            count = self._socket.recv_into(view)
        except OSError as error:
            raise self._lost(error, "no reply") from error
        if count == 0:
            reset = ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            raise self._lost(reset, "no reply")
        return count

    def _lost(self, error: OSError, what: str) -> IoError:
        self.is_broken = True
        said = error.strerror or str(error)
        if isinstance(error, TimeoutError):
            said = f"nothing came within {self._timeout} s"
        found = IoError(f"{what}: server {self.name}: {said}")
        found.errno = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
        return found

    def _strange(self, expected: str, came: object) -> CorruptError:
        self.is_broken = True
        return CorruptError(
            f"server {self.name} sent {came!r}, expected {expected}: is it a server of Embedrock, "
            f"of this version?"
        )
