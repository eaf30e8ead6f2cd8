"""The exceptions of Embedrock: one tree that mirrors the kinds of the engine's errors.

Every exception that the engine raises is an :class:`EmbedrockError`, so that one ``except`` clause
catches them all. Classes that stand for what Python programs already know how to catch are also
``ValueError``, ``IndexError`` or ``OSError``. Exceptions of a caller's own functions (the ``fn`` of
``Table.modify``, a progress callback) are never wrapped: they reach the caller as they were raised.

>>> import embedrock
>>> try:
...     embedrock.distinct([0.5])
... except embedrock.errors.MisuseError as error:
...     print(error)
keys are float64, expected int64 or uint64; convert ids with .astype(np.int64), tensors with .long()
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "BudgetError",
    "BudgetWarning",
    "CallbackError",
    "ClosedError",
    "CommitGoneError",
    "CorruptError",
    "EmbedrockError",
    "ForkedError",
    "FullError",
    "IoError",
    "KeyRangeError",
    "KeysWarning",
    "LockedError",
    "LookaheadWarning",
    "MismatchError",
    "MisuseError",
    "NonFiniteError",
    "NotFoundError",
    "PartWarning",
    "PoisonedError",
    "RankError",
    "UncommittedWarning",
    "UnsupportedError",
]


class EmbedrockError(Exception):
    """The root of every exception that Embedrock raises."""


class MisuseError(EmbedrockError, ValueError):
    """An argument is unusable: wrong shape, dtype, name or combination of options."""


class KeyRangeError(EmbedrockError, IndexError):
    """A key lies outside ``0..num_embeddings`` of a dense table. Nothing was changed."""


class MismatchError(EmbedrockError):
    """An existing store or table was opened with other parameters than it has."""


class NonFiniteError(EmbedrockError):
    """A gradient or value is NaN or infinite and the caller did not allow it."""


class BudgetError(EmbedrockError):
    """The memory budget cannot work; the message names one that would, in the caller's unit."""


class FullError(EmbedrockError):
    """No room on disk for what was asked. Nothing was changed; reads and commits go on.

    The message says whether commits help, because they release outdated copies, or whether the rows
    themselves fill the disk. If the file system finds no room only after rows have changed, as one
    that copies on write or compresses may, the error is an :class:`IoError` and not this.
    """


class LockedError(EmbedrockError):
    """Another process writes to this store, or this one has it open with other arguments.

    The message names the process, or the arguments and how to close what is open.
    """


class ForkedError(EmbedrockError):
    """The store was opened before this process was forked: open it in the process that uses it."""


class ClosedError(EmbedrockError):
    """The store was closed."""


class NotFoundError(EmbedrockError):
    """No such store, table or commit."""


class CommitGoneError(EmbedrockError):
    """The commit that a reader held is gone."""


class IoError(EmbedrockError, OSError):
    """The operating system reported a failure; ``errno`` holds its number where it gave one.

    After one in a verb that changes rows, or in a commit, the store refuses writes until it is
    opened again, at its last commit (:class:`PoisonedError`).
    """


class CorruptError(EmbedrockError):
    """Stored bytes are damaged; the message names file, page and table."""


class UnsupportedError(EmbedrockError):
    """This machine or file system lacks what was asked for."""


class PoisonedError(EmbedrockError):
    """An earlier I/O error left memory and disk apart: reopen the store at its last commit."""


class RankError(EmbedrockError):
    """A rank of several failed in a call that all of them make; it is raised on every one.

    It is also of the kind that the rank had raised: ``except FullError`` catches that of another
    rank, too. ``rank`` says which one it was.
    """

    def __init__(self, message: str, rank: int) -> None:
        """Takes the message and the rank that it is of."""
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> tuple[Callable[..., RankError], tuple[str, str, int]]:
        """By the kind, whose class is made when it is needed."""
        kinds = [base.__name__ for base in type(self).__bases__ if base is not RankError]
        return rank_error, (kinds[-1], str(self.args[0]), self.rank)


def rank_error(kind: str, message: str, rank: int) -> RankError:
    """The error of a rank: a ``RankError`` that is also of the kind that it had raised."""
    base = globals().get(kind)
    if not (isinstance(base, type) and issubclass(base, EmbedrockError)):
        return RankError(f"{message} ({kind})", rank)
    if issubclass(base, RankError) or base is EmbedrockError:
        return RankError(message, rank)
    if kind not in _KINDS:
        _KINDS[kind] = type("RankError", (RankError, base), {"__module__": __name__})
    return _KINDS[kind](message, rank)


_KINDS: dict[str, type[RankError]] = {}


class CallbackError(EmbedrockError):
    """A callback of the engine failed without an exception of its own."""


class UncommittedWarning(UserWarning):
    """A store was closed with changes that no commit holds: they are gone.

    A subclass of ``UserWarning`` and not of ``ResourceWarning``, which Python hides by default.
    """


class BudgetWarning(UserWarning):
    """The memory budget is not what was asked for, or more than the machine has.

    Of tables so small that a budget in per cent cannot work, more is taken than that. The message
    has the bytes, and so has ``Store.stats()``: ``asked_bytes`` and ``budget_bytes``.
    """


class LookaheadWarning(UserWarning):
    """Look-ahead does nothing, or was set aside; the message has the figures and what would help.

    Results are the same with and without.
    """


class KeysWarning(UserWarning):
    """Ids are looked up as numbers in a table whose keys are hashes of them: initial rows are read.

    The message says how the keys were made. It comes once for a table that is opened.
    """


class PartWarning(UserWarning):
    """A store of one rank was opened by itself: rows of other ranks' keys read as initial ones.

    The message names the buckets that the store has, and how to read all rows.
    """
