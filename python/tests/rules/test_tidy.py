"""Rules of this repository that a machine can check."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from places import ROOT

SOURCES = {".rs", ".py", ".pyi", ".toml", ".sh"}
LINES_MAX = 1000
WIDTH_MAX = 100


@cache
def tracked() -> list[Path]:
    """Files under version control that exist, generated lists apart."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of the repository")
    paths = [ROOT / name for name in listed.split("\0") if name]
    generated = {"Cargo.lock"} | {path.name for path in (ROOT / "requirements").glob("*.txt")}
    return [path for path in paths if path.is_file() and path.name not in generated]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def sources(*suffixes: str) -> list[Path]:
    wanted = set(suffixes) or SOURCES
    return [path for path in tracked() if path.suffix in wanted]


def names(paths: list[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def test_no_source_file_is_longer_than_a_reader_bears() -> None:
    long = [path for path in sources() if len(text_of(path).splitlines()) >= LINES_MAX]
    assert names(long) == []


def test_no_line_is_wider_than_a_hundred_characters() -> None:
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(line) > WIDTH_MAX
    ]
    assert wide == []


def test_every_rust_file_opens_with_what_it_is_for() -> None:
    files = [path for path in sources(".rs") if path.name != "tests.rs"]
    assert names([path for path in files if not opens_with_docs(text_of(path))]) == []


def opens_with_docs(text: str) -> bool:
    lines = (line for line in text.splitlines() if line and not line.startswith("#!"))
    return next(lines, "").startswith("//!")


def test_files_with_unsafe_are_those_that_the_architecture_lists() -> None:
    code = re.compile(r"^(?!\s*//).*(\bunsafe\s*(\{|fn\b|impl\b)|#!?\[unsafe\()", re.MULTILINE)
    used = [path for path in sources(".rs") if code.search(text_of(path))]
    section = text_of(ROOT / "ARCHITECTURE.md").split("## Files with unsafe", 1)[1]
    listed = re.findall(r"^\| `([^`]+\.rs)` \|", section.split("\n## ", 1)[0], re.MULTILINE)
    assert names(used) == sorted(listed)


def test_files_with_unsafe_say_why_at_their_top() -> None:
    code = re.compile(r"^(?!\s*//).*\bunsafe\s*(\{|fn\b|impl\b)", re.MULTILINE)
    used = [path for path in sources(".rs") if code.search(text_of(path))]
    reason = re.compile(r"expect\(\s*unsafe_code,\s*reason", re.MULTILINE)
    assert names([path for path in used if not reason.search(text_of(path))]) == []


def test_nothing_is_left_to_do() -> None:
    left = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
    assert names([path for path in sources() if left.search(text_of(path))]) == []


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "index.crates" + ".io", "/wo" + "rk/"]
    found = [path for path in tracked() if any(host in text_of(path) for host in hosts)]
    assert names(found) == []
