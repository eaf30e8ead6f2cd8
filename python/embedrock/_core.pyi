"""The engine of Embedrock. Use the package `embedrock`, which checks and documents what goes in.

Arrays are C-contiguous; keys are flat. Every call works without the interpreter lock and raises
the exceptions of `embedrock.errors`.
"""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Changes",
    "CommitFiles",
    "Hyper",
    "PendingCommit",
    "Permits",
    "Scan",
    "Schedule",
    "ScheduleMaker",
    "Server",
    "Store",
    "TableId",
    "__version__",
    "amount_of",
    "buckets_of",
    "check",
    "check_place",
    "copy",
    "count_pages",
    "distinct",
    "finish_pull",
    "freeze",
    "hand_over_logs",
    "hash_pieces",
    "hash_texts",
    "log_line",
    "log_to_stderr",
    "number_rows",
    "place_replicas",
    "place_rows",
    "place_strawman",
    "placement_memory",
    "reshard",
    "resize",
    "serve_pages",
    "set_log_receiver",
    "torture",
]

__version__: str

_Keys = NDArray[np.uint64]
_Places = NDArray[np.uint32]
_Offsets = NDArray[np.int64]
_Rows = NDArray[np.float32]
_Values = NDArray[np.float32] | NDArray[np.uint16]
_Path = str | PathLike[str]
_Bounds = tuple[float | None, float | None, float | None, float]
_Progress = Callable[[int, int], object]

@final
class TableId:
    """The handle of a table within its store."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __repr__(self, /) -> str: ...

@final
class Hyper:
    """Learning rate and the like: what may change at every step."""

    def __new__(
        cls,
        *,
        lr: float,
        eps: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        lr_power: float | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
    ) -> Hyper:
        """Takes what the optimizer reads. Without `lr_power` it is -1/2."""

@final
class Permits:
    """Permits for batches in flight over the rows of one store."""

    def __new__(cls, bound: int | None = None) -> Permits:
        """Permits of a bound, or without one."""

    def acquire(self, /, batch: Sequence[tuple[TableId, _Keys]]) -> int:
        """The number of a permit for a batch, once all of its rows may be read."""

    def enter(
        self, /, batch: Sequence[tuple[TableId, _Keys]]
    ) -> tuple[int, list[NDArray[np.uint32]]]:
        """The number of a permit at once, and for each part which keys may not be read yet."""

    def release(
        self, /, permit: int, applied: bool = True
    ) -> list[tuple[int, int, NDArray[np.uint32]]]:
        """Takes a permit back; (permit, part, positions) of what may be read because of it."""

    def hand_over(self, /, permit: int) -> None:
        """Lets other threads than the one that acquired a permit release it."""

    def stats(self, /) -> dict[str, Any]:
        """Counters."""

@final
class Scan:
    """An iteration over the written rows of a table, in the engine's order."""

    def next_batch(self, /, keys: _Keys, values: _Rows, state: _Rows | None = None) -> int:
        """Fills the arrays with the next rows and returns how many; 0 at the end."""

@final
class Changes:
    """The changes between two commits, in batches."""

    def __new__(
        cls,
        store: Store,
        tables: Sequence[TableId] | None = None,
        since: int | None = None,
        named: tuple[int, int, int] | None = None,
    ) -> Changes:
        """Begins to read what changed since a commit: its step, and with `named` its number, time
        and bytes written. Without `since` all rows are given."""

    def next_batch(
        self, /, most: int, state: bool
    ) -> tuple[str, _Keys, NDArray[np.float32], NDArray[np.float32], _Keys] | None:
        """The next changes, of one table: its name, keys, flat values and state, deleted keys; at
        most `most` rows, and as many deleted keys. None at the end."""

    def commit(self, /) -> dict[str, Any] | None:
        """The commit that the changes lead to; None for a store without any."""

    def table_events(self, /) -> list[dict[str, Any]]:
        """What became of tables in between, in order, each as a dict of one entry: ``made`` with a
        spec, ``dropped`` with a name, ``renamed`` with two, ``grown`` with a name and ids."""

    def bytes_read(self, /) -> tuple[int, int]:
        """Bytes that were read: of the journal, and of pages so far."""

    def close(self, /) -> None:
        """Lets go of the commits. What is left is not given."""

@final
class ScheduleMaker:
    """Takes the keys of batches in their order and writes a schedule."""

    def __new__(cls, path: _Path, tables: Sequence[str], stretch_batches: int) -> ScheduleMaker: ...
    def add(self, /, batch: Sequence[tuple[int, _Keys]]) -> None:
        """Takes the keys of the next batch, by table, in ascending order."""

    def add_many(self, /, values: _Keys, offsets: _Offsets) -> None:
        """Takes many batches of one table."""

    def end(self, /) -> None:
        """What was added are its batches; what is added from here on comes behind them."""

    def finish(self, /, repeats: bool = False, progress: _Progress | None = None) -> None:
        """Writes the schedule."""

@final
class Schedule:
    """A schedule that was made."""

    def __new__(cls, path: _Path) -> Schedule: ...
    def tables(self, /) -> list[str]:
        """The names of its tables."""

    def batches(self, /) -> int:
        """How many batches it has."""

    def uses(self, /) -> int:
        """How many uses these have."""

    def stretch_batches(self, /) -> int:
        """Batches of each stretch but the last."""

    def furthest(self, /) -> int:
        """So many stretches ahead a next use is at most."""

    def repeats(self, /) -> bool:
        """Whether its batches come again behind the last."""

    def next_uses(
        self, /, batch: int, keys: Sequence[_Keys | None]
    ) -> list[NDArray[np.int32]] | None:
        """Stretches until the next use of each key, by table; None where it has other keys."""

    def find(self, /, start: int, keys: Sequence[_Keys | None]) -> int | None:
        """The first batch from `start` on that has these keys; then those before it."""

@final
class Server:
    """A store that clients reach over the Redis protocol."""

    def __new__(
        cls,
        store: Store,
        listen: str,
        *,
        threads: int | None = None,
        password: str | None = None,
        tls: tuple[_Path, _Path] | None = None,
        metrics: str | None = None,
        cluster: tuple[_Path, str | None] | None = None,
        max_connections: int = 10000,
        idle: float = 3600.0,
        stall: float = 60.0,
        max_request_bytes: int = 67108864,
        max_keys: int = 1048576,
        max_reply_bytes: int = 67108864,
        client_memory: int | None = None,
        tcp_keepalive: float = 300.0,
        commit_every: float = 60.0,
        refresh_every: float = 5.0,
        gather: str = "auto",
        buckets: tuple[str, bool] | None = None,
    ) -> Server:
        """Serves an open store at `listen`. Times are in seconds; 0 is never. `cluster` is the path
        of a map, and the id of this server's node in it; `buckets` are those that the store was
        made with, where it has not all, and whether it has changed since."""

    def address(self, /) -> str:
        """The address for clients, as HOST:PORT."""

    def metrics_address(self, /) -> str | None:
        """The address of its metrics, as HOST:PORT, if any."""

    def gather(self, /) -> str:
        """How rows get into sockets: a mode, or one for each row size that was measured."""
    def reload_map(self, /) -> int:
        """Reads the map of its cluster again, and returns how many maps there were."""

    def reload_certificate(self, /) -> None:
        """Reads its certificate and key again."""

    def set_password(self, /, password: str) -> None:
        """Has clients give another password from then on."""

    def warning(self, /) -> str | None:
        """A warning for the operator, such as a certificate that is about to expire."""

    def is_running(self, /) -> bool:
        """False once it was stopped, or a thread of it has ended by itself."""

    def stop(self, /) -> None:
        """Stops: requests that came are answered, and a store that is open to write is
        committed."""

@final
class Store:
    """An open store."""

    def __new__(
        cls,
        path: _Path,
        memory: str,
        *,
        max_disk_bytes: int | None = None,
        max_held_bytes: int | None = None,
        page_bytes: int | None = None,
        segment_bytes: int | None = None,
        cold_directory: _Path | None = None,
        pmem_path: _Path | None = None,
        io: str = "auto",
        policy: str = "lfu",
        window_bytes: int | None = None,
        window_group: int = 256,
        merge_picker: str = "score",
        upkeep_scheduler: str = "off",
        top_share: float | None = None,
        filters: bool = False,
        keep: int = 2,
        seed: int = 0,
        create: bool = True,
        step: int | None = None,
        pin: str | None = None,
        later_pins_stay: bool = False,
        read_only: bool = False,
        check_disk: bool = True,
        merge_reads: bool = True,
    ) -> Store:
        """Opens the store at `path`, creating it when there is none and `create` is set."""

    def table(self, /, spec: str) -> TableId:
        """Creates the table that the JSON text describes, or opens it when it is the same."""

    def find_table(self, /, name: str) -> TableId | None:
        """The table of that name, or None."""

    def tables(self, /) -> list[TableId]:
        """Handles of all tables, in order of creation."""

    def table_info(self, /, table: TableId) -> dict[str, Any]:
        """The store's facts about a table; ``by_id``: whether its rows are stored by id."""

    def drop_table(self, /, table: TableId) -> None:
        """Drops a table with all its rows, with the next commit."""

    def rename_table(self, /, table: TableId, name: str) -> None:
        """Gives a table another name, with the next commit."""

    def grow_table(self, /, table: TableId, num_embeddings: int) -> None:
        """Gives a dense table more ids, with the next commit."""

    def get(self, /, batches: Sequence[tuple[TableId, _Keys, _Values, _Rows | None]]) -> None:
        """Fills each batch's values (and state) with the rows of its keys.

        Values are float32, or uint16 to take the bits of the table's own dtype of 2 bytes.
        """

    def put(
        self,
        /,
        batches: Sequence[tuple[TableId, _Keys, _Rows, _Rows | None]],
        reset_state: bool,
        non_finite: str,
    ) -> None:
        """Writes rows; of equal keys the last one wins."""

    def update(
        self,
        /,
        batches: Sequence[tuple[TableId, _Keys, _Rows, Hyper]],
        non_finite: str,
        step: int | None = None,
        clip: _Bounds | None = None,
    ) -> tuple[int, int, int, float | None]:
        """One optimizer step per distinct key; returns (rows updated, skipped, saturated, norm)."""

    def gradient_norm(
        self,
        /,
        batches: Sequence[tuple[TableId, _Keys, _Rows, Hyper]],
        non_finite: str,
        clip: _Bounds | None = None,
    ) -> float:
        """The norm that an update with the same bounds would scale."""

    def modify(
        self, /, table: TableId, keys: _Keys, function: Callable[[_Rows, _Rows], None]
    ) -> None:
        """Calls `function(values, state)` and stores what the two arrays hold afterwards."""

    def check_call(self, /) -> None:
        """Errors: `ForkedError` in a forked child, `MisuseError` on a thread that runs the
        function of a `modify` of this store. Waits for nothing."""

    def is_poisoned(self, /) -> bool:
        """Whether the store refuses changes after an error."""

    def id(self, /) -> str:
        """The identity of this store."""

    def seed(self, /) -> int:
        """The seed of initial rows."""

    def check_may_go_back(self, /, sequence: int, later_pins_stay: bool) -> None:
        """Raises where a reader holds a commit later than that of this number, or one is
        pinned."""

    def is_held(self, /) -> bool:
        """Whether the commit at hand is held, so that no writer drops it."""

    def promote(self, /, table: TableId, keys: _Keys) -> int:
        """Brings hot rows to where they are read soonest; returns how many came."""

    def delete(self, /, table: TableId, keys: _Keys) -> int:
        """Deletes keys; returns how many had a row."""

    def contains(self, /, table: TableId, keys: _Keys, out: NDArray[np.bool_]) -> None:
        """Sets `out[i]` where `keys[i]` has a row."""

    def lookahead(self, /, table: TableId, keys: _Keys) -> None:
        """Announces the keys of one coming get of the table."""

    def announce(self, /, batch: Sequence[tuple[TableId, _Keys]]) -> int | None:
        """Announces the keys of one batch; returns its number, or None: the window is full."""

    def announce_scheduled(
        self,
        /,
        batch: Sequence[tuple[TableId, _Keys, NDArray[np.int32]]],
        stretch: int,
        batches: int,
        furthest: int,
    ) -> int | None:
        """As announce, with where in a schedule each row is used next."""
    def announce_range(self, /, table: TableId, first: _Keys, last: _Keys) -> int | None:
        """Announces runs of ids; returns their number, or None: there is no room for them."""

    def begin(self, /, number: int) -> None:
        """Waits until a batch that is about to be read was read ahead."""

    def finish(self, /, number: int, evict: bool = False) -> None:
        """Batches up to this one, or one range, are done with."""

    def clear_announced(self, /) -> None:
        """Forgets what is announced."""

    def release_window(self, /) -> None:
        """Forgets what is announced and gives the window's memory back."""

    def pause_window(self, /, pause: bool) -> None:
        """Lets the window rest, or go on."""

    def window_stats(self, /) -> dict[str, Any]:
        """Counters of the look-ahead window."""

    def row_reads(self, /) -> tuple[int, int, int, float]:
        """Rows used by verbs, those of them that were missing, rows read ahead; seconds blocked in
        reads."""

    def len(self, /, table: TableId) -> int:
        """How many keys of the table are written and not deleted."""

    def scan(self, /, table: TableId, stored: bool = False) -> Scan:
        """Starts an iteration over the written rows of the table; `stored` wants them in the order
        of storage, each page once, where that is another one than that of ids."""

    def digest(self, /, table: TableId, progress: _Progress | None = None) -> int:
        """A hash of all written rows, values and state, independent of their order."""

    def commit(
        self, /, step: int, meta: str, state: Sequence[tuple[str, bytes]], pin: str | None = None
    ) -> dict[str, Any]:
        """Makes everything so far durable under `step`, pinned under a name; returns the commit."""

    def commit_with_last_state(self, /, step: int, meta: str) -> dict[str, Any]:
        """As `commit`, with the named byte strings of the commit before."""

    def commit_in_background(
        self, /, step: int, meta: str, state: Sequence[tuple[str, bytes]], pin: str | None = None
    ) -> PendingCommit:
        """As `commit`, without waiting for the disk."""

    def pin(self, /, step: int, name: str) -> dict[str, Any]:
        """Keeps the commit of a step until the name is taken away; returns the pin."""

    def unpin(self, /, name: str) -> None:
        """Takes a name away from its commit."""

    def pins(self, /) -> list[dict[str, Any]]:
        """The pinned commits, oldest first."""

    def commits(self, /) -> list[dict[str, Any]]:
        """The commits that are kept, oldest first."""

    def last_commit(self, /) -> dict[str, Any] | None:
        """The commit opened at or made last."""

    def refresh(self, /) -> dict[str, Any] | None:
        """Moves a reader to the newest commit; None when it was open already."""

    def state(self, /) -> list[tuple[str, bytes]]:
        """The named byte strings of the commit opened at or made last."""

    def uncommitted(self, /) -> tuple[int, int]:
        """Changes that closing would lose: (batches, rows touched) since the last commit."""

    def stats(self, /) -> dict[str, Any]:
        """Counters and sizes, nested."""

    def warm(self, /) -> int:
        """Fills the cache with stored rows; returns how many were loaded."""

    def device_rate(
        self, /, seconds: float, bytes: int | None = None, depth: int | None = None
    ) -> float:
        """Random reads per second of the device under the store's pages."""

    def close(self, /) -> tuple[int, int]:
        """Closes the store; returns the (batches, rows) that no commit holds."""

@final
class PendingCommit:
    """A commit that runs by itself."""

    def is_done(self, /) -> bool:
        """Whether it is durable or has failed."""

    def wait(self, /, timeout: float | None = None) -> dict[str, Any] | None:
        """The commit once it is durable; None when it is not within `timeout` seconds."""

def amount_of(text: str) -> tuple[float, bool] | None:
    """Bytes or per cent that a text names, and whether it is per cent; None for what names
    neither."""

def distinct(keys: _Keys) -> tuple[_Keys, NDArray[np.int64]]:
    """Distinct keys in order of first occurrence, and each key's place among them."""

def buckets_of(keys: _Keys, is_dense: bool) -> NDArray[np.uint16]:
    """The bucket of each key: of a table with `num_embeddings` where `is_dense`."""

def hash_texts(texts: list[Any]) -> _Keys:
    """The keys of texts or bytes."""

def hash_pieces(text: bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Keys:
    """The keys of the pieces of a text."""

def set_log_receiver(receiver: Callable[[list[Any], int], object]) -> None:
    """Has what the engine logs go there, with how many records were left out before."""

def hand_over_logs(*, is_last: bool = False) -> None:
    """Hands over what waits; with `is_last` nothing from then on."""

def log_to_stderr(level: str) -> None:
    """Has the engine write its log lines itself, of this level and worse."""

def log_line(level: str, logger: str, message: str, created: float) -> str:
    """A line as the engine writes it."""

def number_rows(
    tables: Sequence[tuple[_Keys, _Offsets]],
) -> tuple[NDArray[np.uint16], _Keys, _Places, _Offsets]:
    """Numbers the distinct keys of tables: (table, key) of each row, and (rows, offsets)."""

def place_rows(
    rows: _Places,
    offsets: _Offsets,
    num_rows: int,
    rows_per_page: int,
    method: str,
    seed: int = 0,
    threads: int = 1,
    progress: _Progress | None = None,
) -> _Places:
    """All rows in the order of their home pages."""

def place_replicas(
    rows: _Places,
    offsets: _Offsets,
    order: _Places,
    rows_per_page: int,
    method: str,
    ratio: float,
    seed: int = 0,
    threads: int = 1,
    progress: _Progress | None = None,
) -> tuple[_Offsets, _Places]:
    """Replica pages, the best first: where they begin, and places in the order."""

def count_pages(
    rows: _Places,
    offsets: _Offsets,
    order: _Places,
    rows_per_page: int,
    starts: _Offsets,
    replicas: _Places,
    candidates_max: int = 10,
    progress: _Progress | None = None,
    greedy: bool = False,
) -> tuple[int, int]:
    """Rows that queries ask for, and pages that they read."""

def place_strawman(
    rows: _Places,
    offsets: _Offsets,
    num_rows: int,
    rows_per_page: int,
    method: str,
    ratio: float,
    seed: int = 0,
    threads: int = 1,
    progress: _Progress | None = None,
) -> tuple[_Offsets, _Places]:
    """All pages of a strawman of the MaxEmbed paper: where they begin, and their rows."""

def serve_pages(
    rows: _Places,
    offsets: _Offsets,
    num_rows: int,
    rows_per_page: int,
    starts: _Offsets,
    page_rows: _Places,
    first: int = 0,
    cache_rows: int = 0,
    queries_per_batch: int = 1,
    candidates_max: int = 10,
) -> tuple[int, int, int, int, NDArray[np.uint64]]:
    """Batches, rows, hits, pages, and how many pages served so many rows, from query `first` on."""

def placement_memory(
    num_rows: int,
    queries: int,
    pins: int,
    longest: int,
    rows_per_page: int,
    method: str,
    replicas: str,
    ratio: float,
    threads: int,
) -> int:
    """The most bytes that `place_rows` and `place_replicas` allocate."""

@final
class CommitFiles:
    """One commit of a store, held while its files are read."""

    def __new__(
        cls,
        path: _Path,
        step: int | None = None,
        pin: str | None = None,
        cold_directory: _Path | None = None,
    ) -> CommitFiles:
        """Holds the last commit, or that of a step or a pin."""

    def commit(self, /) -> dict[str, Any]:
        """The commit."""

    def uuid(self, /) -> str:
        """The identity of the store, 32 digits."""

    def rows_bytes(self, /) -> int:
        """Bytes of all files of rows of the store."""

    def list(
        self, /, block_bytes: int
    ) -> list[tuple[str, str, int, list[tuple[int, int]], list[tuple[int, int]]]]:
        """Of each file its name, where it is, its length, the ranges that the commit needs, and
        those that must have room."""

    def head(self, /) -> bytes:
        """The contents of the file `head` for a store with only this commit."""

    def expect(self, /) -> None:
        """Raises `CommitGoneError` where the commit was dropped meanwhile."""

    def close(self, /) -> None:
        """Lets go of the commit."""

def finish_pull(path: _Path, sequence: int, progress: _Progress | None = None) -> dict[str, Any]:
    """Verifies what was pulled to a directory, and makes it a store."""

def check(path: _Path, progress: _Progress | None = None) -> dict[str, Any]:
    """Reads and verifies every page of the store at `path`."""

def check_place(path: _Path) -> None:
    """Raises what opening a store at `path`, to make one, would say of the place."""

def copy(
    path: _Path,
    destination: _Path,
    memory: str,
    step: int | None = None,
    pin: str | None = None,
    storage: str | None = None,
    cold_directory: _Path | None = None,
    pmem_path: _Path | None = None,
    capacity: int | None = None,
    buckets: str | None = None,
    progress: _Progress | None = None,
) -> dict[str, Any]:
    """Copies a commit to a new store at `destination`."""

def reshard(
    parts: list[tuple[_Path, str, int]],
    destination: _Path,
    memory: str,
    step: int,
    meta: str,
    state: list[tuple[str, bytes]],
    progress: _Progress | None = None,
) -> dict[str, Any]:
    """Makes a store of the rows of some buckets of other stores, all at one step."""

def resize(
    path: _Path,
    table: str,
    capacity: int,
    pmem_path: _Path | None = None,
    make_empty: bool = False,
    progress: _Progress | None = None,
) -> dict[str, Any]:
    """Gives a table on persistent memory room for so many rows."""

def freeze(
    path: _Path,
    destination: _Path | None,
    plans: list[
        tuple[
            list[str],
            int,
            NDArray[np.uint16],
            NDArray[np.uint64],
            NDArray[np.uint32],
            NDArray[np.uint32],
        ]
    ],
    memory: str,
    step: int | None = None,
    sort_bytes: int = 268435456,
    dtype: str | None = None,
    unknown_zeros: bool = False,
    candidates: int = 10,
    page_bytes: int | None = None,
    progress: _Progress | None = None,
) -> dict[str, Any]:
    """Freezes a commit into a new store at `destination`, or in the store itself."""

def torture(
    options: list[str], seed: int, progress: Callable[[str], object] | None = None
) -> dict[str, Any]:
    """Runs stores on a simulated device; `options` are those of `embedrock torture`."""
