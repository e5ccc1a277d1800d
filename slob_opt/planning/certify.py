"""Re-checks what a planner claims: plan, memory, worth and bound, by code that did not make the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.bounds import recompute_bound
from slob_opt.planning.check_enumeration import check_enumeration
from slob_opt.planning.check_layers import check_layered_threshold
from slob_opt.planning.check_memory import check_memory_witness
from slob_opt.planning.check_patterns import check_pattern_threshold, check_pattern_witness
from slob_opt.planning.check_relaxed import check_relaxed_witness
from slob_opt.planning.check_subsets import check_subset_threshold, check_subset_witness
from slob_opt.planning.exact_worth import ExactWorth, MemoryRow, exact_worth
from slob_opt.planning.groups import has_pools
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, SolveResult, Status
from slob_opt.planning.verdict import RELATIVE_TOLERANCE, BoundStatus, Verdict, claimed, refuted, verified
from slob_opt.planning.witness import (
    CapacityWitness,
    EnumerationWitness,
    MemoryWitness,
    PatternWitness,
    RelaxedPriceWitness,
    SubsetWitness,
    ThresholdWitness,
    Witness,
)

PARTLY_OVERLAPPING = "groups of cards overlap in part, so counts of devices don't tell what fits together"
"""Why no witness of this kind is checked on such a cluster."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What holds of a result, recomputed.

    Attributes
    ----------
    planner
        Whose claim it was.
    is_valid
        Whether the plan breaks nothing, is worth what was claimed, and the bound is not refuted.
    objective
        Exact worth as float: seconds, or negative tokens/s; ``None`` without a plan that can be evaluated.
    numerator, denominator
        The exact worth as a reduced fraction of two whole numbers, in decimal digits; ``None`` with `objective`.
    memory
        Bytes of each stage.
    violations
        What the plan breaks and which claims are false, one sentence each.
    bound
        The claimed bound, minimised scale; ``None`` when there was none.
    bound_status
        ``"verified"``, ``"claimed"``, ``"none"`` (no bound) or ``"refuted"``.
    gap
        Relative gap between the exact worth and the bound; ``None`` when either is missing or the bound is refuted.
    status
        Our own status: OPTIMAL and INFEASIBLE only on a verified bound.
    reasons
        Why bound and status are what they are, one sentence each.
    table_fingerprint, instance_fingerprint
        SHA-256 of what was certified against, hex.
    """

    planner: str
    is_valid: bool
    objective: float | None
    numerator: str | None
    denominator: str | None
    memory: tuple[MemoryRow, ...]
    violations: tuple[str, ...]
    bound: float | None
    bound_status: BoundStatus
    gap: float | None
    status: Status
    reasons: tuple[str, ...]
    table_fingerprint: str
    instance_fingerprint: str

    @property
    def exact_objective(self) -> Fraction | None:
        """The exact worth; ``None`` without a plan that can be evaluated."""
        if self.numerator is None or self.denominator is None:
            return None
        return Fraction(int(self.numerator), int(self.denominator))


def certify(
    result: SolveResult, instance: PlacementInstance, *, rebuild: Callable[[], CostTable] | None = None
) -> Certificate:
    """Return what holds of a result.

    Parameters
    ----------
    result
        The claim. It is not modified.
    instance
        What was planned for.
    rebuild
        Builds the cost table afresh from cluster, model and traffic; its fingerprint has to equal the instance's.
        ``None`` trusts the table.

    Examples
    --------
    >>> from slob_opt.cost.direct import DirectClass, direct_table
    >>> from slob_opt.planning.objectives import IntervalObjective
    >>> from slob_opt.problem.placement import Pipeline, Placement, Stage
    >>> table = direct_table([DirectClass("a", 1, 100, 0.25)], 4, layer_bytes=10)
    >>> plan = Placement((Pipeline((Stage((0,), 0, 4),)),))
    >>> claim = SolveResult("hand", Status.OPTIMAL, plan, 1.0, 1.0, 0.0, witness=ThresholdWitness("pattern"))
    >>> certificate = certify(claim, PlacementInstance(table, IntervalObjective(1)))
    >>> certificate.is_valid, certificate.bound_status, str(certificate.status), certificate.denominator
    (True, 'verified', 'OPTIMAL', '1')
    """
    violations: list[str] = []
    if rebuild is not None:
        fresh = rebuild().fingerprint
        if fresh != instance.table.fingerprint:
            violations.append(
                f"the cost table {instance.table.fingerprint[:12]} is not the one that its inputs give ({fresh[:12]})"
            )
    worth: ExactWorth | None = None
    objective: Fraction | None = None
    if result.placement is not None:
        worth = exact_worth(instance, result.placement)
        violations.extend(worth.violations)
        objective = worth.objective
        violations.extend(_false_worth(result.objective, objective))
    elif result.objective is not None:
        violations.append(f"an objective of {result.objective!r} is claimed without a plan")
    if result.placement is not None and result.status in (Status.INFEASIBLE, Status.UNKNOWN):
        violations.append(f"status {result.status} although there is a plan")
    has_plan = worth is not None and not worth.violations and objective is not None
    verdict = _check_bound(result, instance, objective if has_plan else None)
    gap = None
    if has_plan and objective is not None and result.bound is not None and verdict.status in ("verified", "claimed"):
        gap = float(max(Fraction(0), objective - Fraction(result.bound)) / abs(objective))
    status, reason = _status(result, has_plan=has_plan, gap=gap, verdict=verdict)
    return Certificate(
        planner=result.planner,
        is_valid=not violations and verdict.status != "refuted",
        objective=None if objective is None else float(objective),
        numerator=None if objective is None else str(objective.numerator),
        denominator=None if objective is None else str(objective.denominator),
        memory=() if worth is None else worth.memory,
        violations=tuple(violations),
        bound=result.bound,
        bound_status=verdict.status,
        gap=gap,
        status=status,
        reasons=tuple(r for r in (verdict.reason, reason) if r),
        table_fingerprint=instance.table.fingerprint,
        instance_fingerprint=instance.fingerprint,
    )


def _false_worth(claim: float | None, exact: Fraction | None) -> list[str]:
    """Return what is wrong with a claimed objective; a plan that claims nothing, as one made by hand, is not wrong."""
    if claim is None or exact is None:
        return []
    if not abs(claim) < float("inf"):
        return [f"the claimed objective is {claim!r}"]
    if abs(Fraction(claim) - exact) > abs(exact) * Fraction(RELATIVE_TOLERANCE):
        return [f"the claimed objective is {claim:.12g}, recomputed it is {float(exact):.12g}"]
    return []


def _check_bound(result: SolveResult, instance: PlacementInstance, objective: Fraction | None) -> Verdict:
    """Return what holds of the bound, or of the claim that no plan exists."""
    if result.status is Status.INFEASIBLE and result.placement is not None:
        return refuted("the result says that no plan exists and has one")
    if result.status is Status.INFEASIBLE:
        if result.witness is None:
            return claimed("no witness says why there is no plan")
        return check_infeasible(result.witness, instance)
    bound = result.bound
    if bound is None:
        return Verdict("none", "no bound is given")
    if not abs(bound) < float("inf"):
        return refuted(f"a bound of {bound!r} says nothing")
    if objective is not None and Fraction(bound) - objective > abs(objective) * Fraction(RELATIVE_TOLERANCE):
        return refuted(f"the plan itself is worth {float(objective):.12g}, better than the bound {bound:.12g}")
    if result.witness is None:
        return claimed("the bound has no witness")
    return check_bound(result.witness, instance, bound)


def check_bound(witness: Witness, instance: PlacementInstance, bound: float) -> Verdict:
    """Return whether a witness proves that no plan is worth less than `bound` (seconds, or negative tokens/s).

    Where the witness's own check can't tell, a tiny instance is enumerated.
    """
    if not isinstance(witness, CapacityWitness) and not has_pools(instance.table):
        return claimed(PARTLY_OVERLAPPING)
    verdict = _check_by_kind(witness, instance, bound)
    if verdict.status == "claimed" and isinstance(witness, PatternWitness | SubsetWitness | ThresholdWitness):
        enumerated = check_enumeration(instance, bound)
        if enumerated.status != "claimed":
            return enumerated
    return verdict


def _check_by_kind(witness: Witness, instance: PlacementInstance, bound: float) -> Verdict:
    match witness:
        case CapacityWitness():
            return _check_formula(witness, instance, bound)
        case PatternWitness():
            return check_pattern_witness(instance, witness, -bound)
        case SubsetWitness():
            return check_subset_witness(instance, witness, -bound)
        case ThresholdWitness():
            return _check_threshold(witness, instance, bound)
        case EnumerationWitness():
            verdict = check_enumeration(instance, bound)
            if verdict.status == "claimed" and not instance.is_throughput:
                return _first_certain(instance, bound)
            return verdict
        case RelaxedPriceWitness():
            return check_relaxed_witness(instance, witness, -bound)
        case MemoryWitness():
            return claimed("a shortage of memory proves that there is no plan, not a bound")


def check_infeasible(witness: Witness, instance: PlacementInstance) -> Verdict:
    """Return whether the instance has no plan, by the witness's own check or by any that can tell."""
    if not has_pools(instance.table):
        return claimed(PARTLY_OVERLAPPING)
    if isinstance(witness, MemoryWitness):
        verdict = check_memory_witness(instance, witness)
    elif isinstance(witness, CapacityWitness):
        verdict = _check_formula(witness, instance, None)
    elif isinstance(witness, ThresholdWitness):
        verdict = _check_threshold(witness, instance, None)
    else:
        verdict = claimed("such a witness does not exclude plans")
    return verdict if verdict.status != "claimed" else _first_certain(instance, None)


def _first_certain(instance: PlacementInstance, bound: float | None) -> Verdict:
    """Return the first verdict that is not just a claim, the cheap and general checks first."""
    verdict = claimed("there is no check for this instance")
    for check in (check_pattern_threshold, check_subset_threshold, check_layered_threshold, check_enumeration):
        verdict = check(instance, bound)
        if verdict.status != "claimed":
            break
    return verdict


def _check_formula(witness: CapacityWitness, instance: PlacementInstance, bound: float | None) -> Verdict:
    """Recompute a closed formula; a bound of ``None`` is the claim that no plan exists."""
    try:
        recomputed = recompute_bound(instance, witness.formula)
    except InputError as error:
        return claimed(str(error))
    if recomputed is None or (bound is None and instance.is_throughput and recomputed == 0):
        return verified(f"formula {witness.formula!r} says that there is no plan")
    if bound is None:
        return claimed(f"formula {witness.formula!r} gives {recomputed:.12g}, it does not exclude a plan")
    if bound <= recomputed + abs(recomputed) * RELATIVE_TOLERANCE:
        return verified(f"formula {witness.formula!r} gives {recomputed:.12g}")
    return refuted(f"formula {witness.formula!r} gives {recomputed:.12g}, the bound is {bound:.12g}")


def _check_threshold(witness: ThresholdWitness, instance: PlacementInstance, bound: float | None) -> Verdict:
    """Re-run the test that nothing stays below the bound."""
    checks = {
        "pattern": check_pattern_threshold,
        "subset": check_subset_threshold,
        "layered": check_layered_threshold,
    }
    if witness.kind not in checks:
        return claimed(f"a threshold of kind {witness.kind!r} is not known, only {sorted(checks)}")
    return checks[witness.kind](instance, bound)


def _status(result: SolveResult, *, has_plan: bool, gap: float | None, verdict: Verdict) -> tuple[Status, str]:
    """Return our own status and why."""
    if has_plan:
        if gap is None or gap > OPTIMALITY_TOLERANCE:
            return Status.FEASIBLE, "" if gap is None else f"the gap is {gap:.3g}"
        if verdict.status == "verified":
            return Status.OPTIMAL, f"the gap of {gap:.3g} to a verified bound is within {OPTIMALITY_TOLERANCE:g}"
        return Status.FEASIBLE, "the bound is only claimed; OPTIMAL needs a second method"
    if result.status is Status.INFEASIBLE and verdict.status == "verified":
        return Status.INFEASIBLE, ""
    if result.status is Status.INFEASIBLE:
        return Status.UNKNOWN, "INFEASIBLE is only claimed; it needs a witness or a second method"
    return Status.UNKNOWN, "" if result.placement is None else "the plan is not allowed"
