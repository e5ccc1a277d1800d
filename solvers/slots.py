"""One pipeline inside a model: its variables (devices, roles, layers, route, shape) and the rows that bind them.

Both objectives and both back ends build on this module; FORMULATION.md, section 1, has the maths. Variable names there
and here are the same.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from slob_opt.cost.table import CostTable
from solvers.integer_model import Arc, IntegerModel
from solvers.memory import layer_counts, misfits
from solvers.symmetry import conflicts

Shape = tuple[int, int, int]
"""(row, K, b) as ``PlacementInstance.shapes`` gives it."""


class LayerForm(Enum):
    """How the layers of a stage are told."""

    COUNT = "count"
    """One integer ``n``; identical layers."""
    BITS = "bits"
    """Binary digits of ``n``; identical layers, where times are multiplied by a variable."""
    CUTS = "cuts"
    """One 0/1 variable for each first layer and each end; any layers."""


class RouteForm(Enum):
    """How the order of stages is told."""

    NONE = "none"
    """Not at all: links are uniform and layers identical, so order has no price."""
    CUTS = "cuts"
    """By the layers alone: links are uniform, layers are not."""
    FLOW = "flow"
    """Arcs, without subtours because layers done so far flow along them (or because layers are cut)."""
    CIRCUIT = "circuit"
    """Arcs in a circuit constraint of CP-SAT."""


def has_free_order(table: CostTable) -> bool:
    """Whether the order of stages changes no time: one link class and no limited network card."""
    return table.has_uniform_links and not bool(np.any(np.isfinite(table.nic_bytes_per_s)))


@dataclass(slots=True)
class Slot:
    """Variables of one pipeline that may exist.

    Attributes
    ----------
    index
        p: 0 for `interval`; for `throughput` the smallest device of the pipeline.
    devices
        Devices it may use.
    shapes
        (shape, ``y`` variable) pairs.
    active
        ``a``: the pipeline exists.
    used, is_first, is_last, is_whole
        ``u``, ``f``, ``g``, ``w`` by device: takes part, is the first stage, the last, the only one.
    count
        Terms that sum to the layers of a device.
    cut_first, cut_end
        ``s`` by (device, first layer) and ``e`` by (device, end); empty unless layers are cut.
    forward, back
        ``x`` and ``r`` by (from, to): a hop, and the hop from the last stage to the first; empty when order is free.
    start
        ``o``, layers done before a device's stage; only with a circuit and identical layers.
    flow
        ``q`` by (from, to): layers done when the hop is taken; only with a flow and identical layers.
    """

    index: int
    devices: tuple[int, ...]
    shapes: tuple[tuple[Shape, int], ...]
    active: int
    used: dict[int, int] = field(default_factory=dict)
    is_first: dict[int, int] = field(default_factory=dict)
    is_last: dict[int, int] = field(default_factory=dict)
    is_whole: dict[int, int] = field(default_factory=dict)
    count: dict[int, dict[int, float]] = field(default_factory=dict)
    cut_first: dict[tuple[int, int], int] = field(default_factory=dict)
    cut_end: dict[tuple[int, int], int] = field(default_factory=dict)
    forward: dict[tuple[int, int], int] = field(default_factory=dict)
    back: dict[tuple[int, int], int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    flow: dict[tuple[int, int], int] = field(default_factory=dict)

    def shape_sum(self, wanted: Iterable[Shape], scale: float = 1) -> dict[int, float]:
        """Return terms that are `scale` when the pipeline has one of the wanted shapes."""
        chosen = set(wanted)
        return {y: scale for shape, y in self.shapes if shape in chosen}


def added(*parts: dict[int, float]) -> dict[int, float]:
    """Return the sum of terms."""
    total: dict[int, float] = defaultdict(float)
    for part in parts:
        for variable, value in part.items():
            total[variable] += value
    return dict(total)


def scaled(terms: dict[int, float], factor: float) -> dict[int, float]:
    """Return terms times a number."""
    return {variable: value * factor for variable, value in terms.items()}


def add_slot(
    model: IntegerModel,
    table: CostTable,
    *,
    index: int,
    devices: Sequence[int],
    shapes: Sequence[Shape],
    layers: LayerForm,
    route: RouteForm,
    is_optional: bool,
) -> Slot:
    """Add the variables and rows of one pipeline to a model and return them.

    Parameters
    ----------
    index
        p. Where `is_optional`, the device that the pipeline contains when it exists.
    devices
        Devices it may use, `index` among them where `is_optional`.
    is_optional
        Whether the pipeline may be absent.
    """
    p = index
    active = model.add_int(f"a[{p}]", 0 if is_optional else 1, 1)
    slot = Slot(p, tuple(devices), tuple((s, model.add_bool(f"y[{p},{s[0]},{s[1]}]")) for s in shapes), active)
    model.add_equal(f"shape[{p}]", added(slot.shape_sum(shapes), {active: -1}), 0)
    for d in slot.devices:
        slot.used[d] = model.add_bool(f"u[{p},{d}]")
        slot.is_first[d] = model.add_bool(f"f[{p},{d}]")
        slot.is_last[d] = model.add_bool(f"g[{p},{d}]")
        slot.is_whole[d] = model.add_bool(f"w[{p},{d}]")
        for role in (slot.is_first, slot.is_last):
            model.add_row(f"role[{p},{d}]", {role[d]: 1, slot.used[d]: -1}, upper=0)
            model.add_row(f"whole[{p},{d}]", {slot.is_whole[d]: 1, role[d]: -1}, upper=0)
        ends = {slot.is_first[d]: 1.0, slot.is_last[d]: 1.0, slot.is_whole[d]: -1.0}
        model.add_row(f"whole_if[{p},{d}]", ends, upper=1)
        model.add_row(f"used_if[{p},{d}]", {slot.used[d]: 1, active: -1}, upper=0)
    if is_optional:
        model.add_equal(f"smallest[{p}]", {slot.used[p]: 1, active: -1}, 0)
    model.add_equal(f"one_first[{p}]", added(dict.fromkeys(slot.is_first.values(), 1), {active: -1}), 0)
    model.add_equal(f"one_last[{p}]", added(dict.fromkeys(slot.is_last.values(), 1), {active: -1}), 0)
    alone = dict.fromkeys(slot.is_whole.values(), -1.0)
    for d in slot.devices:  # a whole model leaves no other stage
        others = {slot.used[e]: 1.0 for e in slot.devices if e != d}
        model.add_row(f"alone[{p},{d}]", added(others, {slot.is_whole[d]: len(others)}), upper=len(others))
    size = dict.fromkeys(slot.used.values(), 1.0)
    model.add_row(f"two_stages[{p}]", added(size, scaled(alone, -1), {active: -2}), lower=0)
    if layers is LayerForm.CUTS:
        _add_cuts(model, table, slot)
    else:
        _add_counts(model, table, slot, layers)
    if route in (RouteForm.FLOW, RouteForm.CIRCUIT):
        _add_arcs(model, table, slot, layers)
        if route is RouteForm.CIRCUIT:
            _add_circuit(model, slot)
        if layers is not LayerForm.CUTS:
            _add_order(model, table, slot, is_flow=route is RouteForm.FLOW)
    return slot


def _add_counts(model: IntegerModel, table: CostTable, slot: Slot, layers: LayerForm) -> None:
    """Layers as numbers: n, what fits by role and shape, all layers once."""
    p, num_layers = slot.index, table.num_layers
    for d in slot.devices:
        if layers is LayerForm.COUNT:
            slot.count[d] = {model.add_int(f"n[{p},{d}]", 0, num_layers): 1.0}
        else:
            slot.count[d] = {model.add_bool(f"n[{p},{d},{j}]"): 2.0**j for j in range(num_layers.bit_length())}
        used, first, last, whole = slot.used[d], slot.is_first[d], slot.is_last[d], slot.is_whole[d]
        limits = {shape: layer_counts(table, shape[0], d, shape[1] * shape[2]) for shape, _ in slot.shapes}
        middle = {y: -float(max(limits[s].middle, limits[s].first, limits[s].last)) for s, y in slot.shapes}
        most = max((-c for c in middle.values()), default=0.0)
        model.add_row(f"at_least_one[{p},{d}]", added(slot.count[d], {used: -1}), lower=0)
        model.add_row(f"at_most[{p},{d}]", added(slot.count[d], {used: -most, whole: -(num_layers - most)}), upper=0)
        # n <= what fits in the chosen shape, per role; a whole model is ruled apart because a tied head saves bytes
        model.add_row(f"memory[{p},{d}]", added(slot.count[d], middle, {whole: -num_layers}), upper=0)
        for name, role, kind in (("first", first, "first"), ("last", last, "last")):
            fitting = {y: -float(getattr(limits[s], kind)) for s, y in slot.shapes}
            if fitting != middle:
                model.add_row(
                    f"memory_{name}[{p},{d}]",
                    added(slot.count[d], fitting, {role: num_layers, whole: -2 * num_layers}),
                    upper=num_layers,
                )
        inner = {y: -float(limits[s].middle) for s, y in slot.shapes}
        if inner != middle:
            terms = added(slot.count[d], inner, {first: -num_layers, last: -num_layers})
            model.add_row(f"memory_middle[{p},{d}]", terms, upper=0)
        model.add_row(f"whole_layers[{p},{d}]", added(slot.count[d], {whole: -num_layers}), lower=0)
        too_large = [s for s, _ in slot.shapes if not limits[s].has_whole]
        if len(too_large) == len(slot.shapes):
            model.add_equal(f"no_whole[{p},{d}]", {whole: 1}, 0)
        elif too_large:
            model.add_row(f"no_whole[{p},{d}]", added(slot.shape_sum(too_large), {whole: 1}), upper=1)
    total = added(*slot.count.values())
    model.add_equal(f"layers[{p}]", added(total, {slot.active: -num_layers}), 0)


def _add_cuts(model: IntegerModel, table: CostTable, slot: Slot) -> None:
    """Layers as cuts: where each stage starts and ends, joined at each boundary, forbidden pairs by memory."""
    p, num_layers = slot.index, table.num_layers
    for d in slot.devices:
        for layer in range(num_layers):
            slot.cut_first[d, layer] = slot.is_first[d] if layer == 0 else model.add_bool(f"s[{p},{d},{layer}]")
            end = layer + 1
            slot.cut_end[d, end] = slot.is_last[d] if end == num_layers else model.add_bool(f"e[{p},{d},{end}]")
        firsts = {slot.cut_first[d, i]: 1.0 for i in range(num_layers)}
        ends = {slot.cut_end[d, i + 1]: 1.0 for i in range(num_layers)}
        model.add_equal(f"one_start[{p},{d}]", added(firsts, {slot.used[d]: -1}), 0)
        model.add_equal(f"one_end[{p},{d}]", added(ends, {slot.used[d]: -1}), 0)
        slot.count[d] = added(
            {slot.cut_end[d, i + 1]: float(i + 1) for i in range(num_layers)},
            {slot.cut_first[d, i]: -float(i) for i in range(num_layers)},
        )
        _forbid_misfits(model, table, slot, d)
    for layer in range(1, num_layers):
        joined = added(
            {slot.cut_end[d, layer]: 1.0 for d in slot.devices}, {slot.cut_first[d, layer]: -1.0 for d in slot.devices}
        )
        model.add_equal(f"joined[{p},{layer}]", joined, 0)


def _forbid_misfits(model: IntegerModel, table: CostTable, slot: Slot, d: int) -> None:
    """Forbid pairs of first layer and end that run backwards, or that don't fit in the chosen shape."""
    p = slot.index
    bad = {shape: misfits(table, shape[0], d, shape[1] * shape[2]) for shape, _ in slot.shapes}
    for first in range(table.num_layers):
        owners: dict[tuple[int, ...], list[Shape]] = {}
        for shape, by_first in bad.items():
            owners.setdefault(by_first[first], []).append(shape)
        always = set.intersection(*(set(ends) for ends in owners)) | set(range(1, first + 1))
        start = {slot.cut_first[d, first]: 1.0}
        terms = added(start, dict.fromkeys((slot.cut_end[d, end] for end in sorted(always)), 1.0))
        model.add_row(f"pair[{p},{d},{first}]", terms, upper=1)
        for ends, shapes in owners.items():
            extra = {slot.cut_end[d, end]: 1.0 for end in ends if end not in always}
            if extra:  # start, end and shape are one of many each, so at most two of the three
                model.add_row(f"misfit[{p},{d},{first}]", added(start, extra, slot.shape_sum(shapes)), upper=2)


def _add_arcs(model: IntegerModel, table: CostTable, slot: Slot, layers: LayerForm) -> None:
    """Hops x and the returning hop r: one in, one out, and one way back from the last stage to the first."""
    p = slot.index
    shared = conflicts(table)
    pairs = [(d, e) for d, e in itertools.permutations(slot.devices, 2) if e not in shared[d]]
    for d, e in pairs:
        slot.forward[d, e] = model.add_bool(f"x[{p},{d},{e}]")
        slot.back[d, e] = model.add_bool(f"r[{p},{d},{e}]")
    for d in slot.devices:
        out = {slot.forward[q]: 1.0 for q in pairs if q[0] == d}
        into = {slot.forward[q]: 1.0 for q in pairs if q[1] == d}
        home = {slot.back[q]: 1.0 for q in pairs if q[0] == d}
        to_first = {slot.back[q]: 1.0 for q in pairs if q[1] == d}
        model.add_equal(f"out[{p},{d}]", added(out, {slot.is_last[d]: 1, slot.used[d]: -1}), 0)
        model.add_equal(f"in[{p},{d}]", added(into, {slot.is_first[d]: 1, slot.used[d]: -1}), 0)
        model.add_equal(f"back_out[{p},{d}]", added(home, {slot.is_whole[d]: 1, slot.is_last[d]: -1}), 0)
        model.add_equal(f"back_in[{p},{d}]", added(to_first, {slot.is_whole[d]: 1, slot.is_first[d]: -1}), 0)
    if layers is LayerForm.CUTS:
        for d, e in pairs:
            for layer in range(1, table.num_layers):
                terms = {slot.cut_end[d, layer]: 1.0, slot.cut_first[e, layer]: 1.0, slot.forward[d, e]: -1.0}
                model.add_row(f"hop_if[{p},{d},{e},{layer}]", terms, upper=1)


def _add_circuit(model: IntegerModel, slot: Slot) -> None:
    """The route as a circuit over the devices and a depot (node 0); an unused device loops on itself."""
    node = {d: i + 1 for i, d in enumerate(slot.devices)}
    arcs = [Arc(0, 0, slot.active, is_negated=True)]
    for d in slot.devices:
        arcs.append(Arc(node[d], node[d], slot.used[d], is_negated=True))
        arcs.append(Arc(0, node[d], slot.is_first[d]))
        arcs.append(Arc(node[d], 0, slot.is_last[d]))
    arcs.extend(Arc(node[d], node[e], x) for (d, e), x in slot.forward.items())
    model.circuits.append(tuple(arcs))


def _add_order(model: IntegerModel, table: CostTable, slot: Slot, *, is_flow: bool) -> None:
    """Layers done so far: along arcs as a flow (ILP), or as a start per device (CP-SAT)."""
    p, num_layers = slot.index, table.num_layers
    if not is_flow:
        for d in slot.devices:
            slot.start[d] = model.add_int(f"o[{p},{d}]", 0, num_layers - 1)
            model.add_row(f"o_first[{p},{d}]", {slot.start[d]: 1}, upper=0, only_if=(slot.is_first[d],))
        for (d, e), x in slot.forward.items():
            terms = added({slot.start[e]: 1.0, slot.start[d]: -1.0}, scaled(slot.count[d], -1))
            model.add_row(f"o_next[{p},{d},{e}]", terms, lower=0, upper=0, only_if=(x,))
        return
    for (d, e), x in slot.forward.items():
        slot.flow[d, e] = model.add_real(f"q[{p},{d},{e}]", 0, num_layers - 1)
        model.add_row(f"q_at_most[{p},{d},{e}]", {slot.flow[d, e]: 1, x: -(num_layers - 1)}, upper=0)
        model.add_row(f"q_at_least[{p},{d},{e}]", {slot.flow[d, e]: 1, x: -1}, lower=0)
    for d in slot.devices:
        out = {v: 1.0 for q, v in slot.flow.items() if q[0] == d}
        into = {v: -1.0 for q, v in slot.flow.items() if q[1] == d}
        # what leaves is what came plus the own layers; the last stage hands all layers to the outside
        terms = added(out, into, scaled(slot.count[d], -1), {slot.is_last[d]: float(num_layers)})
        model.add_equal(f"q_balance[{p},{d}]", terms, 0)
