"""Pushes to an S3 server and pulls from it: versitygw, which runs beside the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buckets3 import Bucket
from embedrock import cli, objects
from embedrock.errors import (
    CorruptError,
    EmbedrockError,
    IoError,
    LockedError,
    NotFoundError,
)
from embedrock.objects.remote import Remote, TakenError
from pushes import commit, contents, contents_at, made, objects_in, train

pytest.importorskip("obstore", reason="obstore is not installed")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    found = Bucket(tmp_path_factory.mktemp("s3"))
    yield found
    found.stop()


def test_pushes_of_a_store_in_use_come_back_and_are_pruned(tmp_path: Path, bucket: Bucket) -> None:
    url, options = bucket.url("a/model"), bucket.options
    committed: dict[int, Any] = {}
    stop = threading.Event()
    with made(tmp_path / "s", "lsm") as store:

        def write() -> None:
            step = 0
            while not stop.is_set():
                step += 1
                train(store, step)
                commit(store, step)
                committed[step] = contents(store)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while 2 not in committed:
                assert writer.is_alive()
            pushed = [objects.push(tmp_path / "s", url, options=options) for _ in range(3)]
        finally:
            stop.set()
            writer.join()
    # A commit that was pushed already makes no other push.
    pushed = [done for done in pushed if done["is_new"]]
    listed = objects.list(url, options=options)
    assert [push["step"] for push in listed] == [done["step"] for done in pushed]
    assert len(pushed) > 1
    for done in pushed:
        place = tmp_path / f"p{done['number']}"
        objects.pull(url, place, number=done["number"], options=options)
        assert contents_at(place) == committed[done["step"]]
    pruned = objects.prune(url, 1, alone=True, options=options)
    assert pruned["pruned"] == len(pushed) - 1
    assert pruned["removed_pieces"] > 0 and pruned["missing"] == []
    objects.pull(url, tmp_path / "left", options=options)
    assert contents_at(tmp_path / "left") == committed[pushed[-1]["step"]]
    with pytest.raises(NotFoundError, match="push 1 was pruned"):
        objects.pull(url, tmp_path / "gone", number=1, options=options)


def test_a_manifest_is_created_by_one_alone(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = bucket.url("two"), bucket.options
    remote = Remote(bucket.url("names"), options)
    won: list[int] = []
    lost: list[int] = []

    def create(number: int) -> None:
        try:
            remote.create("one", b"%d" % number)
            won.append(number)
        except TakenError:
            lost.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == 7 and bytes(remote.get("one")) == b"%d" % won[0]
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        before = Remote.create

        def slow(self: Remote, name: str, content: bytes) -> None:
            if name.startswith("manifests/"):
                with monkeypatch.context() as patched:
                    patched.setattr(Remote, "create", before)
                    objects.push(store, url, options=options)
            before(self, name, content)

        monkeypatch.setattr(Remote, "create", slow)
        with pytest.raises(LockedError, match=r"push 1, of step 1, was made meanwhile"):
            objects.push(store, url, options=options)


def test_damage_at_the_server_is_named(tmp_path: Path, bucket: Bucket) -> None:
    url, options = bucket.url("damaged"), bucket.options
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url, options=options)
    pieces = bucket.folder / "damaged" / "pieces"
    largest = max(objects_in(pieces), key=lambda name: (pieces / name).stat().st_size)
    with (pieces / largest).open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    with pytest.raises(CorruptError, match="is not what was pushed"):
        objects.pull(url, tmp_path / "t", options=options)


def test_what_is_missing_or_wrong_is_told_clearly(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
    path, options = tmp_path / "s", bucket.options
    with pytest.raises(NotFoundError, match="the bucket is not there; make it first"):
        objects.push(path, "s3://nowhere/model", options=options)
    with pytest.raises(NotFoundError, match="the bucket is not there"):
        objects.list("s3://nowhere/model", options=options)
    with pytest.raises(IoError, match="credentials are missing, wrong"):
        objects.push(path, bucket.url("x"), options={**options, "secret_access_key": "wrong"})
    with pytest.raises(IoError, match="credentials are missing, wrong"):
        objects.push(path, bucket.url("x"), options={**options, "access_key_id": "nobody"})
    quick = {"retry_config": {"max_retries": 0}}
    with pytest.raises(IoError):
        gone = {**options, **quick, "endpoint": "http://127.0.0.1:9"}
        objects.push(path, bucket.url("x"), options=gone)
    with pytest.raises(EmbedrockError, match="no_such_setting"):
        objects.push(path, bucket.url("x"), options={**options, "no_such_setting": "1"})
    words = [f"{name}={value}" for name, value in options.items() if name != "client_options"]
    words.append("allow_http=true")
    given = [word for setting in words for word in ("--option", setting)]
    assert cli.main(["push", str(path), bucket.url("cli"), *given]) == 0
    assert cli.main(["pull", bucket.url("cli"), str(tmp_path / "t"), *given]) == 0
    assert contents_at(tmp_path / "t") == contents_at(path)
    assert cli.main(["pull", "s3://nowhere/x", "--list", *given]) == 2
    assert "the bucket is not there" in capsys.readouterr().err


def test_a_server_that_dies_amid_a_push_leaves_the_last_one(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("dying")
    options = {**bucket.options, "retry_config": {"max_retries": 0}}
    with made(tmp_path / "s") as store:
        train(store, 1)
        commit(store, 1)
        objects.push(store, url, options=options)
        then = contents(store)
        train(store, 2)
        commit(store, 2)
        before, left = Remote.put, [6]

        def put(self: Remote, name: str, content: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                bucket.stop()
            before(self, name, content)

        with monkeypatch.context() as patched:
            patched.setattr(Remote, "put", put)
            with pytest.raises(IoError):
                objects.push(store, url, options=options)
        bucket.start()
        objects.pull(url, tmp_path / "t", options=options)
        assert contents_at(tmp_path / "t") == then
        assert objects.push(store, url, options=options)["number"] == 2
