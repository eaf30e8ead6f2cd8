"""Reports: one JSON document in the shape that all commands share, and a page for people beside it.

`document` makes and writes them, `html` makes the page from the JSON alone, `plots` draws. The
parts of a report are here too: `counters` of a store, `points` of a run's history. `progress` is
shown until there is a report. Nothing here depends on the program that trains, measures or
compares.
"""

from embedrock.report.document import KEYS, check, machine, report, without_nan, write

__all__ = ["KEYS", "check", "machine", "report", "without_nan", "write"]
