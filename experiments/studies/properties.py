"""Properties that planners keep: more of anything never hurts, and the numbering of devices never matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.gap_curves import natural
from experiments.instances import StudyProblem
from experiments.registry import planner_entry
from experiments.studies.solving import Trial, finite, instance_columns, try_method
from experiments.studies.variants import VARIANTS, variant
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, SolveLimits, Status

PROPERTY_TOLERANCE = 2 * OPTIMALITY_TOLERANCE
"""Relative amount by which two proven optima may differ the wrong way: each is optimal within its own tolerance."""

NO_PLAN_PCT = 100.0
"""What counts as the drop when there was a plan before and there is none after."""


def check_properties(
    problem: StudyProblem, trials: Mapping[str, Trial], methods: Sequence[str], limits: SolveLimits, seed: int
) -> tuple[list[dict[str, Any]], list[tuple[PlacementInstance, list[Trial]]]]:
    """Return one row per variant and method, and the trials on each variant for judging.

    Exact methods and `slob` started from the plan of the original must keep every property; `slob` from scratch must
    keep relabelling and is measured on the others; baselines are measured only. The column `is_required` says which.

    Parameters
    ----------
    problem
        The original.
    trials
        What methods made of it, by method.
    methods
        Methods to run on the variants; each has to be in `trials`.
    seed
        Fixes the variants.
    """
    rows: list[dict[str, Any]] = []
    variants: list[tuple[PlacementInstance, list[Trial]]] = []
    for name in VARIANTS:
        changed = variant(problem, name, seed).instance()
        found = []
        for method in methods:
            before, after = trials[method], try_method(method, changed, limits)
            found.append(after)
            kind = planner_entry(method).kind
            is_required = kind == "exact" or (kind == "heuristic" and name == "relabelled")
            rows.append(_row(changed, name, "scratch", before, after, is_required=is_required))
            if kind == "heuristic" and name != "relabelled" and before.result.placement is not None:
                again = try_method(method, changed, limits, incumbent=before.result.placement)
                found.append(again)
                rows.append(_row(changed, name, "incumbent", before, again, is_required=True))
        variants.append((changed, found))
    return rows, variants


def worse_pct(before: float | None, after: float | None, *, both_ways: bool) -> float:
    """Return by how much a worth got worse, per cent of what it was before (minimised scale); 0 when it did not.

    Parameters
    ----------
    before, after
        ``None`` means that there is no plan.
    both_ways
        Whether getting better counts as well.

    Examples
    --------
    >>> worse_pct(-100.0, -98.0, both_ways=False), worse_pct(0.5, 0.4, both_ways=False)
    (2.0, 0.0)
    """
    if before is None:
        return NO_PLAN_PCT if both_ways and after is not None else 0.0
    if after is None:
        return NO_PLAN_PCT
    change = (after - before) / abs(before) * 100
    return abs(change) if both_ways else max(0.0, change)


def _is_conclusive(trial: Trial) -> bool:
    """Whether an exact method says that it is done; only then must a property hold."""
    return trial.result.status in (Status.OPTIMAL, Status.INFEASIBLE)


def _row(
    instance: PlacementInstance, name: str, start: str, before: Trial, after: Trial, *, is_required: bool
) -> dict[str, Any]:
    is_skipped = before.is_exact and not (_is_conclusive(before) and _is_conclusive(after))
    worse = worse_pct(before.worth, after.worth, both_ways=name == "relabelled")
    scale = instance.is_throughput
    return {
        "kind": "property",
        **instance_columns(instance),
        "property": "relabelling" if name == "relabelled" else "monotonicity",
        "variant": name,
        "method": before.method,
        "start": start,
        "before": finite(None if before.worth is None else natural(before.worth, scale)),
        "value": finite(None if after.worth is None else natural(after.worth, scale)),
        "worse_pct": None if is_skipped else worse,
        "is_required": is_required and not is_skipped,
        "holds": None if is_skipped else worse <= PROPERTY_TOLERANCE * 100,
        "wall_s": after.wall_s,
    }
