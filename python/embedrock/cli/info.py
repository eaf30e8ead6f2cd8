"""`embedrock info STORE`: tables, commits, pins, how memory and disk are spent, how it reads."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from embedrock._made_keys import SAID, kinds_of
from embedrock.cli import output

_KINDS = ("rows", "part", "pmem", "journal", "pin", "state", "spare", "other")
"""The prefixes of file names (``docs/formats``), in the order of the list."""
_NOTED = {
    "part": "partitions",
    "pmem": "regions",
    "pin": "pins",
    "spare": "spare, for commits",
    "other": "other files",
}
_IN_USE = "in use"
"""Shown for values of a table whose region is open in another process."""
_BLOCK_BYTES = 512
"""Of `st_blocks`, whatever the blocks of the file system are."""


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="show tables, rows, commits, memory and disk of a store",
        description="Opens a store for reading and describes its contents. Changes nothing.",
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument(
        "--memory", default="256MiB", help="memory for reading: the index must fit (256MiB)"
    )
    output.add_folders(command)
    command.add_argument(
        "--verbose",
        action="store_true",
        help="also show how fast the device read when its first table was made",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Prints what the store says of itself."""
    import embedrock

    output.refuse_missing_store(arguments.store)
    with embedrock.open(
        arguments.store,
        arguments.memory,
        create=False,
        read_only=True,
        cold_directory=arguments.cold_directory,
        pmem_path=arguments.pmem_path,
    ) as store:
        stats = store.stats()
        commits = [asdict(commit) for commit in store.commits()]
        tables = {name: _table(table) for name, table in store.tables.items()}
        for name, kind in kinds_of(store.meta).items():
            if name in tables:
                tables[name]["keys"] = kind
    for one in stats["tables"]:
        table = tables[one["spec"]["name"]]
        if table["storage"] == "pmem" and one.get("medium") is None:  # nobody here can know
            table["rows"] = table["capacity"] = None
    found = {
        "store": str(arguments.store),
        "tables": tables,
        "commits": commits,
        "files": _files(arguments.store),  # without this command's own hold, which is gone
        "cold_files": _cold_files(stats["cold_directory"]),
        "stats": stats,
    }
    if arguments.json:
        output.print_json(found)
    else:
        _print(found, arguments.verbose)
    return 0


def _files(store: Path) -> dict[str, int]:
    """Bytes that the files of a store take on its disk, by kind, in the order of `_KINDS`; the
    folder itself is among the others, as `du` has it."""
    taken: dict[str, int] = {}
    for path in [store, *sorted(store.iterdir())]:
        with contextlib.suppress(FileNotFoundError):  # a writer has dropped it meanwhile
            kind = "other" if path == store else _kind(path.name)
            taken[kind] = taken.get(kind, 0) + path.lstat().st_blocks * _BLOCK_BYTES
    return dict(sorted(taken.items(), key=lambda item: _KINDS.index(item[0].partition("-")[0])))


def _cold_files(directory: str | None) -> dict[str, int]:
    """As `_files`, of the cold directory; nothing where there is none."""
    return {} if directory is None else _files(Path(directory))


def _kind(name: str) -> str:
    first = name.partition("-")[0]
    if first == "rows":
        return name
    if name == "pins":
        return "pin"
    return first if first in _KINDS else "other"


def _table(table: Any) -> dict[str, Any]:
    return {
        "rows": len(table),
        "embedding_dim": table.embedding_dim,
        "num_embeddings": table.num_embeddings,
        "dtype": table.dtype,
        "rounding": table.rounding,
        "storage": table.storage,
        "capacity": table.capacity,
        "row_bytes": table.row_bytes,
        "optimizer": table.optimizer,
        "initializer": table.initializer,
        "keys": None,
    }


def _print(found: dict[str, Any], verbose: bool) -> None:
    stats = found["stats"]
    print(f"store {found['store']}\n")
    rows = [["table", "rows", "capacity", "dim", "dtype", "storage", "bytes per row", "optimizer"]]
    for name, table in found["tables"].items():
        size = table["num_embeddings"] if table["capacity"] is None else table["capacity"]
        is_known = table["rows"] is not None
        capacity = "growing" if size is None else f"{size:,}"
        rows.append(
            [
                name,
                f"{table['rows']:,}" if is_known else _IN_USE,
                capacity if is_known else _IN_USE,
                str(table["embedding_dim"]),
                table["dtype"],
                table["storage"],
                str(table["row_bytes"]),
                table["optimizer"]["kind"],
            ]
        )
    output.print_table(rows)
    for kind in dict.fromkeys(table["keys"] for table in found["tables"].values()):
        if kind is not None:
            named = [name for name, table in found["tables"].items() if table["keys"] == kind]
            print(f"keys of {', '.join(named)}: {SAID[kind]}")
    print()
    rows = [["commit at step", "made", "rows flushed", "written"]]
    for commit in found["commits"]:
        made = datetime.fromtimestamp(commit["unix_time"], tz=timezone.utc)
        rows.append(
            [
                str(commit["step"]),
                made.strftime("%Y-%m-%d %H:%M:%S UTC"),
                f"{commit['rows_flushed']:,}",
                output.human_bytes(commit["bytes_written"]),
            ]
        )
    output.print_table(rows)
    _print_pins(stats["pins"])
    if not stats["commits"]["held"]:
        print("not held: this process may not write here; a writer may drop the commit meanwhile")
    print()
    on_disk = [*_on_disk(found["files"], stats), *_in_cold(found["cold_files"], stats)]
    on_disk += _in_partitions(stats) + _in_regions(found["tables"], stats)
    output.print_table([*on_disk, *_spent(stats, verbose)], header=False)


def _print_pins(pins: list[dict[str, Any]]) -> None:
    if not pins:
        return
    print()
    rows = [["pin", "step", "made", "pinned", "keeps alone"]]
    for one in pins:
        times = (
            datetime.fromtimestamp(one[when], tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
            for when in ("committed", "unix_time")
        )
        rows.append([one["name"], str(one["step"]), *times, output.human_bytes(one["bytes"])])
    output.print_table(rows)


def _on_disk(files: dict[str, int], stats: dict[str, Any]) -> list[list[str]]:
    rows = [["disk", output.human_bytes(sum(files.values()))]]
    if stats["max_disk_bytes"] is not None:
        rows.append(["  at most", output.human_bytes(stats["max_disk_bytes"])])
    logs = {f"rows-{one['id']}": one for one in stats["classes"] if one["storage"] == "log"}
    for kind, taken in files.items():
        rows.append([f"  {_NOTED.get(kind, kind)}", output.human_bytes(taken)])
        if kind in logs:
            rows += _in_class(logs[kind])
    return rows


def _in_class(row_class: dict[str, Any]) -> list[list[str]]:
    used = row_class["used_slots"] * row_class["row_bytes"]
    newest = row_class["newest_copies"] * row_class["row_bytes"]
    return [
        ["    newest rows", output.human_bytes(newest)],
        ["    older copies", output.human_bytes(used - newest)],
        ["    page", output.human_bytes(row_class["page_bytes"])],
    ]


def _in_partitions(stats: dict[str, Any]) -> list[list[str]]:
    """The contents of two kinds of files: the newest rows in `rows-…`, all others in partitions."""
    rows = []
    for one in stats["classes"]:
        if one["storage"] in ("lsm", "pages"):
            rows.append([f"{one['storage']} rows-{one['id']} with its partitions", ""])
            rows += [[name.removeprefix("  "), size] for name, size in _in_class(one)]
    return rows


def _in_regions(tables: dict[str, Any], stats: dict[str, Any]) -> list[list[str]]:
    """Events that rows on persistent memory survive; unknown for a table that a writer has open."""
    rows = []
    for one in stats["tables"]:
        name = one["spec"]["name"]
        if tables[name]["storage"] == "pmem":
            rows.append([f"pmem {name!r}", one.get("medium") or "in use: open in another process"])
    return rows


def _in_cold(files: dict[str, int], stats: dict[str, Any]) -> list[list[str]]:
    if stats["cold_directory"] is None:
        return []
    rows = [["cold disk", output.human_bytes(sum(files.values()))]]
    rows.append(["  directory", stats["cold_directory"]])
    for kind, taken in files.items():
        rows.append([f"  {_NOTED.get(kind, kind)}", output.human_bytes(taken)])
    return rows


def _spent(stats: dict[str, Any], verbose: bool) -> list[list[str]]:
    device = stats["device"]
    way = "direct" if device["direct"] else "through the page cache"
    rows = [["memory of this command", output.human_bytes(stats["budget_bytes"])]]
    parts = dict(stats["budget"])
    share = parts.pop("rows_share")
    for name, size in parts.items():
        shown = name.removesuffix("_bytes").replace("_", " ")
        note = f", {share:.1%} of it" if name == "rows_bytes" else ""
        rows.append([f"  {shown}", f"{output.human_bytes(size)}{note}"])
    rows.append(["io", f"{device['io']}, {way}"])
    rows += [["  note", note] for note in device["notes"]]
    if not verbose:
        return rows
    for point in (device["curve"] or {"points": []})["points"]:
        size = output.human_bytes(point["bytes"])
        rows.append([f"  random reads of {size}", f"{point['requests_per_s']:,.0f}/s"])
    return rows
