"""Pinned commits, and going back to one of them or to another that is kept."""

from __future__ import annotations

from embedrock._arguments import text, whole
from embedrock.commits import Commit, commit_of
from embedrock.errors import NotFoundError, UnsupportedError
from embedrock.store.handle import Handle

__all__ = ["Pins"]


class Pins(Handle):
    """The part of a store with names for commits."""

    def pin(self, step: int, name: str) -> None:
        """Keeps the commit of a step beyond the last ``keep`` ones, until :meth:`unpin`.

        The commit must be kept or already pinned: a commit may have several names. A name of
        another commit moves to this one. A pinned commit can be opened, copied and gone back to by
        its name or its step, also after the store was closed, or its process killed.

        It costs the disk space of its index, as that is in memory, and of the rows that change
        afterwards: of a log its segments as they are. ``max_disk_bytes`` bounds both;
        ``stats()["pins"]`` and ``embedrock info`` tell what each pin alone keeps.

        Args:
            step: The commit's step.
            name: 1 to 200 bytes that are not all digits.

        Errors: ``NotFoundError`` for a step that there is no commit of, ``MisuseError`` for what
        can be no name, ``UnsupportedError`` where a table has storage ``"pmem"``, ``FullError``
        when the index does not fit: nothing has changed then.

        Blocking: reads and writes the commit's index; verbs of other threads, and commits, go on
        meanwhile. Until it returns there is a second index in memory, beside the budget.

        Durability: when it returns.

        >>> store.commit(step=1).step
        1
        >>> store.pin(1, "first")
        >>> for step in range(2, 9):
        ...     commit = store.commit(step)
        >>> [commit.step for commit in store.commits()], store.pins()
        ([7, 8], {'first': 1})
        """
        self._core.pin(whole("step", step, 0), text("name", name))

    def unpin(self, name: str) -> None:
        """Removes a pin's name; a commit without names is dropped, unless it is one of the last.

        A reader that has it open keeps it until it is closed, within ``max_held_bytes``.

        Errors: ``NotFoundError`` with the names that there are.

        Blocking: waits for verbs that run, and for a commit that is under way. Durability: when it
        returns.

        >>> store.commit(step=1, pin="first").step
        1
        >>> store.unpin("first")
        >>> store.pins()
        {}
        """
        self._core.unpin(text("name", name))

    def pins(self) -> dict[str, int]:
        """The steps of pinned commits by their names, the oldest commit first."""
        return {pin["name"]: int(pin["step"]) for pin in self._core.pins()}

    def go_back(self, step: int | str) -> Commit:
        """Goes back to a kept or pinned commit, in place, and returns it.

        Rows, optimizer state and step counts are those of the commit; uncommitted changes are
        dropped. Later commits are dropped with the next change, as after ``open(step=)``; until
        then ``go_back`` finds them too. Tables, modules and optimizers of this store stay valid: a
        table that was created after the commit exists again, without rows, and in that case later
        commits are dropped at once. Waiting gradients are discarded, memory starts empty, and
        counters of ``stats()`` start again. The caller has to restore dense parameters:
        :func:`embedrock.resume` brings those of the commit.

        No other thread may use the store meanwhile: its verbs may raise ``ClosedError``. A running
        loop over ``items``, and announcements to ``window``, have to start again; a pass of a
        ``LookaheadLoader`` continues with its next batch.

        A store that is open ``read_only`` moves to the commit, an earlier or a later one.

        Args:
            step: The step of a commit that is kept (``open(keep=)`` says how many are) or pinned,
                or the name of a pin.

        Errors: ``NotFoundError`` for a step or a name that no commit has, with those that there
        are; ``MisuseError`` while a pipeline's pass or a recording is under way, and where a later
        commit is pinned, which would go with the others: unpin it first; ``UnsupportedError``
        where a table has storage ``"pmem"``; ``LockedError`` beside a reader of a later commit,
        such as a server that follows. Nothing has changed then. As ``open`` otherwise, for example
        ``LockedError`` where another process was faster: a reader stays where it was, and a store
        that is open to write is closed.

        Blocking: waits for a commit that is under way; reads the index, as ``open`` does.

        >>> store.commit(step=1).step, table.put([7], np.ones((1, 4), np.float32))
        (1, None)
        >>> store.commit(step=2).step, table.put([7], np.zeros((1, 4), np.float32))
        (2, None)
        >>> store.go_back(1).step, 7 in table
        (1, False)
        """
        return self._return_to(step, later_pins_stay=False)

    def _look_back(self, step: int | str) -> Commit:
        """As :meth:`go_back`, also where later commits are pinned: these stay, and every change is
        refused until they are unpinned. That is for evaluation, which changes nothing."""
        return self._return_to(step, later_pins_stay=True)

    def _return_to(self, step: int | str, later_pins_stay: bool) -> Commit:
        to = text("step", step) if isinstance(step, str) else whole("step", step, 0)
        self._core.check_call()
        if self._pending is not None:
            self._pending.wait()
        if not self.read_only:
            numbers = self._numbers_of(to)
            if not numbers:
                raise self._no_commit(to)
            last = self._core.last_commit()
            if last is not None and last["sequence"] not in numbers:
                self._refuse_regions(to)
        self._go_back(to, later_pins_stay)
        return commit_of(self._core.commits()[-1])

    def _no_commit(self, step: int | str) -> NotFoundError:
        infos = (*self._core.commits(), *self._later_commits())
        kept = ", ".join(str(info["step"]) for info in infos) or "none"
        pins = ", ".join(f"{name!r} (step {at})" for name, at in self.pins().items()) or "none"
        named = f"pinned as {step!r}" if isinstance(step, str) else f"of step {step}"
        return NotFoundError(
            f"there is no commit {named} in {self.path}; kept are the steps: {kept}; pinned are: "
            f"{pins}; open(keep=) keeps more"
        )

    def _refuse_regions(self, step: int | str) -> None:
        """Refuses to go back where tables have rows that no commit has."""
        specs = [self._core.table_info(handle)["spec"] for handle in self._core.tables()]
        direct = [spec["name"] for spec in specs if spec.get("storage") == "pmem"]
        if direct:
            raise UnsupportedError(
                f"store {self.path} cannot go back to {step!r}: rows of table {direct[0]!r} "
                f"with storage 'pmem' are newer than any commit; keep such tables in a store of "
                f"their own"
            )
