"""The throughput objective for CP-SAT: rates as whole numbers, quotients of times; FORMULATION.md, section 2.2."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slob_opt.cost.table import CostTable
from slob_opt.planning.instance import PlacementInstance
from solvers.formulation import Formulation, choose_forms, fastest_pass_s, work_rates
from solvers.integer_model import Extreme, IntegerModel, Quotient
from solvers.memory import fits
from solvers.slots import Slot, add_slot, added
from solvers.symmetry_rows import add_exclusion, add_some_pipeline, add_symmetry_rows
from solvers.times import Clock, busy_terms, longest_pass, longest_step, pipeline_terms, stage_terms

PRODUCT_BITS = 51
"""Rate times time stays below 2^51, well inside 2^53. Chosen."""


@dataclass(frozen=True, slots=True)
class RateScale:
    """Units of rate and time inside quotients.

    Attributes
    ----------
    exponent
        A rate is counted in units of 2^-exponent tokens/s, rounded down.
    shift
        A time is counted in units of 2^shift model ticks, rounded down.
    """

    exponent: int
    shift: int

    @property
    def tokens_unit(self) -> int:
        """Rate units times time units in one token, where a model tick is 2^-30 s."""
        return int(2 ** (self.exponent + 30 - self.shift))


def rate_scale(instance: PlacementInstance, total_work: float) -> RateScale:
    """Return the units that lose about as much (2^-25 of the value) in rates as in times.

    A pipeline with q sequences in flight and rate rho has ``rho * T = q``, so with products below 2^51 the two relative
    losses multiply to 2^-51. The longest interval in question is about ``q / total_work``.
    """
    most = max(k * b for _, k, b in instance.shapes())
    bits = max(1, math.ceil(math.log2(most + 1)))
    longest_s = most / total_work
    shift = min(20, max(0, round(math.log2(longest_s) + 30 - PRODUCT_BITS / 2)))
    return RateScale(PRODUCT_BITS - 30 + shift - bits, shift)


def throughput_cpsat(instance: PlacementInstance) -> Formulation:
    """Return the CP-SAT model of a `throughput` instance."""
    table = instance.table
    per_device = work_rates(instance)
    scale = rate_scale(instance, sum(per_device))
    layers, route = choose_forms(table, has_circuit=True, is_multiplied=False)
    model = IntegerModel("throughput-cpsat")
    slots = [
        add_slot(
            model, table, index=p, devices=range(p, table.num_devices), shapes=instance.shapes(),
            layers=layers, route=route, is_optional=True,
        )
        for p in range(table.num_devices)
    ]  # fmt: skip
    add_exclusion(model, table, slots)
    add_some_pipeline(model, slots)
    add_symmetry_rows(model, table, slots)
    for slot in slots:
        _add_rate(model, instance, slot, scale=scale, per_device=per_device)
    slack = float(max_pipelines(instance))  # each rate was rounded down by less than one unit
    return Formulation(model, tuple(slots), 2.0**-scale.exponent, slack, Clock().tick_s)


def max_pipelines(instance: PlacementInstance) -> int:
    """Return an upper limit of the number of disjoint pipelines: one a device, or one a pair when none fits alone."""
    table = instance.table
    alone = any(
        fits(table, row, d, (0, table.num_layers), k * b)
        for row, k, b in instance.shapes()
        if k == 1
        for d in range(table.num_devices)
    )
    return table.num_devices if alone else max(1, table.num_devices // 2)


def _add_rate(
    model: IntegerModel,
    instance: PlacementInstance,
    slot: Slot,
    *,
    scale: RateScale,
    per_device: tuple[float, ...],
) -> None:
    """Add the rate of one pipeline: the smaller of K b over the time of a pass and b over the slowest step.

    Times and rate are functions of the choice, by equations and not by limits. With limits alone CP-SAT went up to
    the true rate unit by unit, over thousands of solutions.
    """
    p = slot.index
    work = {slot.used[d]: -float(math.ceil(per_device[d] * 2.0**scale.exponent) + 1) for d in slot.devices}
    through, step = _add_times(model, instance, slot, 2**scale.shift)
    limits = []
    for name, time, tokens in (
        ("KB", through, {y: float(k * b) for (_, k, b), y in slot.shapes}),
        ("B", step, {y: float(b) for (_, _, b), y in slot.shapes}),
    ):
        most_tokens = int(max(tokens.values()))
        number = model.add_int(f"{name}[{p}]", 0, most_tokens)
        model.add_equal(f"number_{name}[{p}]", added(tokens, {number: -1}), 0)
        limit = model.add_int(f"{name}/T[{p}]", 0, most_tokens * scale.tokens_unit)
        model.quotients.append(Quotient(limit, number, scale.tokens_unit, time))
        limits.append(limit)
    rate = model.add_int(f"rho[{p}]", 0, _most_rate(instance.table, slot, work, scale))
    model.extremes.append(Extreme(rate, tuple(limits), is_largest=False))
    model.add_row(f"work[{p}]", {rate: 1, **work}, upper=0)
    model.objective[rate] = -1.0


def _most_rate(table: CostTable, slot: Slot, work: dict[int, float], scale: RateScale) -> int:
    """Upper limit of a pipeline's rate in rate units."""
    most = -sum(work.values())
    quickest = {shape[0]: fastest_pass_s(table, shape[0]) for shape, _ in slot.shapes}
    if all(quickest.values()):
        pass_rate = max(k * b / quickest[row] for (row, k, b), _ in slot.shapes)
        most = min(most, math.ceil(pass_rate * 2.0**scale.exponent) + 1)
    return int(most)


def _add_times(model: IntegerModel, instance: PlacementInstance, slot: Slot, coarse: int) -> tuple[int, int]:
    """Add S, the time of a pass, and M, the slowest step, both in `coarse` ticks rounded down; at least 1."""
    table, p, clock = instance.table, slot.index, Clock()
    rows = sorted({shape[0] for shape, _ in slot.shapes})
    cap = instance.max_interval_s
    longest = max(longest_pass(table, clock, row) for row in rows)
    slowest = max(longest_step(table, clock, row) for row in rows)
    if cap is not None:
        longest, slowest = (min(most, clock.ticks_below(cap)) for most in (longest, slowest))
    exact = model.add_int(f"S0[{p}]", 0, longest // coarse)
    busy = {row: busy_terms(table, slot, clock, row) for row in rows}
    num_steps = len(slot.devices) + max(len(terms) for terms in busy.values())
    parts = [model.add_int(f"t[{p},{i}]", 0, slowest // coarse) for i in range(num_steps)]
    for time in (exact, *parts):
        model.add_row(f"time_if[{p}]", {time: 1, slot.active: -model.variables[time].upper}, upper=0)
    for row in rows:
        chosen = slot.active
        if len(rows) > 1:
            chosen = model.add_bool(f"z[{p},{row}]")
            owners = slot.shape_sum(shape for shape, _ in slot.shapes if shape[0] == row)
            model.add_equal(f"row[{p},{row}]", added(owners, {chosen: -1}), 0)
        only_if = (chosen,)
        whole = pipeline_terms(table, slot, clock, row)
        model.add_row(f"pass[{p},{row}]", added(whole, {exact: -coarse}), lower=0, upper=coarse - 1, only_if=only_if)
        if cap is not None:
            model.add_row(f"cap_pass[{p},{row}]", whole, upper=clock.ticks_below(cap), only_if=only_if)
        steps = [*(stage_terms(table, slot, clock, row, d) for d in slot.devices), *busy[row]]
        for i, part in enumerate(parts):
            terms = steps[i] if i < len(steps) else {}
            name = f"step[{p},{row},{i}]"
            model.add_row(name, added(terms, {part: -coarse}), lower=0, upper=coarse - 1, only_if=only_if)
            if cap is not None:  # exact: K steps within the cap
                most_step = {y: -float(clock.ticks_below(cap) // k) for (r, k, _), y in slot.shapes if r == row}
                model.add_row(f"cap_{name}", added(terms, most_step), upper=0, only_if=only_if)
    one = model.add_int(f"one[{p}]", 1, 1)
    through = model.add_int(f"S[{p}]", 1, max(1, longest // coarse))
    step = model.add_int(f"M[{p}]", 1, max(1, slowest // coarse))
    model.extremes.append(Extreme(through, (exact, one), is_largest=True))
    model.extremes.append(Extreme(step, (*parts, one), is_largest=True))
    return through, step
