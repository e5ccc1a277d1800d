"""From a plan and a bound to a SolveResult: the one place where planners get their status."""

from __future__ import annotations

from collections.abc import Sequence

from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, HistoryPoint, SolveLimits, SolveResult, Status
from slob_opt.planning.witness import Witness
from slob_opt.problem.placement import Placement


def better_plan(instance: PlacementInstance, *plans: Placement | None) -> tuple[Placement | None, float | None]:
    """Return the best allowed plan and its worth (minimised); the earlier of two equals; (None, None) without any."""
    best: tuple[Placement | None, float | None] = (None, None)
    for plan in plans:
        if plan is None:
            continue
        worth = evaluate(instance, plan).objective
        if worth is not None and (best[1] is None or worth < best[1]):
            best = (plan, worth)
    return best


def outcome(
    instance: PlacementInstance,
    planner: str,
    placement: Placement | None,
    bound: float | None,
    *,
    elapsed_s: float,
    incumbent: Placement | None = None,
    witness: Witness | None = None,
    history: Sequence[HistoryPoint] = (),
    limits: SolveLimits | None = None,
    details: Sequence[tuple[str, float | int | str | bool]] = (),
    message: str = "",
    is_infeasible: bool = False,
) -> SolveResult:
    """Return a result with the better of plan and incumbent and the status that gap and proof allow.

    Parameters
    ----------
    bound
        Minimised scale; ``None`` when none is known.
    is_infeasible
        The method proved that no plan exists; ignored when a plan is at hand.
    """
    plan, worth = better_plan(instance, placement, incumbent)
    if plan is None:
        status = Status.INFEASIBLE if is_infeasible else Status.UNKNOWN
        bound = None if is_infeasible else bound
    else:
        assert worth is not None
        closed = bound is not None and worth - bound <= OPTIMALITY_TOLERANCE * abs(worth)
        status = Status.OPTIMAL if closed else Status.FEASIBLE
    points = (*history, HistoryPoint(elapsed_s, worth, bound))
    return SolveResult(
        planner=planner,
        status=status,
        placement=plan,
        objective=worth,
        bound=bound,
        elapsed_s=elapsed_s,
        witness=witness if bound is not None or is_infeasible else None,
        history=points,
        limits=limits or SolveLimits(),
        details=tuple(details),
        message=message,
    )
