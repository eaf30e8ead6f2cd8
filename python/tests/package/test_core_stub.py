"""The type stub of the extension module tells the truth about the binary."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import embedrock
from embedrock import _core

STUB = Path(embedrock.__file__).with_name("_core.pyi")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def stub_tree() -> ast.Module:
    return ast.parse(STUB.read_text(encoding="utf-8"))


def stub_names(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    assigned = (node.target for node in body if isinstance(node, ast.AnnAssign))
    names |= {target.id for target in assigned if isinstance(target, ast.Name)}
    return names


def binary_names(owner: Any, dunders: set[str]) -> set[str]:
    """Public names, and those special ones that the stub names."""
    return {name for name in vars(owner) if not name.startswith("_") or name in dunders}


def stub_parameters(node: ast.FunctionDef) -> list[tuple[str, str]]:
    """Name and default of each parameter but the receiver."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = [
        *zip(positional, defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    found = [
        (argument.arg, "" if default is None else repr(ast.literal_eval(default)))
        for argument, default in pairs
    ]
    return [parameter for parameter in found if parameter[0] not in ("self", "cls")]


def binary_parameters(function: Any) -> list[tuple[str, str]]:
    parameters = inspect.signature(function).parameters.values()
    found = [
        (parameter.name, "" if parameter.default is parameter.empty else repr(parameter.default))
        for parameter in parameters
    ]
    return [parameter for parameter in found if parameter[0] not in ("self", "cls")]


def functions() -> list[tuple[str, ast.FunctionDef, Any]]:
    found: list[tuple[str, ast.FunctionDef, Any]] = []
    for node in stub_tree().body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, node, getattr(_core, node.name)))
        if isinstance(node, ast.ClassDef):
            cls = getattr(_core, node.name)
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    binary = cls if method.name == "__new__" else getattr(cls, method.name)
                    found.append((f"{node.name}.{method.name}", method, binary))
    return found


def test_the_module_has_exactly_the_names_of_the_stub() -> None:
    names = {name for name in stub_names(stub_tree().body) if not name.startswith("_")}
    assert binary_names(_core, set()) == names
    assert _core.__version__ == embedrock.__version__


def test_each_class_has_exactly_the_methods_of_the_stub() -> None:
    classes = [node for node in stub_tree().body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == {
        "Changes",
        "CommitFiles",
        "Hyper",
        "PendingCommit",
        "Permits",
        "Scan",
        "Schedule",
        "ScheduleMaker",
        "Server",
        "Store",
        "TableId",
    }
    for node in classes:
        names = stub_names(node.body)
        dunders = {name for name in names if name.startswith("__")}
        assert binary_names(getattr(_core, node.name), dunders) == names, node.name


@pytest.mark.parametrize(
    ("node", "binary"), [pytest.param(*rest, id=name) for name, *rest in functions()]
)
def test_each_signature_equals_the_stub(node: ast.FunctionDef, binary: Any) -> None:
    special = node.name.startswith("__") and node.name != "__new__"
    if special:
        assert callable(binary)
    else:
        assert binary_parameters(binary) == stub_parameters(node)


@pytest.mark.parametrize(
    ("node", "binary"), [pytest.param(*rest, id=name) for name, *rest in functions()]
)
def test_everything_in_the_binary_is_documented(node: ast.FunctionDef, binary: Any) -> None:
    if not node.name.startswith("__"):
        assert inspect.getdoc(binary)
        assert ast.get_docstring(node)
