"""Object storage as pushes and pulls see it: names, bytes, and errors that say what to do."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from embedrock._arguments import shown
from embedrock._optional import missing
from embedrock.errors import (
    EmbedrockError,
    FullError,
    IoError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)

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
_FULL = ("no space left", "os error 28", "quota", "storage full", "storagefull", "507 ")
_PER_DELETE = 1000


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
        self._folder: Path | None = None
        self._unsynced: set[Path] = set()
        """Folders with names that may not be on the disk yet."""
        if options is not None and not isinstance(options, Mapping):
            raise MisuseError(f"options is {shown(options)}, expected a dict of settings by name")
        if isinstance(url, (str, os.PathLike)):
            self.url = str(os.fspath(url))
            self._store: Any = self._opened(store, options or {}, make)
        elif isinstance(url, store.ObjectStoreMethods):
            if options:
                raise MisuseError("options belong to a URL, and a store of obstore was given")
            self.url, self._store = repr(url), url
        else:
            raise MisuseError(
                f"url is {shown(url)}, expected one such as s3://bucket/path, or a store of obstore"
            )
        if isinstance(self._store, store.LocalStore) and self._store.prefix is not None:
            self._folder = Path(self._store.prefix)

    def _opened(self, store: Any, options: Mapping[str, Any], make: bool) -> Any:
        scheme = self.url.partition("://")[0]
        if "://" not in self.url:
            raise MisuseError(
                f"{self.url!r} is no URL: expected s3://bucket/path, gs://…, az://… or "
                f"file:///folder"
            )
        apart = {name: options[name] for name in _APART if name in options}
        client = {name: value for name, value in options.items() if name in _CLIENT}
        if client:
            apart["client_options"] = {**client, **apart.get("client_options", {})}
        config = {name: options[name] for name in {*options} - {*_APART} - _CLIENT}
        try:
            if scheme == "file":
                if config or apart:
                    raise MisuseError(f"{self.url} takes no options, got {', '.join(options)}")
                return store.from_url(self.url, mkdir=make)
            if scheme == "memory":
                raise MisuseError("memory:// is new each time: give a store of obstore")
            if scheme in ("http", "https") and not config and not apart:
                # Of a kind that can be read, but neither listed nor written.
                found = store.from_url(self.url)
                if type(found).__name__ == "HTTPStore":
                    raise MisuseError(
                        f"{self.url} names a web server: for an S3 server give s3://bucket/path, "
                        f"and its address as the option endpoint"
                    )
                return found
            return store.from_url(self.url, config=config or None, **apart)
        except EmbedrockError:
            raise
        except BaseException as error:
            # What obstore does not expect of its settings is a panic, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            if "canonicalize" in str(error):
                raise NotFoundError(f"{self.url}: there is no such folder") from error
            raise MisuseError(f"{self.url} cannot be opened: {_first_line(error)}") from error

    @property
    def is_folder(self) -> bool:
        """Whether it lies in a file system of this machine."""
        return self._folder is not None

    def put(self, name: str, content: bytes | memoryview) -> None:
        """Writes an object. It is durable with the next :meth:`create`.

        Errors: as all requests, ``FullError``.
        """

        def request() -> None:
            self._put(name, content, "overwrite")
            self.sync(name)

        self._call("put", name, request)

    def create(self, name: str, content: bytes) -> None:
        """As :meth:`put`, where there is none of this name; durable, as all before it.

        Errors: ``TakenError``.
        """

        def request() -> None:
            self._sync_folders()
            self._put(name, content, "create")
            self.sync(name)
            self._sync_folders()

        self._call("create", name, request)

    def _put(self, name: str, content: bytes | memoryview, mode: str) -> None:
        self._obstore.put(self._store, name, content, mode=mode, use_multipart=False)

    def get(self, name: str, most: int | None = None) -> Any:
        """The bytes of an object, the first ``most`` of them. Errors: ``NotFoundError``."""
        if most is None:
            return self._call("get", name, lambda: self._obstore.get(self._store, name).bytes())
        return self._call(
            "get", name, lambda: self._obstore.get_range(self._store, name, start=0, end=most)
        )

    def modified(self, name: str) -> datetime:
        """When an object was written, by the storage's clock."""
        found = self._call("head", name, lambda: self._obstore.head(self._store, name))
        when: datetime = found["last_modified"]
        return when

    def below(self, prefix: str) -> Iterator[Found]:
        """The objects below a prefix, in no order."""

        def portions() -> Iterator[Any]:
            yield from self._obstore.list(self._store, prefix=prefix)

        stream = portions()
        while True:
            portion = self._call("list", prefix, lambda: next(stream, None))
            if portion is None:
                return
            for found in portion:
                yield Found(found["path"], found["size"], found["last_modified"])

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
        self._obstore.delete(self._store, names)

    def sync(self, name: str) -> None:
        """Makes an object in a folder durable, but for its name. Object storage does by itself."""
        if self._folder is None:
            return
        path = self._folder / name
        _sync(path)
        # A set of many threads; adding to it is one step.
        self._unsynced.update(p for p in path.parents if p.is_relative_to(self._folder))

    def _sync_folders(self) -> None:
        folders, self._unsynced = self._unsynced, set()
        for folder in folders:
            _sync(folder)

    def _call(self, kind: str, name: str, request: Callable[[], T]) -> T:
        """Every request passes here. Errors: of ours, naming the object and the way out."""
        what = f"{self.url}: {kind} {name}"
        try:
            return request()
        except self._exceptions.AlreadyExistsError as error:
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

    def _missing(self, error: BaseException) -> str:
        if any(word in str(error).lower() for word in _NO_BUCKET):
            return f"the bucket is not there; make it first ({_first_line(error)})"
        return "it is not there"


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    """What an error says, without what only its makers read."""
    said = str(error).partition("Debug source:")[0].partition("<?xml")
    told = re.search(r"<Message>(.*?)</Message>", said[2])
    words = " ".join(f"{said[0]} {told[1] if told is not None else ''}".split())
    return words[:400] or type(error).__name__
