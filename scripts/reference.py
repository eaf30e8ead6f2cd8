"""The reference of a public name in Markdown, from its source: signatures and docstrings.

Sources are parsed and never imported, so neither PyTorch nor the extension is needed, and every
version of Python gives the same text. A class comes with its public methods and properties, those
of its bases within the package included; a module with its public classes and functions.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import wrapping

PYTHON = Path(__file__).parents[1] / "python"
SPECIAL = ("__getitem__", "__len__", "__contains__", "__iter__", "__call__")
INTERNAL = "Not for callers"  # how the docstring of a constructor begins that nobody is to call
SECTION = re.compile(r"(Errors|Blocking|Shapes|Durability|Source|Units|Returns): ?")
LIST_ITEM = re.compile(r"(\s*)([*+-]|\d+\.)\s+")
ROLE = re.compile(r":\w+:`(?:[^`<]*<)?([^`>]+)>?`")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


def made(name: str) -> str:
    """The Markdown of a public name such as ``embedrock.Table``, or of a module."""
    if (path := source_of(name)) is not None:
        return "\n".join(module_lines(name, path)) + "\n"
    module, node = resolved(name)
    return "\n".join(described(name, module, node)) + "\n"


def source_of(name: str) -> Path | None:
    """The file of a module, or None where the name is of something else."""
    base = PYTHON.joinpath(*name.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.is_file():
            return path
    return None


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def top_level(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, those under ``if`` and ``try`` included."""
    for node in nodes:
        if isinstance(node, ast.If | ast.Try):
            yield from top_level(node.body)
        else:
            yield node


def resolved(name: str) -> tuple[str, Definition]:
    """The module in which a public name is defined, and its definition."""
    module, _, attribute = name.rpartition(".")
    path = source_of(module)
    assert path is not None, f"there is no module {module}"
    imported = None
    for node in top_level(parsed(path).body):
        if defines(node, attribute):
            assert isinstance(node, Definition)
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("embedrock"):
            for alias in node.names:
                if (alias.asname or alias.name) == attribute:
                    imported = f"{node.module}.{alias.name}"
    assert imported is not None, f"{module} does not define {attribute}"
    return resolved(imported)


def defines(node: ast.stmt, name: str) -> bool:
    """Whether a statement defines a name."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name and not overloaded(node)
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    return (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
    )


def module_lines(name: str, path: Path) -> list[str]:
    """A module's docstring, and its public classes and functions in their order."""
    tree = parsed(path)
    out = markdown(ast.get_docstring(tree) or "")
    for node in tree.body:
        public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if public and not overloaded(node) and ast.get_docstring(node):
            out += ["", *described(f"{name}.{node.name}", name, node)]
    return out


def described(name: str, module: str, node: Definition) -> list[str]:
    """The heading, signatures and docstring of a name, and the members of a class."""
    heading = f"## `{name}`"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return [heading, "", *following_docstring(module, node)]
    if not isinstance(node, ast.ClassDef):
        return [heading, "", *signatures(module, node), "", *docstring(node)]
    out = [heading, "", *constructor(module, node), "", *docstring(node)]
    if is_dataclass(node):
        out += fields(node)
    for where, member in members(module, node):
        out += ["", f"### `{node.name}.{member.name}`", ""]
        out += [*signatures(where, member, node.name), "", *docstring(member)]
    return out


def members(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Public methods and properties that have a docstring, with the module that has each."""
    seen: set[str] = set()
    for where, each in lineage(module, node):
        for member in each.body:
            if not isinstance(member, ast.FunctionDef) or overloaded(member) or is_setter(member):
                continue
            public = not member.name.startswith("_") or member.name in SPECIAL
            if public and member.name not in seen:
                seen.add(member.name)
                if ast.get_docstring(member):
                    yield where, member


def lineage(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its bases within the package, nearest first."""
    yield module, node
    for base in node.bases:
        if isinstance(base, ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Name):
            continue
        try:
            where, found = resolved(f"{module}.{base.id}")
        except AssertionError:  # of Python or another library
            continue
        if isinstance(found, ast.ClassDef):
            yield from lineage(where, found)


def decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of a definition's decorators."""
    return [ast.unparse(one).partition("(")[0] for one in node.decorator_list]


def overloaded(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether this is one of several signatures, and not the definition itself."""
    return bool({"overload", "typing.overload"} & set(decorators(node)))


def is_setter(node: ast.FunctionDef) -> bool:
    """Whether this sets or deletes a property."""
    return any(one.endswith((".setter", ".deleter")) for one in decorators(node))


def is_dataclass(node: ast.ClassDef) -> bool:
    """Whether the class has its fields as arguments."""
    return any(one.endswith(("dataclass", "NamedTuple")) for one in decorators(node)) or any(
        ast.unparse(base) in ("NamedTuple", "TypedDict") for base in node.bases
    )


def fields(node: ast.ClassDef) -> list[str]:
    """The public fields of a class, each with its type and the string below it."""
    out: list[str] = []
    following = [*node.body[1:], None]
    for field, after in zip(node.body, following, strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if field.target.id.startswith("_"):
            continue
        text = string_of(after)
        words = f"`{field.target.id}: {ast.unparse(field.annotation)}`" + (f": {text}" * bool(text))
        out += wrapping.filled(inline(words).split(), "* ", "  ")
    return ["", *out] if out else []


def following_docstring(module: str, node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The string below an assignment of a module."""
    path = source_of(module)
    assert path is not None
    body = list(top_level(parsed(path).body))
    place = body.index(node)
    return markdown(string_of(body[place + 1]) if place + 1 < len(body) else "")


def string_of(node: ast.stmt | None) -> str:
    """The text of a statement that is a string alone, else nothing."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return ""
    text = node.value.value
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def constructor(module: str, node: ast.ClassDef) -> list[str]:
    """Signature for making an object of a class."""
    for where, each in lineage(module, node):
        for member in each.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                if (ast.get_docstring(member) or "").startswith(INTERNAL):
                    return ["```python", f"class {node.name}", "```"]
                code = signature(where, member).replace("__init__", node.name, 1)
                return ["```python", *f"class {code.removesuffix(' -> None')}".split("\n"), "```"]
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    return ["```python", f"class {node.name}({bases})" if bases else f"class {node.name}", "```"]


def signatures(module: str, node: ast.AST, owner: str = "") -> list[str]:
    """The signatures of a function or method, as a block of code."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    path = source_of(module)
    assert path is not None
    if {"property", "cached_property"} & set(decorators(node)):
        kind = f": {ast.unparse(node.returns)}" if node.returns else ""
        return ["```python", f"{node.name}{kind}", "```"]
    same = [
        one
        for one in ast.walk(parsed(path))
        if isinstance(one, ast.FunctionDef) and one.name == node.name and overloaded(one)
    ]
    near = [one for one in same if one.col_offset == node.col_offset and within(path, one, owner)]
    every = [signature(module, one) for one in near or [node]]
    return ["```python", *"\n".join(every).split("\n"), "```"]


def within(path: Path, node: ast.FunctionDef, owner: str) -> bool:
    """Whether a function is a method of the class of that name, or of none."""
    classes = [one for one in ast.walk(parsed(path)) if isinstance(one, ast.ClassDef)]
    around = [one.name for one in classes if node in one.body]
    return around == ([owner] if owner else [])


def signature(module: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A signature as the source has it, without ``self``."""
    path = source_of(module)
    assert path is not None
    assert node.returns is not None, f"{module}.{node.name} does not say what it returns"
    lines = path.read_text(encoding="utf-8").split("\n")[node.lineno - 1 : node.returns.end_lineno]
    lines[-1] = lines[-1].encode()[: node.returns.end_col_offset].decode()
    text = re.sub(r" *#.*$", "", textwrap.dedent("\n".join(lines)), flags=re.MULTILINE)
    return re.sub(r"\((\s*)(?:self|cls)\b(?:,\s*)?", r"(\1", text, count=1).removeprefix("def ")


def docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The docstring of a definition in Markdown; of a class also that of its constructor."""
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                made = ast.get_docstring(member) or ""
                text += "\n\n" + made * (not made.startswith(INTERNAL))
    return markdown(text.strip())


def markdown(text: str) -> list[str]:
    """A docstring in Markdown."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        if lines[0].lstrip().startswith(">>>"):
            piece = ["```pycon", *textwrap.dedent(block).split("\n"), "```"]
        elif lines[0].startswith(("====", "    ")):
            piece = ["```text", *textwrap.dedent(block).split("\n"), "```"]
        elif lines[0] == "Args:":
            piece = arguments(lines[1:])
        else:
            piece = paragraph(lines)
        out += [*piece, ""]
    return out[:-1]


def arguments(lines: list[str]) -> list[str]:
    """The arguments of a function as a list."""
    out = ["**Args**:", ""]
    item: list[str] = []
    for line in [*lines, "    :"]:
        if re.match(r" {4}\S", line):
            if item:
                name, _, text = " ".join(item).partition(": ")
                out += wrapping.filled(f"`{name}`: {inline(text)}".split(), "* ", "  ")
            item = []
        item.append(line.strip())
    return out


def paragraph(lines: list[str]) -> list[str]:
    """A paragraph, or a list."""
    items: list[list[str]] = []
    for line in lines:
        if not items or LIST_ITEM.match(line):
            items.append([])
        items[-1].append(line)
    out = []
    for item in items:
        text = inline(" ".join(line.strip() for line in item))
        if (section := SECTION.match(text)) is not None:
            text = f"**{section[1]}**: {text[section.end() :]}"
        listed = LIST_ITEM.match(item[0])
        first = listed[0] if listed else ""
        out += wrapping.filled(text.removeprefix(first.strip()).split(), first, " " * len(first))
    return out


def inline(text: str) -> str:
    """Text of a docstring in Markdown: names as code, characters of Markdown's own escaped."""
    text = ROLE.sub(lambda found: f"``{short(found[1])}``", text)
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    for place, part in enumerate(parts):
        if part.startswith("``") and "`" not in part[2:-2]:
            parts[place] = part[1:-1]
        elif not part.startswith("`"):
            parts[place] = re.sub(r"(?<=\w)\*\*(?=\w)", r"\\*\\*", part).replace("<", r"\<")
    return "".join(parts)


def short(target: str) -> str:
    """Shown text of a reference in a docstring."""
    return target.rpartition(".")[2] if target.startswith("~") else target
