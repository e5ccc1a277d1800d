"""The program for unequal layers against the split of every order, and the planner's route through it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from kernel_instances import kernel_instance
from pattern_oracle import every_pattern, interval_of_pattern

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.certify import certify
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.groups import realise
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.layered import LayeredProgram, can_solve_layered, closure, solve_layered
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.parametric import ParametricPlanner
from slob_opt.planning.pattern_rates import pattern_problem
from slob_opt.planning.priced_lp import all_patterns
from slob_opt.planning.result import SolveLimits, Status
from slob_opt.problem.placement import Placement


@pytest.mark.parametrize("seed", range(40))
def test_intervals_match_the_split_of_every_order(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=True, is_identical=False)
    problem = pattern_problem(instance)
    patterns = every_pattern(problem.groups, problem.num_layers)
    for shape, costs in zip(instance.shapes()[:3], [c for s in instance.shapes()[:3] for c in problem.costs
                            if (c.row, c.num_micro_batches, c.batch_size) == s], strict=True):  # fmt: skip
        program = LayeredProgram(problem, costs, patterns)
        expected = [interval_of_pattern(instance, problem.groups, counts, shape) for counts in patterns]
        found = [program.shortest(np.array([p]), float("inf")) for p in range(len(patterns))]
        assert found == expected
        assert program.shortest(np.arange(len(patterns)), float("inf")) == min(expected)
        for p, ticks in enumerate(expected):
            if not np.isfinite(ticks):
                assert program.best(np.array([p]), float("inf")) is None
                continue
            assert program.shortest(np.array([p]), ticks) == ticks
            assert program.shortest(np.array([p]), ticks - 1) == float("inf")
            plan = program.plan(p, ticks)
            placement = realise(instance.table, problem.groups, [plan])
            assert np.bincount(plan.groups, minlength=len(patterns[p])).tolist() == patterns[p].tolist()
            assert evaluate(instance, placement).violations == ()


def test_closure_holds_every_part_once() -> None:
    found = closure(np.array([[2, 1, 0], [0, 0, 2]]))
    assert sorted(map(tuple, found.tolist())) == [
        (0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0),
    ]  # fmt: skip


def test_known_cut_by_hand() -> None:
    """Layers of 3, 1, 1, 1 s on two equal cards with K = 2: cut after the first, max(6, 2 * 3) = 6 s."""
    table = direct_table([DirectClass("a", 2, 100, [3.0, 1.0, 1.0, 1.0])], 4, layer_bytes=[10] * 4, bytes_per_s=1e18)
    result = ParametricPlanner().solve(PlacementInstance(table, IntervalObjective(2)))
    assert result.status is Status.OPTIMAL
    assert result.objective == 6.0
    assert result.placement is not None
    assert [(s.first, s.end) for s in result.placement.pipelines[0].stages] == [(0, 1), (1, 4)]


def unequal_cluster(
    counts: list[int], num_layers: int, objective: IntervalObjective | ThroughputObjective
) -> PlacementInstance:
    rng = np.random.default_rng(len(counts))
    weight = rng.choice([0.6, 1.0, 1.4], num_layers)
    classes = [
        DirectClass(f"c{i}", n, int(rng.integers(num_layers * 17, num_layers * 50)),
                    (weight * rng.uniform(1.5e-3, 6e-3)).tolist(), layer_per_sequence_s=1e-4, fixed_s=1e-4, head_s=1e-3)
        for i, n in enumerate(counts)
    ]  # fmt: skip
    table = direct_table(
        classes, num_layers, layer_bytes=(weight * 100).astype(int).tolist(), kv_bytes=1, embed_bytes=50, head_bytes=50,
        tokens_per_sequence=4.0, hop_bytes_per_token=8000, latency_s=1e-3,
    )  # fmt: skip
    return PlacementInstance(table, objective)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_nine_devices_of_four_kinds(in_flight: int) -> None:
    """Took 15 s when every pattern was bisected on its own; a dozen programs do."""
    instance = unequal_cluster([3, 2, 2, 2], 60, IntervalObjective(in_flight))
    result = ParametricPlanner().solve(instance)
    assert result.status is Status.OPTIMAL
    assert certify(result, instance).status is Status.OPTIMAL


def test_packing_makes_only_some_patterns_exact() -> None:
    instance = unequal_cluster([2, 2, 1], 16, ThroughputObjective(4, 0.4, 16))
    result = ParametricPlanner().solve(instance)
    details = dict(result.details)
    assert result.status is Status.OPTIMAL
    assert 0 < int(details["exact_patterns"]) <= int(details["patterns"])


def test_out_of_time_keeps_a_valid_bound() -> None:
    for seed in range(12):
        instance = kernel_instance(seed, is_uniform=True, is_identical=False, is_throughput=True)
        oracle = ExhaustivePlanner().solve(instance)
        result = ParametricPlanner().solve(instance, limits=SolveLimits(time_s=0.0))
        if oracle.objective is None:
            assert result.placement is None
            continue
        assert result.bound is not None
        assert result.bound <= oracle.objective + 2e-6 * abs(oracle.objective)
        assert result.status is not Status.INFEASIBLE


def test_memory_of_unequal_layers_decides() -> None:
    """One layer of 8 GB and twenty of 1 GB on three cards of 10 GB fit only with the large one among few others."""
    table = direct_table([DirectClass("a", 3, 10, 1e-3)], 21, layer_bytes=[1] * 20 + [8])
    assert ParametricPlanner().solve(PlacementInstance(table, IntervalObjective(1))).status is Status.OPTIMAL
    short = direct_table([DirectClass("a", 3, 9, 1e-3)], 21, layer_bytes=[1] * 20 + [8])
    assert ParametricPlanner().solve(PlacementInstance(short, IntervalObjective(1))).status is Status.INFEASIBLE


def test_incumbent_beats_a_mere_bound() -> None:
    for seed in range(20):
        instance = kernel_instance(seed, is_uniform=False, is_identical=False, num_devices=3, max_layers=4)
        problem = pattern_problem(instance)
        assert can_solve_layered(problem)
        best = ExhaustivePlanner().solve(instance)
        if best.placement is None:
            continue
        result = solve_layered("layered", problem, best.placement, SolveLimits(time_s=None), time.perf_counter())
        assert isinstance(result.placement, Placement)
        assert result.objective == best.objective
        assert all_patterns(problem).shape[0] == dict(result.details)["patterns"]
