"""The levels of the engine's modules, and what each may know of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT

CORE = ROOT / "crates" / "core"
ENGINE = CORE / "src"

LEVELS = {"io": 1, "index": 2, "cache": 3, "storage": 3, "store": 4, "laboratory": 5}
"""Modules above level 0, where all others are. Modules of one of these levels are strangers."""

PMEM = ENGINE.parents[1] / "pmem" / "src"

PARTS_OF_PMEM = (
    "error planted",
    "bucket",
    "slot_word",
    "epoch",
    "medium",
    "map",
    "region redo bucket_check",
    "hash batch put rehome check upgrade",
    "slab",
    "rows",
    "resize",
    "views",
)
"""Modules of crates/pmem by part: a module names its own part and those before it."""

OF_STORAGE = re.compile(r"(?<![\w:])storage::(\w+)")


def sources(root: Path = ENGINE) -> dict[str, str]:
    """The text of every source without its tests, by its path."""
    found = {}
    for path in sorted(root.rglob("*.rs")):
        name = str(path.relative_to(root))
        if "tests" not in name and "contract" not in name:
            found[name] = without_tests(path.read_text(encoding="utf-8"))
    return found


def without_tests(text: str) -> str:
    """A source up to its tests, without comments."""
    code = re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", text, flags=re.MULTILINE)[0]
    return re.sub(r"//[^\n]*", "", code)


def module_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".rs")


def depth_of(name: str) -> int:
    """Number of `super` from a file to the root of the crate."""
    parts = name.removesuffix(".rs").split("/")
    return len(parts) - (parts[-1] == "mod")


def uses(name: str, code: str) -> Iterator[str]:
    """Paths from the root of the crate that a source names."""
    roots = ["crate::", "super::" * depth_of(name)] if name != "lib.rs" else ["crate::"]
    for root in roots:
        for found in re.finditer(rf"(?<![\w:]){root}", code):
            yield from paths(code[found.end() :])


def paths(text: str) -> list[str]:
    """The paths that a text begins with: `a::{b, c::{d}}` are `a::b` and `a::c::d`."""
    start = re.match(r"[\w:*]*", text)
    prefix = start[0] if start else ""
    if not text[len(prefix) :].startswith("{"):
        return [prefix]
    parts, depth = [""], 0
    for letter in text[len(prefix) :]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            break
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    parts[0] = parts[0][1:]
    return [prefix + path for part in parts if part.strip() for path in paths(part.strip())]


def strangers(name: str, code: str) -> list[str]:
    """Modules named by a source that are on its level, or above."""
    own = module_of(name)
    level = LEVELS.get(own, 0)
    found = []
    for path in uses(name, code):
        other = path.split("::")[0]
        allowed = other == own or LEVELS.get(other, 0) < max(level, 1)
        if not allowed:
            found.append(f"{name} (level {level}) names {path} (level {LEVELS[other]})")
    return found


def test_modules_name_lower_levels_alone() -> None:
    texts = sources()
    assert {*LEVELS} <= {module_of(name) for name in texts}
    assert len(texts) > 100
    del texts["lib.rs"]
    assert [line for name, code in texts.items() for line in strangers(name, code)] == []


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("config/options.rs", "pub use crate::cache::PolicyKind;"),
        ("metrics.rs", "use crate::storage::log::ReadReport;"),
        ("io/mod.rs", "use crate::index::DenseIndex;"),
        ("io/sim/device.rs", "use super::super::super::store::Store;"),
        ("cache/sets.rs", "fn find() { crate::storage::log::page_of(1) }"),
        ("storage/log/mod.rs", "use crate::cache::Cache;"),
        ("permits/state.rs", "use crate::{config::TableId, store::Inner};"),
    ],
)
def test_a_planted_use_is_found(name: str, planted: str) -> None:
    code = sources()[name]
    assert len(strangers(name, f"{code}\n{without_tests(planted)}\n")) == 1


def layouts_and_indexes(name: str, code: str) -> list[str]:
    """Paths that a source of the store names of one layout, or of the indexes that layouts have."""
    layouts = {path.name for path in (ENGINE / "storage").iterdir() if path.is_dir()}
    assert "log" in layouts
    inner = [("storage", layout) for layout in layouts] + [("index",)]
    # Paths that begin with an imported `storage`.
    named = [*uses(name, code), *(f"storage::{found[1]}" for found in OF_STORAGE.finditer(code))]
    parts = [tuple(path.split("::")) for path in named]
    return ["::".join(path) for path in parts if any(path[: len(i)] == i for i in inner)]


def test_the_store_names_no_layout_and_no_index() -> None:
    texts = {name: code for name, code in sources().items() if module_of(name) == "store"}
    found = {name: layouts_and_indexes(name, code) for name, code in texts.items()}
    assert {name: paths for name, paths in found.items() if paths} == {}
    planted = [
        "use crate::storage::log::ClassLog;",
        "use crate::storage::{Storage, log::ClassLog};",
        "use crate::{error::Result, storage::{log::{ClassLog, Writer}, Storage}};",
        "fn make() { storage::log::create() }",
        "use crate::index::DenseIndex;",
    ]
    for line in planted:
        assert layouts_and_indexes("store/open.rs", f"{texts['store/open.rs']}\n{line}") != []


def test_the_parts_of_pmem_name_those_before_them_alone() -> None:
    texts = {name: code for name, code in sources(PMEM).items() if name != "shadow.rs"}
    del texts["lib.rs"]
    place = {module: at for at, part in enumerate(PARTS_OF_PMEM) for module in part.split()}
    assert {module_of(name) for name in texts} == {*place}

    def upwards(name: str, code: str) -> list[str]:
        return [path for path in uses(name, code) if place[path.split("::")[0]] > place[name[:-3]]]

    assert [path for name, code in texts.items() for path in upwards(name, code)] == []
    planted = f"{texts['hash.rs']}\nuse crate::{{error::Error, rows::Rows}};"
    assert upwards("hash.rs", planted) == ["rows::Rows"]


@pytest.mark.parametrize("crate", ["placement", "pmem", "schedule"])
def test_crates_of_pure_parts_see_no_other_crate_of_ours(crate: str) -> None:
    manifest = (ENGINE.parents[1] / crate / "Cargo.toml").read_text(encoding="utf-8")
    assert "embedrock-" not in manifest.replace(f'name = "embedrock-{crate}"', "")
    assert "path =" not in manifest


CRATES = {
    "attached": {"core"},
    "core": {"pmem"},
    "placement": set(),
    "pmem": set(),
    "python": {"core", "placement", "schedule", "server", "torture"},
    "schedule": set(),
    "server": {"core", "pmem"},
    "torture": {"core"},
}
"""Crates of the workspace, and those that each uses; the server uses pmem in an example alone."""


def test_crates_use_each_other_as_the_architecture_draws_them() -> None:
    manifests = {path.parent.name: path.read_text() for path in CORE.parent.glob("*/Cargo.toml")}
    used = {
        crate: {*re.findall(r"^embedrock-(\w+) = ", text, re.MULTILINE)}
        for crate, text in manifests.items()
    }
    assert used == CRATES


def test_the_server_uses_what_every_program_may_use_of_the_engine() -> None:
    manifest = (CORE.parent / "server" / "Cargo.toml").read_text()
    (line,) = re.findall(r"^embedrock-core = .*$", manifest, re.MULTILINE)
    assert line == 'embedrock-core = { path = "../core" }', "no features: those open the inside"


LOGS = re.compile(
    r"^\s*use log::\{?|(?<![\w:])(?<!&)\blog::(?:error|warn|info|debug|trace|log)!", re.M
)
"""The crate `log`; a module of storage has the same name."""
TELLS = re.compile(r"\bevents::|\.log_[a-z]+\(|\bSweep::")
"""Calls of what a store logs."""

QUIET = ("cache/", "index/", "storage/", "optimizer/", "permits/", "io/", "store/verbs/")
"""Modules that look rows up, read, change, pack and write them: a log record there would be written
for each row."""


def test_what_is_logged_is_in_one_file_and_none_of_it_where_rows_are_read_and_changed() -> None:
    texts = sources()
    assert {name for name, code in texts.items() if LOGS.search(code)} == {"store/events.rs"}
    assert {name for name, code in texts.items() if TELLS.search(code)} > {"store/open.rs"}
    assert [
        name for name, code in texts.items() if name.startswith(QUIET) and TELLS.search(code)
    ] == []
    assert all(any(name.startswith(quiet) for name in texts) for quiet in QUIET)


@pytest.mark.parametrize(
    "planted", ["use log::info;", 'fn f() { log::debug!("row"); }', "    use log::{info, warn};"]
)
def test_a_planted_line_of_the_log_is_found(planted: str) -> None:
    assert LOGS.search(f"{sources()['store/verbs/rows.rs']}\n{planted}")
    assert TELLS.search("self.log_refused(error)") and TELLS.search("events::recovered(path)")


def test_a_server_logs_from_one_file() -> None:
    texts = sources(CORE.parent / "server" / "src")
    found = {name for name, code in texts.items() if LOGS.search(code)}
    assert found == {"events.rs", "logs/mod.rs", "logs/lines.rs"}
