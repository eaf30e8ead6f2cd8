"""The cost of training, and the least that it could be: recordings and step reports.

:meth:`embedrock.Store.record` begins a :class:`Recording`; a :class:`StepReport` goes round the
loader of a loop.
"""

from embedrock.observe.recording import Recording
from embedrock.observe.step_report import StepReport

__all__ = ["Recording", "StepReport"]
