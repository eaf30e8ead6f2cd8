"""`embedrock info STORE`: tables, commits, how memory and disk are spent, who does the I/O."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from embedrock.cli import output


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="tables, rows, commits, memory and disk of a store",
        description="Opens a store for reading and says what is in it. Changes nothing.",
    )
    command.add_argument("store", type=Path, metavar="STORE", help="the store's directory")
    command.add_argument(
        "--memory", default="256MiB", help="memory for looking: the index must fit (256MiB)"
    )
    command.add_argument(
        "--verbose",
        action="store_true",
        help="also how fast the device read when its first table was made",
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Prints what the store says of itself."""
    import embedrock

    output.refuse_missing_store(arguments.store)
    with embedrock.open(arguments.store, arguments.memory, create=False, read_only=True) as store:
        stats = store.stats()
        commits = [asdict(commit) for commit in store.commits()]
        tables = {name: _table(table) for name, table in store.tables.items()}
    found = {"store": str(arguments.store), "tables": tables, "commits": commits, "stats": stats}
    if arguments.json:
        output.print_json(found)
    else:
        _print(found, arguments.verbose)
    return 0


def _table(table: Any) -> dict[str, Any]:
    return {
        "rows": len(table),
        "embedding_dim": table.embedding_dim,
        "num_embeddings": table.num_embeddings,
        "dtype": table.dtype,
        "rounding": table.rounding,
        "row_bytes": table.row_bytes,
        "optimizer": table.optimizer,
        "initializer": table.initializer,
    }


def _print(found: dict[str, Any], verbose: bool) -> None:
    stats = found["stats"]
    print(f"store {found['store']}\n")
    rows = [["table", "rows", "capacity", "dim", "dtype", "bytes per row", "optimizer"]]
    for name, table in found["tables"].items():
        size = table["num_embeddings"]
        rows.append(
            [
                name,
                f"{table['rows']:,}",
                "growing" if size is None else f"{size:,}",
                str(table["embedding_dim"]),
                table["dtype"],
                str(table["row_bytes"]),
                table["optimizer"]["kind"],
            ]
        )
    output.print_table(rows)
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
    if not stats["commits"]["held"]:
        print("not held: this process may not write here; a writer may drop the commit meanwhile")
    print()
    output.print_table(list(_spent(stats, verbose)), header=False)


def _spent(stats: dict[str, Any], verbose: bool) -> list[list[str]]:
    device = stats["device"]
    way = "direct" if device["direct"] else "through the page cache"
    rows = [["disk", output.human_bytes(stats["disk_bytes"])]]
    if stats["max_disk_bytes"] is not None:
        rows.append(["  at most", output.human_bytes(stats["max_disk_bytes"])])
    for row_class in stats["classes"]:
        used = row_class["used_slots"] * row_class["row_bytes"]
        newest = row_class["newest_copies"] * row_class["row_bytes"]
        name = f"  rows-{row_class['id']}"
        rows.append([name, output.human_bytes(row_class["disk_bytes"])])
        rows.append(["    newest rows", output.human_bytes(newest)])
        rows.append(["    older copies", output.human_bytes(used - newest)])
        rows.append(["    page", output.human_bytes(row_class["page_bytes"])])
    rows.append(["memory of this command", output.human_bytes(stats["budget_bytes"])])
    for name, size in stats["memory"].items():
        shown = name.removesuffix("_bytes").replace("_", " ")
        rows.append([f"  {shown}", output.human_bytes(size)])
    rows.append(["io", f"{device['io']}, {way}"])
    rows += [["  note", note] for note in device["notes"]]
    if not verbose:
        return rows
    for point in (device["curve"] or {"points": []})["points"]:
        size = output.human_bytes(point["bytes"])
        rows.append([f"  random reads of {size}", f"{point['requests_per_s']:,.0f}/s"])
    return rows
