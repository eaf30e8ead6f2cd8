"""Placement: which rows of served tables lie together in pages, and which have replicas.

:func:`place` learns a :class:`Plan` from a trace of queries, so that queries like them read few
pages; :func:`pack` makes one for the very queries of a trace. A plan is a file
(``docs/formats/plan.md``); :meth:`Plan.evaluate` says what queries read with it, and
``embedrock.freeze`` writes a store in its order.
"""

from embedrock.placement.evaluation import Evaluation
from embedrock.placement.groups import PlanGroup
from embedrock.placement.packing import pack
from embedrock.placement.placing import place
from embedrock.placement.plan import Plan

__all__ = ["Evaluation", "Plan", "PlanGroup", "pack", "place"]
