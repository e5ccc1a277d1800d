"""What the scale study runs: fixed, medium and large problems, methods on each, and limits."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.instances import StudyProblem, hetero42, scale_problem, single24
from experiments.random_instances import draw_medium
from slob_opt.planning.result import SolveLimits

PROOF_LIMIT_S = 120.0
MEDIUM_LIMIT_S = 60.0
NUM_MEDIUM = 56
QUICK_NUM_MEDIUM = 3
QUICK_LIMIT_S = 10.0
QUICK_SINGLE24_LIMIT_S = 30.0
BOUNDED_SIZES = (256, 1024)
"""Sizes at which the gap to a bound is a claim."""

GROWTH_SIZES = (64, 128, 256, 512, 1024)
"""Sizes over which the growth of `slob`'s time is fitted."""


@dataclass(frozen=True, slots=True)
class ScaleCase:
    """One problem of the study.

    Attributes
    ----------
    group
        ``"single24"``, ``"hetero42"``, ``"medium"`` or ``"slob"``.
    problem
        What is to be planned.
    bound_methods
        Exact methods that run after `slob`, each started from its plan; their bounds measure its gap.
    limits
        Of each of them.
    expected_s
        Rough seconds, for the estimate of time left.
    """

    group: str
    problem: StudyProblem
    bound_methods: tuple[str, ...]
    limits: SolveLimits
    expected_s: float


def scale_cases(seed: int, *, is_quick: bool) -> tuple[ScaleCase, ...]:
    """Return the cases of the study, heavy ones first so that workers end together.

    The quick study leaves out what can't be proven in seconds: hetero42 and the bound at 1,024 devices.
    """
    exact = ("parametric", "pattern-ilp")
    single_limit_s = QUICK_SINGLE24_LIMIT_S if is_quick else PROOF_LIMIT_S
    medium_limit_s = QUICK_LIMIT_S if is_quick else MEDIUM_LIMIT_S
    bound_limit_s = QUICK_LIMIT_S if is_quick else PROOF_LIMIT_S
    bounded = BOUNDED_SIZES[:1] if is_quick else BOUNDED_SIZES
    cases = [
        ScaleCase("single24", single24(), exact, SolveLimits(single_limit_s, seed=seed), 10.0),
        ScaleCase("hetero42", hetero42(), () if is_quick else exact, SolveLimits(PROOF_LIMIT_S, seed=seed), 200.0),
    ]
    cases += [
        ScaleCase("medium", draw_medium(seed + i), ("parametric",), SolveLimits(medium_limit_s, seed=seed + i), 10.0)
        for i in range(QUICK_NUM_MEDIUM if is_quick else NUM_MEDIUM)
    ]
    for size in GROWTH_SIZES:
        methods = exact if size in bounded else ()
        limits = SolveLimits(bound_limit_s, seed=seed)
        expected_s = 1.0 + len(methods) * (bound_limit_s + 15.0)
        cases.append(ScaleCase("slob", scale_problem(size), methods, limits, expected_s))
    return tuple(sorted(cases, key=lambda case: -case.expected_s))
