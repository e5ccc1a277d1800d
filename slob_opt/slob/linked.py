"""Plans when links differ: patterns become routes on actual devices, routes are improved, rates are corrected."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.table import TICK_S
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.problem.placement import Placement
from slob_opt.slob.picking import pick
from slob_opt.slob.routing import LONGEST, Route, Router

MAX_CORRECTIONS = 4
"""Rounds in which patterns are built on real links and picked again by the rates that came out."""

TOP_PATTERNS = 6
"""Patterns of a search that are built for a single pipeline."""

MAX_EXCHANGED = 64
"""Devices up to which exchanges between pipelines are tried."""

MAX_EXCHANGES = 12
"""Exchanges of devices between pipelines in a round."""

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
    better = [router.reshape(route) for route in exchanged(router, better)]
    return better + fillers(router, found, better), rates


def exchanged(router: Router, routes: list[Route]) -> list[Route]:
    """Return routes after exchanging devices between two of them, as long as the sum of rates grows."""
    search = router.search
    found = list(routes)
    pairs = [(a, b) for b in range(len(found)) for a in range(b)]
    if router.table.num_devices > MAX_EXCHANGED:
        return found
    for _ in range(MAX_EXCHANGES):
        parts, owners = [], []
        for a, b in pairs:
            both = _exchanges(found[a].order, found[b].order)
            for route, orders in ((found[a], both[0]), (found[b], both[1])):
                ceiling = min(float(search.shapes.max_interval[route.shape]), LONGEST)
                size = orders.shape[0]
                parts.append((orders, np.full(size, route.shape), np.full(size, ceiling)))
            owners.append((a, b, *both))
        ticks = router.intervals(parts)
        best: tuple[float, int, int, Route, Route] | None = None
        for p, (a, b, first, second) in enumerate(owners):
            flights = [float(search.shapes.in_flight[found[r].shape]) for r in (a, b)]
            with np.errstate(invalid="ignore"):
                total = flights[0] / (ticks[2 * p] * TICK_S) + flights[1] / (ticks[2 * p + 1] * TICK_S)
            total = np.where(np.isfinite(ticks[2 * p]) & np.isfinite(ticks[2 * p + 1]), total, 0.0)
            x = int(np.argmax(total))
            gain = float(total[x]) - found[a].rate(search) - found[b].rate(search)
            if gain > 1e-9 * float(total[x]) and (best is None or gain > best[0]):
                best = (
                    gain, a, b,
                    Route(tuple(first[x].tolist()), found[a].shape, float(ticks[2 * p][x])),
                    Route(tuple(second[x].tolist()), found[b].shape, float(ticks[2 * p + 1][x])),
                )  # fmt: skip
        if best is None:
            break
        found[best[1]], found[best[2]] = best[3], best[4]
        pairs = [(a, b) for b in range(len(found)) for a in range(b)]
    return found


def _exchanges(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (X, n) and (X, m): both orders after exchanging each pair of their devices."""
    n, m = len(first), len(second)
    a, b = np.tile(np.array(first), (n * m, 1)), np.tile(np.array(second), (n * m, 1))
    i, j = np.divmod(np.arange(n * m), m)
    x = np.arange(n * m)
    a[x, i], b[x, j] = np.array(second)[j], np.array(first)[i]
    return a, b


def fillers(router: Router, found: Candidates, routes: list[Route]) -> list[Route]:
    """Return further pipelines on the devices that routes leave free."""
    search = router.search
    usable = np.ones(router.num_devices, dtype=bool)
    for route in routes:
        usable &= ~router.clash[list(route.order)].any(axis=0)
    more: list[Route] = []
    while usable.any():
        free = np.bincount(router.group_of[usable], minlength=search.groups.num_groups)
        hopeful = np.flatnonzero(np.all(found.counts <= free, axis=1) & (found.shape >= 0))
        if hopeful.size == 0:
            break
        top = hopeful[np.argsort(-found.rate[hopeful], kind="stable")[:TOP_PATTERNS]]
        built = router.built([(found.counts[i], int(found.shape[i])) for i in top], usable)
        starts = [route for route in built if route is not None]
        settled = [router.reshape(route) for route in router.improve(starts, [usable] * len(starts))]
        allowed = [r for r in settled if r.interval <= min(float(search.shapes.max_interval[r.shape]), LONGEST)]
        if not allowed:
            break
        more.append(max(allowed, key=lambda r: r.rate(search)))
        usable &= ~router.clash[list(more[-1].order)].any(axis=0)
    return more


def _settled(router: Router, route: Route, usable: NDArray[np.bool_]) -> Route:
    """Return a route improved and put into its best shape, improved again when that is another shape."""
    improved = router.reshape(router.improve([route], [usable])[0])
    return router.improve([improved], [usable])[0] if improved.shape != route.shape else improved
