"""Reading before use: the look-ahead window, permits of bounded staleness, reads into arrays.

A store makes all three: :attr:`embedrock.Store.window`, :meth:`embedrock.Store.permits`, and
:meth:`embedrock.Store.lookahead` with ``out``. Nothing here needs PyTorch;
:mod:`embedrock.pipeline` drives it from data loaders and training loops.
"""

from embedrock.ahead.permits import Permit, Permits
from embedrock.ahead.prefetch import Prefetch
from embedrock.ahead.schedule import BatchSchedule, Schedule
from embedrock.ahead.window import WINDOW_GROUP, Window

__all__ = [
    "WINDOW_GROUP",
    "BatchSchedule",
    "Permit",
    "Permits",
    "Prefetch",
    "Schedule",
    "Window",
]
