"""Exact planners over device-indexed models: the ILP (PuLP) and CP-SAT."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slob_opt.errors import InputError, SolverUnavailable
from slob_opt.planning.bounds import closed_form_bound, memory_shortage
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.infeasible import explain_infeasible
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, HistoryPoint, SolveLimits, SolveResult
from slob_opt.planning.witness import Witness
from slob_opt.problem.placement import Placement
from solvers.backend import BackendLimits, Ending
from solvers.child_process import ChildReport, run_in_child
from solvers.messages import Backend, Job
from solvers.size import refusal
from solvers.symmetry import canonical_placement

Detail = tuple[str, float | int | str | bool]

BOUND_MARGIN = {Backend.HIGHS: 1e-7, Backend.CBC: 5e-7, Backend.CPSAT: 0.0}
"""Relative amount taken off a back end's bound.

Chosen. HiGHS: tolerances of 1e-9 in rows of a few dozen terms, times ten. CBC: its tolerances are 1e-7 and PuLP reads
nine digits. CP-SAT computes in whole numbers.
"""

CONFIRM_S = 30.0
"""Longest time for the second opinion on INFEASIBLE, seconds. Chosen."""


@dataclass(slots=True)
class _Attempt:
    """What runs of back ends add up to."""

    plans: list[Placement] = field(default_factory=list)
    bound: float | None = None
    history: list[HistoryPoint] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    message: str = ""
    is_infeasible: bool = False


@dataclass(frozen=True, slots=True)
class IlpPlanner:
    """Exact planner: the device-indexed integer program, solved by HiGHS or CBC through PuLP in a process of its own.

    Attributes
    ----------
    backend
        ``"highs"``, which reports a bound all along, or ``"cbc"``, which proves optimality or gives no bound at all.
    """

    backend: str = "highs"

    def __post_init__(self) -> None:
        if self.backend not in ("highs", "cbc"):
            raise InputError(f"back end {self.backend!r} of the ILP, expected 'highs' or 'cbc'")

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "ilp"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the best plan found, with a bound.

        The time limit holds for start, building and search together and is enforced from outside the solver.

        Raises
        ------
        SolverUnavailable
            When PuLP or the back end isn't installed; the message says what to install.
        """
        return _solve(self.name, Backend(self.backend), instance, incumbent, limits or SolveLimits())


@dataclass(frozen=True, slots=True)
class CpSatPlanner:
    """Exact planner: the device-indexed constraint program, solved by OR-Tools CP-SAT in a process of its own.

    Attributes
    ----------
    deterministic_s
        Limit in CP-SAT's deterministic seconds: with one worker, equal calls then give equal results. ``None`` leaves
        the wall-clock limit alone to stop the search.
    has_presolve
        Whether CP-SAT may simplify the model; False for cross-checks.
    """

    deterministic_s: float | None = None
    has_presolve: bool = True

    @property
    def name(self) -> str:
        """Name in tables and files."""
        return "cpsat"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the best plan found, with a bound.

        The time limit holds for start, building and search together and is enforced from outside the solver.

        Raises
        ------
        SolverUnavailable
            When OR-Tools isn't installed; the message says what to install.
        """
        return _solve(
            self.name, Backend.CPSAT, instance, incumbent, limits or SolveLimits(),
            deterministic_s=self.deterministic_s, has_presolve=self.has_presolve,
        )  # fmt: skip


def _solve(
    name: str,
    backend: Backend,
    instance: PlacementInstance,
    incumbent: Placement | None,
    limits: SolveLimits,
    *,
    deterministic_s: float | None = None,
    has_presolve: bool = True,
) -> SolveResult:
    began = time.perf_counter()
    start, start_worth = better_plan(instance, incumbent)
    attempt = _Attempt()
    attempt.history.append(HistoryPoint(0.0, start_worth, None))
    witness: Witness | None = memory_shortage(instance)
    if witness is not None or not instance.shapes():  # shown before any solver runs
        attempt.is_infeasible = True
        attempt.message = explain_infeasible(instance)
        attempt.details.append(("decided_by", "memory" if witness is not None else "shapes"))
        return _result(name, instance, attempt, began, limits, start, witness)
    reason = refusal(instance, is_ilp=backend.is_ilp, memory_bytes=limits.memory_bytes)
    if reason is not None:
        attempt.message = reason
        attempt.details.append(("refused", "size"))
        is_too_large = refusal(instance, is_ilp=backend.is_ilp, memory_bytes=None) is not None
        attempt.details.append(("met_memory_limit", not is_too_large))
        return _result(name, instance, attempt, began, limits, start, None)
    bounds = BackendLimits(limits.time_s, deterministic_s, limits.seed, limits.workers, has_presolve)
    job = Job(instance, backend, start, bounds, limits.memory_bytes)
    report = run_in_child(job)
    _take(attempt, instance, report, BOUND_MARGIN[backend], start_worth)
    attempt.details = [("backend", backend.value), *_run_details(report), *attempt.details]
    attempt.details.append(("reproducible", limits.workers == 1 and not _met_wall_clock(report, limits)))
    if report.ending is Ending.INFEASIBLE:
        left = None if limits.time_s is None else max(5.0, limits.time_s - (time.perf_counter() - began))
        _second_opinion(attempt, job, report, left)
    else:
        attempt.message = report.why_stopped(limits.memory_bytes)
    return _result(name, instance, attempt, began, limits, start, None)


def _take(
    attempt: _Attempt, instance: PlacementInstance, report: ChildReport, margin: float, worth: float | None
) -> None:
    """Add a run's plans (by their own worth, never the solver's) and bounds to an attempt."""
    events: list[tuple[float, Placement | float]] = [*report.plans, *report.bounds]
    for at, item in sorted(events, key=lambda event: event[0]):
        if isinstance(item, Placement):
            attempt.plans.append(item)
            found = evaluate(instance, item).objective
            if found is not None and (worth is None or found < worth):
                worth = found
        else:
            safe = item - margin * abs(item)
            attempt.bound = safe if attempt.bound is None else max(attempt.bound, safe)
        attempt.history.append(HistoryPoint(at, worth, attempt.bound))


def _met_wall_clock(report: ChildReport, limits: SolveLimits) -> bool:
    """Whether the clock (not work, and not the end of the search) may have stopped a run."""
    spent_s = report.start_s + report.build_s + report.solve_s
    return report.ending is Ending.LIMIT and limits.time_s is not None and spent_s >= limits.time_s


def _run_details(report: ChildReport) -> list[Detail]:
    details: list[Detail] = [
        ("start_s", report.start_s),
        ("build_s", report.build_s),
        ("solve_s", report.solve_s),
        ("ending", report.ending.value),
        ("killed", report.was_killed),
        ("plans_found", len(report.plans)),
        ("met_memory_limit", report.met_memory_limit),
    ]
    if report.solver_version is not None:
        details.append(("solver_version", report.solver_version))
    if report.finished is not None:
        details.append(("solver_status", report.finished.raw_status))
    if report.built is not None:
        details.extend(
            [
                ("variables", report.built.num_variables),
                ("rows", report.built.num_rows),
                ("coefficients", report.built.num_terms),
                ("boolean_sum", report.built.largest_boolean_sum),
                ("tick_s", report.built.tick_s),
            ]
        )
    return details


def _second_opinion(attempt: _Attempt, job: Job, report: ChildReport, left_s: float | None) -> None:
    """Confirm INFEASIBLE by another back end, or refute it: a valid incumbent already does."""
    limit = CONFIRM_S if left_s is None else min(CONFIRM_S, left_s)
    if job.incumbent is not None:
        attempt.details.append(("infeasible_refuted_by", "incumbent"))
        attempt.bound = None
        again = replace(job, limits=replace(job.limits, time_s=limit, has_presolve=False))
        second = run_in_child(again)
        if second.ending is not Ending.INFEASIBLE:
            _take(attempt, job.instance, second, BOUND_MARGIN[job.backend], None)
        attempt.message = f"{job.backend.value} called the instance infeasible although the incumbent is allowed"
        return
    other = Backend.HIGHS if job.backend is Backend.CPSAT else Backend.CPSAT
    limits = replace(job.limits, time_s=limit, has_presolve=True)
    try:
        second = run_in_child(replace(job, backend=other, limits=limits))
    except SolverUnavailable as error:
        attempt.message = f"{job.backend.value} says infeasible and nothing here can confirm it: {error}"
        return
    if second.ending is Ending.INFEASIBLE:
        attempt.is_infeasible = True
        attempt.details.append(("infeasible_confirmed_by", other.value))
        attempt.message = explain_infeasible(job.instance)
        return
    _take(attempt, job.instance, second, BOUND_MARGIN[other], None)
    verdict = "found a plan" if second.plans else "could not confirm it"
    attempt.details.append(("infeasible_refuted_by" if second.plans else "infeasible_unconfirmed_by", other.value))
    attempt.message = f"{job.backend.value} says infeasible, {other.value} {verdict}"


def _result(
    name: str,
    instance: PlacementInstance,
    attempt: _Attempt,
    began: float,
    limits: SolveLimits,
    start: Placement | None,
    witness: Witness | None,
) -> SolveResult:
    """Put the result together: best plan in canonical order, best bound, where each came from."""
    plan, worth = better_plan(instance, start, *attempt.plans)
    bound = attempt.bound
    if bound is not None and worth is not None and bound > worth + OPTIMALITY_TOLERANCE * abs(worth):
        attempt.details.append(("bound_refuted", bound))
        attempt.message = "the solver's bound is refuted by a plan and was dropped"
        bound = None
    closed = None if attempt.is_infeasible else closed_form_bound(instance)
    if closed is not None and (bound is None or closed[0] > bound):
        bound, witness = closed
        attempt.details.append(("bound_by", "closed form"))
    source = _source(plan, start, attempt.plans)
    if source:
        attempt.details.append(("plan_by", source))
    return outcome(
        instance,
        name,
        None if plan is None else canonical_placement(instance.table, plan),
        bound,
        elapsed_s=time.perf_counter() - began,
        witness=witness,
        history=attempt.history,
        limits=limits,
        details=attempt.details,
        message=attempt.message,
        is_infeasible=attempt.is_infeasible,
    )


def _source(plan: Placement | None, start: Placement | None, found: Sequence[Placement]) -> str:
    """Who made the plan: the solver, or whoever gave the incumbent (told as HEURISTIC)."""
    if plan is None:
        return ""
    return "HEURISTIC" if plan is start and plan not in found else "SOLVER"
