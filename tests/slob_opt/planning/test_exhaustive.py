from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from slob_builders import SOLVED, Solved, replicas_and_a_pair, tiny_instances
from slob_contract import HAND

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner, count_splits
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import SolveLimits, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.planning.witness import EnumerationWitness
from slob_opt.problem.placement import Pipeline, Placement


@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
def test_named_instances_have_the_value_found_by_hand(build: object) -> None:
    solved: Solved = build()  # type: ignore[operator]
    result = ExhaustivePlanner().solve(solved.instance)
    if solved.objective is None:
        assert result.status is Status.INFEASIBLE
        assert result.message
    else:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(solved.objective, rel=HAND)
        assert result.bound == pytest.approx(result.objective, rel=1e-12)
    assert isinstance(result.witness, EnumerationWitness)
    assert result.witness.num_plans > 0


def _every_pipeline(instance: PlacementInstance) -> list[Pipeline]:
    """Every pipeline, made one by one."""
    table = instance.table
    found = []
    for size in range(1, min(table.num_devices, table.num_layers) + 1):
        for route in itertools.permutations(range(table.num_devices), size):
            for counts in itertools.product(range(1, table.num_layers + 1), repeat=size):
                if sum(counts) == table.num_layers:
                    found += [pipeline_of(table, route, counts, k, b) for _, k, b in instance.shapes()]
    return found


@settings(max_examples=25, deadline=None)
@given(tiny_instances(max_devices=3, max_layers=4))
def test_agrees_with_evaluating_every_single_placement(instance: PlacementInstance) -> None:
    allowed = [p for p in _every_pipeline(instance) if evaluate(instance, Placement((p,))).is_feasible]
    best_on: dict[frozenset[int], float] = {}
    for pipeline in allowed:
        worth = evaluate(instance, Placement((pipeline,))).objective
        cards = frozenset(pipeline.cards)
        assert worth is not None
        best_on[cards] = min(worth, best_on.get(cards, worth))
    result = ExhaustivePlanner().solve(instance)
    if not best_on:
        assert result.status is Status.INFEASIBLE
        return
    values = list(best_on.items())
    worths = [w for _, w in values]
    if instance.is_throughput:
        for size in (2, 3):
            for family in itertools.combinations(values, size):
                if sum(len(cards) for cards, _ in family) == len(frozenset().union(*(cards for cards, _ in family))):
                    worths.append(sum(w for _, w in family))
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(min(worths), rel=1e-12)


def test_refuses_what_is_too_large_and_says_the_size() -> None:
    table = direct_table([DirectClass("a", 9, 10, 0.1)], 40, layer_bytes=1)
    instance = PlacementInstance(table, IntervalObjective(1))
    result = ExhaustivePlanner().solve(instance)
    assert result.status is Status.UNKNOWN
    assert result.placement is None
    assert result.witness is None
    assert str(count_splits(instance)) in result.message


def test_a_refusal_keeps_an_allowed_incumbent() -> None:
    table = direct_table([DirectClass("a", 9, 40, 0.1)], 40, layer_bytes=1)
    instance = PlacementInstance(table, IntervalObjective(1))
    plan = Placement((pipeline_of(table, (0,), (40,)),))
    result = ExhaustivePlanner().solve(instance, incumbent=plan)
    assert result.status is Status.FEASIBLE
    assert result.placement == plan
    assert result.bound is None


def test_a_time_limit_ends_the_search_without_a_claim() -> None:
    result = ExhaustivePlanner().solve(replicas_and_a_pair().instance, limits=SolveLimits(time_s=0.0))
    assert result.status is Status.UNKNOWN
    assert "time limit" in result.message


def test_shared_network_cards_leave_the_sum_of_rates_as_a_bound() -> None:
    # Each card holds one of two layers, only those of node 1 have room for the head, and links inside a node are very
    # slow: both pipelines go from node 0 to node 1. Stages of 1 ms and K = 2 make 1000 tokens/s a pipeline, each token
    # 1000 bytes: 1 MB/s. A network card of 1.5 MB/s lets one pipeline through (0.67 ms an iteration), but not two.
    inside, across = (1e18, 1.0), (1e18, 0.0)
    nodes = (0, 0, 1, 1)
    table = direct_table(
        [DirectClass("a", 2, 1, 1e-3), DirectClass("b", 2, 2, 1e-3)],
        2,
        layer_bytes=1,
        head_bytes=1,
        batch_sizes=(1,),
        hop_bytes_per_token=1000,
        nodes=nodes,
        pair_links=[[inside if a == b else across for b in nodes] for a in nodes],
    )
    free = ExhaustivePlanner().solve(PlacementInstance(table, ThroughputObjective(2)))
    assert free.status is Status.OPTIMAL
    assert free.objective == pytest.approx(-2000, rel=HAND)
    narrow = replace(table, nic_bytes_per_s=np.array([1.5e6, 1.5e6]))
    result = ExhaustivePlanner().solve(PlacementInstance(narrow, ThroughputObjective(2)))
    assert result.status is Status.FEASIBLE
    assert result.bound == pytest.approx(-2000, rel=HAND)
    assert result.objective == pytest.approx(-1500, rel=1e-2)
    assert "network cards" in result.message
