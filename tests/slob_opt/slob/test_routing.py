"""Neighbours of orders, and the router's values, constructions and local search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_instances import kernel_instance
from pattern_oracle import interval_in_order, route_s
from two_level import two_level_instance

from slob_opt.cost.table import TICK_S
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.pattern_search import PatternSearch
from slob_opt.problem.placement import Placement
from slob_opt.slob.linked import exchanged, fillers, routes_of, single_routes
from slob_opt.slob.moves import insertions, neighbours, permutations_near, removals, replacements
from slob_opt.slob.picking import pick
from slob_opt.slob.placement import candidates_of
from slob_opt.slob.routing import Route, Router


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_positions(size: int) -> None:
    near = permutations_near(size)
    assert len({tuple(row) for row in near.tolist()}) == len(near)
    assert all(sorted(row) == list(range(size)) and row != list(range(size)) for row in near.tolist())
    swaps = {tuple(np.where(np.arange(size) == i, j, np.where(np.arange(size) == j, i, np.arange(size))).tolist())
             for i, j in itertools.combinations(range(size), 2)}  # fmt: skip
    assert swaps <= {tuple(row) for row in near.tolist()}
    assert insertions(size).tolist() == [[*range(i), size, *range(i, size)] for i in range(size + 1)]
    assert replacements(size)[1].tolist() == [0, size, *range(2, size)]
    assert removals(size)[0].tolist() == list(range(1, size))


def test_a_group_takes_the_place_of_its_cards_and_they_its() -> None:
    clash = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 0, 1]], bool)  # device 3 is cards 0 and 1
    parts = {3: ((0, 1), (0,))}
    grouped = {tuple(row) for part in neighbours((0, 2, 1), [3], clash, parts, 4) for row in part.tolist()}
    assert {(3, 2), (2, 3)} <= grouped
    assert not any(3 in row and (0 in row or 1 in row) for row in grouped)
    apart = {tuple(row) for part in neighbours((3, 2), [0, 1], clash, parts, 4) for row in part.tolist()}
    assert {(0, 1, 2), (0, 2), (1, 2)} <= apart
    assert not any(3 in row and (0 in row or 1 in row) for row in apart)


def test_no_neighbour_has_more_devices_than_layers() -> None:
    found = neighbours((0, 1), [2, 3], np.eye(4, dtype=bool), {}, 2)
    assert max(part.shape[1] for part in found) == 2


def general(seed: int, **kwargs: object):  # type: ignore[no-untyped-def]
    instance = kernel_instance(seed, num_devices=4, is_uniform=False, **kwargs)  # type: ignore[arg-type]
    search = PatternSearch(instance)
    return instance, search, Router(instance, search)


@pytest.mark.parametrize("seed", range(15))
def test_lengths_and_intervals_match_the_split_of_the_order(seed: int) -> None:
    instance = kernel_instance(seed, num_devices=4, is_uniform=False)
    if not instance.shapes():
        return
    search = PatternSearch(instance)
    router = Router(instance, search)
    for size in range(1, min(4, instance.table.num_layers) + 1):
        orders = np.array(list(itertools.permutations(range(4), size)), np.int64)
        for index, shape in enumerate(instance.shapes()[:3]):
            total, busy = router.lengths(orders, shape[0])
            ticks = router.intervals([(orders, np.full(len(orders), index), np.full(len(orders), 2.0**50))])[0]
            for x, order in enumerate(orders.tolist()):
                hops, busiest = route_s(instance, order, shape[0])
                assert (total[x] * TICK_S, busy[x] * TICK_S) == (hops, busiest)
                assert ticks[x] == interval_in_order(instance, order, shape)
                if np.isfinite(ticks[x]):
                    pipeline = router.pipeline(Route(tuple(order), index, float(ticks[x])))
                    assert evaluate(instance, Placement((pipeline,))).violations == ()


def test_building_visits_what_the_pattern_says_without_sharing_cards() -> None:
    for seed in range(12):
        instance = two_level_instance(seed, is_throughput=False, max_devices=8)
        search = PatternSearch(instance)
        router = Router(instance, search)
        found = candidates_of(search)
        for counts in found.counts[found.rate > 0][:20]:
            for order in router.build(counts, 0, np.ones(router.num_devices, dtype=bool)).tolist():
                assert np.bincount(router.group_of[order], minlength=counts.size).tolist() == counts.tolist()
                cards = [c for d in order for c in router.cards[d]]
                assert len(cards) == len(set(cards))


def test_improving_only_improves_and_stays_within_usable_devices() -> None:
    for seed in range(12):
        instance, search, router = general(seed, is_throughput=False, max_layers=6)
        usable = np.array([True, True, True, False])
        for start in itertools.permutations(range(3), min(2, instance.table.num_layers)):
            before = Route(start, 0, 2.0**49)
            after = router.improve([before], [usable])[0]
            assert after.interval <= before.interval
            assert 3 not in after.order
            if after.interval < 2.0**49:
                assert after.interval == interval_in_order(instance, after.order, instance.shapes()[0])
        patterns = [tuple(row) for row in candidates_of(search).counts.tolist()]
        routes = single_routes(router, patterns)
        assert [r.interval for r in routes] == sorted(r.interval for r in routes)
        best = ExhaustivePlanner().solve(instance)
        if best.objective is not None:
            assert routes
            assert routes[0].interval * TICK_S >= best.objective * (1 - 1e-12)


def test_routes_of_a_packing_share_no_card_and_fill_what_is_free() -> None:
    for seed in range(20):
        instance = two_level_instance(seed, is_throughput=True, max_devices=8)
        search = PatternSearch(instance, 0.5)
        router, found = Router(instance, search), candidates_of(search)
        chosen = pick(search, found, np.random.default_rng(0))
        routes, rates = routes_of(router, found, chosen)
        cards = [c for r in routes for d in r.order for c in router.cards[d]]
        assert len(cards) == len(set(cards))
        assert set(rates) == set(chosen)
        assert not fillers(router, found, routes)
        again = exchanged(router, routes)
        assert sum(r.rate(search) for r in again) >= sum(r.rate(search) for r in routes) * (1 - 1e-12)


def test_exchanging_devices_finds_the_better_pairs() -> None:
    """Cards 0, 2 and 1, 3 lie near each other, and the pipelines start on 0, 1 and 2, 3."""
    from slob_opt.cost.direct import DirectClass, direct_table
    from slob_opt.planning.instance import PlacementInstance
    from slob_opt.planning.objectives import ThroughputObjective

    near, far = (1e9, 0.0), (1e9, 50e-3)
    pairs = [[near if (i - j) % 2 == 0 else far for j in range(4)] for i in range(4)]
    table = direct_table(
        [DirectClass("a", 4, 200, 1e-3)], 4, layer_bytes=100, batch_sizes=(1,), pair_links=pairs
    )  # fmt: skip
    search = PatternSearch(PlacementInstance(table, ThroughputObjective(1)))
    router = Router(search.instance, search)
    orders = np.array([[0, 1], [2, 3]], np.int64)
    ticks = router.intervals([(orders, np.zeros(2, np.int64), np.full(2, 2.0**50))])[0]
    routes = [Route(tuple(o), 0, float(t)) for o, t in zip(orders.tolist(), ticks, strict=True)]
    better = exchanged(router, routes)
    assert sorted(sorted(r.order) for r in better) == [[0, 2], [1, 3]]
    assert sum(r.rate(search) for r in better) == pytest.approx(2 / 4e-3, rel=1e-3)
