"""Every planner of the core joins the contract; those that are not there yet skip."""

from __future__ import annotations

from slob_contract import PlannerContract

BASELINES = "slob_opt.planning.baselines"


class TestExhaustive(PlannerContract):
    path = "slob_opt.planning.exhaustive:ExhaustivePlanner"


class TestParametric(PlannerContract):
    path = "slob_opt.planning.parametric:ParametricPlanner"


class TestSlob(PlannerContract):
    path = "slob_opt.slob.placement:SlobPlanner"


class TestEven(PlannerContract):
    path = f"{BASELINES}.even:EvenPlanner"


class TestMemoryProportional(PlannerContract):
    path = f"{BASELINES}.memory_proportional:MemoryProportionalPlanner"


class TestSpeedProportional(PlannerContract):
    path = f"{BASELINES}.speed_proportional:SpeedProportionalPlanner"


class TestPetalsGreedy(PlannerContract):
    path = f"{BASELINES}.petals_greedy:PetalsGreedyPlanner"


class TestParallaxDp(PlannerContract):
    path = f"{BASELINES}.parallax_dp:ParallaxDpPlanner"


class TestSpeedChain(PlannerContract):
    path = f"{BASELINES}.speed_chain:SpeedChainPlanner"


def test_baselines_say_that_they_are() -> None:
    from slob_contract import find_planner

    for contract in (TestEven, TestMemoryProportional, TestSpeedProportional, TestPetalsGreedy, TestParallaxDp):
        assert getattr(find_planner(contract.path), "is_baseline", False)
    assert not getattr(find_planner(TestExhaustive.path), "is_baseline", True)
