import itertools
from dataclasses import replace

import numpy as np
import pytest
from solver_instances import random_instance, with_group

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import ThroughputObjective
from slob_opt.problem.placement import Pipeline, Placement, Stage
from solvers.symmetry import canonical_placement, exchangeable_groups


def test_equal_devices_with_equal_links_are_exchangeable() -> None:
    table = direct_table([DirectClass("a", 2, 99, 0.1), DirectClass("b", 3, 99, 0.2)], 4, layer_bytes=1)
    assert exchangeable_groups(table) == ((0, 1), (2, 3, 4))


def test_one_odd_link_breaks_the_exchange() -> None:
    near, far = (1e9, 1e-4), (1e8, 1e-3)
    links = [[near] * 3 for _ in range(3)]
    links[0][2] = far
    table = direct_table([DirectClass("a", 3, 99, 0.1)], 4, layer_bytes=1, pair_links=links)
    assert exchangeable_groups(table) == ()


def test_cards_of_a_group_are_exchangeable_with_each_other_only() -> None:
    table = direct_table([DirectClass("a", 3, 99, 0.1), DirectClass("pair", 1, 99, 0.05)], 4, layer_bytes=1)
    assert exchangeable_groups(with_group(table, (0, 1), 3)) == ((0, 1),)


def test_limited_network_cards_keep_nodes_apart() -> None:
    table = direct_table([DirectClass("a", 4, 99, 0.1)], 4, layer_bytes=1, nodes=[0, 0, 1, 1])
    assert exchangeable_groups(replace(table, nic_bytes_per_s=np.array([1e9, 1e9]))) == ((0, 1), (2, 3))


@pytest.mark.parametrize("seed", range(6))
def test_all_exchanges_of_a_plan_have_one_canonical_form_of_equal_worth(seed: int) -> None:
    """O16: plans that differ by names of equal cards come out as one plan."""
    instance = random_instance(seed, 4, 6, objective="throughput", is_uniform=seed % 2 == 0, is_identical=True)
    instance = PlacementInstance(
        replace(instance.table, capacity_bytes=instance.table.capacity_bytes * 9), ThroughputObjective(4)
    )
    groups = exchangeable_groups(instance.table)
    order = list(np.random.default_rng(seed).permutation(4))
    forms, worths = set(), set()
    for shuffled in itertools.permutations(range(4)):
        if any(shuffled[d] not in next((g for g in groups if d in g), (d,)) for d in range(4)):
            continue
        a, b, c, d = (shuffled[int(o)] for o in order)
        plan = Placement(
            (
                Pipeline((Stage((a,), 0, 2), Stage((b,), 2, 3), Stage((c,), 3, 6)), 2, 2),
                Pipeline((Stage((d,), 0, 6),), 1, 1),
            )
        )
        form = canonical_placement(instance.table, plan)
        forms.add(form)
        worths |= {evaluate(instance, plan).objective, evaluate(instance, form).objective}
        assert canonical_placement(instance.table, form) == form
    assert len(forms) == len(worths) == 1
