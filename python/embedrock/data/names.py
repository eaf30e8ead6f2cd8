"""Names and their ids, in the order in which they come first: the same texts give the same ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["Names"]


class Names:
    """Names and their ids, from 0 on in the order in which they came first.

    >>> names = Names(["Q2", "Q5"])
    >>> names.id_of("Q5"), names[0], len(names), "Q9" in names
    (1, 'Q2', 2, False)
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        """With these names, each once."""
        self._ids: dict[bytes, int] = {}
        self._list: list[bytes] | None = None
        self.add([name.encode() for name in names])

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode() in self._ids

    def __getitem__(self, number: int) -> str:
        """The name of an id. Errors: ``IndexError``."""
        if self._list is None:
            self._list = list(self._ids)
        return self._list[number].decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        """All names, by id."""
        return (name.decode(errors="replace") for name in self._ids)

    def id_of(self, name: str) -> int:
        """The id of a name. Errors: ``KeyError``."""
        return self._ids[name.encode()]

    def add(self, names: Sequence[bytes]) -> list[int]:
        """The ids of names, new ones included."""
        ids, before = self._ids, len(self._ids)
        found = [ids.setdefault(name, len(ids)) for name in names]
        if len(ids) != before:
            self._list = None
        return found

    def find(self, names: Sequence[bytes]) -> list[int]:
        """The ids of names; -1 of those that are not there."""
        get = self._ids.get
        return [get(name, -1) for name in names]
