"""A placement problem: a cost table and an objective."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from slob_opt.cost.table import CostTable
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective


@dataclass(frozen=True, slots=True)
class PlacementInstance:
    """What a planner is given.

    Attributes
    ----------
    table
        Times and bytes.
    objective
        What to optimise.
    name
        Shown in reports.
    """

    table: CostTable
    objective: Objective
    name: str = "instance"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over table and objective, hex."""
        return hashlib.sha256(f"{self.table.fingerprint}|{self.objective!r}".encode()).hexdigest()

    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Return the pipeline shapes to choose from, as (row, K, b).

        For `interval` that's the one shape (0, K, 1). For `throughput` all (row, K, b) with K up to the limit and
        K * b up to `max_in_flight`.
        """
        objective = self.objective
        if isinstance(objective, IntervalObjective):
            return ((0, objective.in_flight, 1),)
        cap = objective.max_in_flight
        return tuple(
            (row, k, b)
            for row, b in enumerate(self.table.batch_sizes)
            if row > 0
            for k in range(1, objective.max_micro_batches + 1)
            if cap is None or k * b <= cap
        )

    @property
    def is_throughput(self) -> bool:
        """Whether the natural figure is a rate (to be maximised)."""
        return isinstance(self.objective, ThroughputObjective)

    @property
    def max_interval_s(self) -> float | None:
        """Cap on a pipeline's interval, seconds; ``None`` when there is none."""
        return self.objective.max_interval_s if isinstance(self.objective, ThroughputObjective) else None
