"""Criteo's click logs: lines of label, 13 integers and 26 tokens, with or without a header."""

from __future__ import annotations

from pathlib import Path

from embedrock.data import criteo_lines
from embedrock.data.criteo_lines import INTEGERS, TOKENS, column_name
from embedrock.data.lines import Block


class Criteo:
    """See `streamed.Format`."""

    name = "criteo"
    features = tuple(column_name(1 + INTEGERS + token) for token in range(TOKENS))
    num_dense = INTEGERS
    targets = ("click",)

    def header_bytes(self, text: bytes, path: Path) -> int:
        """A first line that begins with `label` is a header."""
        return (text.find(b"\n") + 1 or len(text)) if text.startswith(b"label\t") else 0

    def parse(self, block: bytes) -> Block:
        """See `criteo_lines`."""
        return criteo_lines.parse(block)


CRITEO = Criteo()
