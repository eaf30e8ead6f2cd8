"""The error that ranks of a distributed job get for a store that another process writes to."""

from __future__ import annotations

import os

from embedrock.errors import LockedError

__all__ = ["for_one_process", "for_ranks"]

_OF_JOB = (
    "; this looks like a distributed job (RANK and WORLD_SIZE are set), and a store has one "
    "writer: open with embedrock.distributed.open(path), which divides the tables of one model "
    "among the stores of all ranks"
)
_TO_READ = ", or open with read_only=True"


def for_one_process(error: LockedError) -> LockedError:
    """The error of a store that is opened by itself: a job is told how its ranks share tables."""
    return LockedError(f"{error}{_OF_JOB if _is_job() else ''}")


def for_ranks(error: LockedError) -> LockedError:
    """The error of a store of ranks that open theirs together, and write: without such advice."""
    return LockedError(str(error).replace(_OF_JOB, "").replace(_TO_READ, ""))


def _is_job() -> bool:
    """Whether something like ``torchrun`` has started several ranks, of which this is one."""
    is_rank = "RANK" in os.environ or "LOCAL_RANK" in os.environ
    return is_rank and os.environ.get("WORLD_SIZE", "1") != "1"
