"""Reads knowledge graphs: text files with a triple a line, head, relation and tail, by tabs.

Names become ids in the order in which they occur first, block of text by block, so one set of files
always gives the same ids. Invariant: every triple that is read has ids of known names; any other
raises an error with file, line and name, or is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from embedrock._arguments import choice, flag, named_path, shown
from embedrock.data.errors import DataError
from embedrock.data.names import Names
from embedrock.data.text import whole_lines
from embedrock.data.triple_files import UNKNOWN, Unknown, files_of
from embedrock.errors import MisuseError

__all__ = ["Graph", "Names", "Triples", "Unknown", "files_of", "read"]

Triples: TypeAlias = npt.NDArray[np.int32]
"""``(N, 3)``: ids of heads, relations and tails."""


@dataclass
class Graph:
    """A knowledge graph in memory: 12 bytes per triple, and the names."""

    train: Triples
    valid: Triples
    test: Triples
    entities: Names
    relations: Names
    skipped: dict[str, int] = field(default_factory=dict)
    """By part, how many triples were left out for an unknown name, and ``lines``: malformed ones
    that were."""
    first_skipped: DataError | None = None
    """The error of the first of them."""

    def known(self) -> list[Triples]:
        """All triples: what a filtered ranking leaves out."""
        return [self.train, self.valid, self.test]


def read(
    train: str | Path,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    *,
    unknown: Unknown = "refuse",
    skip_bad_lines: bool = False,
) -> Graph:
    """Reads a knowledge graph.

    Args:
        train: The file of triples to train with, or a folder with all parts (``train.tsv``,
            ``valid.txt.gz``, ...).
        valid: The file of triples to choose a model by.
        test: The file of triples to measure it with.
        unknown: Handling of triples of ``valid`` or ``test`` with an entity or relation that
            ``train`` does not have: ``"refuse"`` raises; ``"skip"`` leaves it out and counts it in
            ``Graph.skipped``; ``"add"`` gives the name an id, whose row is never trained.
        skip_bad_lines: Leave malformed lines out and count them, instead of raising.

    Errors: ``DataError`` with file, line and name.

    >>> from pathlib import Path
    >>> _ = Path("train.tsv").write_text("rain\\tmakes\\twet\\nsun\\tmakes\\tdry\\n")
    >>> _ = Path("test.tsv").write_text("rain\\tmakes\\tdry\\nsnow\\tmakes\\twet\\n")
    >>> graph = embedrock.kge.read("train.tsv", test="test.tsv", unknown="skip")
    >>> graph.test, graph.skipped
    (array([[0, 0, 3]], dtype=int32), {'test': 1})
    >>> str(graph.first_skipped)[:52]
    "test.tsv, line 2: entity 'snow' is not in train.tsv;"
    """
    choice("unknown", unknown, UNKNOWN)
    skip = flag("skip_bad_lines", skip_bad_lines)
    given = {"train": named_path("train", train)}
    if given["train"].is_dir():
        if valid is not None or test is not None:
            raise MisuseError(
                f"train is the folder {given['train']}, whose files are found by their names; "
                f"leave valid and test out, or pass a file for each"
            )
        given = files_of(given["train"])
    else:
        for part, path in (("valid", valid), ("test", test)):
            if path is not None:
                given[part] = named_path(part, path)
    empty = np.empty((0, 3), np.int32)
    graph = Graph(empty, empty, empty, Names(), Names())
    for part, path in given.items():
        reader = _Reader(graph, given["train"], path, part, unknown, skip)
        setattr(graph, part, reader.read())
    if not len(graph.train):
        raise DataError("has no triples", path=given["train"])
    return graph


class _Reader:
    """Reads one file of a graph."""

    def __init__(
        self, graph: Graph, train: Path, path: Path, part: str, unknown: Unknown, skip: bool
    ) -> None:
        self.graph, self.train, self.path, self.part = graph, train, path, part
        self.adds = part == "train" or unknown == "add"
        self.unknown, self.skip = unknown, skip
        self.line = 0

    def read(self) -> Triples:
        blocks = [self._block(text[:-1].split(b"\n")) for _, text in whole_lines(self.path)]
        return np.concatenate(blocks) if blocks else np.empty((0, 3), np.int32)

    def _block(self, lines: list[bytes]) -> Triples:
        """The triples of some lines."""
        begin, self.line = self.line, self.line + len(lines)
        numbers: Sequence[int] = range(begin + 1, self.line + 1)
        bad = [i for i, line in enumerate(lines) if line.count(b"\t") != 2 or _has_gap(line)]
        if bad:
            for i in bad:
                self._skip("lines", numbers[i], _problem(lines[i]))
            wrong = set(bad)
            numbers = [number for i, number in enumerate(numbers) if i not in wrong]
            lines = [line for i, line in enumerate(lines) if i not in wrong]
        if not lines:
            return np.empty((0, 3), np.int32)
        names = b"\t".join(lines).split(b"\t")
        entities, relations = self.graph.entities, self.graph.relations
        ids_of = (Names.add, Names.add) if self.adds else (Names.find, Names.find)
        ends = [name for i, name in enumerate(names) if i % 3 != 1]
        found = np.array(ids_of[0](entities, ends), np.int64).reshape(-1, 2)
        kinds = np.array(ids_of[1](relations, names[1::3]), np.int64)
        if max(len(entities), len(relations)) > np.iinfo(np.int32).max:
            raise DataError("has more names than 2**31 - 1", path=self.path)
        triples = np.stack([found[:, 0], kinds, found[:, 1]], 1).astype(np.int32)
        missing = (triples < 0).any(1)
        if not missing.any():
            return triples
        for row in np.flatnonzero(missing).tolist():
            self._refuse_unknown(numbers[row], names[3 * row : 3 * row + 3], triples[row])
        return triples[~missing]

    def _refuse_unknown(self, number: int, names: list[bytes], triple: Triples) -> None:
        place = int(np.flatnonzero(triple < 0)[0])
        what = "relation" if place == 1 else "entity"
        self._skip(
            self.part,
            number,
            f"{what} {names[place].decode(errors='replace')!r} is not in {self.train.name}; "
            f'unknown="skip" leaves such triples out, unknown="add" gives them rows that are never '
            f"trained",
        )

    def _skip(self, counted: str, number: int, problem: str) -> None:
        error = DataError(problem, path=self.path, line=number)
        is_allowed = self.skip if counted == "lines" else self.unknown == "skip"
        if not is_allowed:
            raise error
        skipped = self.graph.skipped
        skipped[counted] = skipped.get(counted, 0) + 1
        self.graph.first_skipped = self.graph.first_skipped or error


def _has_gap(line: bytes) -> bool:
    return b"\t\t" in line or line[:1] == b"\t" or line[-1:] == b"\t"


def _problem(line: bytes) -> str:
    fields = line.split(b"\t")
    if len(fields) == 3:
        return "a name is empty, expected head, relation and tail, separated by tabs"
    text = shown(line[:60].decode(errors="replace"))
    return f"has {len(fields)} fields, expected 3, separated by tabs: {text}"
