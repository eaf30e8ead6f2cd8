"""Traces: which rows are asked for together, from files of queries or recorded.

By a trace the rows of a table can be placed so that those of one query lie in few pages.
:class:`Trace` has the queries in order, and reads and writes files of them; :func:`record` begins a
:class:`Recorder` of what a store is asked for.
"""

from embedrock.trace.queries import Queries
from embedrock.trace.recorder import Recorded, Recorder, record
from embedrock.trace.trace import Trace

__all__ = ["Queries", "Recorded", "Recorder", "Trace", "record"]
