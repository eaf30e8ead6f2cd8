"""The groups of the Python package, lowest first, and what their modules may know of each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from places import ROOT

PACKAGE = ROOT / "python" / "embedrock"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

GROUPS = {
    "values": "_core _optional errors _arguments _arrays _distinct _durable _hashing _keys "
    "_listeners _loading _logs _made_keys _memory _names _ranks _references _rows _warnings "
    "_workers _wrapped clip commits initializers optimizers",
    "data": "data",
    "trace": "trace",
    "observe": "observe",
    "ahead": "ahead",
    "store": "_verbs table store",
    "remote": "remote",
    "files": "checkpoint weights _states",
    "follow": "follow",
    "objects": "objects",
    "placement": "placement",
    "pipeline": "pipeline",
    "distributed": "distributed",
    "nn": "nn",
    "optim": "optim",
    "kge": "kge",
    "package": "",
    "adapters": "adapters",
    "models": "models",
    "report": "report",
    "training": "training",
    "commands": "cli __main__",
}
"""Modules and packages by group; a group imports itself and those above it in this list."""

NAMES_OF_TYPES = {
    ("observe", "store"),  # reports on a store are made with it
    ("ahead", "store"),
    ("trace", "store"),
}
"""Groups that name a higher one in annotations alone, under ``TYPE_CHECKING``."""


@cache
def modules() -> dict[str, Path]:
    """Every module by its name within the package, which is "" itself."""
    return {name_of(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}


def name_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def group_of(module: str) -> str:
    first = module.partition(".")[0]
    found = [group for group, names in GROUPS.items() if first in (names.split() or [""])]
    assert len(found) == 1, f"{module} is in the groups {found}, expected one of GROUPS"
    return found[0]


def imports(text: str, known: set[str]) -> Iterator[tuple[str, bool]]:
    """Imports of a source from the package, within functions too, and whether for types alone."""

    def visit(node: ast.AST, types: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, True)
            for child in node.orelse:
                yield from visit(child, types)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "embedrock":
                    yield alias.name.partition(".")[2], types
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno} imports relatively"
            first, _, package = (node.module or "").partition(".")
            if first == "embedrock":
                for alias in node.names:
                    module = f"{package}.{alias.name}".lstrip(".")
                    yield module if module in known else package, types
        for child in ast.iter_child_nodes(node):
            yield from visit(child, types)

    return visit(ast.parse(text), False)


def upward(module: str, text: str) -> list[str]:
    """Imports of a source that lead to a higher group."""
    order, own, found = list(GROUPS), group_of(module), []
    for other, types in imports(text, {*modules(), "_core"}):
        group = group_of(other)
        allowed = types and (own, group) in NAMES_OF_TYPES
        if order.index(group) > order.index(own) and not allowed:
            found.append(f"{module or 'embedrock'} ({own}) imports {other} ({group})")
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules on a way that leads back to where it began; none where there is no such way."""
    left = {module: {*others} - {module} for module, others in graph.items()}
    while True:
        used = {other for others in left.values() for other in others}
        inner = {module for module, others in left.items() if others & {*left} and module in used}
        if len(inner) == len(left):
            return sorted(left)
        left = {module: left[module] & inner for module in inner}


def private_writes(text: str) -> list[str]:
    """Places where a private field of something else than ``self`` is written."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, (ast.Store, ast.Del))
            and node.attr.startswith("_")
            and not node.attr.endswith("__")
            and ast.unparse(node.value) not in ("self", "cls")
        ):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_every_module_is_in_a_group_and_every_group_has_modules() -> None:
    there = {module.partition(".")[0] for module in modules()} | {"_core"}
    listed = [name for names in GROUPS.values() for name in names.split() or [""]]
    assert sorted(listed) == sorted(there)


def test_imports_lead_to_lower_groups_alone() -> None:
    found = [
        line for module, path in modules().items() for line in upward(module, path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        "from embedrock.pipeline.run import Run",
        "from embedrock import pipeline",
        "import embedrock.pipeline",
        "def later():\n    from embedrock.pipeline import run",
        "if TYPE_CHECKING:\n    from embedrock.nn import Embedding",
    ],
)
def test_a_planted_import_upward_is_found(planted: str) -> None:
    text = modules()["store.store"].read_text()
    assert len(upward("store.store", f"{text}\n{planted}\n")) == 1


def test_modules_import_each_other_in_no_circle() -> None:
    known = {*modules(), "_core"}
    graph = {
        module: {other for other, types in imports(path.read_text(), known) if not types}
        for module, path in modules().items()
    }
    assert circle(graph) == []
    # The search finds a planted circle.
    graph["_arguments"].add("store.store")
    assert {"_arguments", "_verbs", "store.store", "table"} <= {*circle(graph)}


def test_no_module_needs_the_laboratory() -> None:
    # It is not in the wheel: the command line looks for it by name.
    imported = re.compile(r"(from|import) embedrock_lab")
    found = [one for one, path in modules().items() if imported.search(path.read_text())]
    assert found == []
    assert "embedrock_lab" in modules()["cli.laboratory"].read_text()


def test_no_module_writes_the_private_fields_of_others() -> None:
    # `Store._run` was written by the pipeline: the lowest level was tied to the highest.
    found = {module: private_writes(path.read_text()) for module, path in modules().items()}
    assert {module: lines for module, lines in found.items() if lines} == {}
    assert private_writes("self._store._run = run")


def test_the_architecture_has_the_same_groups_in_the_same_order() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    rows = text.split("## Groups of the Python package")[1].split("\n## ")[0]
    listed = [line.split("`")[1] for line in rows.splitlines() if line.startswith("| `")]
    assert listed == list(GROUPS)
