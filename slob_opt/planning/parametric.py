"""Exact planner without a solver: type-count patterns or device subsets, dynamic programs and priced duals.

Which route an instance takes:

* one link class and identical layers: patterns (counts of devices by group). `interval` looks at each pattern once;
  `throughput` prices every pattern against duals, keeps those that could still matter and packs them by a max-plus
  dynamic program.
* anything else with at most 13 devices and identical layers: subsets with Held-Karp routes and a disjoint-family
  program.
* one link class inside nodes and a slower one between, `interval`: sets of blocks of nodes.
* unequal layers: the program over (counts, layer) of :mod:`slob_opt.planning.layered`.
* larger instances: the pattern value as a bound (smallest hop and layer), the plan is the incumbent.

References
----------
Pinar, Tabak, Aykanat 2008, One-dimensional partitioning for heterogeneous systems; Benoit, Robert 2008, Mapping
pipeline skeletons onto heterogeneous platforms (fixed order is polynomial, free order NP-complete). Held, Karp 1962
for routes. Gilmore, Gomory 1961 for pricing patterns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import TICK_S
from slob_opt.planning.block_plan import best_choice, realise_blocks
from slob_opt.planning.block_rates import BlockKernel
from slob_opt.planning.column_search import dual_prices
from slob_opt.planning.groups import has_pools, realise
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.interval_program import solve_interval
from slob_opt.planning.layered import can_solve_layered, solve_layered
from slob_opt.planning.node_blocks import MAX_PATTERNS, BlockStructure, block_patterns, block_structure, num_patterns
from slob_opt.planning.outcome import better_plan, outcome
from slob_opt.planning.packing import MAX_STATES, num_states
from slob_opt.planning.pattern_rates import PatternProblem, best_rates, pattern_problem, plan_of
from slob_opt.planning.pattern_throughput import solve_throughput
from slob_opt.planning.priced_lp import MAX_BOX, all_patterns
from slob_opt.planning.relaxed_pricing import relaxed_price_bound
from slob_opt.planning.result import HistoryPoint, SolveLimits, SolveResult
from slob_opt.planning.subset_rates import SubsetKernel, best_family
from slob_opt.planning.subset_routes import MAX_DEVICES
from slob_opt.planning.witness import EnumerationWitness, SubsetWitness, ThresholdWitness
from slob_opt.problem.placement import Placement


@dataclass(frozen=True, slots=True)
class ParametricPlanner:
    """Optimum and proof by enumeration of patterns or subsets; see the module's docstring for which.

    Attributes
    ----------
    name
        ``"parametric"``.
    """

    name: str = "parametric"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the optimum with a witness where the instance is in reach, else the incumbent with a bound.

        Examples
        --------
        >>> from slob_opt.cost.direct import DirectClass, direct_table
        >>> from slob_opt.planning.objectives import IntervalObjective
        >>> fast, slow = DirectClass("fast", 1, 1 << 30, 0.5e-3), DirectClass("slow", 1, 1 << 30, 4e-3)
        >>> table = direct_table([fast, slow], 32, layer_bytes=1 << 20)
        >>> result = ParametricPlanner().solve(PlacementInstance(table, IntervalObjective(1)))
        >>> str(result.status), round(result.objective, 6)
        ('OPTIMAL', 0.016)
        """
        limits = limits or SolveLimits()
        started = time.perf_counter()
        table = instance.table
        by_subsets = table.num_devices <= MAX_DEVICES and table.has_identical_layers
        if by_subsets and not has_pools(table):
            return self._subsets(instance, incumbent, limits, started)
        if not has_pools(table):
            return outcome(
                instance, self.name, None, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
                limits=limits, message="groups that overlap in part: counts of devices don't say what fits together",
            )  # fmt: skip
        problem = pattern_problem(instance)
        small_box = problem.groups.box_size() <= MAX_BOX
        if not instance.table.has_identical_layers and can_solve_layered(problem):
            return solve_layered(self.name, problem, incumbent, limits, started)
        if problem.is_exact and not instance.is_throughput and instance.table.has_exclusive_devices:
            return solve_interval(self.name, problem, incumbent, limits, started)
        if problem.is_exact and small_box:
            if not instance.is_throughput:
                return self._interval(problem, incumbent, limits, started)
            if num_states(problem.groups.pool_cards) <= MAX_STATES:
                return solve_throughput(self.name, problem, incumbent, limits, started)
        if by_subsets:
            return self._subsets(instance, incumbent, limits, started)
        return self._large(problem, incumbent, limits, started)

    def _interval(
        self, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
    ) -> SolveResult:
        """One pipeline of the best pattern (planning devices that share cards)."""
        instance = problem.instance
        patterns = all_patterns(problem)
        found = best_rates(problem, patterns, np.zeros(patterns.shape[0]), exact=True)
        best = int(np.argmax(found.rate)) if found.rate.size else 0
        details = (("route", "patterns"), ("patterns", patterns.shape[0]))
        if not found.rate.size or found.rate[best] <= 0:
            return outcome(
                instance, self.name, None, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
                limits=limits, details=details, is_infeasible=True, witness=EnumerationWitness(patterns.shape[0]),
                message="no set of devices holds the model",
            )  # fmt: skip
        plan = realise(instance.table, problem.groups, [plan_of(problem, patterns[best].astype(np.int64), found, best)])
        return outcome(
            instance, self.name, plan, float(found.interval[best]) * TICK_S, elapsed_s=time.perf_counter() - started,
            incumbent=incumbent, witness=ThresholdWitness("pattern"), limits=limits, details=details,
        )  # fmt: skip

    def _subsets(
        self, instance: PlacementInstance, incumbent: Placement | None, limits: SolveLimits, started: float
    ) -> SolveResult:
        """All subsets of devices with exact routes."""
        kernel = SubsetKernel(instance)
        found = kernel.rates()
        details = (("route", "subsets"), ("subsets", found.rate.size))
        if not np.any(found.rate > 0):
            return outcome(
                instance, self.name, None, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
                limits=limits, details=details, is_infeasible=True, witness=EnumerationWitness(found.rate.size),
                message="no set of devices holds the model",
            )  # fmt: skip
        if instance.is_throughput:
            value, family = best_family(found.rate, kernel.allowed)
            plan = Placement(tuple(kernel.pipeline(found, mask) for mask in family))
            bound = -float(value[-1])
            witness: SubsetWitness | ThresholdWitness = SubsetWitness(tuple(float(v) for v in value))
        else:
            best = int(np.argmax(found.rate))
            plan = Placement((kernel.pipeline(found, best),))
            bound, witness = float(found.interval[best]) * TICK_S, ThresholdWitness("subset")
        return outcome(
            instance, self.name, plan, bound, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
            witness=witness, limits=limits, details=details,
        )  # fmt: skip

    def _large(
        self, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
    ) -> SolveResult:
        """Links differ and subsets are too many: blocks of nodes for one pipeline, else a bound."""
        structure = None if problem.instance.is_throughput else block_structure(problem.instance)
        if structure is not None and num_patterns(structure, problem.max_devices) <= MAX_PATTERNS:
            return self._blocks(problem.instance, structure, incumbent, limits, started)
        return self._bound(problem, incumbent, limits, started)

    def _blocks(
        self,
        instance: PlacementInstance,
        structure: BlockStructure,
        incumbent: Placement | None,
        limits: SolveLimits,
        started: float,
    ) -> SolveResult:
        """Every set of blocks of nodes, for one pipeline."""
        kernel = BlockKernel(instance, structure, block_patterns(structure, instance.table.num_layers))
        choice = best_choice(kernel)
        plan = None if choice is None else realise_blocks(kernel, [choice])
        return outcome(
            instance, self.name, plan, None if choice is None else choice.interval * TICK_S,
            elapsed_s=time.perf_counter() - started, incumbent=incumbent, limits=limits, is_infeasible=choice is None,
            details=(("route", "blocks"), ("patterns", kernel.counts.shape[0])),
            message="no set of devices holds the model" if choice is None else "",
        )  # fmt: skip

    def _bound(
        self, problem: PatternProblem, incumbent: Placement | None, limits: SolveLimits, started: float
    ) -> SolveResult:
        """The pattern value as a bound; the plan is the incumbent."""
        instance = problem.instance
        message = "out of reach for an exact plan: pattern bound with the smallest hops and layers"
        if not instance.is_throughput:
            if instance.table.has_exclusive_devices:
                return solve_interval(self.name, problem, incumbent, limits, started)
            if problem.groups.box_size() <= MAX_BOX:
                patterns = all_patterns(problem)
                found = best_rates(problem, patterns, np.zeros(patterns.shape[0]), exact=False)
                bound = float(found.interval.min()) * TICK_S if np.any(found.shape >= 0) else None
                return outcome(
                    instance, self.name, None, bound, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
                    limits=limits, message=message, is_infeasible=bound is None, witness=ThresholdWitness("pattern"),
                )  # fmt: skip
            return outcome(
                instance, self.name, None, None, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
                limits=limits, message="too many patterns",
            )  # fmt: skip
        if problem.groups.box_size() <= MAX_BOX and num_states(problem.groups.pool_cards) <= MAX_STATES:
            return solve_throughput(self.name, problem, incumbent, limits, started)
        bound_rate, witness = relaxed_price_bound(problem, dual_prices(instance), time_s=limits.time_s)
        _, worth = better_plan(instance, incumbent)
        bound = -bound_rate if np.isfinite(bound_rate) else None
        return outcome(
            instance, self.name, None, bound, elapsed_s=time.perf_counter() - started, incumbent=incumbent,
            witness=witness, limits=limits, is_infeasible=bound == 0,
            message="no set of devices holds the model" if bound == 0 else message,
            history=(HistoryPoint(0.0, worth, None),), details=(("route", "relaxed prices"),),
        )  # fmt: skip
