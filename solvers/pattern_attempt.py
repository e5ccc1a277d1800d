"""What one solve by columns has found so far: best plan, best bound with its witness, time left, notes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from slob_opt.planning.infeasible import explain_infeasible
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, HistoryPoint, SolveLimits, SolveResult
from slob_opt.planning.witness import Witness
from slob_opt.problem.placement import Placement
from solvers.backend import BackendLimits
from solvers.child_process import ChildReport

MIN_SOLVE_S = 0.5
"""Least time worth starting a solver's process for, seconds. Chosen."""


@dataclass(slots=True)
class PatternAttempt:
    """Collects what routes find; the planner turns it into a result.

    Attributes
    ----------
    name
        Of the planner.
    instance, limits
        What is solved and within which limits.
    began
        ``time.perf_counter()`` at the start.
    plan, worth
        Best plan so far and its worth (minimised); ``None`` before there is one.
    bound, witness
        Best bound so far (minimised) and what proves it; ``None`` before there is one.
    is_infeasible
        A complete search found that there is no plan.
    message
        What the result should say.
    stopped
        Why the last solver's process stopped early; empty when it didn't.
    """

    name: str
    instance: PlacementInstance
    limits: SolveLimits
    began: float
    plan: Placement | None = None
    worth: float | None = None
    bound: float | None = None
    witness: Witness | None = None
    is_infeasible: bool = False
    message: str = ""
    stopped: str = ""
    history: list[HistoryPoint] = field(default_factory=list)
    details: dict[str, float | int | str | bool] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def is_out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self.limits.time_s is not None and self.elapsed_s > self.limits.time_s

    def is_closed(self) -> bool:
        """Whether plan and bound meet."""
        if self.worth is None or self.bound is None:
            return False
        return self.worth - self.bound <= OPTIMALITY_TOLERANCE * abs(self.worth)

    def backend_limits(self, share: float = 1.0) -> BackendLimits | None:
        """Return limits for a share of the time left; ``None`` when too little is left to start a process."""
        if self.limits.time_s is None:
            return BackendLimits(None, seed=self.limits.seed, workers=self.limits.workers)
        left = self.limits.time_s - self.elapsed_s
        if left < MIN_SOLVE_S:
            return None
        return BackendLimits(max(MIN_SOLVE_S, left * share), seed=self.limits.seed, workers=self.limits.workers)

    def note(self, key: str, value: float | int | str | bool) -> PatternAttempt:
        """Keep a detail (the last value counts) and return the attempt."""
        self.details[key] = value
        return self

    def note_report(self, report: ChildReport) -> None:
        """Keep what a solver's process says of itself; times add up over processes."""
        self.details["backend"] = "highs"
        self.details["solves"] = int(self.details.get("solves", 0)) + len(report.answers)
        for key, value in (("start_s", report.start_s), ("build_s", report.build_s), ("solve_s", report.solve_s)):
            self.details[key] = float(self.details.get(key, 0.0)) + value
        if report.solver_version is not None:
            self.details["solver_version"] = report.solver_version
        if report.built is not None:
            self.details["variables"], self.details["rows"] = report.built.num_variables, report.built.num_rows
        if report.finished is not None:
            self.details["ending"] = report.finished.ending.value
        self.details["met_memory_limit"] = report.met_memory_limit
        self.stopped = report.why_stopped(self.limits.memory_bytes)

    def add_plan(self, plan: Placement | None) -> None:
        """Keep a plan when it is allowed and better, by its own worth."""
        best, worth = better_plan(self.instance, self.plan, plan)
        if best is not self.plan:
            self.plan, self.worth = best, worth
            self.history.append(HistoryPoint(self.elapsed_s, self.worth, self.bound))

    def add_bound(self, bound: float, witness: Witness | None = None) -> None:
        """Keep a bound when it is better, or as good and the first with a witness."""
        is_proven = self.bound == bound and self.witness is None and witness is not None
        if self.bound is None or bound > self.bound or is_proven:
            self.bound, self.witness = bound, witness
            self.history.append(HistoryPoint(self.elapsed_s, self.worth, self.bound))

    def exclude(self, witness: Witness | None = None) -> None:
        """Keep that no plan exists; a complete search said so."""
        self.is_infeasible, self.witness = True, witness or self.witness
        self.message = explain_infeasible(self.instance)

    def _message(self) -> str:
        """What stopped the solver, then what was found; once all is proven, only a memory limit is worth a word."""
        is_proven = self.is_infeasible or (self.is_closed() and not self.details.get("met_memory_limit"))
        return "; ".join(filter(None, ("" if is_proven else self.stopped, self.message)))

    def result(self) -> SolveResult:
        """Return the result: status from plan, bound and proof."""
        return outcome(
            self.instance,
            self.name,
            self.plan,
            self.bound,
            elapsed_s=self.elapsed_s,
            witness=self.witness,
            history=self.history,
            limits=self.limits,
            details=tuple(self.details.items()),
            message=self._message(),
            is_infeasible=self.is_infeasible,
        )
