"""What the methods on one instance say together: the optimum, contradictions and false certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.studies.solving import Trial
from slob_opt.planning.agree import AGREEMENT_TOLERANCE, agree
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, Status


@dataclass(frozen=True, slots=True)
class Judgement:
    """The methods of one instance held against each other.

    Attributes
    ----------
    optimum
        Worth of a plan that is optimal by a verified bound or by two methods' claims, minimised scale; ``None`` when
        nobody proved one.
    best_bound
        Highest bound that was verified, minimised scale; ``None`` when none was.
    is_infeasible
        Whether it is proven that no plan exists.
    disagreements
        What exact methods contradict each other about, one sentence each.
    violations
        Certificates that don't hold, one sentence each.
    """

    optimum: float | None
    best_bound: float | None
    is_infeasible: bool
    disagreements: tuple[str, ...]
    violations: tuple[str, ...]

    @property
    def reference(self) -> float | None:
        """The optimum, else the best bound; ``None`` without either."""
        return self.best_bound if self.optimum is None else self.optimum


def judge(trials: Sequence[Trial]) -> Judgement:
    """Return what trials of one instance say together.

    A method that broke counts as a disagreement. A baseline's own plan may break memory (that is what the baseline
    does) without being a violation.
    """
    agreement = agree([t.result for t in trials], [t.certificate for t in trials])
    settled = list(zip(trials, agreement.results, strict=True))
    optima = [t.worth for t, r in settled if t.worth is not None and t.is_exact and r.status is Status.OPTIMAL]
    return Judgement(
        optimum=min(optima, default=None),
        best_bound=agreement.best_bound,
        is_infeasible=not any(t.worth is not None for t in trials)
        and any(r.status is Status.INFEASIBLE for _, r in settled),
        disagreements=tuple(_disagreements(trials)),
        violations=tuple(_violations(trials)),
    )


def _violations(trials: Sequence[Trial]) -> Iterator[str]:
    plans = [t for t in trials if t.worth is not None]
    for trial in trials:
        if not trial.certificate.is_valid and not trial.is_baseline:
            reasons = trial.certificate.violations or trial.certificate.reasons
            yield f"{trial.method}: {reasons[0] if reasons else 'certificate is not valid'}"
        if trial.certificate.bound_status == "verified":
            yield from _beaten(trial, plans, OPTIMALITY_TOLERANCE, "verified")


def _disagreements(trials: Sequence[Trial]) -> Iterator[str]:
    exact = [t for t in trials if t.is_exact]
    plans = [t for t in trials if t.worth is not None]
    for trial in exact:
        if trial.trace is not None:
            yield f"{trial.method} {trial.result.message}"
        if trial.certificate.bound_status == "claimed":
            yield from _beaten(trial, plans, AGREEMENT_TOLERANCE, "claimed")
        if trial.result.status is Status.INFEASIBLE:
            for plan in plans:
                yield f"{trial.method} says INFEASIBLE, {plan.method} has a plan"
    optima = [(t, t.worth) for t in exact if t.worth is not None and t.result.status is Status.OPTIMAL]
    for i, (a, left) in enumerate(optima):
        for b, right in optima[i + 1 :]:
            if abs(left - right) > AGREEMENT_TOLERANCE * max(abs(left), abs(right)):
                yield f"{a.method} and {b.method} both say OPTIMAL, with {left:.9g} and {right:.9g}"


def _beaten(trial: Trial, plans: Sequence[Trial], tolerance: float, kind: str) -> Iterator[str]:
    """Sentences for every plan that is better than a trial's bound by more than a tolerance."""
    bound = trial.result.bound
    for plan in plans:
        if bound is not None and plan.worth is not None and bound - plan.worth > tolerance * abs(plan.worth):
            found = f"{plan.method} has a plan worth {plan.worth:.9g}"
            yield f"{found}, better than the {kind} bound {bound:.9g} of {trial.method}"
