"""`scripts/reference.py` writes what docstrings and signatures in the sources say."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

import embedrock
from places import ROOT

PAGES = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT / "scripts"))

import reference  # noqa: E402


def described() -> dict[str, str]:
    """Text of the pages between the marks of each name."""
    text = "".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
    blocks = re.findall(r"<!-- reference: (\S+) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    return dict(blocks)


def test_every_name_has_a_signature_and_a_text() -> None:
    pages = described()
    assert len(pages) > 90
    for name, text in pages.items():
        prose = re.sub(r"```[\s\S]*?```|^#.*$|^\*\*.*$", "", text, flags=re.MULTILINE)
        assert re.search(r"\w+ \w+", prose), name
        if name not in (
            "embedrock.kge.INTERACTIONS",
            "embedrock.kge.LOSSES",
            "embedrock.nn.Jagged",
        ):
            assert "```python" in text, name


def test_a_class_has_all_its_public_methods_and_those_of_its_bases_in_the_package() -> None:
    pages = described()
    for made in (embedrock.Table, embedrock.Store, embedrock.LookaheadLoader):
        public = {
            name
            for name, member in inspect.getmembers(made)
            if not name.startswith("_") and inspect.getdoc(member)
        }
        listed = re.findall(
            r"^### `\w+\.(\w+)`$", pages[f"embedrock.{made.__name__}"], re.MULTILINE
        )
        assert public <= set(listed), made


def test_of_overloads_every_signature_is_shown() -> None:
    get = described()["embedrock.Table"].split("### `Table.get`")[1].split("\n### ")[0]
    assert get.count("\nget(") > 1


def test_a_docstring_becomes_markdown() -> None:
    text = inspect.cleandoc(
        """Reads 2**64 rows <= all of :class:`~embedrock.table.Table`.

        * one, of :meth:`Store.commit`
        * two ``(*,)``

        Args:
            keys: Which ones, and a sentence that goes on
                in the next line of the source.
            betas, eps: Of Adam.

        Errors: ``MisuseError``.

        >>> 1 + 1
        2
        """
    )
    assert "\n".join(reference.markdown(text)) == inspect.cleandoc(
        r"""Reads 2\*\*64 rows \<= all of `Table`.

        * one, of `Store.commit`
        * two `(*,)`

        **Args**:

        * `keys`: Which ones, and a sentence that goes on in the next line of the source.
        * `betas, eps`: Of Adam.

        **Errors**: `MisuseError`.

        ```pycon
        >>> 1 + 1
        2
        ```
        """
    )


def test_a_name_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(AssertionError, match="does not define Tabel"):
        reference.made("embedrock.Tabel")
