"""Many methods on one instance: solve, certify, hold against each other."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from experiments.gap_curves import natural
from experiments.layer_map import LayerMap, layer_map
from experiments.left_out import LeftOut, explain_left_out
from experiments.problem_setup import ProblemSetup
from experiments.registry import default_methods, make_planner, planner_entry
from slob_opt.errors import SolverUnavailable
from slob_opt.planning.agree import agree
from slob_opt.planning.bounds import closed_form_bound
from slob_opt.planning.certify import Certificate, certify
from slob_opt.planning.evaluate import Evaluation, evaluate
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.problem.placement import Placement

Progress = Callable[[str], None]
"""Told the name of each method as it starts."""


@dataclass(frozen=True, slots=True)
class MethodOutcome:
    """What one method did on one instance.

    Attributes
    ----------
    method
        Name.
    result
        As certified and held against the other methods.
    certificate
        Re-check of plan and bound.
    evaluation
        The plan in numbers; ``None`` without a plan.
    layers
        Layer map of the plan; ``None`` without a plan.
    left_out
        Devices without work and why; empty without a plan.
    trace
        Traceback of a method that broke; ``None`` when it didn't.
    """

    method: str
    result: SolveResult
    certificate: Certificate
    evaluation: Evaluation | None
    layers: LayerMap | None
    left_out: tuple[LeftOut, ...]
    trace: str | None = None

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan that passed the re-check."""
        return self.result.placement is not None and self.certificate.is_valid

    @property
    def met_memory_limit(self) -> bool:
        """Whether the method did not start, or stopped, because of its memory limit; its message says so."""
        return bool(dict(self.result.details).get("met_memory_limit", False))


@dataclass(frozen=True, slots=True)
class Comparison:
    """All methods on one instance.

    Attributes
    ----------
    setup
        The problem.
    outcomes
        In the order in which methods ran.
    skipped
        (method, reason) of those not worth starting.
    best_bound
        Best bound that no check refuted, minimised scale; ``None`` when no method has one.
    has_verified_bound
        Whether that bound was verified by its witness.
    disagreements
        Pairs of results that contradict each other, in words; empty when all is well.
    """

    setup: ProblemSetup
    outcomes: tuple[MethodOutcome, ...]
    skipped: tuple[tuple[str, str], ...]
    best_bound: float | None
    has_verified_bound: bool
    disagreements: tuple[str, ...]

    @property
    def best(self) -> MethodOutcome | None:
        """The outcome with the best plan, the first one among equals; ``None`` when there is no plan."""
        plans = [o for o in self.outcomes if o.has_plan and o.result.objective is not None]
        return min(plans, key=lambda o: o.result.objective or 0.0, default=None)

    @property
    def is_infeasible(self) -> bool:
        """Whether a method proved that there is no plan and none found one."""
        return self.best is None and any(o.result.status is Status.INFEASIBLE for o in self.outcomes)

    def gap_to_best(self, outcome: MethodOutcome) -> float | None:
        """Relative gap of a plan to the best bound of all methods; ``None`` when either is missing."""
        objective = outcome.result.objective
        if objective is None or self.best_bound is None:
            return None
        return max(0.0, objective - self.best_bound) / abs(objective)

    def natural(self, value: float | None) -> float | None:
        """Return a minimised value in natural scale: tokens/s for throughput, seconds otherwise."""
        return None if value is None else natural(value, self.setup.instance.is_throughput)


def run_method(
    method: str, setup: ProblemSetup, limits: SolveLimits, incumbent: Placement | None = None
) -> tuple[SolveResult, str | None]:
    """Return a method's result, and the traceback when it broke; one broken method must not cost the others' results.

    Raises
    ------
    InputError
        When there is no such method.
    """
    planner_entry(method)
    try:
        planner = make_planner(method)
        return planner.solve(setup.instance, incumbent=incumbent, limits=limits), None
    except SolverUnavailable as error:
        return _nothing(method, limits, str(error)), None
    except Exception as error:  # noqa: BLE001 - the edge between one method and the comparison; told and kept
        return _nothing(method, limits, f"broke: {type(error).__name__}: {error}"), traceback.format_exc()


def _nothing(method: str, limits: SolveLimits, message: str) -> SolveResult:
    return SolveResult(method, Status.UNKNOWN, None, None, None, 0.0, limits=limits, message=message)


def outcome_of(
    method: str, result: SolveResult, certificate: Certificate, setup: ProblemSetup, trace: str | None = None
) -> MethodOutcome:
    """Return the outcome with evaluation, layer map and reasons for left-out devices."""
    if result.placement is None:
        return MethodOutcome(method, result, certificate, None, None, (), trace)
    evaluation = evaluate(setup.instance, result.placement)
    return MethodOutcome(
        method=method,
        result=result,
        certificate=certificate,
        evaluation=evaluation,
        layers=layer_map(setup.table, result.placement, evaluation),
        left_out=explain_left_out(setup.instance, result.placement),
        trace=trace,
    )


def compare(
    setup: ProblemSetup,
    methods: Sequence[str] | None,
    limits: SolveLimits,
    *,
    progress: Progress | None = None,
) -> Comparison:
    """Return all methods' outcomes on one instance.

    Parameters
    ----------
    setup
        The problem.
    methods
        Names, in order; ``None`` takes every method that is worth starting, see :mod:`experiments.registry`. Exact
        methods are given the best plan found so far as a start; heuristics and baselines start from nothing.
    limits
        Of each method.
    progress
        Called with each method's name as it starts.

    Raises
    ------
    InputError
        When a method is unknown.
    """
    skipped: tuple[tuple[str, str], ...] = ()
    if methods is None:
        methods, skipped = default_methods(setup.instance)
    incumbent: SolveResult | None = None
    raw: list[tuple[SolveResult, str | None]] = []
    for method in methods:
        if progress is not None:
            progress(method)
        start = incumbent.placement if incumbent is not None and planner_entry(method).kind == "exact" else None
        result, trace = run_method(method, setup, limits, start)
        raw.append((result, trace))
        if result.placement is not None and result.objective is not None:
            valid = evaluate(setup.instance, result.placement).is_feasible
            if valid and (incumbent is None or result.objective < (incumbent.objective or 0.0)):
                incumbent = result
    if progress is not None:
        progress("certify")
    return _judge(setup, tuple(methods), raw, skipped)


def _judge(
    setup: ProblemSetup,
    methods: tuple[str, ...],
    raw: list[tuple[SolveResult, str | None]],
    skipped: tuple[tuple[str, str], ...],
) -> Comparison:
    """Certify every result and hold them against each other and against the closed-form bound, which costs nothing."""
    closed = closed_form_bound(setup.instance)
    results = [result for result, _ in raw]
    if closed is not None:
        bound, witness = closed
        results.append(SolveResult("closed-form bound", Status.UNKNOWN, None, None, bound, 0.0, witness=witness))
    certificates = [certify(result, setup.instance, rebuild=setup.rebuild) for result in results]
    agreement = agree(results, certificates)
    shared = [
        _with_shared_bound(certificate, before, after, certificates)
        for certificate, before, after in zip(certificates, results, agreement.results, strict=True)
    ]
    outcomes = tuple(
        outcome_of(method, result, certificate, setup, trace)
        for method, result, certificate, (_, trace) in zip(methods, agreement.results, shared, raw, strict=False)
    )
    own_plans = {  # a baseline whose natural plan breaks memory says so itself; that contradicts nobody
        f"{outcome.method}: {violation}"
        for outcome in outcomes
        if planner_entry(outcome.method).kind == "baseline"
        for violation in outcome.certificate.violations
    }
    best = agreement.best_bound
    has_verified = best is not None
    if best is None:
        claimed = (
            result.bound
            for result, certificate in zip(agreement.results, certificates, strict=True)
            if certificate.bound_status == "claimed"
        )
        best = max((bound for bound in claimed if bound is not None), default=None)
    disagreements = tuple(sentence for sentence in agreement.disagreements if sentence not in own_plans)
    return Comparison(setup, outcomes, skipped, best, has_verified, disagreements)


def _with_shared_bound(
    certificate: Certificate, before: SolveResult, after: SolveResult, certificates: Sequence[Certificate]
) -> Certificate:
    """Return the certificate of a plan that another method's verified bound proves; others stay as they are."""
    if after.bound is None or (after.bound, after.witness) == (before.bound, before.witness):
        return certificate
    source = next(c for c in certificates if c.bound == after.bound and c.bound_status == "verified")
    reasons = (*(r for r in certificate.reasons if certificate.bound is not None), *source.reasons, after.message)
    return replace(
        certificate,
        bound=after.bound,
        bound_status="verified",
        gap=after.gap,
        status=after.status,
        reasons=tuple(dict.fromkeys(reasons)),
    )
