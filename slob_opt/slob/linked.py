"""Plans when links differ: patterns become routes on actual devices, routes are improved, rates are corrected."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.problem.placement import Placement
from slob_opt.slob.picking import pick
from slob_opt.slob.routing import LONGEST, Route, Router

MAX_CORRECTIONS = 4
"""Rounds in which patterns are built on real links and picked again by the rates that came out."""

TOP_PATTERNS = 6
"""Patterns of a search that are built for a single pipeline."""

TOP_ROUTES = 4
"""Built routes of different patterns that are improved for a single pipeline."""


MAX_EXACT_ROUNDS = 12
"""Times that the best patterns are made exact; more than one only where embedding or head fit on few devices."""


def promising_patterns(search: PatternSearch, found: Candidates) -> list[tuple[int, ...]]:
    """Return the patterns with the best relaxed and with the best exact rates, :data:`TOP_PATTERNS` of each.

    Makes the rates of the patterns it looks at exact.
    """
    relaxed = np.argsort(-found.rate, kind="stable")[:TOP_PATTERNS]
    for _ in range(MAX_EXACT_ROUNDS):
        order = np.argsort(-found.rate, kind="stable")[:TOP_PATTERNS]
        fresh = order[(found.rate[order] > 0) & ~found.is_exact[order]]
        if fresh.size == 0:
            break
        search.make_exact(found, fresh)
    chosen = dict.fromkeys([*relaxed.tolist(), *order.tolist()])
    return [tuple(int(n) for n in found.counts[i]) for i in chosen if found.rate[i] > 0]


def single_routes(router: Router, patterns: Iterable[tuple[int, ...]]) -> list[Route]:
    """Return improved routes of some patterns for one pipeline in the only shape, the best first."""
    usable = np.ones(router.num_devices, dtype=bool)
    wanted = [(np.array(counts, np.int64), 0) for counts in dict.fromkeys(patterns)]
    built = [route for route in router.built(wanted, usable) if route is not None]
    starts = sorted(built, key=lambda r: r.interval)[:TOP_ROUTES]
    improved = router.improve(starts, [usable] * len(starts))
    return sorted((r for r in improved if r.interval < LONGEST), key=lambda r: r.interval)


def routed_plans(
    instance: PlacementInstance, search: PatternSearch, found: Candidates, chosen: list[int], rng: np.random.Generator
) -> list[Placement | None]:
    """Return plans of a few rounds: build the picked patterns, correct rates by what the links gave, pick again."""
    plans: list[Placement | None] = []
    tried: set[tuple[int, ...]] = set()
    router = Router(instance, search)
    for _ in range(MAX_CORRECTIONS):
        key = tuple(sorted(chosen))
        if not chosen or key in tried:
            break
        tried.add(key)
        routes, rates = routes_of(router, found, chosen)
        plans.append(Placement(tuple(router.pipeline(route) for route in routes)) if routes else None)
        for index, rate in rates.items():
            found.rate[index] = rate
        chosen = pick(search, found, rng)
    return plans


def routes_of(router: Router, found: Candidates, chosen: list[int]) -> tuple[list[Route], dict[int, float]]:
    """Return routes of chosen candidates on disjoint cards, and the rate each candidate came to (its worst copy)."""
    search = router.search
    routes: list[tuple[int, Route]] = []
    rates: dict[int, float] = {}
    usable = np.ones(router.num_devices, dtype=bool)
    for index in sorted(chosen, key=lambda i: -int(found.counts[i].sum())):
        route = router.built([(found.counts[index], int(found.shape[index]))], usable)[0]
        if route is None:
            rates[index] = 0.0
            continue
        routes.append((index, route))
        usable &= ~router.clash[list(route.order)].any(axis=0)
    better: list[Route] = []
    for position, (index, route) in enumerate(routes):
        others = [d for r in (*better, *(r for _, r in routes[position + 1 :])) for d in r.order]
        own = np.ones(router.num_devices, dtype=bool)
        if others:
            own &= ~router.clash[others].any(axis=0)
        improved = _settled(router, route, own)
        if improved.interval > min(float(search.shapes.max_interval[improved.shape]), LONGEST):
            rates[index] = 0.0
            continue
        rates[index] = min(rates.get(index, np.inf), improved.rate(search))
        better.append(improved)
    return better, rates


def _settled(router: Router, route: Route, usable: NDArray[np.bool_]) -> Route:
    """Return a route improved and put into its best shape, improved again when that is another shape."""
    improved = router.reshape(router.improve([route], [usable])[0])
    return router.improve([improved], [usable])[0] if improved.shape != route.shape else improved
