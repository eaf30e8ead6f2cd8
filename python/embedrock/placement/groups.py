"""``PlanGroup``: what a plan has of the tables that share pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["PlanGroup", "pages_of_share"]


def pages_of_share(share: float, rows: int, rows_per_page: int) -> int:
    """Full pages that have no more than a share of the rows."""
    return int(rows * share / rows_per_page)


@dataclass(frozen=True, eq=False)
class PlanGroup:
    """Rows of tables that share pages, in the order of their home pages, and replica pages."""

    rows_per_page: int
    """Rows of a full page; row ``i`` is at home in page ``i // rows_per_page``."""
    table: npt.NDArray[np.uint16]
    """The table of each row, its place in ``Plan.tables``: (rows,)."""
    key: npt.NDArray[np.uint64]
    """The key of each row: (rows,)."""
    replica_starts: npt.NDArray[np.int64]
    """The begin of each replica page in ``replica_rows``, and the end: (replica pages + 1,)."""
    replica_rows: npt.NDArray[np.uint32]
    """Rows of the replica pages, one page after another, as places in the order."""

    @property
    def num_rows(self) -> int:
        """Number of rows, without replicas."""
        return len(self.key)

    @property
    def num_pages(self) -> int:
        """Number of home pages."""
        return -(-self.num_rows // self.rows_per_page)

    @property
    def num_replica_pages(self) -> int:
        """Number of replica pages."""
        return len(self.replica_starts) - 1

    def with_replica_pages(self, pages: int) -> PlanGroup:
        """The same with the first replica pages alone. Arrays are not copied."""
        starts = self.replica_starts[: pages + 1]
        return replace(self, replica_starts=starts, replica_rows=self.replica_rows[: starts[-1]])
