import itertools

import pytest
from solver_instances import random_table

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from solvers.interval_model import interval_model
from solvers.size import estimate_size, refusal
from solvers.throughput_cpsat import throughput_cpsat
from solvers.throughput_ilp import throughput_ilp

CASES = list(itertools.product([True, False], [True, False], [True, False], ["interval", "throughput"]))


@pytest.mark.parametrize(("is_uniform", "is_identical", "is_ilp", "objective"), CASES)
@pytest.mark.parametrize("num_devices", [4, 9])
def test_estimate_is_within_a_factor_of_three(
    is_uniform: bool, is_identical: bool, is_ilp: bool, objective: str, num_devices: int
) -> None:
    table = random_table(3, num_devices, 12, is_uniform=is_uniform, is_identical=is_identical)
    chosen = IntervalObjective(4) if objective == "interval" else ThroughputObjective(8, max_interval_s=0.2)
    instance = PlacementInstance(table, chosen)
    if objective == "interval":
        model = interval_model(instance, has_circuit=not is_ilp).model
    else:
        model = (throughput_ilp(instance) if is_ilp else throughput_cpsat(instance)).model
    size = estimate_size(instance, is_ilp=is_ilp)
    assert size.num_variables == pytest.approx(len(model.variables), rel=0.5)
    assert model.num_terms / 3 <= size.num_terms <= model.num_terms * 3


def test_too_large_a_model_is_refused_with_its_size_and_advice() -> None:
    """O18: 300 cards with a link of its own for each pair, throughput: far beyond any memory."""
    links = [[(1e9, 1e-6 * (i + j)) for j in range(300)] for i in range(300)]
    table = direct_table([DirectClass("a", 300, 99, 0.1)], 80, layer_bytes=1, pair_links=links)
    reason = refusal(PlacementInstance(table, ThroughputObjective(16)), is_ilp=True, memory_bytes=None)
    assert reason is not None
    assert "300 devices and 80 layers" in reason
    assert "coefficients" in reason
    assert "group equal GPUs" in reason


def test_memory_cap_refuses_what_would_not_fit_it() -> None:
    table = random_table(3, 12, 40, is_uniform=False, is_identical=False)
    instance = PlacementInstance(table, ThroughputObjective(8))
    assert refusal(instance, is_ilp=True, memory_bytes=8 * 2**30) is None
    reason = refusal(instance, is_ilp=True, memory_bytes=512 * 2**20)
    assert reason is not None
    assert "512 MiB" in reason
