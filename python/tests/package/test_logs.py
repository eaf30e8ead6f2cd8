"""Log records of stores, servers and the package; logging holds nobody up."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import embedrock
from embedrock import _core, _logs
from embedrock.follow import Follower, LogReader, LogWriter
from servers import START, serving, start

DIM = 4
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (ERROR|WARN|INFO|DEBUG) embedrock::\S+: ."
)


def filled(path: Path, step: int = 1) -> Path:
    with embedrock.open(path, "4MiB") as store:
        table = store.table("items", DIM, 1000, optimizer="sgd", initializer=0.0)
        table.put(np.arange(500), np.ones((500, DIM), np.float32))
        store.commit(step)
    return path


def run(program: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a program that has to end by itself."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done


def said(caplog: pytest.LogCaptureFixture, name: str, *words: str) -> list[logging.LogRecord]:
    """Records of a logger that have all these words."""
    return [
        record
        for record in caplog.records
        if record.name == name and all(word in record.getMessage() for word in words)
    ]


def test_a_store_tells_what_it_does_with_path_numbers_and_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "embedrock")
    path = filled(tmp_path / "a.store")
    (opened,) = said(caplog, "embedrock.store", str(path), "opened to write at no commit")
    (made,) = said(caplog, "embedrock.commit", str(path), "committed step 1 (commit 1), 500 rows")
    (closed,) = said(caplog, "embedrock.store", str(path), "closed")
    assert [record.levelname for record in (opened, made, closed)] == ["INFO", "DEBUG", "INFO"]
    assert opened.created <= made.created <= closed.created
    assert opened.pathname.endswith("events.rs") and opened.lineno > 0
    caplog.clear()
    caplog.set_level(logging.WARNING, "embedrock")
    filled(path, 2)
    assert caplog.records == []


def test_nothing_is_printed_unless_a_program_asks_for_it(tmp_path: Path) -> None:
    program = """
        import sys, embedrock
        with embedrock.open(sys.argv[1], "4MiB", max_disk_bytes=8 << 20, check_disk=False) as store:
            table = store.table("items", 4, 500_000, optimizer="none")
            try:
                for first in range(0, 500_000, 1000):
                    table.put(range(first, first + 1000), [[1.0] * 4] * 1000)
            except embedrock.errors.FullError:
                print("full")
            store.commit(1)
    """
    done = run(program, tmp_path / "a.store")
    assert (done.stdout, done.stderr) == ("full\n", "")


def test_a_commit_in_the_background_is_told_with_the_name_of_its_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "embedrock")
    with embedrock.open(tmp_path / "a.store", "4MiB") as store:
        table = store.table("items", DIM, 1000, optimizer="sgd")
        table.put([1], np.ones((1, DIM), np.float32))
        store.commit(1, wait=False).wait()
        (made,) = said(caplog, "embedrock.commit", "committed step 1")
    assert made.threadName == "embedrock-commit"


# A record that an engine's thread hands to Python itself waits for the interpreter under a lock of
# the store, and a handler that reads the store waits for that lock with the interpreter.
def test_handlers_may_use_the_store_whose_threads_log(tmp_path: Path) -> None:
    program = """
        import logging, sys, threading
        import numpy as np
        import embedrock

        store = embedrock.open(sys.argv[1], "8MiB")
        table = store.table("items", 8, 50_000, optimizer="sgd", storage="lsm")
        handled = []

        class Reads(logging.Handler):
            def emit(self, record):
                handled.append(record.getMessage())
                if not store.closed:
                    table.get([1, 2, 3])
                    store.stats()

        logging.getLogger("embedrock").addHandler(Reads())
        logging.getLogger("embedrock").setLevel(logging.DEBUG)

        def train(seed):
            random = np.random.default_rng(seed)
            for _ in range(60):
                keys = random.integers(0, 50_000, 2000)
                table.update(keys, np.ones((2000, 8), np.float32), lr=0.1)

        threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for step in range(1, 15):
            pending = store.commit(step, wait=False)
            sys.setswitchinterval(100)  # this thread has the interpreter, and gives it to nobody
            sum(range(200_000))
            sys.setswitchinterval(0.005)
            pending.wait()
        for thread in threads:
            thread.join()
        store.commit(99)
        assert sum("committed step" in text for text in handled) == 15, handled
        assert any("merge" in text for text in handled), handled
        store.close()
        print("closed" in handled[-1])
    """
    assert run(program, tmp_path / "a.store", timeout=120).stdout == "True\n"


def test_forked_children_log_for_themselves_while_threads_of_the_parent_log(tmp_path: Path) -> None:
    program = """
        import logging, os, sys, threading, warnings
        import embedrock

        warnings.simplefilter("ignore")
        folder = sys.argv[1]
        seen = []

        class Keep(logging.Handler):
            def emit(self, record):
                seen.append(record.getMessage())

        logging.getLogger("embedrock").addHandler(Keep())
        logging.getLogger("embedrock").setLevel(logging.DEBUG)
        is_over = threading.Event()

        def busy(number):
            while not is_over.is_set():
                with embedrock.open(f"{folder}/parent{number}.store", "4MiB") as store:
                    store.table("items", 4, 10, optimizer="none").put([1], [[1.0] * 4])
                    store.commit((store.step or 0) + 1)

        threads = [threading.Thread(target=busy, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for number in range(10):
            if (child := os.fork()) == 0:
                seen.clear()
                path = f"{folder}/child{number}.store"
                with embedrock.open(path, "4MiB") as store:
                    store.table("items", 4, 10, optimizer="none")
                    store.commit(1)
                own = [text for text in seen if path in text]
                others = [text for text in seen if path not in text]
                os._exit(0 if len(own) == 3 and not others else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        is_over.set()
        for thread in threads:
            thread.join()
        print(len(seen) > 10)
    """
    assert run(program, tmp_path, timeout=120).stdout == "True\n"


def test_what_no_call_has_brought_comes_at_the_end_of_the_program(tmp_path: Path) -> None:
    program = """
        import logging, os, sys, time
        import embedrock

        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(message)s")
        store = embedrock.open(sys.argv[1], "4MiB")
        store.table("items", 4, 10, optimizer="none").put([1], [[1.0] * 4])
        threads = len(os.listdir("/proc/self/task"))
        store.commit(1, wait=False)
        # No call of the engine: the thread of the commit ends when it is made.
        while len(os.listdir("/proc/self/task")) > threads:
            time.sleep(0.01)
    """
    done = run(program, tmp_path / "a.store")
    assert "embedrock.commit" in done.stderr and "committed step 1" in done.stderr, done.stderr


def test_what_a_filter_raises_ends_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    raised: list[type[BaseException]] = [ValueError]

    def refuse(_record: logging.LogRecord) -> bool:
        raise raised[0]

    logger = logging.getLogger("embedrock.store")
    logger.addFilter(refuse)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        store = embedrock.open(tmp_path / "a.store", "4MiB")
        assert told and told[0].exc_type is ValueError
        # One of a signal comes, and behind the call.
        raised[0] = KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            store.close()
            for _ in range(1000):
                pass
    finally:
        logger.removeFilter(refuse)
        logger.setLevel(level)
    store.close()
    embedrock.open(tmp_path / "a.store", "4MiB").close()  # its lock was given up


def test_limited_lines_come_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    logger, limit = _logs.of("remote"), _logs.Limit()
    for number in range(100):
        limit.log(logger, logging.WARNING, "again %d", number)
    assert [record.getMessage() for record in caplog.records] == ["again 0"]
    limit._next = 0.0
    limit.log(logger, logging.WARNING, "again %d", 100)
    assert caplog.records[-1].getMessage() == "again 100 (and 99 like this since)"


def test_pushes_and_pulls_tell_where_they_begin_and_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("obstore")
    caplog.set_level(logging.INFO, "embedrock")
    path, pulled = filled(tmp_path / "a.store", 5), tmp_path / "b.store"
    (tmp_path / "pushes").mkdir()
    embedrock.objects.push(path, tmp_path / "pushes")
    embedrock.objects.pull(tmp_path / "pushes", pulled)
    assert len(said(caplog, "embedrock.objects", f"{path}: push begins", "pushes")) == 1
    assert len(said(caplog, "embedrock.objects", f"{path}: push 1 of step 5 is done")) == 1
    assert len(said(caplog, "embedrock.objects", f"{pulled}: pull 1 of step 5 is done")) == 1


def test_a_record_that_is_left_out_is_told_without_its_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(tmp_path / "a.store")
    with LogWriter(tmp_path / "log") as writer:
        writer.put("items", [987_654_321], np.ones((1, DIM), np.float32))
    with embedrock.open(path, "4MiB") as store, LogReader(tmp_path / "log") as source:
        assert Follower(store, source, start="begin", skip_bad=True).run(once=True).bad == 1
    (record,) = said(caplog, "embedrock.follow", str(path), "left out", "KeyRangeError")
    assert record.levelname == "WARNING"
    assert "987654321" not in caplog.text


def test_a_call_that_is_made_again_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(tmp_path / "a.store")
    with serving(path) as first, embedrock.connect(first.url, retries=1, timeout=10) as remote:
        remote["items"].get([1])
        first.process.kill()
        first.process.wait()
        with pytest.raises(embedrock.errors.IoError):
            remote["items"].get([1])
    (record,) = said(caplog, "embedrock.remote", "tried again with a new connection")
    assert record.levelname == "WARNING" and f":{first.port}" in record.getMessage()


@pytest.mark.parametrize("level", [pytest.param("error", marks=pytest.mark.long), "info", "debug"])
def test_a_server_writes_lines_of_the_level_that_is_asked_for(tmp_path: Path, level: str) -> None:
    path = filled(tmp_path / "a.store")
    (tmp_path / "password").write_text("battery-staple\n")
    options = ("--log-level", level, "--password-file", str(tmp_path / "password"), "--writable")
    with serving(path, *options) as served:
        with embedrock.connect(served.url.replace("//", "//:battery-staple@")) as remote:
            remote["items"].put([987_654_321 % 1000], np.full((1, DIM), 0.765625, np.float32))
            remote.commit()
        with pytest.raises(embedrock.errors.MisuseError, match="invalid username"):
            embedrock.connect(served.url.replace("//", "//:wrong-horse@"), retries=0)
        told = served.stop()
    lines = [line for line in told.splitlines() if not line.startswith("embedrock: ")]
    assert all(LINE.match(line) for line in lines), told
    levels = {line.split()[1] for line in lines}
    assert (
        levels
        == {"error": set(), "info": {"INFO", "WARN"}, "debug": {"INFO", "WARN", "DEBUG"}}[level]
    ), told
    assert not re.search("battery|horse|0.765625", told), told
    if level != "error":
        for words in (f"{path}: opened to write", "serving at", "gave a wrong password", "closed"):
            assert sum(words in line for line in lines) == 1, (words, told)


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="invalid choice: 'loud'"):
        start(filled(tmp_path / "a.store"), "--log-level", "loud")


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is not there any more after the block."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes nothing more."""
    reader, writer = os.pipe()
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"#" * 1023 + b"\n")
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n")
    fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    try:
        yield reader, writer
    finally:
        os.close(reader)


def test_a_server_serves_though_nobody_reads_its_standard_error(tmp_path: Path) -> None:
    path = filled(tmp_path / "a.store")
    command = [sys.executable, "-c", START, "serve", str(path), "--listen", "127.0.0.1:0"]
    command += ["--memory", "16MiB", "--log-level", "debug", "--writable", "--commit-every", "0"]
    with (
        full_pipe() as (reader, writer),
        ended(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True)
        ) as process,
    ):
        os.close(writer)
        assert process.stdout is not None
        address = process.stdout.readline().split("serving at ")[1].split(",")[0]
        with embedrock.connect(f"redis://{address}", timeout=30) as remote:
            for step in range(2, 12):
                remote["items"].put([step], np.ones((1, DIM), np.float32))
                assert remote.commit(step) == step
        taken = bytearray()

        def take() -> None:
            while part := os.read(reader, 1 << 16):
                taken.extend(part)

        taking = threading.Thread(target=take)
        taking.start()
        process.terminate()
        assert process.wait(timeout=60) == 0
        taking.join()
    lines = [line for line in taken.decode().splitlines() if line.strip("#")]
    assert any("opened to write" in line for line in lines)
    assert sum("committed step" in line for line in lines) == 10
    assert "closed" in lines[-1], lines[-3:]


# The number of a descriptor that is closed is given to the next file: one of the store.
def test_a_server_that_was_started_without_standard_error_writes_into_no_file(
    tmp_path: Path,
) -> None:
    path = filled(tmp_path / "a.store")
    command = [sys.executable, "-c", START, "serve", str(path), "--listen", "127.0.0.1:0"]
    command += ["--memory", "16MiB", "--log-level", "debug", "--writable"]
    shell = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    with ended(subprocess.Popen(shell, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split("serving at ")[1].split(",")[0]
        with embedrock.connect(f"redis://{address}", timeout=30) as remote:
            remote["items"].put([1], np.full((1, DIM), 9, np.float32))
            remote.commit()
        process.terminate()
        assert process.wait(timeout=60) == 0
    found = [file for file in path.iterdir() if b"embedrock::" in file.read_bytes()]
    assert found == [] and embedrock.check(path)["problems"] == []


def test_a_line_of_python_looks_as_one_of_the_engine() -> None:
    line = _core.log_line("warn", "embedrock.objects", "two\nlines", 1_709_251_199.5)
    assert line == "2024-02-29T23:59:59.500Z WARN embedrock::objects: two lines\n"


def test_a_follower_writes_lines_where_it_is_told_to(tmp_path: Path) -> None:
    path = filled(tmp_path / "a.store")
    with LogWriter(tmp_path / "log") as writer:
        writer.put("items", [1], np.ones((1, DIM), np.float32))
    for level, expected in (("info", True), ("warn", False)):
        command = [sys.executable, "-c", START, "follow", str(path), "--log", str(tmp_path / "log")]
        command += ["--once", "--from", "begin", "--memory", "4MiB", "--log-level", level]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        lines = [line for line in done.stderr.splitlines() if LINE.match(line)]
        assert any("opened to write" in line for line in lines) is expected, done.stderr
