"""Subsets of devices: rates against an enumeration of routes, and families that share no card."""

from __future__ import annotations

import numpy as np
import pytest
from certify_instances import random_instance
from solver_instances import random_instance as larger_instance
from solver_instances import with_group
from two_level import two_level_instance

from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.groups import has_pools
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.subset_rates import SubsetKernel, best_family
from slob_opt.planning.subset_routes import compatible_subsets


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_general_links_match_the_enumeration(seed: int, is_throughput: bool) -> None:
    instance = random_instance(seed, is_throughput=is_throughput, has_pair_links=True)
    found, oracle = ParametricPlanner().solve(instance), ExhaustivePlanner().solve(instance)
    assert found.status == oracle.status
    assert (found.objective is None) == (oracle.objective is None)
    if oracle.objective is not None:
        assert found.objective == pytest.approx(oracle.objective, rel=1e-9)


def test_a_range_that_ends_at_a_busy_link_is_not_lost() -> None:
    """K times the occupancy of the slow link is the answer for three devices, while other ends are still searched.

    Found with seed 6: cards 0, 1 of one node and 3 of another reach 25.0 tokens/s with K = 3, and 23.8 was reported.
    """
    instance = two_level_instance(6, is_throughput=True, max_devices=7)
    kernel = SubsetKernel(instance)
    rates = kernel.rates()
    mask = 0b1011
    assert rates.rate[mask] == pytest.approx(25.0, rel=1e-6)
    pipeline = kernel.pipeline(rates, mask)
    assert (pipeline.num_micro_batches, len(pipeline.stages)) == (3, 3)


def test_family_does_not_use_a_card_twice() -> None:
    """Devices: cards 0 and 1, and the pair of both. Rates 3, 3 and 5: the two cards, never a card and the pair (8)."""
    allowed = compatible_subsets(((0,), (1,), (0, 1)))
    rate = np.array([0.0, 3.0, 3.0, 0.0, 5.0, 0.0, 0.0, 0.0])
    value, family = best_family(rate, allowed)
    assert value[-1] == 6.0
    assert sorted(family) == [1, 2]
    assert value[0b101] == 5.0
    assert best_family(rate)[0][-1] == 11.0  # without the knowledge of cards


@pytest.mark.parametrize("seed", [0, 9, 10])
def test_groups_that_exclude_each_other_still_give_a_plan(seed: int) -> None:
    """The family of these instances used to take a card and its pair, and the plan was then refused."""
    instance = two_level_instance(seed, is_throughput=True, max_devices=7)
    assert not instance.table.has_exclusive_devices
    result = ParametricPlanner().solve(instance)
    assert str(result.status) == "OPTIMAL"
    assert result.placement is not None
    assert evaluate(instance, result.placement).violations == ()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_groups_that_overlap_in_part_go_by_subsets(seed: int, objective: str) -> None:
    """Cards of one group belong to different sets of devices: counts used to miss plans or name devices twice."""
    plain = larger_instance(seed, 5, 5, objective=objective, is_uniform=True, is_identical=True)
    instance = PlacementInstance(with_group(plain.table, (1, 2), 4), plain.objective)
    result, oracle = ParametricPlanner().solve(instance), ExhaustivePlanner().solve(instance)
    assert result.status == oracle.status
    if oracle.objective is not None:
        assert result.objective == pytest.approx(oracle.objective, rel=1e-9)
    if seed == 7:
        assert not has_pools(instance.table)
