"""One exception tree that mirrors the kinds of the engine's errors."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

import embedrock
from embedrock import errors
from places import ROOT

ERROR_RS = ROOT / "crates" / "core" / "src" / "error.rs"


def engine_kinds() -> set[str]:
    """The variants of ErrorKind, read from the engine's source."""
    source = ERROR_RS.read_text(encoding="utf-8")
    body = re.search(r"pub enum ErrorKind \{(.*?)\n\}", source, re.DOTALL)
    assert body is not None
    return set(re.findall(r"^    (\w+),$", body[1], re.MULTILINE))


def exception_classes() -> dict[str, type[BaseException]]:
    found = {name: getattr(errors, name) for name in errors.__all__}
    return {name: value for name, value in found.items() if name.endswith("Error")}


def test_every_kind_of_the_engine_has_its_class_and_every_class_its_kind() -> None:
    kinds = engine_kinds()
    assert len(kinds) >= 16
    others = {"EmbedrockError", "RankError"}  # the root, and that of another process
    assert {f"{kind}Error" for kind in kinds} | others == set(exception_classes())


def test_all_lists_every_class_of_the_module() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


def test_every_exception_is_an_embedrock_error_with_a_description() -> None:
    for name, cls in exception_classes().items():
        assert issubclass(cls, errors.EmbedrockError), name
        assert cls.__doc__, name


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.MisuseError, ValueError),
        (errors.KeyRangeError, IndexError),
        (errors.IoError, OSError),
        (errors.UncommittedWarning, UserWarning),
    ],
)
def test_classes_are_also_what_python_programs_catch(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


def test_an_error_of_the_operating_system_carries_its_number(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(errors.IoError, match="file") as caught:
        embedrock.open(tmp_path / "file" / "store", memory="64MiB")
    assert caught.value.errno == errno.ENOTDIR


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"absent\.store"):
        embedrock.open(tmp_path / "absent.store", memory="64MiB", create=False)
