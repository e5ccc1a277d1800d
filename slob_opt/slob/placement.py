"""The SLoB placement heuristic: as close to the optimum as milliseconds allow.

Abstract of the paper: a "multilevel adapter" trades "resource utilization" against "inference speed". This planner
finds the placement of one level: it looks at patterns (devices by kind) instead of devices, bounds each pattern's
rate in closed form, bisects only the hopeful ones, and packs. Differing links are handled by routing each pipeline
and a local search over orders, exchanges and additions. Everything else about levels is in the adapter.

References ---------- Jiang et al. 2024, SLoB: Suboptimal Load Balancing Scheduling in Local Heterogeneous GPU
Clusters, IEEE TCSS 11(6). Only the abstract is public; the algorithm here is ours.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from slob_opt.planning.column_search import priced_candidates
from slob_opt.planning.groups import iter_patterns, realise
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.pattern_search import Candidates, PatternSearch
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.problem.placement import Placement
from slob_opt.slob.picking import pick
from slob_opt.slob.routing import route_plans
from slob_opt.slob.unequal import unequal_plans

MAX_ENUMERATED = 1200
"""Box of patterns up to which all are looked at."""

MAX_CORRECTIONS = 4
"""Rounds in which patterns are built on real links and picked again by the rates that came out."""

LINK_WEIGHTS = (0.0, 0.5)
"""How much of the mean hop is blended into the smallest when links differ; each is tried."""


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
        """Return a plan that is never worse than the incumbent.

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
        differs = not instance.table.has_uniform_links
        plans: list[Placement | None] = []
        num_candidates = 0
        for weight in LINK_WEIGHTS if differs else (None,):
            search = PatternSearch(instance, weight)
            found = candidates_of(search)
            num_candidates += found.rate.size
            if not instance.table.has_identical_layers:
                plans += unequal_plans(instance, search, found)
                continue
            chosen = pick(search, found, rng)
            if not chosen:
                continue
            pattern_plans = [search.plan(found, i) for i in chosen]
            if differs:
                plans += routed_plans(instance, search, found, chosen, rng)
            else:
                plans.append(realise(instance.table, search.groups, pattern_plans))
        plan, _ = better_plan(instance, *plans)
        return outcome(
            instance, self.name, plan, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
            limits=limits, details=(("candidates", num_candidates),),
            message="" if plan is not None or incumbent is not None else "no pattern that holds the model was found",
        )  # fmt: skip


def routed_plans(
    instance: PlacementInstance, search: PatternSearch, found: Candidates, chosen: list[int], rng: np.random.Generator
) -> list[Placement | None]:
    """Return plans of a few rounds: build the picked patterns, correct rates by what the links gave, pick again."""
    plans: list[Placement | None] = []
    tried: set[tuple[int, ...]] = set()
    for _ in range(MAX_CORRECTIONS if instance.is_throughput else 1):
        key = tuple(sorted(chosen))
        if not chosen or key in tried:
            break
        tried.add(key)
        plan, rates = route_plans(instance, search, found, chosen)
        plans.append(plan)
        for index, rate in rates.items():
            found.rate[index] = rate
        chosen = pick(search, found, rng)
    return plans


def candidates_of(search: PatternSearch) -> Candidates:
    """Return the patterns to choose from: all of a small box, else those around good prices."""
    if search.groups.box_size() <= MAX_ENUMERATED:
        counts = list(iter_patterns(search.groups, search.num_layers))
        return search.candidates(np.concatenate(counts).astype(np.int64))
    return priced_candidates(search)
