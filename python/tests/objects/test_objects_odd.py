"""Object storage that is killed, damaged, silent, or not what it seems."""

from __future__ import annotations

import functools
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

import embedrock
from embedrock import cli, objects
from embedrock.errors import (
    CorruptError,
    IoError,
    MisuseError,
    NotFoundError,
    UnsupportedError,
)
from embedrock.objects.manifest import Manifest, digest_of, files_line, manifest_name
from embedrock.objects.remote import Remote, TakenError
from pushes import commit, contents, contents_at, made, train

pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/objects"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


# --- folders -------------------------------------------------------------------------------------


def test_an_object_in_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was linked or renamed was synced before, and its folder is synced after."""
    told: list[tuple[str, Any]] = []
    real = {name: getattr(os, name) for name in ("fsync", "link", "replace")}

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        told.append(("fsync", found.st_ino))
        real["fsync"](descriptor)

    def named(kind: str, before: Any, after: Any) -> None:
        inode = os.stat(before).st_ino
        assert ("fsync", inode) in told, f"{after} has a name before it is durable"
        real[kind](before, after)
        told.append((kind, os.stat(Path(after).parent).st_ino))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", functools.partial(named, "link"))
    monkeypatch.setattr(os, "replace", functools.partial(named, "replace"))
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        told.clear()
        objects.push(store, url)
        made_at = [at for at, (kind, _) in enumerate(told) if kind == "link"]
        assert len(made_at) == 1 and ("fsync", told[made_at[0]][1]) in told[made_at[0] :]
        # The folders of pieces are durable before the manifest names them.
        for at, (kind, inode) in enumerate(told[: made_at[0]]):
            if kind == "replace":
                assert ("fsync", inode) in told[at : made_at[0]]
        # A newest manifest is made durable by who builds on it: its maker may have been killed.
        told.clear()
        objects.push(store, url)
        newest = folder / manifest_name(1)
        assert ("fsync", newest.stat().st_ino) in told
        assert ("fsync", newest.parent.stat().st_ino) in told
        train(store, 2)
        commit(store, 2)
        objects.push(store, url)
        told.clear()
        objects.prune(url, 1)
        overwritten = ("replace", newest.parent.stat().st_ino)
        at = told.index(overwritten)
        assert ("fsync", newest.parent.stat().st_ino) in told[at:]


def test_what_was_pulled_is_on_the_disk_before_it_is_a_store(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedrock.objects import pulling

    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
    place, synced = tmp_path / "t", set()
    fsync, get, finish = os.fsync, Remote.get, pulling._core.finish_pull

    def synced_now(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def got(self: Remote, name: str, most: int | None = None) -> Any:
        if name.startswith("pieces/"):  # the mark that it is no store is durable
            assert place.stat().st_ino in synced
        return get(self, name, most)

    def finished(*given: Any) -> Any:
        files = [path for path in place.iterdir() if path.name not in ("lock", "unfinished-copy")]
        assert len(files) > 4
        assert {path.name for path in files if path.stat().st_ino not in synced} == set()
        return finish(*given)

    monkeypatch.setattr(os, "fsync", synced_now)
    monkeypatch.setattr(Remote, "get", got)
    monkeypatch.setattr(pulling._core, "finish_pull", finished)
    assert objects.pull(url, place)["step"] == 1


def test_a_folder_with_odd_letters_is_that_folder(tmp_path: Path) -> None:
    place = tmp_path / "run #1? 50%25"
    with made(tmp_path / "s") as store:
        commit(store, 1)
        objects.push(store, place.as_uri())
        assert (place / manifest_name(1)).exists()
        assert [push["step"] for push in objects.list(place.as_uri())] == [1]
        for wrong in (f"file://{tmp_path}/run#1", f"file://{tmp_path}/run?1", "file://far/x"):
            with pytest.raises(MisuseError, match=r"%23|no folder of this machine"):
                objects.push(store, wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == [place.name, "s"]


def test_pruning_removes_what_was_cut_off_before_it_had_its_name(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with made(tmp_path / "s") as store:
        commit(store, 1)
        objects.push(store, url)
    old, young = folder / "pieces" / "ab" / "ab.0#12", folder / "manifests" / "x.json#7"
    for path in (old, young):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.utime(old, (1, 1))
    objects.prune(url, 1)
    assert not old.exists() and young.exists()
    objects.prune(url, 1, alone=True)
    assert not young.exists()


# --- manifests, commits, servers -----------------------------------------------------------------


def test_a_damaged_manifest_does_not_block_the_others(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with made(tmp_path / "s") as store:
        for step in (1, 2, 3):
            train(store, step)
            commit(store, step)
            objects.push(store, url)
        then = contents(store)
        newest = folder / manifest_name(3)
        told = newest.read_bytes()
        for wrong in (b"", told[:50] + bytes([told[50] ^ 4]) + told[51:], told[:-9]):
            newest.write_bytes(wrong)
            with pytest.raises(CorruptError, match=r"0000000003.*pull another push .*push again"):
                objects.pull(url, tmp_path / "t")
            with pytest.warns(UserWarning, match="0000000003"):
                done = objects.prune(url, 2, alone=True)
            # The pieces that it names are unknown.
            assert (done["kept"], done["removed_pieces"]) == (2, 0)
            assert done["damaged"] == [manifest_name(3)]
        newest.write_bytes(b"")
        with pytest.warns(UserWarning, match="0000000003"):
            assert [push["step"] for push in objects.list(url)] == [1, 2]
        with pytest.warns(UserWarning, match="0000000003"):
            assert objects.pull(url, tmp_path / "two", step=2)["step"] == 2
        with pytest.warns(UserWarning), pytest.raises(NotFoundError, match=r"0000000003.* damaged"):
            objects.pull(url, tmp_path / "t", step=3)
        with pytest.warns(UserWarning, match="0000000003"):
            pushed = objects.push(store, url)
        assert pushed["number"] == 4 and pushed["is_new"]
        # A prune beside it may take what older ones name: nothing of them was counted on.
        assert pushed["sent_bytes"] == pushed["bytes"]
    with pytest.warns(UserWarning, match="0000000003"):
        assert objects.prune(url, 1, alone=True)["removed_pieces"] > 0
    assert [push["number"] for push in objects.list(url)] == [4]
    objects.pull(url, tmp_path / "three")
    assert contents_at(tmp_path / "three") == then
    (folder / manifest_name(4)).write_bytes(b"")
    for number in (1, 2, 3):
        (folder / manifest_name(number)).unlink()
    with (
        pytest.warns(UserWarning),
        pytest.raises(CorruptError, match=r"all of its 1 manifests.*another URL"),
    ):
        objects.push(tmp_path / "s", url)


def test_a_manifest_under_another_number_or_that_leads_elsewhere_is_none(
    tmp_path: Path, url: str, folder: Path
) -> None:
    with made(tmp_path / "s") as store:
        commit(store, 1)
        objects.push(store, url)
    first = folder / manifest_name(1)
    told = Manifest.decode(first.read_bytes(), "it")
    (folder / manifest_name(2)).write_bytes(first.read_bytes())
    with pytest.raises(CorruptError, match="manifest of push 1 under another name"):
        objects.pull(url, tmp_path / "t")
    file = told.files[0]
    piece = file.pieces[0]
    for wrong in (
        replace(file, name="../outside"),
        replace(file, name=".hidden"),
        replace(file, pieces=[piece._replace(offset=file.bytes)]),
        replace(file, pieces=[piece._replace(offset=-1)]),
        replace(file, room=[(0, file.bytes + 1)]),
    ):
        summary = replace(told.summary, files=digest_of(files_line([wrong])))
        first.write_bytes(Manifest(summary, [wrong]).encode())
        with pytest.raises(CorruptError, match="its files cannot be read"):
            objects.pull(url, tmp_path / "t", number=1)
    assert not (tmp_path / "t").exists()


def test_a_reader_is_pushed_at_its_own_commit_or_refused(tmp_path: Path, url: str) -> None:
    with made(tmp_path / "s", keep=3) as store:
        train(store, 1)
        commit(store, 3, pin="first")
        with embedrock.open(tmp_path / "s", "8MiB", read_only=True) as reader:
            own = contents(reader)
            train(store, 2)
            commit(store, 3)
            pushed = objects.push(reader, url)
        objects.pull(url, tmp_path / "t", number=pushed["number"])
        assert contents_at(tmp_path / "t") == own
        # Of several pushes of a step, that step is the last one's.
        newest = objects.push(store, url)["number"]
        assert newest > pushed["number"]
        assert objects.pull(url, tmp_path / "u", step=3)["number"] == newest
        with embedrock.open(tmp_path / "s", "8MiB", read_only=True) as reader:
            commit(store, 3)
            with pytest.raises(NotFoundError, match=r"commit 2 of step 3, .*pin.*another one now"):
                objects.push(reader, url)
            for step in range(4, 8):
                train(store, step)
                commit(store, step)
            with pytest.raises(NotFoundError, match=r"commit 2 of step 3, .*pin a commit"):
                objects.push(reader, url)


def test_a_server_that_overwrites_what_is_to_be_created_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from obstore.store import MemoryStore

    before = Remote._put

    def put(self: Remote, name: str, content: Any, mode: str) -> None:
        before(self, name, content, "overwrite")

    memory = MemoryStore()
    with made(tmp_path / "s") as store:
        commit(store, 1)
        with monkeypatch.context() as patched:
            patched.setattr(Remote, "_put", put)
            with pytest.raises(UnsupportedError, match="If-None-Match"):
                objects.push(store, memory)
        assert objects.list(memory) == [] and objects.push(store, memory)["number"] == 1


def test_a_name_that_is_refused_and_not_there_is_tried_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, left = Remote.create, [2]

    def create(self: Remote, name: str, content: bytes) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise TakenError("for another one, which then fails")
        before(self, name, content)

    monkeypatch.setattr(Remote, "create", create)
    with made(tmp_path / "s") as store:
        commit(store, 1)
        assert objects.push(store, url)["number"] == 1


def test_pieces_are_sent_and_files_opened_a_few_at_a_time(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, get = Remote._put, Remote.get
    lock = threading.Lock()
    now, most, opened = [0], [0], [0]

    def put(self: Remote, name: str, content: Any, mode: str) -> None:
        with lock:
            now[0] += name.startswith("pieces/")
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        before(self, name, content, mode)
        with lock:
            now[0] -= name.startswith("pieces/")

    def counted(self: Remote, name: str, most: int | None = None) -> Any:
        files = 0
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                files += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{tmp_path}/t/")
            except FileNotFoundError:
                continue
        opened[0] = max(opened[0], files)
        return get(self, name, most)

    with made(tmp_path / "s", "lsm", keep=1) as store:
        for step in range(1, 9):
            train(store, step, 20_000)
            commit(store, step)
        monkeypatch.setattr(Remote, "_put", put)
        objects.push(store, url, in_flight=3)
    assert most[0] == 3
    monkeypatch.setattr(Remote, "get", counted)
    objects.pull(url, tmp_path / "t", in_flight=1)
    # The lock is open, too, and a file ends where the next one begins.
    assert 1 < opened[0] <= 3 < len(list((tmp_path / "t").iterdir())) - 1
    assert contents_at(tmp_path / "t") == contents_at(tmp_path / "s")


def test_what_a_push_has_left_is_used_while_it_is_young_alone(
    tmp_path: Path, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning rests on it: what it takes away is older than what is used again."""

    def cut(self: Remote, name: str, content: bytes) -> None:
        raise KeyboardInterrupt

    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        for days, torn, is_used in ((2, 0, True), (1, 1, True), (4, 0, False)):
            place = f"{url}/{days}"
            with monkeypatch.context() as patched:
                patched.setattr(Remote, "create", cut)
                with pytest.raises(KeyboardInterrupt):
                    objects.push(store, place)
            left = list((folder / str(days) / "pieces").rglob("*.*"))
            assert len(left) > 2
            then = time.time() - timedelta(days=days).total_seconds()
            for path in left:
                if path in left[:torn]:
                    path.write_bytes(b"torn")
                os.utime(path, (then, then))
            sent = objects.push(store, place)["sent_pieces"]
            assert sent == (torn if is_used else len(left))


PULL = """
import os, signal, sys
from embedrock import objects
from embedrock.objects.remote import Remote
left, before = [4], Remote.get
def get(self, name, most=None):
    left[0] -= name.startswith("pieces/")
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(self, name, most)
Remote.get = get
objects.pull(sys.argv[1], sys.argv[2], in_flight=1)
"""


def test_a_pull_that_is_killed_is_no_store_and_goes_on(tmp_path: Path, url: str) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url)
        then = contents(store)
    place = tmp_path / "t"
    command = [sys.executable, "-c", PULL, url, str(place)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with pytest.raises(NotFoundError, match="is no store"):
        embedrock.open(place, "8MiB")
    done = objects.pull(url, place)
    assert 0 < done["received_bytes"] < done["bytes"] and contents_at(place) == then
    assert embedrock.check(place)["problems"] == []


def test_a_store_that_came_before_the_lock_was_taken_is_not_filled(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedrock.objects import pulling

    with made(tmp_path / "s") as store:
        commit(store, 1)
        objects.push(store, url)
    before = pulling.take

    def take(lock: int, folder: Path) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(pulling, "take", before)
            objects.pull(url, folder)
        before(lock, folder)

    monkeypatch.setattr(pulling, "take", take)
    with pytest.raises(MisuseError, match="holds a store already"):
        objects.pull(url, tmp_path / "t")
    assert contents_at(tmp_path / "t")["step"] == 1


SILENT = """
import sys
from embedrock.objects.parallel import side_by_side
from embedrock.objects.remote import Remote
options = {"endpoint": sys.argv[1], "allow_http": "true", "region": "x"}
options |= {"access_key_id": "a", "secret_access_key": "b"}
remote = Remote("s3://bucket/path", options)
ask = lambda job: remote.put("x", b"1")
print("asks", flush=True)
if sys.argv[2] == "one":
    ask(1)
else:
    for _ in side_by_side(4, range(9), ask, remote):
        pass
"""


@pytest.mark.parametrize("kind", ["one", "several"])
def test_an_interrupt_ends_what_a_server_does_not_answer(kind: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", SILENT, address, kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stderr is not None
            assert child.stdout.readline() == b"asks\n"
            server.accept()
            child.send_signal(signal.SIGINT)
            try:
                child.wait(timeout=20)  # obstore itself waits 30 s for an answer
            finally:
                child.kill()
            assert b"KeyboardInterrupt" in child.stderr.read()


# --- lists and names -----------------------------------------------------------------------------


class Lists(http.server.BaseHTTPRequestHandler):
    """An S3 server that answers lists alone, and ends some of its answers amid their bodies."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []
    cuts: ClassVar[list[int]] = []
    """Numbers of the requests whose answers end early, from 1."""

    def do_GET(self) -> None:
        given = {name: of[0] for name, of in parse_qs(urlsplit(self.path).query).items()}
        self.asked.append(given["prefix"])
        page = int(given.get("continuation-token", "0"))
        names = [f"{given['prefix']}{number:04d}" for number in range(page * 10, page * 10 + 10)]
        told = "".join(
            f"<Contents><Key>{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>7</Size></Contents>'
            for name in names
        )
        more = page < 2
        next_one = f"<NextContinuationToken>{page + 1}</NextContinuationToken>" if more else ""
        body = (
            f'<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>10</KeyCount>'
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{next_one}{told}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        is_cut = len(self.asked) in self.cuts
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def lists() -> Iterator[dict[str, str]]:
    """Options that reach a server of lists."""
    Lists.asked, Lists.cuts = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lists) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "allow_http": "true",
            "region": "here",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [1, 2, 4, 7]])
def test_a_list_that_breaks_off_is_asked_for_again(lists: dict[str, str], cuts: list[int]) -> None:
    """It ended a push: requests are repeated below, and answers that end amid their body not."""
    Lists.cuts = cuts
    found = [one.name for one in Remote("s3://b/model", lists).below("pieces")]
    assert found == [f"pieces/{number:04d}" for number in range(30)]
    assert len(Lists.asked) > 2 + len(cuts)


def test_a_list_that_always_breaks_off_ends(lists: dict[str, str]) -> None:
    Lists.cuts = [*range(1, 100)]
    with pytest.raises(IoError, match="s3://b/model: list pieces"):
        list(Remote("s3://b/model", lists).below("pieces"))
    assert len(Lists.asked) < 20


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("q?z", "q?z/"),
        ("h#z", "h#z/"),
        ("a?b#c?d", "a?b#c?d/"),
        ("q%3Fz", "q?z/"),
        ("a b", "a b/"),
        ("100%", "100%/"),
        ("über/模型", "über/模型/"),
    ],
)
def test_what_a_url_says_is_the_name_of_the_objects(
    lists: dict[str, str], name: str, prefix: str
) -> None:
    """The part after a '?' or a '#' was dropped, so a push went among the objects of another."""
    assert next(Remote(f"s3://b/{name}", lists).below("pieces")).name == "pieces/0000"
    assert Lists.asked[0] == f"{prefix}pieces/"


def test_a_web_address_with_what_ends_its_path_is_refused() -> None:
    for url in ("https://s3.eu-west-1.amazonaws.com/b/q?z", "http://127.0.0.1/b#z"):
        with pytest.raises(MisuseError, match="write it as %23 or %3F"):
            Remote(url, {"region": "here"})


def test_a_folder_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        for place in ("./a#?b", str(tmp_path / "c d"), Path("by path")):
            assert objects.push(store, place)["number"] == 1
        assert not objects.push(store, (tmp_path / "c d").as_uri())["is_new"]
        for there in ("by path", Path("a#?b"), "c d"):
            assert [one["step"] for one in objects.list(there)] == [1]
        for bucket in ("bucket/model", "s3:/bucket", "elsewhere"):
            with pytest.raises(MisuseError, match=r"is no URL.*as \./folder"):
                objects.push(store, bucket)
        wanted = contents(store)
    objects.pull("./c d", tmp_path / "back")
    assert contents_at(tmp_path / "back") == wanted
    assert cli.main(["pull", "a#?b", "again"]) == 0
    assert contents_at(tmp_path / "again") == wanted
    with pytest.raises(NotFoundError):
        objects.pull("./none", tmp_path / "no")
