"""What a planner returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.witness import Witness
from slob_opt.problem.placement import Placement

OPTIMALITY_TOLERANCE = 1e-6
"""Largest relative gap that is called optimal. Chosen; times are exact to 1e-9 s, see test_certify."""


class Status(StrEnum):
    """How a solve ended; the meaning is ours, whatever a solver calls it."""

    OPTIMAL = "OPTIMAL"
    """The gap between plan and bound is within the tolerance."""
    FEASIBLE = "FEASIBLE"
    """A plan without a proof; the bound may be known."""
    INFEASIBLE = "INFEASIBLE"
    """No plan exists; proven."""
    UNKNOWN = "UNKNOWN"
    """Neither plan nor proof of infeasibility."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """State of a solve at one moment.

    Attributes
    ----------
    elapsed_s
        Seconds since the solve began.
    objective, bound
        Incumbent and bound, minimised scale; ``None`` when not known yet.
    """

    elapsed_s: float
    objective: float | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """Limits of one solve.

    Attributes
    ----------
    time_s
        Wall-clock seconds; ``None`` is no limit.
    memory_bytes
        Cap on the memory of a solver process; ``None`` is no cap.
    seed
        For whatever is random.
    workers
        Threads of a solver; one keeps runs repeatable.
    """

    time_s: float | None = 60.0
    memory_bytes: int | None = None
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class SolveResult:
    """Plan, bound and how they came about; always minimised (throughput as negative tokens/s).

    Attributes
    ----------
    planner
        Name of the method.
    status
        See :class:`Status`.
    placement
        The plan; ``None`` when there is none.
    objective
        Worth of the plan in seconds (`interval`) or negative output tokens/s (`throughput`); ``None`` without a plan.
    bound
        No plan is worth less; ``None`` when no bound is known.
    witness
        What lets others check the bound; ``None`` makes the bound *claimed*.
    elapsed_s
        Wall-clock seconds of the solve.
    history
        Incumbent and bound over time.
    limits
        Limits that held.
    details
        Counts and notes of the method, for tables and tracking; numbers and short words only.
    message
        One sentence when there is something to say (why infeasible, why a limit); empty otherwise.
    """

    planner: str
    status: Status
    placement: Placement | None
    objective: float | None
    bound: float | None
    elapsed_s: float
    witness: Witness | None = None
    history: tuple[HistoryPoint, ...] = ()
    limits: SolveLimits = field(default_factory=SolveLimits)
    details: tuple[tuple[str, float | int | str | bool], ...] = ()
    message: str = ""

    @property
    def gap(self) -> float | None:
        """Relative gap to the bound, by the plan's own worth; ``None`` when either is missing.

        For `throughput` that's (bound rate - rate) / rate, for `interval` (interval - bound) / interval.
        """
        if self.objective is None or self.bound is None:
            return None
        return max(0.0, self.objective - self.bound) / abs(self.objective)


class Planner(Protocol):
    """A method that looks for a placement.

    A planner is deterministic for a given instance, incumbent and limits (as long as no time limit is hit), never
    returns a plan that breaks memory or a cap, never returns one worse than the incumbent it was given, and calls a
    result OPTIMAL only when its own gap is within the tolerance.
    """

    @property
    def name(self) -> str:
        """Name in tables and files."""

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the best plan found, with a bound when the method has one."""
