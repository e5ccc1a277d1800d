"""Units of time: the table's own tick unless rows would pass 2^53; coarser ones keep the bound valid."""

from dataclasses import replace

import pytest
from solver_instances import random_instance
from solver_runs import run_here

from slob_opt.cost.table import TICK_S
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from solvers import cpsat_adapter
from solvers.backend import BackendLimits, Ending
from solvers.interval_model import interval_model
from solvers.messages import Backend
from solvers.times import Clock

LIMITS = BackendLimits(time_s=60.0, deterministic_s=20.0)


class Silent:
    """Hears nothing."""

    def on_solution(self, values: object) -> None:
        """Ignore."""

    def on_bound(self, bound: float) -> None:
        """Ignore."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "unequal-layers"])
def test_coarse_ticks_round_down(seed: int, is_identical: bool) -> None:
    """At 2^-16 s (15 microseconds) the optimum is below the true one, by at most a tick for each time in it."""
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    instance = random_instance(seed, 4, 5, objective="interval", is_uniform=False, is_identical=is_identical)
    best = ExhaustivePlanner().solve(instance).objective
    formulation = interval_model(instance, has_circuit=True, clock=Clock(14))
    answer = cpsat_adapter.solve(formulation.model, LIMITS, Silent())
    if best is None:
        assert answer.ending is Ending.INFEASIBLE
        return
    assert answer.bound is not None
    bound = formulation.natural_bound(answer.bound)
    in_flight = instance.shapes()[0][1]
    assert best - in_flight * 25 * formulation.tick_s <= bound <= best


def test_table_of_days_gets_coarser_ticks_and_still_a_proof() -> None:
    """Layer times of hours: K * pass is 10^7 s = 10^16 ticks; the unit grows and the gap stays within 1e-6."""
    pytest.importorskip("ortools", reason="pip install 'slob[exact]'")
    base = random_instance(2, 4, 5, objective="interval", is_uniform=True, is_identical=True)
    table = base.table
    slow = replace(table, layer_s=table.layer_s * 2.0**20, kv_bytes=table.kv_bytes * 0)
    instance = PlacementInstance(slow, IntervalObjective(256))
    formulation = interval_model(instance, has_circuit=True)
    assert formulation.tick_s > TICK_S
    best = ExhaustivePlanner().solve(instance).objective
    told = run_here(instance, Backend.CPSAT, limits=LIMITS)
    assert best is not None
    assert told.objective == pytest.approx(best, rel=1e-9)
    assert told.bound is not None
    assert told.bound <= best
    assert told.bound == pytest.approx(best, rel=1e-6)
