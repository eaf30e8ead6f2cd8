"""The package itself: what importing it costs and which names it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import embedrock


def run(script: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_no_torch() -> None:
    heavy = "('torch', 'rich', 'safetensors', 'pandas')"
    assert run(f"import sys, embedrock; print([n for n in {heavy} if n in sys.modules])") == "[]"


def test_without_torch_the_store_works_and_the_modules_say_what_to_install() -> None:
    script = """
import sys
sys.modules["torch"] = None
import embedrock, tempfile
with embedrock.open(tempfile.mkdtemp(), memory="64MiB") as store:
    print(store.table("t", 4, initializer=0.0).get([1]).tolist())
    store.commit(0)
try:
    embedrock.nn
except ModuleNotFoundError as error:
    print(error)
"""
    lines = run(script).splitlines()
    assert lines[0] == "[[0.0, 0.0, 0.0, 0.0]]"
    assert lines[1] == "embedrock.nn needs PyTorch: pip install torch"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        embedrock.absent  # noqa: B018


def test_every_public_name_is_listed_and_documented() -> None:
    assert sorted(embedrock.__all__) == embedrock.__all__
    assert set(embedrock._LAZY) <= set(embedrock.__all__)
    for name in set(embedrock.__all__) - {"__version__"}:
        value = getattr(embedrock, name)
        assert value.__doc__, name
        # A name whose class or function is another's would have its documentation, too.
        assert getattr(value, "__name__", name).rpartition(".")[2] == name
    ours = {
        name
        for name, value in vars(embedrock).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("embedrock.")
    }
    assert ours - {"missing"} <= set(embedrock.__all__), "a public name is not listed"
