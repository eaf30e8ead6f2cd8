"""``python -m embedrock.bench NAME``: runs one bench and prints its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from embedrock.bench import BENCHES, load
from embedrock.bench.common import render, write_json


def main(arguments: Sequence[str] | None = None, prog: str = "python -m embedrock.bench") -> int:
    """Runs the bench that the arguments name; 0 unless a row was read wrongly."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, purpose in BENCHES.items():
        one = names.add_parser(
            name,
            help=purpose,
            description=purpose,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        one.add_argument("--json", type=Path, help="write the report to this file")
        one.add_argument("--all", action="store_true", help="run the variants too")
        load(name).add_arguments(one)
    options = parser.parse_args(arguments)
    bench = load(options.name)
    report = bench.run(options)
    print(getattr(bench, "render", render)(report))
    if options.json is not None:
        write_json(options.json, report)
    return 1 if report["results"]["mismatches"] else 0


if __name__ == "__main__":
    sys.exit(main())
