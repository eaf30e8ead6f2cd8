"""Brings generated parts of pages up to date: `make pages`, or `--check` to only compare.

Four things are done to each page, and nothing else is changed:

* A block that opens with ```python title="examples/NAME.py", or ```go with a file in Go, gets the
  content of that file.
* Text between `<!-- results: NAME -->` and `<!-- end -->` is made from `docs/results/*.json`
  (`lab/scripts/results.py`), and for names that begin with `beyond_` by `lab/scripts/beyond.py`.
* Text between `<!-- reference: NAME -->` and `<!-- end -->` is made from the signatures and
  docstrings of that public name (`scripts/reference.py`).
* A paragraph or list item with a line above 120 characters is wrapped at 100. Tables and code stay.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "lab" / "scripts"))

import beyond  # noqa: E402
import reference  # noqa: E402
import results  # noqa: E402
import wrapping  # noqa: E402

WIDTH_MAX = 120

EXAMPLE = re.compile(
    r'(```(?:python|go) title="(examples/[\w/]+\.(?:py|go))"\n).*?(^```$)', re.DOTALL | re.MULTILINE
)
MADE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
DESCRIBED = re.compile(r"(<!-- reference: (embedrock[\w.]*) -->\n).*?(<!-- end -->)", re.DOTALL)
ITEM = re.compile(r"(\s*)([*+-]|\d+\.)\s+")


def pages(root: Path = ROOT) -> list[Path]:
    """Every page for people: those of `docs` and those beside the code."""
    beside = [
        *root.glob("*.md"),
        *(root / "lab").glob("**/README.md"),
        root / "examples" / "README.md",
    ]
    return sorted([*beside, *(root / "docs").rglob("*.md")])


def brought_up_to_date(text: str) -> str:
    """The page as it should be."""
    text = EXAMPLE.sub(lambda found: found[1] + (ROOT / found[2]).read_text() + found[3], text)
    text = MADE.sub(lambda found: found[1] + table(found[2]) + found[3], text)
    text = DESCRIBED.sub(lambda found: found[1] + reference.made(found[2]) + found[3], text)
    return wrapped(text)


def table(name: str) -> str:
    """The Markdown of the table of that name."""
    return beyond.made(name) if name.startswith("beyond_") else results.made(name)


def wrapped(text: str) -> str:
    """The page with its wide paragraphs and list items wrapped."""
    out: list[str] = []
    block: list[str] = []
    fence = ""
    for line in [*text.split("\n"), None]:
        opens = None if line is None else re.match(r"\s*(```+|~~~+)", line)
        if fence:
            assert line is not None, "a block of code has no end"
            out.append(line)
            fence = "" if opens and line.strip() == fence else fence
            continue
        ends = line is None or not line.strip() or opens or re.match(r"\s*[|#<]|---", line)
        if block and (ends or (line is not None and ITEM.match(line))):
            out += wrap_block(block)
            block = []
        if opens:
            fence = opens[1]
        if line is None:
            break
        if ends:
            out.append(line)
        else:
            block.append(line)
    return "\n".join(out)


def wrap_block(lines: list[str]) -> list[str]:
    """One paragraph or list item, wrapped where a line is too wide."""
    if all(len(line) <= WIDTH_MAX for line in lines):
        return lines
    item = ITEM.match(lines[0])
    quote = "> " if lines[0].startswith("> ") else ""
    first = item[0] if item else quote or re.match(r"\s*", lines[0])[0]
    rest = " " * len(first) if item else first
    words = " ".join(line.removeprefix(quote).strip() for line in lines).removeprefix(first.strip())
    return wrapping.filled(words.split(), first, rest)


def main() -> int:
    """Writes the pages, or with `--check` names those that are not as they should be."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for page in pages():
        text = page.read_text()
        new = brought_up_to_date(text)
        if new == text:
            continue
        stale.append(str(page.relative_to(ROOT)))
        if not check:
            page.write_text(new)
    for name in stale:
        print(f"{name} is not up to date: make pages" if check else f"{name} is written anew")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
