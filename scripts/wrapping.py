"""Wraps Markdown at 100 characters, for `pages.py` and `reference.py`."""

from __future__ import annotations

import re

WIDTH = 100

# At the start of a line these would begin something other than text.
BEGINNING = re.compile(r"([*+>|=:-]|#+|\d+[.)])$|[|>#]|```|:::|<")


def filled(words: list[str], first: str = "", rest: str = "") -> list[str]:
    """The words as lines that begin with ``first``, and then with ``rest``."""
    out, line = [], first
    for word in words:
        full = len(line) + 1 + len(word) > WIDTH and line not in (first, rest)
        if full and not BEGINNING.match(word):
            out.append(line)
            line = rest
        line += word if line in (first, rest) else f" {word}"
    return [*out, line]
