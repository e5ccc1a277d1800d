"""The interval objective as an integer model: one pipeline, shortest token interval; FORMULATION.md, section 2.1."""

from __future__ import annotations

import math

from slob_opt.planning.instance import PlacementInstance
from solvers.formulation import Formulation, choose_forms, fastest_pass_s
from solvers.integer_model import IntegerModel
from solvers.slots import add_slot, added, scaled
from solvers.symmetry_rows import add_exclusion, add_symmetry_rows
from solvers.times import Clock, busy_terms, longest_pass, longest_step, pipeline_terms, stage_terms

ILP_SCALE = 1000.0
"""Objective of the fastest thinkable pass in the ILP's units. Chosen: tolerances of 1e-9 are then 1e-12 of it."""


def interval_model(instance: PlacementInstance, *, has_circuit: bool, clock: Clock | None = None) -> Formulation:
    """Return the model of an `interval` instance.

    Parameters
    ----------
    has_circuit
        True builds for CP-SAT (circuit, whole ticks), False for an ILP (flow, real time variable, seconds scaled).
    clock
        Unit of time; ``None`` is the table's tick, or the finest power of two of it that CP-SAT's rows can hold.
    """
    table = instance.table
    shapes = instance.shapes()
    row, k, _ = shapes[0]
    clock = clock or (_finest_clock(instance) if has_circuit else Clock())
    layers, route = choose_forms(table, has_circuit=has_circuit, is_multiplied=False)
    model = IntegerModel(f"interval-{'cpsat' if has_circuit else 'ilp'}")
    devices = range(table.num_devices)
    slot = add_slot(
        model, table, index=0, devices=devices, shapes=shapes, layers=layers, route=route, is_optional=False
    )
    add_exclusion(model, table, [slot])
    add_symmetry_rows(model, table, [slot])
    horizon = max(longest_pass(table, clock, row), k * longest_step(table, clock, row))
    factor = 1.0
    if has_circuit:
        total = model.add_int("T", clock.ticks_below(fastest_pass_s(table, row)), horizon)
    else:
        factor = ILP_SCALE * clock.tick_s / fastest_pass_s(table, row) if fastest_pass_s(table, row) else 1.0
        total = model.add_real("T", 0, horizon * factor)
    model.add_row("pass", added(scaled(pipeline_terms(table, slot, clock, row), factor), {total: -1}), upper=0)
    steps = [(f"stage[{d}]", stage_terms(table, slot, clock, row, d)) for d in devices]
    steps.extend((f"busy[{i}]", terms) for i, terms in enumerate(busy_terms(table, slot, clock, row)))
    for name, terms in steps:
        model.add_row(name, added(scaled(terms, k * factor), {total: -1}), upper=0)
    model.objective[total] = 1.0
    return Formulation(model, (slot,), clock.tick_s / factor, 0.0, clock.tick_s)


def _finest_clock(instance: PlacementInstance) -> Clock:
    """The finest unit of time in which no row passes 2^53, each variable weighing K times a whole pass."""
    table, (row, k, _) = instance.table, instance.shapes()[0]
    largest = max(longest_pass(table, Clock(), row), longest_step(table, Clock(), row))
    num_variables = 4 * table.num_devices + 2 * table.num_layers + 4
    return Clock(max(0, math.ceil(math.log2(num_variables * k * max(1, largest) / 2**52))))
