"""Pages for people: their links lead somewhere, their lines are short, what is made is up to date.

Needs neither the network nor Sphinx: links are those of files, anchors those that headings get
where the repository is browsed and on the site.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import embedrock
from places import ROOT

WIDTH_MAX = 120
LINK = re.compile(r"(?<!!)\[(?:[^][]|\[[^]]*\])*\]\(([^)\s]+)\)|!\[[^]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    beside = [*ROOT.glob("*.md"), *(ROOT / "lab").glob("**/README.md")]
    beside.append(ROOT / "examples" / "README.md")
    return sorted([*beside, *(ROOT / "docs").rglob("*.md")])


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", prose(page), re.MULTILINE):
        slug = slugged(heading)
        number = 0
        while slug in found:
            number += 1
            slug = f"{slugged(heading)}-{number}"
        found.add(slug)
    return found


def slugged(heading: str) -> str:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [first or second for first, second in LINK.findall(text)]


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{name(page)}: {link}: there is no {path}")
        elif anchor and anchor not in anchors(target):
            found.append(f"{name(page)}: {link}: {name(target)} has no heading of that name")
    return found


def test_every_link_leads_to_a_file_and_a_heading_that_are_there() -> None:
    assert sum(len(links(page)) for page in pages()) > 150
    assert [one for page in pages() for one in broken(page)] == []


def test_a_link_that_leads_nowhere_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# What `it` is: a page\n[a](page.md#what-it-is-a-page) [b](#what) [c](none.md)\n"
        "```\n[d](none.md)\n```\n![e](none.png) `[f](none.md)` [g](https://example.org/none)\n"
    )
    assert [one.split(": ")[1] for one in broken(page)] == ["#what", "none.md", "none.png"]


def test_no_line_of_a_page_is_wider_than_a_hundred_and_twenty_characters() -> None:
    wide = [
        f"{name(page)}:{number}"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > WIDTH_MAX
    ]
    assert wide == []


def test_pages_that_are_made_from_something_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_every_page_of_docs_is_on_the_site() -> None:
    contents = (ROOT / "docs" / "contents.rst").read_text()
    listed = set(re.findall(r"^   ([\w./-]+)$", contents, re.MULTILINE))
    laboratory = (ROOT / "lab" / "README.md").read_text()
    listed |= set(re.findall(r"^\.\./docs/([\w./-]+)$", laboratory, re.MULTILINE))
    expected = {str(page.relative_to(ROOT / "docs"))[:-3] for page in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in expected if page.startswith("decisions/0")}
    assert expected - decisions - {"index"} <= listed
    assert "decisions/0*" in contents
    for page in listed:
        assert (ROOT / "docs" / f"{page}.md").exists(), page


def test_the_reference_has_every_public_name() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^<!-- reference: (embedrock\.[\w.]+) -->$", text, re.MULTILINE))
    whole_modules = {"errors", "initializers", "nn", "optim", "optimizers", "placement"}
    whole_modules |= {"distributed", "follow", "kge", "objects", "trace", "weights"}
    single = set(embedrock.__all__) - whole_modules - {"__version__"}
    single -= set(embedrock.errors.__all__)  # of a module that is listed whole
    assert {f"embedrock.{one}" for one in single} <= listed
    for module in ("follow", "kge", "nn", "objects", "optim", "placement", "trace", "weights"):
        source = ROOT / "python" / "embedrock" / module / "__init__.py"
        block = re.search(r"__all__ = \[(.*?)\]", source.read_text(), re.DOTALL)
        assert block is not None
        names = re.findall(r'"(\w+)"', block[1])
        assert {f"embedrock.{module}.{one}" for one in names} <= listed
    for module in ("errors", "initializers", "optimizers"):
        assert f"embedrock.{module}" in listed


def test_the_page_of_errors_has_every_exception() -> None:
    page = (ROOT / "docs" / "how-to" / "when-something-breaks.md").read_text()
    table = set(re.findall(r"^\| `(\w+Error)`", page, re.MULTILINE))
    kinds = {one for one in embedrock.errors.__all__ if one.endswith("Error")}
    assert table == kinds - {"EmbedrockError"}
    assert "UncommittedWarning" in page


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def results_script(*arguments: object) -> str:
    command = [sys.executable, str(ROOT / "lab" / "scripts" / "results.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_figures_of_every_machine_are_those_that_have_a_meaning() -> None:
    folder = ROOT / "docs" / "results"
    known = [one["figure"] for one in json.loads((folder / "aims.json").read_text())]
    assert len(set(known)) == len(known) > 30
    machines = sorted(path for path in folder.glob("*.json") if path.name != "aims.json")
    assert len(machines) >= 3
    for path in machines:
        assert set(json.loads(path.read_text())["figures"]) <= set(known), path.name
    definitions = (ROOT / "docs" / "benchmarks.md").read_text()
    defined = "".join(re.findall(r"`[^`]+`", definitions))
    families = ("vs_", "ahead_vs_", "warm_")  # the definition ends them with an ellipsis
    plain = [one.removesuffix("_without_lookahead") for one in known]
    assert [one for one in plain if one not in defined and not one.startswith(families)] == []


def test_reports_of_benches_go_to_a_machines_file(tmp_path: Path) -> None:
    report, machine = tmp_path / "report.json", tmp_path / "mine.json"
    report.write_text(json.dumps({"figures": {"miss_ratio": 1.5, "of no page": 2}, "notes": []}))
    results_script(machine, report)
    assert json.loads(machine.read_text())["figures"] == {"miss_ratio": 1.5}
    report.write_text(json.dumps({"figures": {"miss_cpu_us": 4.0}}))
    results_script(machine, report)
    assert json.loads(machine.read_text())["figures"] == {"miss_ratio": 1.5, "miss_cpu_us": 4.0}
