"""Picks against the best exact pattern or packing."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_instances import kernel_instance

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.column_search import usage_of
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.packing import pack
from slob_opt.planning.pattern_rates import best_rates, pattern_problem
from slob_opt.planning.pattern_search import PatternSearch
from slob_opt.planning.priced_lp import all_patterns
from slob_opt.slob.picking import greedy, pick, pick_large, repack
from slob_opt.slob.placement import candidates_of


@pytest.mark.parametrize("seed", range(40))
def test_picks_are_exact_and_best(seed: int) -> None:
    instance = kernel_instance(seed, is_uniform=True)
    if not instance.shapes():
        return
    problem, search = pattern_problem(instance), PatternSearch(instance)
    patterns = all_patterns(problem)
    rates = best_rates(problem, patterns, np.zeros(len(patterns)), exact=True).rate
    found = candidates_of(search)
    chosen = pick(search, found, np.random.default_rng(0))
    assert np.all(found.is_exact[chosen])
    if instance.is_throughput:
        usage = patterns.astype(np.int64) @ search.groups.usage.T
        best = pack(search.groups.pool_cards, usage, rates)[0]
    else:
        best = float(rates.max())
    assert sum(found.rate[chosen]) == pytest.approx(best, rel=1e-4)


def test_ends_that_spoil_the_best_looking_patterns_do_not_end_the_search() -> None:
    """The quick cards have no room for the head; eight rounds of one pattern each once ended with no plan at all."""
    classes = [DirectClass(f"quick{i}", 3, 130, (1 + i) * 1e-3) for i in range(3)] + [DirectClass("roomy", 1, 190, 0.1)]
    table = direct_table(classes, 6, layer_bytes=100, embed_bytes=60, head_bytes=60, tied_saving_bytes=60)
    for objective in (IntervalObjective(1), ThroughputObjective(2)):
        instance = PlacementInstance(table, objective)
        search = PatternSearch(instance)
        assert pick(search, candidates_of(search), np.random.default_rng(0)) == []
    roomy = direct_table(
        [*classes[:3], DirectClass("roomy", 2, 190, 0.1)], 6, layer_bytes=100, embed_bytes=60, head_bytes=60
    )
    for objective in (IntervalObjective(1), ThroughputObjective(2)):
        search = PatternSearch(PlacementInstance(roomy, objective))
        found = candidates_of(search)
        chosen = pick(search, found, np.random.default_rng(0))
        assert len(chosen) == 1
        assert found.counts[chosen[0]][3] == 2


def packing_case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    usage = rng.integers(0, 3, (12, 3))
    usage[usage.sum(axis=1) == 0, 0] = 1
    return np.array([6, 5, 4]), usage, rng.uniform(1, 5, 12) * usage.sum(axis=1)


@pytest.mark.parametrize("seed", range(8))
def test_greedy_and_repacked_choices_fit_and_only_improve(seed: int) -> None:
    cards, usage, rates = packing_case(seed)
    prices = np.ones(3)
    chosen = greedy(cards, usage, rates, prices)
    assert np.all(usage[chosen].sum(axis=0) <= cards)
    again = repack(cards, usage, rates, chosen, prices, np.random.default_rng(0))
    assert np.all(usage[again].sum(axis=0) <= cards)
    assert rates[again].sum() >= rates[chosen].sum() - 1e-9
    assert rates[again].sum() <= pack(cards, usage, rates)[0] * (1 + 1e-12)
    assert again == repack(cards, usage, rates, chosen, prices, np.random.default_rng(0))
    assert repack(cards, usage, rates, [], prices, np.random.default_rng(0)) == []


def test_the_large_pick_comes_near_the_packing_program() -> None:
    classes = [DirectClass(f"c{i}", 4, 320 + 90 * i, (2 + i) * 1e-3, fixed_s=1e-4, head_s=1e-3) for i in range(3)]
    table = direct_table(classes, 10, layer_bytes=100, kv_bytes=3, latency_s=1e-3)
    instance = PlacementInstance(table, ThroughputObjective(4, 0.3, 16))
    search = PatternSearch(instance)
    small, large = candidates_of(search), candidates_of(search)
    exact = pick(search, small, np.random.default_rng(0))
    chosen = pick_large(search, large, np.random.default_rng(0))
    assert np.all(large.is_exact[chosen])
    assert np.all(usage_of(search, large.counts[chosen]).sum(axis=0) <= search.groups.pool_cards)
    assert large.rate[chosen].sum() >= 0.95 * small.rate[exact].sum()
