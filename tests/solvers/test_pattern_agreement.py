"""The planner over columns agrees with other exact methods, route by route, and its bounds are verified.

Small instances run the solver in this process (see ``model_jobs``); a few go through the process of its own.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from certify_instances import random_instance as tiny_instance
from model_jobs import run_here
from pattern_checks import SAME, agrees, is_verified
from solver_instances import random_instance, with_group
from two_level import two_level_instance, two_level_table

from slob_opt.cost.table import CostTable
from slob_opt.planning.certify import certify
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.groups import has_pools
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.node_blocks import block_structure
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.result import SolveLimits, Status
from solvers import pattern_ilp, pattern_interval, pattern_master, pattern_subsets
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_blocks import BlockSearch
from solvers.pattern_ilp import PatternIlpPlanner

pytest.importorskip("pulp", reason="PuLP is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve models in this process."""
    for module in (pattern_master, pattern_interval):
        monkeypatch.setattr(module, "run_in_child", run_here)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_uniform_links_agree_with_parametric(seed: int, objective: str) -> None:
    instance = random_instance(
        seed, 5 + seed % 8, 5 + seed % 7, objective=objective, is_uniform=True, is_identical=True
    )
    result = PatternIlpPlanner().solve(instance)
    agrees(result, ParametricPlanner().solve(instance))
    is_verified(result, instance)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("is_throughput", [False, True])
@pytest.mark.parametrize("has_pair_links", [False, True])
def test_tiny_instances_agree_with_the_enumeration(seed: int, is_throughput: bool, has_pair_links: bool) -> None:
    instance = tiny_instance(seed, is_throughput=is_throughput, has_pair_links=has_pair_links)
    result = PatternIlpPlanner().solve(instance)
    agrees(result, ExhaustivePlanner().solve(instance))
    is_verified(result, instance)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_groups_that_exclude_each_other_agree_with_the_enumeration(seed: int, objective: str) -> None:
    """Tensor-parallel pairs beside their two cards, one kind of link: pools of cards, never a card twice."""
    plain = two_level_instance(GROUPED[seed], is_throughput=objective == "throughput", max_devices=6, num_layers=4)
    instance = PlacementInstance(with_one_link(plain.table), plain.objective)
    assert not instance.table.has_exclusive_devices
    assert instance.table.has_uniform_links
    result = PatternIlpPlanner().solve(instance)
    agrees(result, ExhaustivePlanner().solve(instance))
    is_verified(result, instance)


GROUPED = [s for s in range(60) if not two_level_table(s, max_devices=6, num_layers=4).has_exclusive_devices][:8]


def with_one_link(table: CostTable) -> CostTable:
    """Return the table with the slowest link for all pairs."""
    slowest = int(table.hop_s[1].argmax())
    names = ("hop_s", "occupancy_s", "return_s", "return_occupancy_s")
    links = {name: getattr(table, name)[:, slowest : slowest + 1] for name in names}
    return replace(table, link_class=np.where(table.link_class >= 0, 0, -1), **links)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("objective", ["interval", "throughput"])
def test_groups_of_unequal_cards_go_by_subsets(objective: str) -> None:
    """A table made by hand with a group of cards of two classes: counts don't say what fits together."""
    plain = random_instance(2, 5, 5, objective=objective, is_uniform=True, is_identical=True)
    instance = PlacementInstance(with_group(plain.table, (1, 2), 4), plain.objective)
    assert not has_pools(instance.table)
    result = PatternIlpPlanner().solve(instance)
    agrees(result, ExhaustivePlanner().solve(instance))
    assert block_structure(instance) is None


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_two_link_classes_agree_by_subsets_and_by_blocks(seed: int, is_throughput: bool) -> None:
    """Nodes with quick links inside, some with pairs: both routes and the planner without a solver."""
    instance = two_level_instance(seed, is_throughput=is_throughput, max_devices=9)
    reference = ParametricPlanner().solve(instance)
    if not instance.table.has_uniform_links:
        attempt = PatternAttempt("subsets", instance, SolveLimits(), time.perf_counter())
        pattern_subsets.solve_subsets(attempt)
        agrees(attempt.result(), reference)
        is_verified(attempt.result(), instance)
    structure = block_structure(instance)
    assert structure is not None
    attempt = PatternAttempt("blocks", instance, SolveLimits(), time.perf_counter())
    search = BlockSearch(attempt, structure)
    if is_throughput:
        search.throughput()
    else:
        search.interval()
    agrees(attempt.result(), reference)
    certificate = certify(attempt.result(), instance)
    assert certificate.is_valid
    assert certificate.bound_status != "refuted"


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_throughput", [False, True])
def test_unequal_layers_only_give_a_bound(seed: int, is_throughput: bool) -> None:
    instance = tiny_instance(seed, is_throughput=is_throughput, has_unequal_layers=True, has_pair_links=seed % 2 == 0)
    optimum = ExhaustivePlanner().solve(instance)
    result = PatternIlpPlanner().solve(instance)
    if optimum.objective is None:
        assert result.placement is None
        return
    assert result.status is Status.UNKNOWN
    assert result.message == pattern_ilp.BOUND_ONLY
    assert result.bound is not None
    assert result.bound <= optimum.objective + SAME * abs(optimum.objective)
    with_plan = PatternIlpPlanner().solve(instance, incumbent=optimum.placement)
    assert with_plan.objective == pytest.approx(optimum.objective, rel=SAME)
    assert certify(with_plan, instance).is_valid
