"""General links and few devices: one column for every subset of devices, packed by an integer program.

Rates come from Held-Karp routes (:mod:`slob_opt.planning.subset_rates`); the packing is solved by HiGHS. The witness is
a superadditive worth of subsets, computed apart, that has to reach the same value. FORMULATION.md, section 4.6.
"""

from __future__ import annotations

import numpy as np

from slob_opt.cost.table import TICK_S
from slob_opt.planning.subset_rates import SubsetKernel, SubsetRates, best_family
from slob_opt.planning.witness import SubsetWitness, ThresholdWitness
from slob_opt.problem.placement import Placement
from solvers.pattern_attempt import PatternAttempt
from solvers.pattern_master import PackingProgram, solve_packing, undominated


def subset_program(kernel: SubsetKernel, rates: SubsetRates) -> tuple[PackingProgram, np.ndarray]:
    """Return the set-packing master over cards, and the bit mask of each column."""
    table = kernel.instance.table
    holds = np.zeros((table.num_devices, table.num_cards), np.int64)
    for device, cards in enumerate(table.device_cards):
        holds[device, list(cards)] = 1
    masks = np.flatnonzero(rates.rate > 0)
    usage = kernel.members[:, masks].T.astype(np.int64) @ holds
    kept = undominated(usage, rates.rate[masks])
    program = PackingProgram(
        rows=usage[kept].T,
        limits=np.ones(table.num_cards, np.int64),
        worth=rates.rate[masks[kept]],
        most=np.ones(kept.size, np.int64),
        row_names=tuple(f"card[{c}]" for c in range(table.num_cards)),
        column_names=tuple(f"x[{m}]" for m in masks[kept].tolist()),
    )
    return program, masks[kept]


def solve_subsets(attempt: PatternAttempt) -> None:
    """Add plan, bound and witness of the subset route to an attempt.

    Raises
    ------
    SolverUnavailable
        When PuLP or HiGHS isn't installed.
    """
    instance = attempt.instance
    kernel = SubsetKernel(instance)
    rates = kernel.rates()
    attempt.note("route", "subsets").note("subsets", rates.rate.size)
    if not np.any(rates.rate > 0):
        attempt.exclude(ThresholdWitness("subset"))
        return
    if not instance.is_throughput:
        # One pipeline: the program that picks one column of least interval is a minimum.
        best = int(np.argmax(rates.rate))
        attempt.add_plan(Placement((kernel.pipeline(rates, best),)))
        attempt.add_bound(float(rates.interval[best]) * TICK_S, ThresholdWitness("subset"))
        return
    program, masks = subset_program(kernel, rates)
    attempt.note("master_columns", masks.size)
    limits = attempt.backend_limits()
    answer = None if limits is None else solve_packing(program, limits, attempt.limits.memory_bytes)
    if answer is None:
        attempt.message = "no time left for the integer program"
        return
    attempt.note_report(answer.report)
    if answer.chosen is not None:
        chosen = masks[answer.chosen > 0].tolist()
        attempt.add_plan(Placement(tuple(kernel.pipeline(rates, mask) for mask in chosen)))
    if answer.bound is not None:
        value, _ = best_family(rates.rate, kernel.allowed)
        proves = float(value[-1]) <= answer.bound * (1 + 1e-12)
        attempt.note("witness_rate", float(value[-1]))
        attempt.add_bound(-answer.bound, SubsetWitness(tuple(float(v) for v in value)) if proves else None)
