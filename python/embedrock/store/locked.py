"""What a store that another process writes to says to the ranks of a distributed job."""

from __future__ import annotations

import re

from embedrock.errors import LockedError

__all__ = ["for_one_process", "for_ranks"]

_OF_ENGINE = re.compile(r"; this looks like a distributed job .*? hold the tables", re.DOTALL)
"""The engine's advice, which knows of no ranks that share their tables: whoever gave each rank a
store of its own would train as many models as there are ranks."""
_OURS = (
    "; this looks like a distributed job (RANK and WORLD_SIZE are set), and a store has one "
    "writer: open with embedrock.distributed.open(path), which divides the tables of one model "
    "among the stores of all ranks"
)
_TO_READ = ", or open with read_only=True"


def for_one_process(error: LockedError) -> LockedError:
    """The error of a store that is opened by itself: a job is told how its ranks share tables."""
    return LockedError(_OF_ENGINE.sub(_OURS, str(error)))


def for_ranks(error: LockedError) -> LockedError:
    """The error of a store of ranks that open theirs together, and write: without such advice."""
    return LockedError(str(error).replace(_OURS, "").replace(_TO_READ, ""))
