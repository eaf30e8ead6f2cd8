"""The treatment of malformed lines: stop at the first, or count them and continue."""

from __future__ import annotations

from embedrock.data.errors import DataError


class BadLines:
    """Raises at the first malformed line, or counts them all and remembers the first."""

    def __init__(self, skip: bool) -> None:
        """With `skip`, lines are counted instead of raised."""
        self.skip = skip
        self.count = 0
        self.first: DataError | None = None

    def add(self, error: DataError) -> None:
        """Takes note of a malformed line. Errors: that error itself, unless lines are skipped."""
        if not self.skip:
            raise error
        self.count += 1
        self.first = self.first or error
