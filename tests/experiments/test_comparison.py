"""Bounds of several methods on one instance: the best one counts, whoever made it."""

from __future__ import annotations

import pytest

from experiments.comparison import compare
from experiments.problem_setup import ProblemOptions, ProblemSetup, set_up
from slob_opt.planning.bounds import closed_form_bound
from slob_opt.planning.result import SolveLimits

BASELINES = ("even", "memory-proportional", "speed-proportional", "petals-greedy", "parallax-dp", "speed-chain")


def problems() -> list[ProblemSetup]:
    return [
        set_up(ProblemOptions("helix-single24", "llama-2-70b")),
        set_up(ProblemOptions("helix-single24", "llama-2-70b", objective="interval", in_flight=4)),
        set_up(ProblemOptions("lab-3", "llama-2-7b")),
        set_up(ProblemOptions("helix-geo24", "llama-2-70b", objective="latency")),
    ]


@pytest.mark.parametrize("setup", problems(), ids=lambda s: s.instance.name)
def test_a_plan_has_a_gap_to_a_verified_bound_before_any_search(setup: ProblemSetup) -> None:
    """Case O28: a plan by a simple rule stands beside the capacity bound at once, not beside a solver's first guess."""
    comparison = compare(setup, BASELINES, SolveLimits())
    closed = closed_form_bound(setup.instance)
    assert closed is not None
    assert comparison.best_bound == closed[0]
    assert comparison.has_verified_bound
    gaps = [comparison.gap_to_best(outcome) for outcome in comparison.outcomes if outcome.has_plan]
    assert gaps
    # The best rule is within 5 times its own worth of the bound; gaps of 21 to 72 times were reported.
    assert min(gap for gap in gaps if gap is not None) < 5
    assert all(gap is not None and gap >= 0 for gap in gaps)


def test_the_best_of_all_bounds_is_reported() -> None:
    """Case O28: the capacity bound of 24 devices is 2.6 times the optimum, the priced search's meets it."""
    setup = set_up(ProblemOptions("helix-single24", "llama-2-70b"))
    comparison = compare(setup, ("speed-chain", "parametric"), SolveLimits(60.0))
    closed = closed_form_bound(setup.instance)
    assert closed is not None
    chain, exact = comparison.outcomes
    assert exact.result.bound is not None
    assert comparison.best_bound == max(exact.result.bound, closed[0]) > closed[0]
    assert comparison.has_verified_bound
    alone = compare(setup, ("speed-chain",), SolveLimits())
    loose, tight = alone.gap_to_best(alone.outcomes[0]), comparison.gap_to_best(chain)
    assert loose is not None
    assert tight is not None
    assert tight < loose / 3
    assert comparison.gap_to_best(exact) == pytest.approx(0.0, abs=1e-6)
