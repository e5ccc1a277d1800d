"""What must always hold of `slob` and `parametric`, on problems with real cards, models and links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.instances import StudyProblem
from experiments.random_instances import Recipe, draw_small
from experiments.studies.properties import PROPERTY_TOLERANCE
from experiments.studies.variants import variant
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import Status
from slob_opt.slob.placement import SlobPlanner

RELATIVE = 1e-9
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def problems(links: tuple[str, ...] = ("uniform", "general")) -> st.SearchStrategy[StudyProblem]:
    recipes = st.builds(
        Recipe, st.integers(2, 6), st.sampled_from(links), st.sampled_from([1, 4, None]), st.just(True)
    )  # fmt: skip
    return st.builds(draw_small, recipes, st.integers(0, 10_000))


def scaled(instance: PlacementInstance) -> PlacementInstance:
    """Every time twice as long; whole ticks stay whole."""
    table = instance.table
    names = ("fixed_s", "layer_s", "embed_s", "head_s", "hop_s", "occupancy_s", "return_s", "return_occupancy_s")
    longer = replace(table, **{name: np.array(getattr(table, name)) * 2 for name in names})
    objective = instance.objective
    if isinstance(objective, ThroughputObjective) and objective.max_interval_s is not None:
        objective = replace(objective, max_interval_s=objective.max_interval_s * 2)
    return PlacementInstance(longer, objective, instance.name)


@FEW
@given(problems(), st.integers(0, 100))
def test_the_numbering_of_devices_never_changes_an_optimum(problem: StudyProblem, seed: int) -> None:
    planner = ParametricPlanner()
    one, two = planner.solve(problem.instance()), planner.solve(variant(problem, "relabelled", seed).instance())
    assert one.status == two.status
    assert one.objective == (None if two.objective is None else pytest.approx(two.objective, rel=PROPERTY_TOLERANCE))


@FEW
@given(problems(("uniform",)), st.integers(0, 100))
def test_the_numbering_of_devices_never_changes_slob_s_plan(problem: StudyProblem, seed: int) -> None:
    planner = SlobPlanner()
    one, two = planner.solve(problem.instance()), planner.solve(variant(problem, "relabelled", seed).instance())
    assert one.objective == (None if two.objective is None else pytest.approx(two.objective, rel=RELATIVE))


@FEW
@given(problems(), st.sampled_from(["device", "memory", "bandwidth"]), st.integers(0, 100))
def test_more_of_anything_never_hurts(problem: StudyProblem, what: str, seed: int) -> None:
    """Proven optima, and `slob` when it is given the old plan; a plan stays a plan."""
    old, new = problem.instance(), variant(problem, what, seed).instance()
    before, after = ParametricPlanner().solve(old), ParametricPlanner().solve(new)
    if before.status is Status.OPTIMAL:
        assert before.objective is not None
        assert after.status is Status.OPTIMAL
        assert after.objective is not None
        assert after.objective <= before.objective + PROPERTY_TOLERANCE * abs(before.objective)
    slob = SlobPlanner().solve(old)
    again = SlobPlanner().solve(new, incumbent=slob.placement)
    if slob.objective is not None:
        assert again.objective is not None
        assert again.objective <= slob.objective


@FEW
@given(problems())
def test_slower_everything_changes_the_value_in_proportion(problem: StudyProblem) -> None:
    instance = problem.instance()
    factor = 0.5 if instance.is_throughput else 2.0
    for planner in (ParametricPlanner(), SlobPlanner()):
        one, two = planner.solve(instance), planner.solve(scaled(instance))
        if one.objective is None:
            assert two.objective is None
        else:
            assert two.objective == pytest.approx(one.objective * factor, rel=PROPERTY_TOLERANCE)


@FEW
@given(problems())
def test_slob_never_beats_a_proof_and_plans_wherever_links_are_equal(problem: StudyProblem) -> None:
    instance = problem.instance()
    exact, slob = ParametricPlanner().solve(instance), SlobPlanner().solve(instance)
    if exact.status is Status.INFEASIBLE:
        assert slob.placement is None
    elif slob.objective is not None:
        assert exact.bound is not None
        assert slob.objective >= exact.bound - PROPERTY_TOLERANCE * abs(exact.bound)
    else:
        assert not instance.table.has_uniform_links
