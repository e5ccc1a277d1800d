"""The throughput objective for an ILP: rates multiply 0/1 variables, exactly; FORMULATION.md, section 2.3."""

from __future__ import annotations

import itertools

from slob_opt.planning.instance import PlacementInstance
from solvers.formulation import Formulation, choose_forms, fastest_pass_s, work_rates
from solvers.integer_model import IntegerModel
from solvers.slots import Slot, add_slot, added
from solvers.symmetry_rows import add_exclusion, add_some_pipeline, add_symmetry_rows
from solvers.times import Clock, Terms, busy_terms, pipeline_terms, stage_terms


class RateProducts:
    """The products of 0/1 variables with the micro-batch rate of one pipeline in one row, made on demand.

    ``pi = v * mu`` for 0/1 ``v`` and ``0 <= mu <= most`` is exactly
    ``0 <= pi <= most * v, mu - most * (1 - v) <= pi <= mu``.
    """

    def __init__(self, model: IntegerModel, slot: Slot, row: int, mu: int, most: float) -> None:
        self._model = model
        self._slot = slot
        self._row = row
        self._mu = mu
        self._most = most
        self._made: dict[int, int] = {slot.active: mu}

    def times(self, terms: Terms) -> Terms:
        """Return terms with each variable replaced by its product with the rate."""
        return added(*({self._product(v): c} for v, c in terms.items() if c))

    def has_all(self, terms: Terms) -> bool:
        """Whether the product of each variable exists already."""
        return all(v in self._made for v in terms)

    def _product(self, v: int) -> int:
        if v not in self._made:
            name = f"pi[{self._row}]*{self._model.variables[v].name}"
            pi = self._model.add_real(name, 0, self._most)
            self._model.add_row(f"{name}<=mu", {pi: 1, self._mu: -1}, upper=0)
            self._model.add_row(f"{name}<=v", {pi: 1, v: -self._most}, upper=0)
            self._model.add_row(f"{name}>=", {pi: 1, self._mu: -1, v: -self._most}, lower=-self._most)
            self._made[v] = pi
        return self._made[v]


def throughput_ilp(instance: PlacementInstance) -> Formulation:
    """Return the ILP of a `throughput` instance; times in seconds, exact as table ticks are binary fractions."""
    table = instance.table
    layers, route = choose_forms(table, has_circuit=False, is_multiplied=True)
    model = IntegerModel("throughput-ilp")
    per_device = work_rates(instance)
    slots = []
    for p in range(table.num_devices):
        begin = len(model.rows)
        slot = add_slot(
            model, table, index=p, devices=range(p, table.num_devices), shapes=instance.shapes(),
            layers=layers, route=route, is_optional=True,
        )  # fmt: skip
        slots.append(slot)
        _add_rate(model, instance, slot, per_device, structural=range(begin, len(model.rows)))
    add_exclusion(model, table, slots)
    add_some_pipeline(model, slots)
    add_symmetry_rows(model, table, slots)
    return Formulation(model, tuple(slots), 1.0, 0.0, Clock().tick_s)


def _add_rate(
    model: IntegerModel, instance: PlacementInstance, slot: Slot, per_device: tuple[float, ...], structural: range
) -> None:
    """Add micro-batch rates mu per row of the table and the rows that bind them to times."""
    table, p, clock = instance.table, slot.index, Clock()
    rows = sorted({shape[0] for shape, _ in slot.shapes})
    most_work = sum(per_device[d] for d in slot.devices)
    steps: list[list[Terms]] = []
    passes: list[Terms] = []
    rates: dict[int, int] = {}
    work: Terms = {}
    for row in rows:
        owners = [(shape, y) for shape, y in slot.shapes if shape[0] == row]
        b = table.batch_sizes[row]
        most = most_work / b
        if fastest_pass_s(table, row):
            most = min(most, max(k for (_, k, _), _ in owners) / fastest_pass_s(table, row))
        mu = model.add_real(f"mu[{p},{row}]", 0, most)
        rates[row] = mu
        model.add_row(f"row[{p},{row}]", added({mu: 1.0}, {y: -most for _, y in owners}), upper=0)
        products = RateProducts(model, slot, row, mu, most)
        in_row = [stage_terms(table, slot, clock, row, d) for d in slot.devices]
        in_row.extend(busy_terms(table, slot, clock, row))
        # table times are whole ticks of 2^-30 s, so ticks times 2^-30 are the seconds themselves
        steps.append([_seconds(products.times(t), clock) for t in in_row])
        passes.append(_seconds(products.times(pipeline_terms(table, slot, clock, row)), clock))
        for index in structural:  # equations hold times mu as well, and sharpen the relaxation
            line = model.rows[index]
            if line.lower == 0 and line.upper in (0, None) and products.has_all(dict(line.terms)):
                terms = products.times(dict(line.terms))
                model.add_row(f"{line.name}*mu[{row}]", terms, lower=line.lower, upper=line.upper)
        work[mu] = float(b)
        model.objective[mu] = -float(b)
    for i, parts in enumerate(itertools.zip_longest(*steps, fillvalue={})):
        holder = slot.used[slot.devices[i]] if i < len(slot.devices) else slot.active
        model.add_row(f"step[{p},{i}]", added(*parts, {holder: -1.0}), upper=0)
    in_flight = {y: -float(k) for (_, k, _), y in slot.shapes}
    model.add_row(f"pass[{p}]", added(*passes, in_flight), upper=0)
    model.add_row(f"work[{p}]", added(work, {slot.used[d]: -per_device[d] for d in slot.devices}), upper=0)
    cap = instance.max_interval_s
    if cap is not None:
        slowest = {y: -k / cap for (_, k, _), y in slot.shapes}
        model.add_row(f"cap[{p}]", added(dict.fromkeys(rates.values(), 1.0), slowest), lower=0)


def _seconds(terms: Terms, clock: Clock) -> Terms:
    return {v: c * clock.tick_s for v, c in terms.items()}
