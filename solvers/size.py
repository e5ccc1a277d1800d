"""How large a model would be, before it is built."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.planning.instance import PlacementInstance
from solvers.formulation import choose_forms
from solvers.slots import LayerForm, RouteForm

MAX_TERMS = 3_000_000
"""Most coefficients that a model may have. Chosen: building it then takes under a minute and 2 GB."""

BYTES_PER_TERM = 600
"""Memory of one coefficient in our model and the solver's together, rough and on the safe side. Chosen."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Estimated size.

    Attributes
    ----------
    num_variables, num_terms
        Variables and nonzero coefficients, within a factor of two.
    """

    num_variables: int
    num_terms: int

    @property
    def memory_bytes(self) -> int:
        """Rough memory of building and holding the model, bytes."""
        return self.num_terms * BYTES_PER_TERM


def estimate_size(instance: PlacementInstance, *, is_ilp: bool) -> ModelSize:
    """Return the size of an instance's model, from its dimensions alone."""
    table = instance.table
    is_multiplied = is_ilp and instance.is_throughput
    layers, route = choose_forms(table, has_circuit=not is_ilp, is_multiplied=is_multiplied)
    shapes = len(instance.shapes())
    rows = len({row for row, _, _ in instance.shapes()})
    slots = range(1, table.num_devices + 1) if instance.is_throughput else [table.num_devices]
    variables = terms = 0
    for devices in slots:
        has_arcs = route in (RouteForm.FLOW, RouteForm.CIRCUIT)
        arcs = devices * (devices - 1) if has_arcs else 0
        per_device = {
            LayerForm.COUNT: 5,
            LayerForm.BITS: 4 + table.num_layers.bit_length(),
            LayerForm.CUTS: 2 + 2 * table.num_layers,
        }[layers]
        binaries = devices * per_device + 2 * arcs
        variables += binaries + shapes + (arcs if layers is not LayerForm.CUTS and has_arcs else 0)
        terms += 2 * devices * devices + devices * (30 + 2 * shapes) + 4 * arcs
        if layers is LayerForm.CUTS:
            loads = len({k * b for _, k, b in instance.shapes()})  # each may fit other runs of layers
            pairs = table.num_layers // 2 + 4 + (shapes + loads * table.num_layers // 4 if loads > 1 else 0)
            terms += devices * table.num_layers * pairs + 3 * arcs * table.num_layers
        elif has_arcs:
            terms += arcs * (8 if is_ilp else 4)
        in_times = 2 * binaries + 2 * arcs  # each variable in the pass and in a step
        if is_multiplied:
            variables += rows * binaries
            terms += rows * (7 * binaries + in_times + 3 * binaries)
        else:
            is_capped = instance.max_interval_s is not None
            terms += rows * in_times * (2 if is_capped else 1) + (devices * shapes * 2 if is_capped else 0)
    return ModelSize(variables, terms)


def refusal(instance: PlacementInstance, *, is_ilp: bool, memory_bytes: int | None) -> str | None:
    """Return why a model is too large to build, with its size and what to do, or ``None`` when it isn't."""
    size = estimate_size(instance, is_ilp=is_ilp)
    is_too_large = size.num_terms > MAX_TERMS or (memory_bytes is not None and size.memory_bytes > memory_bytes)
    if not is_too_large:
        return None
    limit = f"{MAX_TERMS:,} coefficients" if memory_bytes is None else f"{memory_bytes / 2**20:,.0f} MiB"
    table = instance.table
    return (
        f"a device-indexed model of {table.num_devices} devices and {table.num_layers} layers has about "
        f"{size.num_variables:,} variables and {size.num_terms:,} coefficients ({size.memory_bytes / 2**20:,.0f} MiB), "
        f"more than the limit of {limit}; group equal GPUs and use the pattern model or the parametric planner"
    )
