"""`embedrock demo` within the test's process; its systems have processes of their own."""

from __future__ import annotations

import contextlib
import io
import warnings

import pytest

from embedrock import cli
from embedrock_lab.demo import comparison


def demo_shows(command: list[str]) -> str:
    """Output of the command.

    It does not wait for a quiet machine: other tests run beside it, and it would wait in vain.
    """
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setattr(comparison, "_PATIENCE_S_MAX", 0.0)
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # main() sets it
        assert cli.main(command) == 0
    return shown.getvalue()
