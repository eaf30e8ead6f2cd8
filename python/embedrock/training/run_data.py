"""The data of a run on clicks: which files they are, whether a stored run has read the same, and
the data set that is made of them.

A run that goes on has to read what it has read before, or its held-out samples would be others than
those that it never trained on. Files are known by what is in them (`data.known_files`). A log that
has more behind it than the run has read is a question for the user: `--grown`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from embedrock.data import DataError, Dataset, crosses, movielens, sequences
from embedrock.data.csv import RULES
from embedrock.data.formats import parts_of
from embedrock.data.known_files import Known, compared
from embedrock.data.streamed import Mark, Scan, StreamedDataset, scan
from embedrock.data.text import Head
from embedrock.errors import MisuseError
from embedrock.report.progress import Sink, Task
from embedrock.training.options import STREAMED_FORMATS, TrainOptions

__all__ = ["RunData", "known_of", "opened", "pruned", "recognised"]


@dataclass(frozen=True)
class RunData:
    """The files that a run reads, before they are read."""

    files: tuple[Path, ...]
    known: list[dict[str, Any]]
    """The identity of each file, as JSON, as the commits of the run have it."""
    rules: int
    """Rules for reading values (`data.csv.RULES`): those of the version that began the run."""
    scan: Scan | None = None
    """The result of a pass over the files; None if one is still needed."""
    is_older: bool = False
    """Whether the run is of a version that knew files by their first bytes alone."""

    def meta(self) -> dict[str, Any]:
        """Its entry in a commit."""
        return {"files": self.known, "rules": self.rules}


def known_of(files: Sequence[Path], sink: Sink) -> list[dict[str, Any]]:
    """The identities of files. Errors: DataError."""
    known = []
    for path in files:
        with Task(sink, f"reading {path.name}", _bytes(path)) as task:
            known.append(Known.of(path, task.to).as_dict())
    return known


def recognised(stored: Mapping[str, Any] | None, options: TrainOptions, sink: Sink) -> RunData:
    """The data of a new run, or of a stored one, which must be those that it has read.

    Errors: MisuseError for others, and for more without `grown`; DataError.
    """
    files = options.files()
    if stored is None:
        return RunData(files, known_of(files, sink), RULES)
    found = _scan_of(stored["scan"])
    rules = stored.get("rules", 1)
    if "files" not in stored:
        _check_older(stored, options, files)
        return RunData(files, known_of(files, sink), rules, found, is_older=True)
    then = stored["files"]
    is_grown = False
    for place, before in enumerate(then):
        if place >= len(files):
            raise MisuseError(
                f"{options.data} has {len(files)} files, but the run in {options.store} has read "
                f"{len(then)}, the next of them {before['path']}; pass the same data, or name "
                f"another --store"
            )
        with Task(sink, f"looking at {files[place].name}", _bytes(files[place])) as task:
            seen = compared(before, files[place], task.to)
        if seen == "other" or (seen == "grown" and place + 1 < len(then)):
            problem = "is not" if seen == "other" else "has more in it than"
            raise MisuseError(
                f"{files[place]} {problem} what the run in {options.store} has read, "
                f"{before['path']} of {before['bytes']} bytes; pass the same data, plain, gzip or "
                f"zstd, or name another --store"
            )
        is_grown |= seen == "grown"
    if not is_grown and len(files) == len(then):
        return RunData(files, then, rules, found)
    last = files[len(then) - 1]
    what = f"{last} has grown" if is_grown else f"{files[len(then)]} has come"
    if not _goes_on_with_more(options, what):
        return RunData(files[: len(then)], then, rules, found)
    return RunData(files, known_of(files, sink), rules)


def _goes_on_with_more(options: TrainOptions, what: str) -> bool:
    """Whether a run takes what its log has got behind it. Errors: MisuseError where nobody said."""
    said = f"{what} since the run in {options.store} read its data"
    if options.format not in STREAMED_FORMATS:
        raise MisuseError(
            f"{said}: format {options.format} is read as a whole, and with more in it would be "
            f"another run; pass the data as they were, or name another --store"
        )
    if options.grown is None:
        raise MisuseError(
            f'{said}: say what to do with what came. grown="train" goes on with all of it: epochs '
            f"from here on have the new samples, too, and the last ones of the longer log are held "
            f'out. grown="ignore" goes on with the log as it was'
        )
    return options.grown == "train"


def _check_older(stored: Mapping[str, Any], options: TrainOptions, files: Sequence[Path]) -> None:
    """Errors: MisuseError where the first bytes are not those that a run of an older version has
    read."""
    if options.format == "movielens" and movielens.was_taken_for_header(options.data):
        raise MisuseError(
            f"the run in {options.store} is of an older version, which took the first rating of "
            f"{files[0]} for a header, so its samples are others; begin anew with another --store"
        )
    if "data" not in stored:  # still older ones do not have it
        return
    began = stored["data"]
    head = Head.of(files[0], began["bytes"])
    if asdict(head) != {name: began[name] for name in asdict(head)}:
        raise MisuseError(
            f"{options.data} is not the data of the run in {options.store}, which has read "
            f"{began['path']}: their first {began['bytes']} bytes of text differ; pass the same "
            f"data, plain, gzip or zstd, or name another --store"
        )


def opened(data: RunData, options: TrainOptions, sink: Sink) -> tuple[Dataset, RunData, int]:
    """The data set, with its scan where it is streamed, and how many malformed lines were skipped.

    Errors: DataError; MisuseError as :func:`recognised`, of a log of an older run that has grown.
    """
    if options.format == "movielens":
        return _rated(data, options, sink)
    if options.format == "sessions":
        return _sessions(data, options, sink)
    first, *more = parts_of(options.format, data.files, options.columns, data.rules)
    skip, found = options.skip_bad_lines, data.scan

    def dataset(found: Scan) -> StreamedDataset:
        return StreamedDataset(
            first.path,
            first.kind,
            more=more,
            scan=found,
            holdout=options.holdout,
            skip_bad_lines=skip,
        )

    if found is not None and data.is_older:
        there = dataset(found).samples_there()
        if there < found.samples:
            raise MisuseError(
                f"{options.data} has {there} samples, but the run in {options.store} has read "
                f"{found.samples}; pass the same data, or name another --store"
            )
        what = f"{data.files[-1]} has grown from {found.samples} samples to {there}"
        if there > found.samples and _goes_on_with_more(options, what):
            found = None
    if found is None:
        size = _plain_bytes(data.files)
        with Task(sink, "scanning data", size) as task:
            found = scan(first.path, first.kind, more=more, skip_bad_lines=skip, progress=task.to)
        _tell_skipped(found.bad_lines, found.first_bad_line)
    return dataset(found), replace(data, scan=found), found.bad_lines


def _rated(data: RunData, options: TrainOptions, sink: Sink) -> tuple[Dataset, RunData, int]:
    model, holdout, seed = options.recipe.kind, options.holdout, options.seed
    with Task(sink, "reading ratings"):
        ratings = movielens.read(options.data, skip_bad_lines=options.skip_bad_lines)
    bad = ratings.bad_lines
    _tell_skipped(bad.count, bad.first)
    if model.sequences:
        most = options.recipe.model_options["max_history"]
        rated = sequences.rated_dataset(ratings, max_history=most, holdout=holdout, seed=seed)
        return rated, data, bad.count
    several = model.several_targets
    dataset = crosses.click_dataset(ratings, several_targets=several, holdout=holdout, seed=seed)
    return dataset, data, bad.count


def _sessions(data: RunData, options: TrainOptions, sink: Sink) -> tuple[Dataset, RunData, int]:
    with Task(sink, "reading sessions"):
        found = sequences.read_sessions(data.files, skip_bad_lines=options.skip_bad_lines)
    bad = found.bad_lines
    _tell_skipped(bad.count, bad.first)
    if found.too_short:
        count = found.too_short
        print(f"{count} sessions of one item are left out: none follows it", file=sys.stderr)
    two_each = sequences.session_dataset(
        found,
        max_history=options.recipe.model_options["max_history"],
        holdout=options.holdout,
        seed=options.seed,
    )
    return two_each, data, bad.count


def pruned(found: Scan, dataset: Dataset) -> Scan:
    """The scan with only the mark that a continuation needs: the last before the held-out part."""
    first_test = dataset.num_train() or 0
    needed = [mark for mark in found.marks if mark.samples <= first_test]
    return Scan(found.samples, found.distinct, needed[-1:], found.bad_lines, found.first_bad_line)


def _scan_of(meta: Mapping[str, Any] | None) -> Scan | None:
    if meta is None:
        return None
    return Scan(**{**meta, "marks": [Mark(**mark) for mark in meta["marks"]]})


def _tell_skipped(count: int, first: DataError | str | None) -> None:
    if count:
        lines = "line" if count == 1 else "lines"
        print(f"{count} malformed {lines} skipped, the first: {first}", file=sys.stderr)


def _bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _plain_bytes(files: Sequence[Path]) -> int:
    """Bytes of text, as far as they are known beforehand: 0 for a packed file, and for several."""
    if len(files) == 1 and files[0].suffix not in (".gz", ".zst", ".parquet"):
        return _bytes(files[0])
    return 0
