"""Arguments of a store's verbs that are lists: batches of tables, arrays to fill, named bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embedrock._arguments import iterated, shown, text
from embedrock.errors import MisuseError

__all__ = ["arrays_for", "batches_of", "named_bytes"]

_PARTS = {2: "pairs (table, keys)", 3: "triples (table, keys, rows)"}


def batches_of(batches: Any, width: int) -> list[Any]:
    """The batches of a call, each with its table, keys and, of three, rows."""
    found = iterated("batches", batches, f"a list of {_PARTS[width]}")
    for i, batch in enumerate(found):
        if not isinstance(batch, (tuple, list)) or len(batch) != width:
            raise MisuseError(f"batches[{i}] is {shown(batch)}, expected {_PARTS[width]}")
    return found


def arrays_for(found: Sequence[object], out: Any) -> list[Any]:
    """One array to fill for each batch."""
    given = iterated("out", out, "a list of arrays, one per batch")
    if len(given) != len(found):
        raise MisuseError(f"out has {len(given)} arrays, expected {len(found)}: one per batch")
    return given


def named_bytes(state: Any) -> list[tuple[str, bytes]]:
    """The byte strings of a commit."""
    if state is None:
        return []
    if not isinstance(state, Mapping):
        raise MisuseError(f"state is {shown(state)}, expected a dict of names to bytes")
    for name, content in state.items():
        text("a name of state", name)
        # Not whatever bytes() takes: of a number n it makes n zero bytes.
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise MisuseError(
                f"state[{name!r}] is {shown(content)}, expected bytes; encode it: a text with "
                f".encode(), an array with .tobytes(), plain values with json.dumps(...).encode(), "
                f"or give tensors and plain values to embedrock.save(extra=)"
            )
    return [(name, bytes(content)) for name, content in state.items()]
