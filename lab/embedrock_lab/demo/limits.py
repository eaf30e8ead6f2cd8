"""Requirements of a demo: equal results, and memory within the budget."""

from __future__ import annotations

from typing import Any

from embedrock_lab.measure.machine import memory_limit

#: Most that the two AUCs may differ.
AUC_DIFFERENCE_MAX = 0.0005

Result = dict[str, Any]


def failures(figures: Result) -> list[str]:
    """Missed targets, as sentences; empty when all is well."""
    found = []
    difference = figures["auc_difference"]
    if difference is None or difference > AUC_DIFFERENCE_MAX:
        found.append(f"auc_difference is {difference}, expected at most {AUC_DIFFERENCE_MAX}")
    if figures["bits_equal"] != 1:
        found.append("bits_equal is 0: the memory budget changed losses or rows")
    return found + memory_failures(figures)


def memory_figures(budget: int, memory: Result) -> Result:
    """Memory limit of the engine with a budget, and its use in the process without PyTorch."""
    limit = memory_limit(budget)
    return {
        "embedding_budget_bytes": budget,
        "embedding_memory_bytes": memory["memory_bytes"],
        "embedding_memory_limit_bytes": limit,
        "embedding_memory_within_limit": int(memory["memory_bytes"] <= limit),
    }


def memory_failures(figures: Result) -> list[str]:
    """A sentence when it took more."""
    if figures["embedding_memory_within_limit"] == 1:
        return []
    used, limit = figures["embedding_memory_bytes"], figures["embedding_memory_limit_bytes"]
    return [f"the engine took {used:,} bytes of memory, expected at most {limit:,}"]
