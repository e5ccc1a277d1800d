"""What several methods say about one instance, put together: who confirms whom, and who contradicts whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from slob_opt.errors import InputError
from slob_opt.planning.certify import Certificate
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, SolveResult, Status

AGREEMENT_TOLERANCE = 1e-4
"""Largest relative distance between two proven optima that counts as agreement. Chosen; models in ticks of 1 ns stay
within it, ticks of 1 µs were off by 1e-3 (see DESIGN, known facts)."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Results of one instance with statuses that all of them together support.

    Attributes
    ----------
    results
        The results, in the order given; status, bound and message may differ from what the planners said.
    disagreements
        One sentence each; empty when nothing contradicts anything.
    best_bound
        The highest bound that was verified, minimised scale; ``None`` when none was.
    """

    results: tuple[SolveResult, ...]
    disagreements: tuple[str, ...]
    best_bound: float | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """A result beside its certificate."""

    result: SolveResult
    certificate: Certificate

    @property
    def worth(self) -> Fraction | None:
        """Exact worth of a plan that breaks nothing; ``None`` otherwise."""
        return self.certificate.exact_objective if not self.certificate.violations else None

    @property
    def has_bound(self) -> bool:
        return self.result.bound is not None and self.certificate.bound_status in ("verified", "claimed")


def agree(results: Sequence[SolveResult], certificates: Sequence[Certificate]) -> Agreement:
    """Return results with the statuses that all methods together support, and what they disagree about.

    OPTIMAL needs a gap within the tolerance to a verified bound (of any of the methods), or to the claimed bounds of
    two different planners. INFEASIBLE needs a verified witness or two different planners, and no plan. A bound that a
    valid plan of any method beats is dropped.

    Parameters
    ----------
    results
        Results of one and the same instance.
    certificates
        Their certificates, in the same order.

    Raises
    ------
    InputError
        When the certificates are of different instances or their number differs.
    """
    if len(results) != len(certificates):
        raise InputError(f"{len(results)} results and {len(certificates)} certificates, expected the same number")
    if len({c.instance_fingerprint for c in certificates}) > 1:
        raise InputError("the certificates are of different instances, expected one")
    claims = [_Claim(r, c) for r, c in zip(results, certificates, strict=True)]
    disagreements = _contradictions(claims)
    plans = [c for c in claims if c.worth is not None]
    sound = [c for c in claims if c.has_bound and not _beaten(c, plans)]
    proven = [c for c in sound if c.certificate.bound_status == "verified"]
    best = max(proven, key=lambda c: c.result.bound or 0.0, default=None)
    settled = tuple(_settle(c, claims, sound, best) for c in claims)
    return Agreement(settled, tuple(disagreements), None if best is None else best.result.bound)


def _beaten(claim: _Claim, plans: Sequence[_Claim]) -> bool:
    """Whether some valid plan is better than the claim's bound, beyond the tolerance."""
    bound = Fraction(claim.result.bound or 0)
    return any(p.worth is not None and bound - p.worth > abs(p.worth) * Fraction(OPTIMALITY_TOLERANCE) for p in plans)


def _closes(claim: _Claim, worth: Fraction) -> bool:
    """Whether the claim's bound leaves a plan of this worth no gap."""
    bound = Fraction(claim.result.bound or 0)
    return worth - bound <= abs(worth) * Fraction(OPTIMALITY_TOLERANCE)


def _contradictions(claims: Sequence[_Claim]) -> list[str]:
    """Return one sentence for each contradiction."""
    found: list[str] = []
    for claim in claims:
        name = claim.result.planner
        found.extend(f"{name}: {violation}" for violation in claim.certificate.violations)
        if claim.certificate.bound_status == "refuted":
            found.append(f"{name}: bound refuted, {claim.certificate.reasons[0]}")
    plans = [c for c in claims if c.worth is not None]
    for claim in claims:
        name = claim.result.planner
        for plan in plans:
            if plan is claim or plan.worth is None:
                continue
            if claim.has_bound and _beaten(claim, [plan]):
                found.append(
                    f"{plan.result.planner} has a plan worth {float(plan.worth):.9g}, "
                    f"better than the bound {claim.result.bound:.9g} of {name}"
                )
            if claim.result.status is Status.INFEASIBLE:
                found.append(f"{name} says INFEASIBLE, {plan.result.planner} has a plan")
    optima = [c for c in plans if c.result.status is Status.OPTIMAL]
    for i, a in enumerate(optima):
        for b in optima[i + 1 :]:
            if a.worth is None or b.worth is None:
                continue
            if abs(a.worth - b.worth) > Fraction(AGREEMENT_TOLERANCE) * max(abs(a.worth), abs(b.worth)):
                found.append(
                    f"{a.result.planner} and {b.result.planner} both say OPTIMAL, "
                    f"with {float(a.worth):.9g} and {float(b.worth):.9g}"
                )
    return found


def _settle(claim: _Claim, claims: Sequence[_Claim], sound: Sequence[_Claim], best: _Claim | None) -> SolveResult:
    """Return one result with the status that all claims support."""
    result, worth = claim.result, claim.worth
    if result.placement is None:
        return _settle_without_plan(claim, claims)
    if result.bound is not None and claim not in sound:
        result = replace(result, bound=None, witness=None, message=_join(result.message, "its bound does not hold"))
    if worth is None:
        return replace(result, status=Status.UNKNOWN, message=_join(result.message, "the plan is not allowed"))
    own = claim in sound and _closes(claim, worth)
    if own and claim.certificate.bound_status == "verified":
        return replace(result, status=Status.OPTIMAL)
    if best is not None and _closes(best, worth):
        note = f"proven by the bound of {best.result.planner}"
        bound, witness = best.result.bound, best.result.witness
        return replace(result, status=Status.OPTIMAL, bound=bound, witness=witness, message=_join(result.message, note))
    seconds = sorted({c.result.planner for c in sound if c.result.planner != result.planner and _closes(c, worth)})
    if own and seconds:
        note = f"bound claimed, and confirmed by {seconds[0]}"
        return replace(result, status=Status.OPTIMAL, message=_join(result.message, note))
    if result.status is Status.OPTIMAL:
        note = "the bound is only claimed and no second method confirms it"
        return replace(result, status=Status.FEASIBLE, message=_join(result.message, note))
    return replace(result, status=Status.FEASIBLE)


def _settle_without_plan(claim: _Claim, claims: Sequence[_Claim]) -> SolveResult:
    """Return a result without a plan with the status that all claims support."""
    result = claim.result
    if result.status is not Status.INFEASIBLE:
        return replace(result, status=Status.UNKNOWN)
    others = [c for c in claims if c.result.planner != result.planner]
    if any(c.worth is not None for c in others):
        return replace(result, status=Status.UNKNOWN, message=_join(result.message, "another method has a plan"))
    if claim.certificate.bound_status == "verified":
        return result
    seconds = [c.result.planner for c in others if c.result.status is Status.INFEASIBLE]
    if seconds and claim.certificate.bound_status == "claimed":
        return replace(result, message=_join(result.message, f"confirmed by {seconds[0]}"))
    note = "INFEASIBLE is only claimed and no second method confirms it"
    return replace(result, status=Status.UNKNOWN, message=_join(result.message, note))


def _join(message: str, note: str) -> str:
    return f"{message}; {note}" if message else note
