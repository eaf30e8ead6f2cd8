"""Reports: one JSON document in the shape that all commands share, and a page for people beside it.

`document` makes and writes them, `html` makes the page of the JSON alone, `plots` draws. What a
report is made of lies here too: `counters` of a store, `points` of a run's history. `progress` is
what is shown until there is a report. Nothing here knows who trains, measures or compares.
"""

from embedrock.report.document import KEYS, check, machine, report, without_nan, write

__all__ = ["KEYS", "check", "machine", "report", "without_nan", "write"]
