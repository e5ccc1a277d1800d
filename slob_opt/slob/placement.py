"""The SLoB placement heuristic: as close to the optimum as milliseconds allow.

Abstract of the paper: a "multilevel adapter" trades "resource utilization" against "inference speed". This planner
finds the placement of one level: it looks at patterns (devices by kind) instead of devices, bounds each pattern's
rate in closed form, bisects only the hopeful ones, and packs. Where links differ, subsets of few devices are looked at
with their shortest routes; for many devices patterns are picked and routed, and a local search tries other orders,
exchanges and additions. Everything else about levels is in the adapter.

References
----------
Jiang et al. 2024, SLoB: Suboptimal Load Balancing Scheduling in Local Heterogeneous GPU Clusters, IEEE TCSS 11(6).
Only the abstract is public; the algorithm here is ours.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from slob_opt.planning.column_search import priced_candidates
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.groups import has_pools, iter_patterns, realise
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement
from slob_opt.slob.canonical import canonical
from slob_opt.slob.linked import promising_patterns, routed_plans, single_routes
from slob_opt.slob.picking import pick
from slob_opt.slob.routing import Router
from slob_opt.slob.subset_search import SubsetSearch, most_devices
from slob_opt.slob.unequal import unequal_plans, unequal_searches

MAX_ENUMERATED = 20_000
"""Box of patterns up to which all are looked at."""

LINK_WEIGHTS = (0.0, 0.5)
"""How much of the mean hop is blended into the smallest when links differ; each is tried."""

FEW_DEVICES = 12
"""Devices up to which only the first of the link weights is tried: the second found nothing better there."""


@dataclass(frozen=True, slots=True)
class SlobPlanner:
    """Fast heuristic; no bound, so its status is FEASIBLE at best.

    Attributes
    ----------
    name
        ``"slob"``.
    """

    name: str = "slob"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return a plan that is never worse than the incumbent; how devices are numbered doesn't change its worth.

        Examples
        --------
        >>> from slob_opt.cost.direct import DirectClass, direct_table
        >>> from slob_opt.planning.objectives import IntervalObjective
        >>> fast, slow = DirectClass("fast", 1, 1 << 30, 0.5e-3), DirectClass("slow", 1, 1 << 30, 4e-3)
        >>> table = direct_table([fast, slow], 32, layer_bytes=1 << 20)
        >>> round(SlobPlanner().solve(PlacementInstance(table, IntervalObjective(1))).objective, 6)
        0.016
        """
        limits = limits or SolveLimits()
        started = time.perf_counter()
        rng = np.random.default_rng(limits.seed)
        plans, num_candidates = _plans(canonical(instance), rng) if instance.shapes() else ([], 0)
        plan, _ = better_plan(instance, *plans)
        return outcome(
            instance, self.name, _fastest_first(instance, plan), None, elapsed_s=time.perf_counter() - started,
            incumbent=incumbent, limits=limits, details=(("candidates", num_candidates),),
            message="" if plan is not None or incumbent is not None else "no pattern that holds the model was found",
        )  # fmt: skip


def _fastest_first(instance: PlacementInstance, plan: Placement | None) -> Placement | None:
    """Return the plan with its pipelines by falling rate, those of equal rate by their first card."""
    if plan is None or len(plan.pipelines) < 2:
        return plan
    rates = [report.rate for report in evaluate(instance, plan).pipelines]
    order = sorted(range(len(rates)), key=lambda p: (-rates[p], plan.pipelines[p].cards))
    return Placement(tuple(plan.pipelines[p] for p in order))


def _plans(instance: PlacementInstance, rng: np.random.Generator) -> tuple[list[Placement | None], int]:
    """Return plans to choose from and the number of candidates that were looked at."""
    table = instance.table
    # Where groups of cards overlap in part, counts don't say what fits together; routes mind every card.
    differs = not (table.has_uniform_links and has_pools(table))
    if not table.has_identical_layers:
        searches = unequal_searches(instance)
    elif differs:
        weights = LINK_WEIGHTS if table.num_devices > FEW_DEVICES else LINK_WEIGHTS[:1]
        searches = [PatternSearch(instance, weight) for weight in weights]
    else:
        searches = [PatternSearch(instance)]
    if differs and table.has_identical_layers and table.num_devices <= most_devices(instance):
        plans, num_candidates, is_sure = _subset_plans(instance, searches[0])
        if not is_sure:
            more, num_more = _pattern_plans(
                instance, [PatternSearch(instance, weight) for weight in LINK_WEIGHTS], differs, rng
            )
            plans, num_candidates = plans + more, num_candidates + num_more
    else:
        plans, num_candidates = _pattern_plans(instance, searches, differs, rng)
    if has_pools(table) and bool(np.any(np.isfinite(table.nic_bytes_per_s))):
        plans += _within_network_cards(instance, searches[0], plans, rng)
    return plans, num_candidates


def _subset_plans(instance: PlacementInstance, search: PatternSearch) -> tuple[list[Placement | None], int, bool]:
    """Return the plan by subsets of few devices, the number of subsets, and whether no busy link got in its way."""
    router = Router(instance, search)
    plans: list[Placement | None] = []
    for is_wide in (False, True):
        subsets = SubsetSearch(router, is_wide=is_wide)
        routes = subsets.best_routes()
        plans.append(Placement(tuple(router.pipeline(route) for route in routes)) if routes else None)
        if not subsets.fell_short:
            break
    return plans, int(subsets.masks.size), not subsets.fell_short


def _pattern_plans(
    instance: PlacementInstance, searches: list[PatternSearch], differs: bool, rng: np.random.Generator
) -> tuple[list[Placement | None], int]:
    """Return plans by patterns, which become routes where links differ, and the number of patterns."""
    table = instance.table
    found = [candidates_of(search) for search in searches]
    plans: list[Placement | None] = []
    if not table.has_identical_layers:
        for search, candidates in zip(searches, found, strict=True):
            plans += unequal_plans(instance, search, candidates)
    elif differs and not instance.is_throughput:
        router = Router(instance, searches[0])
        pairs = zip(searches, found, strict=True)
        patterns = [p for search, candidates in pairs for p in promising_patterns(search, candidates)]
        plans += [Placement((router.pipeline(route),)) for route in single_routes(router, patterns)[:1]]
    else:
        for search, candidates in zip(searches, found, strict=True):
            chosen = pick(search, candidates, rng)
            if differs:
                plans += routed_plans(instance, search, candidates, chosen, rng)
            elif chosen:
                plans.append(realise(table, search.groups, [search.plan(candidates, i) for i in chosen]))
    return plans, sum(candidates.rate.size for candidates in found)


def _within_network_cards(
    instance: PlacementInstance, search: PatternSearch, plans: list[Placement | None], rng: np.random.Generator
) -> list[Placement | None]:
    """Return plans without the pipelines that network cards make too slow, and a plan that needs no network.

    Routes know nothing of network cards, whose limits may push an interval over the cap.
    """
    found: list[Placement | None] = []
    for plan in plans:
        pipelines = () if plan is None else plan.pipelines
        allowed = tuple(p for p in pipelines if evaluate(instance, Placement((p,))).is_feasible)
        if 0 < len(allowed) < len(pipelines):
            found.append(Placement(allowed))
    single = search.candidates(np.eye(search.groups.num_groups, dtype=np.int64))
    chosen = pick(search, single, rng)
    if chosen:
        found.append(realise(instance.table, search.groups, [search.plan(single, i) for i in chosen]))
    return found


def candidates_of(search: PatternSearch) -> Candidates:
    """Return the patterns to choose from: all of a small box, else those around good prices."""
    if search.groups.box_size() <= MAX_ENUMERATED:
        counts = list(iter_patterns(search.groups, search.num_layers))
        return search.candidates(np.concatenate(counts).astype(np.int64))
    return priced_candidates(search)
