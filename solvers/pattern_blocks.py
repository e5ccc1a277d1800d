"""Quick links inside nodes: block patterns as columns, cuts of nodes as packing rows, an integer program over both.

Columns ``x[p]`` are pipelines that use a set of blocks, columns ``y[v,c]`` are nodes of kind v that are cut by c;
pipelines use no more blocks of a width than cuts make. FORMULATION.md, section 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.cost.table import TICK_S, FloatArray, IntArray
from slob_opt.planning.block_plan import BlockChoice, Width, best_choice, choice_of, realise_blocks, width_of
from slob_opt.planning.block_rates import BlockKernel, BlockRates
from slob_opt.planning.node_blocks import MAX_PATTERNS, BlockStructure, block_patterns, node_cuts, num_patterns
from slob_opt.planning.priced_lp import COLUMNS_PER_ROUND, PRICE_TOLERANCE
from slob_opt.planning.subset_routes import MAX_DEVICES
from slob_opt.planning.witness import ThresholdWitness
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_master import (
    PackingAnswer,
    PackingProgram,
    column_copies,
    linear_prices,
    solve_packing,
    undominated,
)

FIRST_SHARE = 0.3
"""Share of the time left that the master over priced columns may take; it only makes the incumbent."""

MAX_LISTED = 20_000
"""Most patterns in the last master. Chosen."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of the master, and the cuts that supply them.

    Attributes
    ----------
    widths
        (kind, width) of each row.
    usage
        (P, R) int64, blocks of each width that a pattern uses.
    cuts
        By kind (cuts, widths of the kind) int64.
    """

    widths: tuple[tuple[int, Width], ...]
    usage: IntArray
    cuts: tuple[IntArray, ...]


def max_devices(attempt: PatternAttempt) -> int:
    """Return the most devices of one pipeline."""
    table = attempt.instance.table
    return min(table.num_layers, table.num_devices)


def can_solve_blocks(structure: BlockStructure, most_devices: int) -> bool:
    """Return whether the sets of blocks are few enough to list."""
    return num_patterns(structure, most_devices) <= MAX_PATTERNS


def block_rows(kernel: BlockKernel) -> BlockRows | None:
    """Return the rows of the master; ``None`` when a node has too many cuts."""
    structure, blocks = kernel.structure, kernel.patterns.blocks
    width = [(kind, width_of(structure.kinds[kind], counts)) for kind, counts in blocks]
    rows = tuple(dict.fromkeys(sorted(width)))
    member = np.zeros((len(blocks), len(rows)), np.int64)
    for b, key in enumerate(width):
        member[b, rows.index(key)] = 1
    cuts = []
    for index, kind in enumerate(structure.kinds):
        found = node_cuts(kind, np.array([w for k, w in rows if k == index], np.int64))
        if found is None:
            return None
        cuts.append(found)
    return BlockRows(rows, kernel.patterns.used.astype(np.int64) @ member, tuple(cuts))


def block_program(structure: BlockStructure, rows: BlockRows, columns: IntArray, rate: FloatArray) -> PackingProgram:
    """Return the master over pipelines with patterns `columns` (n,) of rates (n,), and all cuts."""
    num_rows, kinds = len(rows.widths), structure.kinds
    supply = np.zeros((num_rows + len(kinds), sum(len(c) for c in rows.cuts)), np.int64)
    start = 0
    names, most = [f"x[{p}]" for p in columns.tolist()], []
    for index, cuts in enumerate(rows.cuts):
        own = [r for r, (kind, _) in enumerate(rows.widths) if kind == index]
        supply[np.ix_(own, range(start, start + len(cuts)))] = -cuts.T
        supply[num_rows + index, start : start + len(cuts)] = 1
        names += [f"y[{index},{c}]" for c in range(len(cuts))]
        most += [len(kinds[index].nodes)] * len(cuts)
        start += len(cuts)
    usage = rows.usage[columns]
    limits = np.array([0] * num_rows + [len(k.nodes) for k in kinds], np.int64)
    made = np.array([len(kinds[k].nodes) * int(rows.cuts[k].max(initial=0)) for k, _ in rows.widths], np.int64)
    return PackingProgram(
        rows=np.concatenate([np.pad(usage, ((0, 0), (0, len(kinds)))).T, supply], axis=1),
        limits=limits,
        worth=np.concatenate([rate, np.zeros(supply.shape[1])]),
        most=np.concatenate([column_copies(usage, made), np.array(most, np.int64)]),
        row_names=(*(f"width[{k},{w}]" for k, w in rows.widths), *(f"node[{k}]" for k in range(len(kinds)))),
        column_names=tuple(names),
    )


class BlockSearch:
    """One solve over blocks.

    Parameters
    ----------
    attempt, structure
        What is solved, and its nodes.
    """

    def __init__(self, attempt: PatternAttempt, structure: BlockStructure) -> None:
        self.attempt = attempt
        self.structure = structure
        self.kernel = BlockKernel(attempt.instance, structure, block_patterns(structure, max_devices(attempt)))
        self.num_patterns = self.kernel.counts.shape[0]
        attempt.note("route", "blocks").note("patterns", self.num_patterns).note("node_kinds", len(structure.kinds))

    def interval(self) -> None:
        """Add the shortest interval of one pipeline: every pattern is looked at."""
        choice = best_choice(self.kernel)
        small = self.attempt.instance.table.num_devices <= MAX_DEVICES
        witness = ThresholdWitness("subset") if small else None
        if choice is None:
            self.attempt.exclude(witness)
            return
        self.attempt.add_plan(realise_blocks(self.kernel, [choice]))
        self.attempt.add_bound(choice.interval * TICK_S, witness)

    def throughput(self) -> None:
        """Add the best disjoint pipelines: prices over all patterns, reduced-cost fixing, integer master."""
        rows = block_rows(self.kernel)
        if rows is None:
            self.attempt.message = "too many cuts of a node"
            return
        columns = self._priced_columns(rows)
        if columns is None:
            return
        index, rates, prices, bound, is_complete = columns
        self.attempt.add_bound(-bound)
        self.attempt.note("columns", index.size).note("lp_bound", bound)
        if not is_complete:
            self.attempt.message = "stopped by the time limit while pricing; the bound comes from scaled prices"
        self._master(rows, index, rates, FIRST_SHARE)
        rate = 0.0 if self.attempt.worth is None else -self.attempt.worth
        if self.attempt.is_closed() or self.attempt.is_out_of_time():
            return
        slack = (bound - rate) * (1 + 1e-9)
        price = rows.usage @ prices
        near, near_rates = self._above(np.maximum(price - slack, 1e-9))
        self.attempt.note("listed", near.size)
        if near.size == 0:
            self.attempt.add_bound(slack - bound)
            return
        if near.size > MAX_LISTED:
            self.attempt.message = f"{near.size} block patterns near their price are too many for the integer program"
            return
        found = self._master(rows, near, near_rates, 1.0)
        if found is not None and found.bound is not None:
            self.attempt.add_bound(-max(found.bound, bound - slack))

    def _above(self, floor: FloatArray) -> tuple[IntArray, BlockRates]:
        """Return the patterns whose rate beats their floor, and a table of their rates."""
        rates = self.kernel.rates(floor)
        index = np.flatnonzero(rates.shape >= 0)
        return index, rates.select(index)

    def _priced_columns(self, rows: BlockRows) -> tuple[IntArray, BlockRates, FloatArray, float, bool] | None:
        """Return columns, rates, prices, bound and whether no pattern beats its price; ``None`` when none works."""
        rng = np.random.default_rng(0)
        picked = np.sort(rng.choice(self.num_patterns, min(self.num_patterns, 2000), replace=False))
        seed = self.kernel.rates(np.full(picked.size, 1e-9), picked)
        found = seed.shape >= 0
        index, rates = picked[found], seed.select(np.flatnonzero(found))
        if index.size == 0:
            index, rates = self._above(np.full(self.num_patterns, 1e-9))
        if index.size == 0:
            small = self.attempt.instance.table.num_devices <= MAX_DEVICES
            self.attempt.exclude(ThresholdWitness("subset") if small else None)
            return None
        best_bound, best_prices = np.inf, np.zeros(len(rows.widths))
        while True:
            program = block_program(self.structure, rows, index, rates.rate)
            prices = linear_prices(program)[: len(rows.widths)]
            price = rows.usage @ prices
            near, near_rates = self._above(np.maximum(price * (1 + PRICE_TOLERANCE), 1e-9))
            factor = 1.0 + PRICE_TOLERANCE
            if near.size:
                factor = float(np.max(near_rates.rate / np.maximum(price[near], 1e-9)))
            bound = self._node_worth(rows, prices) * factor
            if bound < best_bound:
                best_bound, best_prices = bound, prices * factor
                self.attempt.add_bound(-bound)
            if near.size == 0 or self.attempt.is_out_of_time():
                return index, rates, best_prices, best_bound, near.size == 0
            order = np.argsort(-(near_rates.rate - price[near]), kind="stable")[:COLUMNS_PER_ROUND]
            index = np.concatenate([index, near[order]])
            rates = rates.join(near_rates.select(order))

    def _node_worth(self, rows: BlockRows, prices: FloatArray) -> float:
        """Return what all nodes together are worth at prices of widths, each cut in its best way."""
        total = 0.0
        for k, (kind, cuts) in enumerate(zip(self.structure.kinds, rows.cuts, strict=True)):
            own = prices[[r for r, (owner, _) in enumerate(rows.widths) if owner == k]]
            total += len(kind.nodes) * float((cuts @ own).max(initial=0.0))
        return total

    def _master(self, rows: BlockRows, index: IntArray, rates: BlockRates, share: float) -> PackingAnswer | None:
        """Solve the master over some columns and keep its plan; ``None`` when no time is left."""
        limits = self.attempt.backend_limits(share)
        if limits is None:
            return None
        kept = undominated(rows.usage[index], rates.rate)
        program = block_program(self.structure, rows, index[kept], rates.rate[kept])
        self.attempt.note("master_columns", kept.size)
        answer = solve_packing(program, limits, self.attempt.limits.memory_bytes)
        self.attempt.note_report(answer.report)
        if answer.chosen is not None:
            uses = np.repeat(kept, answer.chosen[: kept.size])
            choices: list[BlockChoice] = [choice_of(rates, int(e), int(index[e])) for e in uses]
            cuts = self._cuts_of(rows, answer.chosen[kept.size :])
            self.attempt.add_plan(realise_blocks(self.kernel, choices, cuts))
        return answer

    def _cuts_of(self, rows: BlockRows, chosen: IntArray) -> list[list[list[Width]]]:
        """Return the widths that each node of each kind is cut into."""
        found, start = [], 0
        for k, cuts in enumerate(rows.cuts):
            widths = [w for kind, w in rows.widths if kind == k]
            nodes = [
                [w for w, n in zip(widths, cut, strict=True) for _ in range(int(n))]
                for cut, copies in zip(cuts, chosen[start : start + len(cuts)], strict=True)
                for _ in range(int(copies))
            ]
            found.append(nodes)
            start += len(cuts)
        return found
