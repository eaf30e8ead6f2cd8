"""How results look on a terminal, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedrock._memory import size_of
from embedrock._ranks import folders_in, ranks_of
from embedrock.data.query_logs import FORMATS, KEYS
from embedrock.errors import CorruptError, MisuseError
from embedrock.report import text, without_nan

if TYPE_CHECKING:
    from embedrock.store import Store


def size(text: str) -> int:
    """Bytes, as ``--memory`` reads them: "2G", "512MB" or "1000000". For argparse's `type`."""
    try:
        return size_of("size", text, 1)
    except MisuseError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; examples: 512MB, 2GiB, 2G, 1000000"
        ) from None


def human_bytes(count: float | None) -> str:
    """ "1.5 GiB": three digits and a binary unit."""
    return text.bytes_text(count)


def print_table(rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Prints columns, the first one to the left, the others to the right."""
    print(text.table(rows, header=header))


def print_json(value: Any) -> None:
    """Prints JSON for programs; what is not a number becomes null, as JSON has no word for it."""
    json.dump(without_nan(value), sys.stdout, indent=2)
    print()


def add_json(command: argparse.ArgumentParser) -> None:
    """The switch that every command has."""
    command.add_argument(
        "--json", action="store_true", help="print the result as JSON, for programs"
    )


def add_query_format(command: argparse.ArgumentParser) -> None:
    """Options for the format of query lines and their ids (`embedrock.data.query_logs`)."""
    command.add_argument(
        "--format",
        choices=FORMATS,
        help=(
            "format of text; ids: lines of ids; sessions: lines of session, tab, its ids, as "
            "for embedrock train (ids; a line that may be either is refused)"
        ),
    )
    command.add_argument(
        "--keys",
        choices=KEYS,
        default="numbers",
        help=(
            "what ids are: numbers, used directly as keys; words, keys by embedrock.hash_keys, "
            "as embedrock train makes them from csv and sessions (numbers)"
        ),
    )


def add_url(command: argparse.ArgumentParser) -> None:
    """Object storage, and how it is reached."""
    command.add_argument(
        "url", metavar="URL", help="s3://bucket/path, gs://…, az://… or a folder such as ./folder"
    )
    command.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "a setting of the storage: endpoint, region, access_key_id, allow_http, … (from the "
            "environment: AWS_ENDPOINT_URL, …); may be repeated"
        ),
    )


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings of :func:`add_url`."""
    return dict(arguments.option)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting; example: region=eu-west-1")
    return name, value


def add_folders(command: argparse.ArgumentParser, regions: str = "") -> None:
    """Adds options for moved folders of a store's files; ``regions`` is an addition to the help."""
    command.add_argument(
        "--cold-directory",
        type=Path,
        metavar="DIR",
        help="directory of the partitions of lsm tables, if they were moved",
    )
    command.add_argument(
        "--pmem-path",
        type=Path,
        metavar="DIR",
        help=f"where the regions of pmem tables are, if they were moved{regions}",
    )


def add_writing(command: argparse.ArgumentParser) -> None:
    """How a command opens a store to write."""
    command.add_argument(
        "--memory", default="256MiB", help="memory for the store: the index must fit (256MiB)"
    )
    command.add_argument(
        "--max-disk-bytes",
        type=size,
        metavar="SIZE",
        help="maximum bytes of the store on disk (no bound)",
    )


def opened_to_write(arguments: argparse.Namespace) -> Store:
    """The store of a command, at its last commit. Errors: as ``open``; no store is made."""
    import embedrock

    refuse_missing_store(arguments.store)
    bound = arguments.max_disk_bytes
    return embedrock.open(arguments.store, arguments.memory, max_disk_bytes=bound, create=False)


def step_or_pin(text: str) -> int | str:
    """ "12" as a step, all else as the name of a pin. For argparse's `type`."""
    return int(text) if text.isascii() and text.isdigit() else text


def layer_sizes(text: str) -> tuple[int, ...]:
    """ "512-256-64" as sizes of hidden layers. For argparse's `type`."""
    try:
        sizes = tuple(int(part) for part in text.split("-"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layer sizes; example: 512-256-64")
    return sizes


def names(text: str) -> tuple[str, ...]:
    """ "ip,app" as names of columns; one that has a comma is quoted. For argparse's `type`."""
    found = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []))
    if not found or "" in found:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names; example: ip,app,device")
    return found


def share(text: str) -> float:
    """ "10%" or "0.1" as a share from 0 to less than 1. For argparse's `type`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; examples: 10%, 0.1, 0")
    return value


def positive(text: str) -> int:
    """A whole number from 1. For argparse's `type`."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return value


def natural(text: str) -> int:
    """A whole number from 0. For argparse's `type`."""
    return 0 if text.strip() == "0" else positive(text)


def staleness_bound(text: str) -> float:
    """ "4" or "inf": a number of batches. For argparse's `type`."""
    return math.inf if text in ("inf", "infinity") else natural(text)


def refuse_missing_store(path: Path) -> None:
    """Errors: MisuseError when `path` holds no store, CorruptError when it holds all of one but the
    superblock; both before anything is created there."""
    if (path / "superblock").is_file():
        return
    left = sorted(file.name for kind in ("journal-*", "rows-*") for file in path.glob(kind))
    if left:
        raise CorruptError(
            f"{path / 'superblock'} is missing, though {left[0]} is there; restore it from a copy "
            f"of this store"
        )
    ranks = stores_of_ranks(path)
    if ranks:
        raise MisuseError(
            f"{path} has the stores of {ranks_of(len(ranks))}: "
            f"{', '.join(ranks[:4])}{', …' if len(ranks) > 4 else ''}; give one of them, such as "
            f"{path / ranks[0]}"
        )
    raise MisuseError(f"{path} holds no store (it has no file named superblock)")


def stores_of_ranks(path: Path) -> list[str]:
    """The names of the folders of a run's stores, if these are what a folder has."""
    return list(folders_in(path))
