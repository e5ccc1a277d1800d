"""Several methods on one instance: who confirms whom, and who contradicts whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from certify_instances import random_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError
from slob_opt.planning.agree import Agreement, agree
from slob_opt.planning.certify import certify
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.planning.result import SolveResult, Status
from slob_opt.planning.witness import EnumerationWitness, ThresholdWitness
from slob_opt.problem.placement import Pipeline, Placement, Stage

# 4 layers of 0.25 s on card a-0, or of 0.5 s on b-0: 1 s is best, b alone takes 2 s.
INSTANCE = PlacementInstance(
    direct_table([DirectClass("a", 1, 100, 0.25), DirectClass("b", 1, 100, 0.5)], 4, layer_bytes=10),
    IntervalObjective(1),
)
BEST = Placement((Pipeline((Stage((0,), 0, 4),)),))
WORSE = Placement((Pipeline((Stage((1,), 0, 4),)),))
PROVEN = SolveResult("parametric", Status.OPTIMAL, BEST, 1.0, 1.0, 0.0, witness=ThresholdWitness("pattern"))
CLAIMED = SolveResult("ilp", Status.OPTIMAL, BEST, 1.0, 1.0, 0.0)
HEURISTIC = SolveResult("slob", Status.FEASIBLE, BEST, 1.0, None, 0.0)


def together(*results: SolveResult, instance: PlacementInstance = INSTANCE) -> Agreement:
    return agree(results, [certify(r, instance) for r in results])


def test_a_claimed_optimum_alone_becomes_feasible() -> None:
    found = together(CLAIMED)
    assert found.results[0].status is Status.FEASIBLE
    assert "no second method confirms it" in found.results[0].message
    assert (found.disagreements, found.best_bound) == ((), None)


def test_a_claimed_optimum_is_confirmed_by_a_verified_bound() -> None:
    found = together(CLAIMED, PROVEN)
    assert [r.status for r in found.results] == [Status.OPTIMAL, Status.OPTIMAL]
    assert found.results[0].message == "proven by the bound of parametric"
    assert found.best_bound == 1.0


def test_two_methods_confirm_each_other_but_a_method_does_not_confirm_itself() -> None:
    other = replace(CLAIMED, planner="cpsat")
    assert [r.status for r in together(CLAIMED, other).results] == [Status.OPTIMAL, Status.OPTIMAL]
    assert [r.status for r in together(CLAIMED, CLAIMED).results] == [Status.FEASIBLE, Status.FEASIBLE]


def test_a_heuristic_plan_without_a_gap_to_a_verified_bound_is_optimal() -> None:
    found = together(HEURISTIC, PROVEN).results[0]
    assert (found.status, found.bound, found.gap) == (Status.OPTIMAL, 1.0, 0.0)
    assert together(HEURISTIC, CLAIMED).results[0].status is Status.FEASIBLE


def test_a_worse_plan_stays_feasible() -> None:
    worse = replace(HEURISTIC, placement=WORSE, objective=2.0)
    found = together(worse, PROVEN)
    assert found.results[0].status is Status.FEASIBLE
    assert found.disagreements == ()


def test_two_optima_that_differ_are_a_disagreement() -> None:
    """Case O03: two runs of one model, both labelled optimal, with different objectives."""
    wrong = replace(CLAIMED, planner="cpsat", placement=WORSE, objective=2.0, bound=2.0)
    found = together(CLAIMED, wrong)
    assert any("both say OPTIMAL, with 1 and 2" in d for d in found.disagreements)
    assert any("ilp has a plan worth 1, better than the bound 2 of cpsat" in d for d in found.disagreements)
    assert found.results[1].status is Status.FEASIBLE
    assert found.results[1].bound is None


@pytest.mark.parametrize(("distance", "is_told"), [(5e-5, False), (5e-4, True)])
def test_optima_agree_within_a_tolerance(distance: float, is_told: bool) -> None:
    table = direct_table(
        [DirectClass("a", 1, 100, 0.25), DirectClass("b", 1, 100, 0.25 * (1 + distance))], 4, layer_bytes=10
    )
    instance = PlacementInstance(table, IntervalObjective(1))
    near = float(table.stage_s(0, 1, 0, 4))
    other = replace(CLAIMED, planner="cpsat", placement=WORSE, objective=near, bound=1.0)
    told = [d for d in together(CLAIMED, other, instance=instance).disagreements if "both say OPTIMAL" in d]
    assert bool(told) == is_told


def test_a_refuted_bound_is_dropped_and_told() -> None:
    wrong = replace(HEURISTIC, placement=WORSE, objective=2.0, bound=1.5, witness=ThresholdWitness("pattern"))
    found = together(wrong)
    assert found.results[0].bound is None
    assert found.results[0].status is Status.FEASIBLE
    assert any("bound refuted" in d for d in found.disagreements)


def test_a_plan_that_breaks_something_is_told_and_confirms_nothing() -> None:
    wrong = replace(HEURISTIC, objective=0.5)
    found = together(wrong, replace(CLAIMED, bound=0.4))
    assert found.results[0].status is Status.UNKNOWN
    assert any("the claimed objective is 0.5" in d for d in found.disagreements)


def test_infeasible_needs_a_proof_or_a_second_method() -> None:
    """Cases O06 and O11: INFEASIBLE of one solver is not told before another confirms it, and a plan refutes it."""
    # A card that has 1 GiB too little for the solver's taste: the model fits.
    says_no = SolveResult("ilp", Status.INFEASIBLE, None, None, None, 0.0)
    refuted = together(says_no, HEURISTIC)
    assert refuted.results[0].status is Status.UNKNOWN
    assert "ilp says INFEASIBLE, slob has a plan" in refuted.disagreements
    full = PlacementInstance(direct_table([DirectClass("a", 1, 39, 0.25)], 4, layer_bytes=10), IntervalObjective(1))
    alone = together(says_no, instance=full).results[0]
    assert alone.status is Status.UNKNOWN
    both = together(says_no, replace(says_no, planner="cpsat"), instance=full)
    assert [r.status for r in both.results] == [Status.INFEASIBLE, Status.INFEASIBLE]
    proven = together(replace(says_no, witness=EnumerationWitness(1)), instance=full).results[0]
    assert proven.status is Status.INFEASIBLE


def test_certificates_of_another_instance_are_refused() -> None:
    other = replace(INSTANCE, objective=IntervalObjective(2))
    with pytest.raises(InputError, match="different instances"):
        agree([CLAIMED, PROVEN], [certify(CLAIMED, INSTANCE), certify(PROVEN, other)])
    with pytest.raises(InputError, match="expected the same number"):
        agree([CLAIMED], [])
    assert agree([], []).results == ()


@pytest.mark.parametrize("seed", range(10))
def test_honest_results_never_disagree(seed: int) -> None:
    instance = random_instance(seed, is_throughput=seed % 2 == 0, has_pair_links=seed % 3 == 0)
    truth = ExhaustivePlanner().solve(instance)
    results = [
        truth,
        replace(truth, planner="other", witness=None),
        replace(truth, planner="bare", bound=None, witness=None),
    ]
    if truth.placement is None:
        results = results[:2]
    found = together(*results, instance=instance)
    assert found.disagreements == ()
    assert {r.status for r in found.results} == {truth.status}
