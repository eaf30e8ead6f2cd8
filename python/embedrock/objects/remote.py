"""Object storage as pushes and pulls see it: names, bytes, and errors that say what to do."""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from embedrock._arguments import shown
from embedrock._optional import missing
from embedrock._workers import LOOK_SECONDS, Worker
from embedrock.errors import (
    EmbedrockError,
    FullError,
    IoError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.objects.folder import Folder, folder_of

__all__ = ["Found", "Remote", "TakenError"]

T = TypeVar("T")

_APART = ("client_options", "retry_config", "credential_provider")
"""Options that are not of the storage but of how it is reached."""
_CLIENT = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "root_certificate",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    ]
)
"""Those of ``client_options``, which may be given beside it, too: on a command line."""
_NO_BUCKET = ("nosuchbucket", "containernotfound", "bucket does not exist", "notfound: bucket")
_WRONG_KEY = ("usernotfound", "invalidaccesskeyid", "signaturedoesnotmatch")
_DENIED = ("403 forbidden", "no user exists")
"""Of a list these are no errors of a kind of their own."""
_FULL = ("no space left", "os error 28", "quota", "storage full", "storagefull", "507 ")
_PER_DELETE = 1000
_LIST_TRIES, _LIST_SECONDS = 5, 30.0
"""Attempts at a list that breaks off, and their total time. An absent server has been waited for by
then."""


class TakenError(EmbedrockError):
    """There is an object of this name already."""


class Found(NamedTuple):
    """An object."""

    name: str
    bytes: int
    modified: datetime


class Remote:
    """The objects below a URL."""

    def __init__(
        self, url: Any, options: Mapping[str, Any] | None = None, *, make: bool = False
    ) -> None:
        """``url`` is one, or a store of ``obstore``; ``make`` makes the folder of a ``file://``."""
        try:
            import obstore
            from obstore import exceptions, store
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                missing("embedrock.objects", "obstore (Python 3.11 or newer)", "obstore"),
                name="obstore",
            ) from error
        self._obstore: Any = obstore
        self._exceptions: Any = exceptions
        self._folder: Folder | None = None
        self._prefix = ""
        self._stopped = threading.Event()
        if options is not None and not isinstance(options, Mapping):
            raise MisuseError(f"options is {shown(options)}, expected a dict of settings by name")
        if isinstance(url, (str, os.PathLike)):
            self.url = _url_of(url)
            self._store: Any = self._opened(store, options or {}, make)
        elif isinstance(url, store.ObjectStoreMethods):
            if options:
                raise MisuseError("options belong to a URL, and a store of obstore was given")
            self.url, self._store = repr(url), url
        else:
            raise MisuseError(
                f"url is {shown(url)}, expected one such as s3://bucket/path, the path of a "
                f"folder, or a store of obstore"
            )
        if isinstance(self._store, store.LocalStore) and self._store.prefix is not None:
            self._folder = self._folder or Folder(Path(self._store.prefix))

    def _opened(self, store: Any, options: Mapping[str, Any], make: bool) -> Any:
        scheme = self.url.partition("://")[0]
        apart = {name: options[name] for name in _APART if name in options}
        client = {name: value for name, value in options.items() if name in _CLIENT}
        if client:
            apart["client_options"] = {**client, **apart.get("client_options", {})}
        config = {name: options[name] for name in {*options} - {*_APART} - _CLIENT}
        try:
            if scheme == "file":
                if config or apart:
                    raise MisuseError(f"{self.url} takes no options, got {', '.join(options)}")
                place = folder_of(self.url)
                self._folder = Folder(place)
                if make:
                    self._folder.make()
                return store.LocalStore(place)
            if scheme == "memory":
                raise MisuseError("memory:// is new each time: give a store of obstore")
            if scheme in ("http", "https") and not config and not apart:
                # Of a kind that can be read, but neither listed nor written.
                found = store.from_url(_as_written(self.url))
                if type(found).__name__ == "HTTPStore":
                    raise MisuseError(
                        f"{self.url} names a web server: for an S3 server give s3://bucket/path, "
                        f"and its address as the option endpoint"
                    )
                return found
            return store.from_url(_as_written(self.url), config=config or None, **apart)
        except EmbedrockError:
            raise
        except BaseException as error:
            # For settings that it does not expect, obstore panics, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            if "canonicalize" in str(error):
                raise NotFoundError(f"{self.url}: there is no such folder") from error
            raise MisuseError(f"{self.url} cannot be opened: {_first_line(error)}") from error

    def within(self, name: str, *, make: bool = False) -> Remote:
        """The objects below a name, as those of a separate URL. Stopping one stops both."""
        inner = copy.copy(self)
        inner._enter(name, make)
        return inner

    def _enter(self, name: str, make: bool) -> None:
        self.url, self._prefix = f"{self.url.rstrip('/')}/{name}", f"{self._prefix}{name}/"
        if self._folder is not None:
            self._folder = self._folder.within(name)
            if make:
                self._folder.make()

    def expect_no_store(self) -> None:
        """Refuses a folder that holds a store, whose files objects do not belong among.

        Errors: ``MisuseError``.
        """
        if self._folder is not None and self._folder.holds_store():
            raise MisuseError(
                f"{self.url} is the folder of a store or a run itself; push to another one"
            )

    @property
    def is_folder(self) -> bool:
        """Whether it lies in a file system of this machine."""
        return self._folder is not None

    def put(self, name: str, content: bytes | memoryview) -> None:
        """Writes an object. Its name is durable with the next :meth:`create` or :meth:`replace`.

        Errors: as all requests, ``FullError``.
        """
        self._call("put", name, lambda: self._put(name, content, "overwrite"))

    def replace(self, name: str, content: bytes) -> None:
        """As :meth:`put`, durable on return, as all before it."""
        self.put(name, content)
        self.sync()

    def create(self, name: str, content: bytes) -> None:
        """As :meth:`replace`, where there is none of this name. Errors: ``TakenError``."""
        self.sync()
        self._call("create", name, lambda: self._put(name, content, "create"))
        self.sync()

    def _put(self, name: str, content: bytes | memoryview, mode: str) -> None:
        if self._folder is not None:
            self._folder.put(name, content, is_new=mode == "create")
        else:
            place = self._prefix + name
            self._obstore.put(self._store, place, content, mode=mode, use_multipart=False)

    def get(self, name: str, most: int | None = None) -> Any:
        """The bytes of an object, the first ``most`` of them. Errors: ``NotFoundError``."""
        place = self._prefix + name
        if most is None:
            return self._call("get", name, lambda: self._obstore.get(self._store, place).bytes())

        def request() -> Any:
            # A range of an object without bytes is refused.
            if self._obstore.head(self._store, place)["size"] == 0:
                return b""
            return self._obstore.get_range(self._store, place, start=0, end=most)

        return self._call("get", name, request)

    def modified(self, name: str) -> datetime:
        """When an object was written, by the storage's clock."""
        place = self._prefix + name
        found = self._call("head", name, lambda: self._obstore.head(self._store, place))
        when: datetime = found["last_modified"]
        return when

    def below(self, prefix: str) -> Iterator[Found]:
        """The objects below a prefix, each once, in no order.

        A list that breaks off is asked for again: ``obstore`` does so with requests that are not
        answered, and not with an answer that ends amid its body.

        *Memory*: the names that were listed.
        """
        seen: set[str] = set()
        stream: Iterator[Any] | None = None
        tries, begun = 0, time.monotonic()

        def next_portion() -> Any:
            nonlocal stream, tries, begun
            while True:
                try:
                    if stream is None:
                        stream = iter(self._obstore.list(self._store, prefix=self._prefix + prefix))
                    portion = next(stream, None)
                except self._exceptions.GenericError:
                    tries, stream = tries + 1, None
                    if tries == _LIST_TRIES or time.monotonic() - begun > _LIST_SECONDS:
                        raise
                    self._stopped.wait(LOOK_SECONDS)
                else:
                    tries, begun = 0, time.monotonic()
                    return portion

        while True:
            portion = self._call("list", prefix, next_portion)
            if portion is None:
                return
            for found in portion:
                name = found["path"].removeprefix(self._prefix)
                if name not in seen:
                    seen.add(name)
                    yield Found(name, found["size"], found["last_modified"])

    def delete(self, names: list[str]) -> None:
        """Removes objects; one that is gone already is no error."""
        for begin in range(0, len(names), _PER_DELETE):
            some = names[begin : begin + _PER_DELETE]
            try:
                self._call("delete", some[0], partial(self._delete, some))
            except NotFoundError:
                # A storage that says so stops there.
                for name in some:
                    with contextlib.suppress(NotFoundError):
                        self._call("delete", name, partial(self._delete, [name]))

    def _delete(self, names: list[str]) -> None:
        self._obstore.delete(self._store, [self._prefix + name for name in names])

    def sync(self) -> None:
        """Makes what was written to a folder durable. Object storage does by itself."""
        if (folder := self._folder) is not None:
            self._call("sync", "", folder.sync)

    def settle(self, name: str) -> None:
        """As :meth:`sync`, of an object that somebody else has written."""
        if (folder := self._folder) is not None:
            self._call("sync", name, lambda: folder.settle(name))

    def remove_staged(self, prefixes: Sequence[str], before: datetime) -> None:
        """Removes from a folder what was cut off before it had its name, and before a time.

        Only below the prefixes: what else lies in the folder is not of these objects.
        """
        if (folder := self._folder) is None:
            return

        def request() -> None:
            for name, found in folder.staged(prefixes):
                if datetime.fromtimestamp(found.st_mtime, timezone.utc) <= before:
                    folder.remove(name)

        self._call("delete", "", request)

    def _call(self, kind: str, name: str, request: Callable[[], T]) -> T:
        """Every request passes here. Errors: of ours, naming the object and the way out."""
        what = f"{self.url}: {kind} {name}"
        try:
            return request() if self._folder is not None else self._answer(what, request)
        except (self._exceptions.AlreadyExistsError, FileExistsError) as error:
            raise TakenError(f"{what}: there is one already") from error
        except FileNotFoundError as error:
            # Some servers do not find who asks.
            if any(word in str(error).lower() for word in _WRONG_KEY):
                raise _refused(what, error) from error
            raise NotFoundError(f"{what}: {self._missing(error)}") from error
        except (
            self._exceptions.PermissionDeniedError,
            self._exceptions.UnauthenticatedError,
        ) as error:
            raise _refused(what, error) from error
        except self._exceptions.NotSupportedError as error:
            raise UnsupportedError(
                f"{what}: {_first_line(error)}; pushing needs a storage that can create an object "
                f"only where there is none (If-None-Match)"
            ) from error
        except (self._exceptions.BaseError, OSError, ValueError) as error:
            said = str(error).lower()
            if any(word in said for word in _NO_BUCKET):
                raise NotFoundError(f"{what}: {self._missing(error)}") from error
            if any(word in said for word in _DENIED):
                raise _refused(what, error) from error
            if any(word in said for word in _FULL):
                raise FullError(
                    f"{what}: no room is left there ({_first_line(error)}); make room, for example "
                    f"with embedrock.objects.prune, and push again"
                ) from error
            if any(word in said for word in _NO_CREDENTIALS):
                raise IoError(
                    f"{what}: no credentials were found; {_CREDENTIALS} ({_first_line(error)})"
                ) from error
            raise IoError(f"{what}: {_first_line(error)}") from error

    def _answer(self, what: str, request: Callable[[], T]) -> T:
        """Waits for a request in a way that an interrupt ends: ``obstore`` itself hears none.

        A thread that nobody waits for any more touches nothing but its own answer.
        """
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put((request(), None))
            except BaseException as error:
                answers.put((None, error))

        asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        asked.put(ask)
        asked.put(None)
        Worker(asked, lambda ask: ask()).start()
        while True:
            try:
                answer, error = answers.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self._stopped.is_set():
                    raise IoError(f"{what}: interrupted") from None
                continue
            if error is not None:
                raise error
            return cast("T", answer)

    def stop(self) -> None:
        """Requests that have no answer end with ``IoError`` soon, and so do all that follow."""
        self._stopped.set()

    def _missing(self, error: BaseException) -> str:
        if any(word in str(error).lower() for word in _NO_BUCKET):
            return f"the bucket is not there; make it first ({_first_line(error)})"
        return "it is not there"


def _url_of(place: str | os.PathLike[str]) -> str:
    """A URL, also of a folder that is named by its path. Errors: ``MisuseError``."""
    text = os.fspath(place)
    if not isinstance(text, str):
        text = os.fsdecode(text)
    if isinstance(place, str):
        if "://" in text:
            return text
        # A bucket without its scheme must not become a folder here.
        if not (text.startswith(("/", "./", "../")) or text in (".", "..") or Path(text).is_dir()):
            raise MisuseError(
                f"{text!r} is no URL: expected s3://bucket/path, gs://…, az://…, file:///folder, "
                f"or the path of a folder, as ./folder where there is none yet"
            )
    return Path(text).absolute().as_uri()


def _as_written(url: str) -> str:
    """A URL in which ``?`` and ``#`` are part of the path, as in names of objects they may be.

    Errors: ``MisuseError`` for one of a web server, in which they are none.
    """
    if "?" not in url and "#" not in url:
        return url
    if url.startswith(("http:", "https:")):
        raise MisuseError(
            f"{url!r} has a '#' or a '?', which ends the path of a URL: in the name of an object "
            f"write it as %23 or %3F; settings are options"
        )
    return url.replace("?", "%3F").replace("#", "%23")


def _refused(what: str, error: BaseException) -> IoError:
    return IoError(
        f"{what}: {_first_line(error)}: the credentials are missing, wrong, or may not do that; "
        f"{_CREDENTIALS}"
    )


_CREDENTIALS = (
    "give them as options (access_key_id, secret_access_key, …) or in the environment "
    "(AWS_ACCESS_KEY_ID, …)"
)
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google", "imds", "credential")


def _first_line(error: BaseException) -> str:
    """The first line of an error, without details for its makers."""
    said = str(error).partition("Debug source:")[0].partition("<?xml")
    told = re.search(r"<Message>(.*?)</Message>", said[2])
    words = " ".join(f"{said[0]} {told[1] if told is not None else ''}".split())
    return words[:400] or type(error).__name__
