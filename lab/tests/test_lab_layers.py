"""Allowed dependencies between the parts of the laboratory."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1] / "embedrock_lab"
KNOWN = {
    "measure": {"measure"},
    "demo": {"demo", "measure"},
    "bench": {"bench", "demo", "measure"},
    "commands": {"commands", "bench", "demo", "measure"},
}
"""Parts of the package that each part may import."""


def imports(path: Path) -> Iterator[list[str]]:
    """The modules of the laboratory that a module imports, but for annotations alone."""
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("embedrock_lab"):
            for alias in node.names:
                yield f"{node.module}.{alias.name}".split(".")[1:]
        left += ast.iter_child_nodes(node)


@pytest.mark.parametrize("part", KNOWN)
def test_a_part_imports_those_below_it(part: str) -> None:
    paths = list((LAB / part).rglob("*.py"))
    assert len(paths) > 1, f"{part} has no modules: is it still there?"
    found = {(str(path), names[0]) for path in paths for names in imports(path)}
    assert {(path, other) for path, other in found if other not in KNOWN[part]} == set()


def test_benches_import_each_other_without_a_circle() -> None:
    bench = LAB / "bench"
    graph: dict[str, set[str]] = {}
    for path in bench.rglob("*.py"):
        own = path.relative_to(bench).with_suffix("").parts[0]
        used = {names[1] for names in imports(path) if names[0] == "bench"}
        graph.setdefault(own, set()).update(used - {own})
    graph = {own: used & graph.keys() for own, used in graph.items()}
    assert graph["training"] >= {"replay", "zipf"}, "imports are no longer found"
    while graph:
        free = {own for own, used in graph.items() if not used}
        assert free, f"a circle goes through some of {sorted(graph)}"
        graph = {own: used - free for own, used in graph.items() if own not in free}
