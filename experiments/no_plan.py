"""Why there is no plan, in words that a user of the command can act on."""

from __future__ import annotations

import math

from experiments.comparison import Comparison
from experiments.problem_setup import ProblemSetup
from experiments.registry import make_planner
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.infeasible import explain_infeasible
from slob_opt.planning.objectives import ThroughputObjective
from slob_opt.planning.result import SolveLimits


def why_no_plan(comparison: Comparison, limits: SolveLimits) -> str:
    """Return the smallest conflict when it is proven that there is no plan, else what each method said."""
    if comparison.is_infeasible:
        setup = comparison.setup
        conflict = explain_infeasible(setup.instance, context_tokens=setup.traffic.kv_tokens)
        shortest_s = _shortest_interval_s(setup, limits)
        if shortest_s is None:
            return conflict
        return (
            f"{conflict}; the shortest that slob finds is {shortest_s * 1e3:.4g} ms with the smallest batch, "
            f"see --max-interval {math.ceil(shortest_s * 1e3)}ms"
        )
    reasons = [f"{o.method}: {o.result.message}" for o in comparison.outcomes if o.result.message]
    return "; ".join(reasons) or "no method found a plan within its limits"


def _shortest_interval_s(setup: ProblemSetup, limits: SolveLimits) -> float | None:
    """Shortest token interval with the smallest batch that slob finds without the cap; ``None`` without one."""
    if setup.instance.max_interval_s is None:
        return None
    free = setup.with_objective(ThroughputObjective(1, None, min(setup.cost_options.batch_grid)))
    placement = make_planner("slob").solve(free.instance, limits=limits).placement
    if placement is None:
        return None
    return min(report.interval_s for report in evaluate(free.instance, placement).pipelines)
