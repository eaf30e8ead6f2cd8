"""Errors in data: one class, which says which file, which line and what was found."""

from __future__ import annotations

from pathlib import Path

from embedrock.errors import EmbedrockError


class DataError(EmbedrockError, ValueError):
    """Data that cannot be read or had; `path`, `line` or `row` (1-based), `column` tell where."""

    def __init__(
        self,
        problem: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        """The message names the place, as far as it is given, and then the problem."""
        place = [str(path)] if path is not None else []
        if line is not None:
            place.append(f"line {line}")
        if row is not None:
            place.append(f"row {row}")
        if column is not None:
            place.append(column)
        super().__init__(": ".join([", ".join(place), problem] if place else [problem]))
        self.problem = problem
        self.path = None if path is None else Path(path)
        self.line = line
        self.row = row
        self.column = column
