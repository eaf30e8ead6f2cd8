"""`embedrock trace SOURCE ...`: queries from files as one trace, parts of it, and what is in it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from embedrock.cli import output
from embedrock.errors import MisuseError

_COLUMNS = ("queries", "keys", "distinct_keys", "length_mean", "length_max", "top_1_percent_share")
_TITLES = ("queries", "keys", "distinct", "mean length", "longest", "keys of the top 1 %")


def add(commands: Any) -> argparse.ArgumentParser:
    """Adds the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="make a trace of queries from files, and describe it",
        description=(
            "Reads queries, the ids that were requested together, from one file after "
            "another: text with one query per line, plain, gzip or zstd (see --format); "
            "Parquet with a list column; or a trace saved by a recorder. Writes them as one "
            "trace, for placing rows. docs/formats/trace.md describes the formats."
        ),
        epilog=(
            "example: embedrock trace monday.txt.gz tuesday.txt.gz --table items --out trace.npz "
            "--split 0.8 --held-out held.npz"
        ),
    )
    command.add_argument("source", nargs="+", type=Path, metavar="SOURCE", help="files of queries")
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=(
            "the trace: .npz, or for a single table .txt, .txt.gz, .txt.zst, .parquet; an "
            "existing file is replaced"
        ),
    )
    command.add_argument(
        "--table",
        metavar="NAME",
        help=(
            "the table of the ids, if a file does not name it; if it names several, the one to use"
        ),
    )
    command.add_argument(
        "--column", metavar="NAME", help="the list column of Parquet files (the only one)"
    )
    output.add_query_format(command)
    command.add_argument(
        "--sample",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="keep about this share of the queries, each as a whole, by a hash of their number (1)",
    )
    command.add_argument(
        "--seed", type=output.natural, default=0, metavar="N", help="seed of that hash (0)"
    )
    command.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help=(
            "write this share of the queries, the first ones, to --out and the others to --held-out"
        ),
    )
    command.add_argument("--held-out", type=Path, metavar="FILE", help="file for the other queries")
    command.add_argument(
        "--stats",
        action="store_true",
        help=(
            "print the number of distinct keys, lengths of queries, and the share of the most "
            "popular keys; --out may be omitted"
        ),
    )
    output.add_json(command)
    command.set_defaults(run=run)
    return command


def run(arguments: argparse.Namespace) -> int:
    """Reads, writes, and says what."""
    from embedrock.report import progress
    from embedrock.trace import Trace

    _check(arguments)
    with progress.Task(progress.for_terminal(), "reading") as task:
        trace = Trace.load(
            arguments.source,
            table=arguments.table,
            column=arguments.column,
            format=arguments.format,
            keys=arguments.keys,
            sample=arguments.sample,
            seed=arguments.seed,
            progress=task.callback(),
        )
    parts = [(arguments.out, trace)]
    if arguments.split is not None:
        first, others = trace.split(arguments.split)
        parts = [(arguments.out, first), (arguments.held_out, others)]
    done = []
    for path, part in parts:
        if path is not None:
            with progress.Task(progress.for_terminal(), f"writing {path}"):
                part.save(path)
        done.append({"path": None if path is None else str(path), **_said(part, arguments.stats)})
    if arguments.json:
        output.print_json({"traces": done})
    else:
        _print(done, arguments.stats)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Errors: MisuseError for options that do not fit, before anything is read."""
    from embedrock.trace import files, sampling

    for path in (arguments.out, arguments.held_out):
        if path is not None:
            files.ending(path)
    sampling.share_of("--sample", arguments.sample, whole=True)
    if arguments.split is not None:
        sampling.share_of("--split", arguments.split, whole=False)
    if arguments.out is None and not arguments.stats:
        raise MisuseError("nothing to do: expected --out FILE, or --stats")
    if (arguments.split is None) is not (arguments.held_out is None):
        raise MisuseError("--split and --held-out go together: one says how much, one where to")
    if arguments.held_out is not None:
        if arguments.out is None:
            raise MisuseError("--held-out has the rest of what --out has: expected --out FILE")
        if arguments.held_out.resolve() == arguments.out.resolve():
            raise MisuseError(f"--out and --held-out are both {arguments.out}, expected two files")


def _said(trace: Any, stats: bool) -> dict[str, Any]:
    if stats:
        found: dict[str, Any] = trace.stats()
        return found
    return {"queries": trace.queries, "keys": trace.keys, "tables": list(trace.tables)}


def _print(done: list[dict[str, Any]], stats: bool) -> None:
    for one in done:
        if one["path"] is not None:
            print(f"{one['path']}: {one['queries']:,} queries, {one['keys']:,} keys")
        if stats:
            rows = [("table", *_TITLES), _row("all" if "tables" in one else "", one)]
            rows += [_row(name, table) for name, table in one.get("tables", {}).items()]
            if "tables" not in one:
                rows = [row[1:] for row in rows]
            output.print_table(rows)


def _row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    share = found["top_1_percent_share"]
    cells = [f"{found[column]:,}" for column in _COLUMNS[:3]]
    cells += [f"{found['length_mean']:,.1f}", f"{found['length_max']:,}"]
    return (name, *cells, "-" if share is None else f"{share:.1%}")
