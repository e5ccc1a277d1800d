"""Where planners get their status from."""

from __future__ import annotations

from slob_builders import capped_interval, fast_and_slow

from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.result import Status
from slob_opt.planning.split import pipeline_of
from slob_opt.planning.witness import CapacityWitness
from slob_opt.problem.placement import Placement

INSTANCE = fast_and_slow().instance
FAST = Placement((pipeline_of(INSTANCE.table, (0,), (32,)),))
BOTH = Placement((pipeline_of(INSTANCE.table, (0, 1), (31, 1)),))


def test_the_better_and_the_earlier_of_equals() -> None:
    assert better_plan(INSTANCE, None, BOTH, FAST)[0] is FAST
    twin = Placement((pipeline_of(INSTANCE.table, (0,), (32,)),))
    assert better_plan(INSTANCE, FAST, twin)[0] is FAST
    assert better_plan(INSTANCE, None) == (None, None)


def test_plans_that_are_not_allowed_do_not_count() -> None:
    instance = capped_interval().instance
    slow = Placement((pipeline_of(instance.table, (0,), (4,), 1, 4),))
    assert evaluate(instance, slow).objective is None
    assert better_plan(instance, slow) == (None, None)
    assert outcome(instance, "x", slow, -50.0, elapsed_s=0.0).status is Status.UNKNOWN


def test_optimal_within_the_tolerance_only() -> None:
    worth = better_plan(INSTANCE, FAST)[1]
    assert worth is not None
    for share, status in ((0.0, Status.OPTIMAL), (0.9e-6, Status.OPTIMAL), (1.1e-6, Status.FEASIBLE)):
        assert outcome(INSTANCE, "x", FAST, worth * (1 - share), elapsed_s=0.0).status is status
    assert outcome(INSTANCE, "x", FAST, None, elapsed_s=0.0).status is Status.FEASIBLE
    kept = outcome(INSTANCE, "x", BOTH, worth, elapsed_s=0.0, incumbent=FAST)
    assert (kept.placement, kept.status) == (FAST, Status.OPTIMAL)


def test_infeasible_only_without_a_plan() -> None:
    witness = CapacityWitness("none")
    proven = outcome(INSTANCE, "x", None, 1.0, elapsed_s=0.0, is_infeasible=True, witness=witness)
    assert (proven.status, proven.bound, proven.witness) == (Status.INFEASIBLE, None, witness)
    refuted = outcome(INSTANCE, "x", None, None, elapsed_s=0.0, is_infeasible=True, incumbent=FAST)
    assert refuted.status is Status.FEASIBLE
    unknown = outcome(INSTANCE, "x", None, None, elapsed_s=0.0, witness=witness)
    assert (unknown.status, unknown.witness) == (Status.UNKNOWN, None)
