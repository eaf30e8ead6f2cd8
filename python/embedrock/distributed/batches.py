"""Batches that end together: the loops of all ranks make as many steps as the shortest."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast

from embedrock._arguments import iterable, shown, whole
from embedrock._warnings import warn
from embedrock.distributed.ahead import Pass
from embedrock.distributed.exchange import Verb
from embedrock.distributed.schedules import RankSchedules
from embedrock.distributed.table import ShardTable
from embedrock.errors import LookaheadWarning, MisuseError, NotFoundError
from embedrock.pipeline.keys import KeyFinder, KeysOf, for_model
from embedrock.table import Table

if TYPE_CHECKING:
    from embedrock.distributed.shard import Shard

__all__ = ["ShardBatches"]

B = TypeVar("B")
_NEXT = Verb("next batch")


class _Drawn(NamedTuple):
    """A batch that waits for its turn."""

    batch: Any
    number: int
    """Of its announcement."""
    position: Any
    """Of the loader behind it."""
    is_last: bool
    """There is none: the loader has ended, or failed."""


class ShardBatches(Generic[B]):
    """The batches of one rank; :meth:`embedrock.distributed.Shard.batches` makes it."""

    def __init__(
        self,
        shard: Shard,
        loader: Iterable[B],
        model: Any,
        keys_of: KeysOf | None,
        ahead: int,
        schedule: Literal["epoch"] | None,
    ) -> None:
        """Draws nothing yet."""
        self._shard = shard
        self.loader = iterable(loader)
        """The loader of this rank."""
        self._ahead = whole("ahead", ahead, 0)
        self._finder: KeyFinder | None = None
        if self._ahead and (model is not None or keys_of is not None):
            self._finder = _Finder(shard, for_model(model) if keys_of is None else keys_of)
        self._schedules: RankSchedules | None = None
        if schedule is not None:
            self._schedules = self._scheduled(schedule)
        self._told = False
        self.left_out = 0
        """Batches of the last pass that were drawn and not handed out: other ranks had no more."""
        self.scheduled = 0
        """Batches of the last pass that were those of its schedule, on this rank."""
        self._position: Any = None

    def __iter__(self) -> Iterator[B]:
        """A pass over the loader. Collective, and so is each step of it."""
        ahead = 0 if self._finder is None else self._ahead
        told = f"{ahead} batches ahead" if ahead else "nothing ahead"
        if self._schedules is not None:
            ahead, told = -ahead, f"{told}, with a schedule"
        failed: BaseException | None = None
        try:
            self.left_out, self._position = 0, self._state()
        except Exception as error:
            failed = error
        with self._shard.exchange as exchange:  # with other ones, ranks would wait for each other
            exchange.meet(Verb("batches", (), ahead, told), failed=failed)
        return self._plain() if self._finder is None else self._announced(self._finder)

    def __len__(self) -> int:
        """Number of batches that the loader of this rank reports; other ranks may have fewer."""
        return len(self.loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """True: that a loader is there has nothing to do with how many batches it has."""
        return True

    def state_dict(self) -> Any:
        """The state of the loader behind the batch that was handed out last.

        Errors: ``MisuseError`` when the loader has no ``state_dict``.
        """
        self._check_stateful()
        return self._state() if self._position is None else self._position

    def load_state_dict(self, state_dict: Any) -> None:
        """Brings the loader to a state."""
        self._check_stateful()
        self._position = None
        self.loader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def _scheduled(self, schedule: object) -> RankSchedules:
        if not isinstance(schedule, str) or schedule != "epoch":
            raise MisuseError(f"schedule is {shown(schedule)}, expected 'epoch' or None")
        if self._finder is None:
            raise MisuseError(
                "schedule is 'epoch', but nothing is read ahead: pass the model, or keys_of, and "
                "ahead above 0"
            )
        return RankSchedules(self._shard, self.loader, self._finder, self._ahead)

    def _tell(self, message: str) -> None:
        """Warns, once."""
        if not self._told:
            self._told = True
            warn(message, LookaheadWarning)

    def _check_stateful(self) -> None:
        if not (hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")):
            raise MisuseError(
                f"the loader, {type(self.loader).__name__}, has no state_dict() and "
                f"load_state_dict(): it cannot tell its position"
            )

    def _state(self) -> Any:
        found = getattr(self.loader, "state_dict", None)
        return copy.deepcopy(found()) if callable(found) else None

    def _plain(self) -> Iterator[B]:
        iterator = iter(self.loader)
        while True:
            batch, failed, has = None, None, True
            try:
                batch = next(iterator)
            except StopIteration:
                has = False
            except Exception as error:
                failed = error
            with self._shard.exchange as exchange:
                met = exchange.meet(_NEXT, failed=failed, note=int(has))
            if not met.notes.all():
                self.left_out += has
                return
            self._position = self._state()
            yield cast(B, batch)

    def _announced(self, finder: KeyFinder) -> Iterator[B]:
        schedule = None if self._schedules is None else self._schedules.next(self._tell)
        window, of, iterator = self._shard.window, Pass(schedule), iter(self.loader)
        waiting: deque[_Drawn] = deque()
        drawn: _Drawn | None = None
        ended = False
        try:
            while True:
                if drawn is not None:
                    window.finish(drawn.number)
                while not ended and len(waiting) <= self._ahead:
                    waiting.append(self._draw(iterator, finder, of))
                    ended = waiting[-1].is_last
                drawn = waiting.popleft()
                if window._result(drawn.number) is None:
                    self.left_out = sum(not one.is_last for one in (drawn, *waiting))
                    return
                window.begin(drawn.number)
                if of.told:
                    self._tell(of.told.pop())
                self._position = drawn.position
                yield cast(B, drawn.batch)
        finally:
            window.clear()
            self.scheduled = 0 if schedule is None else schedule.right

    def _draw(self, iterator: Iterator[B], finder: KeyFinder, of: Pass) -> _Drawn:
        """The next batch, announced. An error is raised by all ranks, when the batch is due."""
        batch: Any = None
        error: BaseException | None = None
        keys: Any = None
        try:
            batch = next(iterator)
            keys = {part.table: part.keys for part in finder(batch)}
        except StopIteration:
            pass
        except Exception as raised:
            error = raised
        number = self._shard.window._announce(keys, of, error)
        return _Drawn(batch, number, self._state(), keys is None)


class _Finder(KeyFinder):
    """Keys by tables of a shard, whose names it does not have to ask the other ranks for."""

    def __init__(self, shard: Shard, keys_of: KeysOf) -> None:
        super().__init__(keys_of, [shard])
        self._shard = shard
        self._tables: dict[str, ShardTable] = {}

    def _of_entry(self, name: Any, value: Any) -> Iterable[tuple[Table, Any]]:
        if isinstance(name, str):
            if name not in self._tables:
                self._tables = self._shard.tables
            if name not in self._tables:
                there = ", ".join(map(repr, self._tables)) or "none"
                raise NotFoundError(f"keys_of named table {name!r}, there are: {there}")
            name = self._tables[name]
        if isinstance(name, ShardTable) and name.store is self._shard:
            return [(cast(Table, name), value)]
        return super()._of_entry(name, value)
