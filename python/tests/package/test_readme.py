"""The README's example runs as it stands, and what a package index shows is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import embedrock
from places import ROOT

torch = pytest.importorskip("torch")

README = ROOT / "README.md"
INDEX = ROOT / "python" / "README.md"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_example_trains_and_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = examples(README)
    assert len(blocks) == 1
    monkeypatch.chdir(tmp_path)
    for _ in ("trains", "has nothing left to do"):
        torch.manual_seed(0)
        names: dict[str, Any] = {}
        exec(compile(blocks[0], str(README), "exec"), names)
        ids = torch.cat([ids for ids, _ in names["batches"]]).unique()
        with embedrock.open("model.store", "10%", create=False) as store:
            assert store.step == 9
            assert store.table("items").contains(ids.numpy()).all()


def test_a_package_index_shows_the_same_example() -> None:
    assert examples(INDEX) == examples(README)


# An index knows no files of the repository: a link to docs/tutorial.md would lead nowhere.
def test_links_that_a_package_index_shows_are_whole_and_lead_to_files() -> None:
    home = "https://github.com/embedrock/embedrock/blob/main/"
    links = re.findall(r"\]\((.*?)\)", INDEX.read_text())
    links += re.findall(rf'"({home}.*?)"', (ROOT / "pyproject.toml").read_text())
    assert len(links) >= 7
    paths = [link.removeprefix(home) for link in links]
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_a_citation_names_the_version_of_the_package() -> None:
    found = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found is not None and found[1] == embedrock.__version__
