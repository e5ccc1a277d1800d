"""A plan written into a model's variables satisfies every row and is worth there what it is worth."""

import pytest
from solver_instances import random_instance

from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.problem.placement import Placement
from solvers.backend import BackendLimits, Ending
from solvers.formulation import Formulation, decode
from solvers.incumbent import encode
from solvers.integer_model import Variable
from solvers.interval_model import interval_model
from solvers.symmetry import canonical_placement
from solvers.throughput_cpsat import throughput_cpsat
from solvers.throughput_ilp import throughput_ilp

LIMITS = BackendLimits(time_s=60.0, deterministic_s=20.0)


class Silent:
    """Hears nothing."""

    def on_solution(self, values: object) -> None:
        """Ignore."""

    def on_bound(self, bound: float) -> None:
        """Ignore."""


def solved_at(formulation: Formulation, values: dict[int, float], is_ilp: bool) -> tuple[float, dict[int, float]]:
    """Objective and values of the model with the whole-number variables fixed."""
    from solvers import cpsat_adapter, pulp_adapter

    model = formulation.model
    for i, value in values.items():
        model.variables[i] = Variable(model.variables[i].name, value, value, True)
    answer = (pulp_adapter if is_ilp else cpsat_adapter).solve(model, LIMITS, Silent())
    assert answer.ending is Ending.FINISHED
    assert answer.values is not None
    assert model.violated_row(answer.values) is None
    return sum(c * answer.values[v] for v, c in model.objective.items()) * formulation.unit, dict(answer.values)


def best_plan(instance: PlacementInstance) -> tuple[Placement, float]:
    result = ExhaustivePlanner().solve(instance)
    if result.placement is None or result.objective is None:
        pytest.skip("the random instance has no plan")
    return result.placement, result.objective


@pytest.mark.parametrize("objective", ["interval", "throughput"])
@pytest.mark.parametrize("is_ilp", [True, False], ids=["ilp", "cpsat"])
@pytest.mark.parametrize("is_uniform", [True, False], ids=["uniform", "general-links"])
@pytest.mark.parametrize("is_identical", [True, False], ids=["identical", "unequal-layers"])
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_optimum_is_a_point_of_the_model(
    seed: int, objective: str, is_ilp: bool, is_uniform: bool, is_identical: bool
) -> None:
    pytest.importorskip("highspy" if is_ilp else "ortools", reason="pip install 'slob[exact]'")
    instance = random_instance(seed, 4, 4, objective=objective, is_uniform=is_uniform, is_identical=is_identical)
    plan, worth = best_plan(instance)
    if objective == "interval":
        formulation = interval_model(instance, has_circuit=not is_ilp)
    else:
        formulation = throughput_ilp(instance) if is_ilp else throughput_cpsat(instance)
    values = encode(instance.table, formulation, plan)
    assert values is not None
    found, complete = solved_at(formulation, values, is_ilp)
    assert found == pytest.approx(worth, rel=1e-6)
    again = decode(instance.table, formulation.slots, complete)
    assert again is not None
    assert canonical_placement(instance.table, again) == canonical_placement(instance.table, plan)
