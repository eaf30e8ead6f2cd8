"""What training costs, and what it could cost at least: recordings and step reports.

:meth:`embedrock.Store.record` begins a :class:`Recording`; a :class:`embedrock.StepReport` goes
round the loader of a loop.
"""

from embedrock.observe.recording import Recording

__all__ = ["Recording"]
