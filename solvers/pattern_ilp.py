"""Exact planner over columns: what pipelines may use, priced completely, packed by an integer program (HiGHS via PuLP).

Which columns an instance gets:

* one link class and identical layers: counts of devices by group;
* other links, at most 13 devices: subsets of devices with shortest routes;
* one link class inside nodes and a slower one between: sets of blocks, with cuts of nodes as packing rows;
* elsewhere: counts by group with the smallest hops and layers, as a bound only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import CostTable
from slob_opt.planning.bounds import closed_form_bound, memory_shortage
from slob_opt.planning.groups import has_pools
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.node_blocks import block_structure
from slob_opt.planning.pattern_rates import pattern_problem
from slob_opt.planning.priced_lp import MAX_BOX
from slob_opt.planning.result import SolveLimits, SolveResult
from slob_opt.planning.subset_routes import MAX_DEVICES
from slob_opt.problem.placement import Placement
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_blocks import BlockSearch, can_solve_blocks, max_devices
from solvers.pattern_columns import solve_columns
from solvers.pattern_interval import solve_interval
from solvers.pattern_subsets import solve_subsets

BOUND_ONLY = "out of reach for an exact plan by columns: pattern bound with the smallest hops and layers"


@dataclass(frozen=True, slots=True)
class PatternIlpPlanner:
    """Optimum and proof over columns; see the module's docstring for which, FORMULATION.md, section 4, for why.

    Attributes
    ----------
    name
        ``"pattern-ilp"``.
    """

    name: str = "pattern-ilp"

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the optimum with a witness where columns are exact, else the incumbent with a bound.

        Raises
        ------
        SolverUnavailable
            When PuLP or HiGHS isn't installed; the message says what to install.

        Examples
        --------
        >>> from slob_opt.cost.direct import DirectClass, direct_table
        >>> from slob_opt.planning.objectives import ThroughputObjective
        >>> table = direct_table([DirectClass("a", 2, 1 << 30, 1e-3)], 10, layer_bytes=1 << 20, batch_sizes=(1,))
        >>> result = PatternIlpPlanner().solve(PlacementInstance(table, ThroughputObjective(4)))
        >>> str(result.status), round(-result.objective, 3)
        ('OPTIMAL', 200.0)
        """
        attempt = PatternAttempt(self.name, instance, limits or SolveLimits(), time.perf_counter())
        attempt.add_plan(incumbent)
        shortage = memory_shortage(instance)
        if shortage is not None or not instance.shapes():
            attempt.note("decided_by", "memory" if shortage is not None else "shapes")
            attempt.exclude(shortage)
            return attempt.result()
        _route(attempt)
        closed = None if attempt.is_infeasible else closed_form_bound(instance)
        if closed is not None and (attempt.bound is None or closed[0] > attempt.bound):
            attempt.note("bound_by", "closed form")
            attempt.add_bound(*closed)
        return attempt.result()


def _route(attempt: PatternAttempt) -> None:
    """Solve by the columns that suit the instance."""
    instance, table = attempt.instance, attempt.instance.table
    if not has_pools(table):
        if table.has_identical_layers and table.num_devices <= MAX_DEVICES and not _has_limited_cards(table):
            solve_subsets(attempt)
        else:
            attempt.message = "groups of unequal cards: counts of devices don't say what fits together"
        return
    problem = pattern_problem(instance)
    has_columns = problem.groups.box_size() <= MAX_BOX or not instance.is_throughput
    if not problem.is_exact:
        if table.has_identical_layers and not _has_limited_cards(table) and table.num_devices <= MAX_DEVICES:
            solve_subsets(attempt)
            return
        structure = block_structure(instance)
        if structure is not None and can_solve_blocks(structure, max_devices(attempt)):
            search = BlockSearch(attempt, structure)
            if instance.is_throughput:
                search.throughput()
            else:
                search.interval()
            return
        attempt.message = BOUND_ONLY
    if not has_columns:
        attempt.message = f"{problem.groups.box_size()} patterns are too many to price"
        return
    if instance.is_throughput:
        solve_columns(problem, attempt)
    else:
        solve_interval(problem, attempt)


def _has_limited_cards(table: CostTable) -> bool:
    """Whether some node's network card is shared by its links."""
    return bool(np.any(np.isfinite(table.nic_bytes_per_s)))
