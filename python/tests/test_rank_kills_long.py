"""Thirty kills of ranks at random moments, for `make contests`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from test_rank_kills import killed_at_random


def test_thirty_kills_at_random_moments_leave_a_common_step_each_time(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 30, 30)
