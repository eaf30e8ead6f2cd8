"""The status page: that it is whole by itself, and that its numbers are those of a real load."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedrock
from places import ROOT
from servers import Served, serving

DOCS = ROOT / "docs" / "how-to" / "server.md"
NUMBER, SIZE, TEXT, YES, NONE = (int, float), int, str, bool, type(None)


def each(names: str, kind: Any) -> dict[str, Any]:
    """Fields of one kind."""
    return dict.fromkeys(names.split(), kind)


COLUMNS = {
    **each(
        "unix_s rows_read_per_s rows_written_per_s requests_per_s errors_per_s device_reads_per_s "
        "device_read_bytes_per_s device_written_bytes_per_s received_bytes_per_s "
        "sent_bytes_per_s",
        NUMBER,
    ),
    **each("hit_rate request_p50_s request_p99_s device_share", (*NUMBER, NONE)),
    **each("connections memory_bytes disk_bytes", SIZE),
}
SCHEMA: dict[str, Any] = {
    "version": SIZE,
    "server": {
        "embedrock_version": TEXT,
        "address": TEXT,
        "tls": YES,
        "writable": YES,
        "pinned": YES,
        "threads": SIZE,
        "gather": TEXT,
        "gather_modes": TEXT,
        "certificate_end_unix_s": (SIZE, NONE),
        "process_id": SIZE,
        "uptime_s": NUMBER,
    },
    "problem": (TEXT, NONE),
    "warning": (TEXT, NONE),
    "connections": each(
        "open max accepted rejected malformed timed_out overflowed wrong_passwords memory_bytes "
        "memory_bytes_max",
        SIZE,
    ),
    "requests": {
        **each("all errors received_bytes sent_bytes", SIZE),
        "by_command": dict,
    },
    "rows": each("read missing put updated promoted", SIZE),
    "last_task": {
        "kind": TEXT,
        "unix_s": NUMBER,
        "seconds": NUMBER,
        "step": (SIZE, NONE),
        "failure": (TEXT, NONE),
    },
    "store": {
        "name": TEXT,
        "path": TEXT,
        "unix_s": NUMBER,
        "commit": {"step": SIZE, "sequence": SIZE, "unix_s": SIZE},
        "uncommitted": {"batches": SIZE, "rows": SIZE},
        **each("hits rescued misses budget_bytes", SIZE),
        "memory": each("cache_bytes index_bytes buffer_bytes staging_bytes window_bytes", SIZE),
        "disk": {
            "all_bytes": SIZE,
            "max_bytes": (SIZE, NONE),
            "cold_directory": (TEXT, NONE),
            "parts": [
                {"class": SIZE, "storage": TEXT, "row_bytes": SIZE, "tables": [TEXT], "bytes": SIZE}
            ],
            "other_bytes": SIZE,
        },
        "written": each("rows moved pages deltas pieces commits state", SIZE),
        "device": {
            "io": TEXT,
            "direct": YES,
            "curve": (dict, NONE),
            "notes": [TEXT],
            **each("reads read_bytes written_bytes", SIZE),
        },
        "tables": [
            {
                **each("name storage dtype optimizer", TEXT),
                **each("embedding_dim rows row_bytes", SIZE),
                "num_embeddings": (SIZE, NONE),
            }
        ],
    },
    "history": {
        "every_s": NUMBER,
        "first": SIZE,
        "next": SIZE,
        **{name: [kind] for name, kind in COLUMNS.items()},
    },
}


def check(found: Any, expected: Any, where: str = "") -> None:
    """Every field is there, none is that has no description, and each is of its kind."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        assert set(found) == set(expected), where
        for name, kind in expected.items():
            check(found[name], kind, f"{where}.{name}")
    elif isinstance(expected, list):
        assert isinstance(found, list), where
        for i, value in enumerate(found):
            check(value, expected[0], f"{where}[{i}]")
    else:
        assert isinstance(found, expected), f"{where} is {found!r}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose rows are more than the memory that it is served with."""
    path = tmp_path / "watched.store"
    with embedrock.open(path, "16MiB") as store:
        user = store.table("user", 64, 60_000, optimizer="adagrad", initializer=0.0)
        key = store.table("key", 8, None, optimizer="sgd", storage="lsm", expected_rows=10_000)
        for first in range(0, 60_000, 10_000):
            user.put(np.arange(first, first + 10_000), np.ones((10_000, 64), np.float32))
        key.put(np.arange(5000), np.ones((5000, 8), np.float32))
        store.commit(step=12)
    return path


def at(served: Served) -> str:
    """The address of the page, as the command prints it."""
    assert served.process.stdout is not None
    line = served.process.stdout.readline()
    found = re.fullmatch(r"status page at (http://127\.0\.0\.1:\d+/), metrics at \1metrics\n", line)
    assert found, line
    return found[1]


def status(url: str, since: int = 0) -> Any:
    with urllib.request.urlopen(f"{url}status.json?since={since}", timeout=20) as reply:
        assert reply.headers["Content-Type"] == "application/json"
        return json.loads(reply.read())


def until(url: str, is_so: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 30
    while not is_so(found := status(url)):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def test_numbers_of_a_load_are_told_and_add_up(store: Path) -> None:
    options = ("--metrics", "127.0.0.1:0", "--writable", "--memory", "12MiB")
    with serving(store, *options) as served:
        url, ends = at(served), threading.Event()
        with embedrock.connect(served.url) as remote:
            user = remote["user"]

            def load() -> None:
                random, gradients = np.random.default_rng(7), np.ones((20, 64), np.float32)
                while not ends.is_set():
                    user.get(random.integers(0, 60_000, 500))
                    user.update(random.integers(0, 60_000, 20), gradients, lr=0.1)

            thread = threading.Thread(target=load)
            thread.start()
            try:
                with pytest.raises(embedrock.errors.EmbedrockError):
                    remote._call(b"EMB.NOTHING", repeats=False)
                remote.commit()
                found = until(
                    url,
                    lambda now: (
                        len(now["history"]["unix_s"]) > 1
                        and (now["store"]["commit"] or {}).get("step") == 13
                    ),
                )
            finally:
                ends.set()
                thread.join()
        check(found, SCHEMA)
        last = {name: found["history"][name][-1] for name in COLUMNS}
        assert 500 * last["requests_per_s"] > last["rows_read_per_s"] > 500
        assert 0 < last["rows_written_per_s"] < last["rows_read_per_s"] / 10
        assert 0 < last["hit_rate"] < 1
        assert 1e-6 < last["request_p50_s"] <= last["request_p99_s"] < 10
        assert last["device_reads_per_s"] > 10
        assert last["sent_bytes_per_s"] > 200 * last["rows_read_per_s"]
        assert abs(time.time() - last["unix_s"]) < 60

        now = found["store"]
        assert (now["name"], now["path"]) == ("watched.store", str(store))
        assert sum(now["memory"].values()) == last["memory_bytes"] <= now["budget_bytes"]
        assert now["budget_bytes"] <= 12 << 20
        parts = {part["storage"]: part for part in now["disk"]["parts"]}
        assert (parts["log"]["tables"], parts["lsm"]["tables"]) == (["user"], ["key"])
        in_parts = sum(part["bytes"] for part in now["disk"]["parts"])
        assert in_parts + now["disk"]["other_bytes"] == now["disk"]["all_bytes"]
        assert [(t["name"], t["rows"], t["num_embeddings"]) for t in now["tables"]] == [
            ("user", 60_000, 60_000),
            ("key", 5000, None),
        ]
        assert found["problem"] is None and found["requests"]["errors"] >= 1
        assert found["last_task"]["kind"] == "commit" and found["last_task"]["step"] == 13
        assert found["requests"]["by_command"]["EMB.COMMIT"] == 1
        assert found["rows"]["read"] > 1000 < found["rows"]["updated"]

        newest = status(url, found["history"]["next"])["history"]
        assert newest["first"] == found["history"]["next"]
        assert len(newest["unix_s"]) == newest["next"] - newest["first"] < 30
        served.stop()


def test_a_commit_that_fails_is_told(store: Path) -> None:
    with serving(store, "--metrics", "127.0.0.1:0", "--refresh-every", "0.2") as served:
        url = at(served)
        assert until(url, lambda now: now["last_task"] is not None)["problem"] is None
        store.rename(store.with_name("away"))
        found = until(url, lambda now: now["last_task"]["failure"] is not None)
        assert found["last_task"]["kind"] == "refresh"
        assert str(store) in found["last_task"]["failure"]
        # The reason against all refreshes is reported first.
        assert found["problem"].startswith(f"the folder that was opened at {store} is at ")


def test_every_field_is_in_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    section = text[text.index("## Watch it") : text.index("## Hot rows")]
    named = set(re.findall(r"[a-z_0-9]+", section))

    def names(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return names(schema[0])
        if not isinstance(schema, dict):
            return set()
        return set(schema).union(*(names(value) for value in schema.values()))

    assert not names(SCHEMA) - named


class Page(html.parser.HTMLParser):
    """Elements of a page, as far as the rules for it go."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.bodies: dict[str, str] = {}
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        self.bodies[self._in] = self.bodies.get(self._in, "") + data


def hash_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_is_whole_by_itself_and_its_policy_lets_nothing_else_in(store: Path) -> None:
    with (
        serving(store, "--metrics", "127.0.0.1:0") as served,
        urllib.request.urlopen(at(served), timeout=20) as reply,
    ):
        headers, text = reply.headers, reply.read().decode()
    page = Page()
    page.feed(text)
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    # The hash in `status/mod.rs` is of what stands between the tags in `status/page.html`.
    assert policy == {
        "default-src": "'none'",
        "script-src": f"'sha256-{hash_of(page.bodies['script'])}'",
        "style-src": f"'sha256-{hash_of(page.bodies['style'])}'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == tags.count("style") == 1
    assert not set(tags) & {"iframe", "object", "embed", "img", "base", "form"}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href", "action", "srcset"):
            assert re.match(r"data:|[a-z.]+$", attributes.get(name) or "data:"), attributes
    # The namespace in the icon is a name, and no address that anybody asks.
    assert re.findall(r"\w+://[^'\"\s]*", text) == ["http://www.w3.org/2000/svg"] * 2
    assert "@import" not in text and "url(" not in text


def test_the_page_has_what_keyboards_and_screen_readers_need() -> None:
    source = ROOT / "crates" / "server" / "src" / "status" / "page.html"
    page = Page()
    page.feed(source.read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    by_tag = {tag: attributes for tag, attributes in page.tags}
    assert by_tag["html"]["lang"] == "en"
    viewport = [a["content"] for t, a in page.tags if t == "meta" and a.get("name") == "viewport"]
    assert viewport == ["width=device-width, initial-scale=1"]
    for tag, attributes in page.tags:
        if tag in ("section", "table", "nav"):
            label = attributes.get("aria-labelledby")
            assert label in ids if label else attributes.get("aria-label"), attributes
        if tag == "th" and attributes.get("scope") is None:
            raise AssertionError(f"a head of a table says not what it is of: {attributes}")
    script = page.bodies["script"]
    used = set(re.findall(r"\$\('([a-z-]+)'\)", script))
    assert used <= set(ids), used - set(ids)
    for needed in ("role: 'slider'", "'aria-label'", "'aria-valuetext'", "tabindex: '0'"):
        assert needed in script
    assert "prefers-color-scheme: dark" in page.bodies["style"]
