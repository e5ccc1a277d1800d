"""Rows that keep one of all plans which differ by exchanging equal devices; proofs in FORMULATION.md, section 3."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from slob_opt.cost.table import CostTable
from solvers.integer_model import IntegerModel
from solvers.slots import Slot, added, scaled
from solvers.symmetry import exchangeable_groups


def add_exclusion(model: IntegerModel, table: CostTable, slots: Sequence[Slot]) -> None:
    """Add that a card serves one stage at most: devices that share it, and pipelines, exclude each other."""
    owners: dict[int, list[int]] = {}
    for slot in slots:
        for d, u in slot.used.items():
            for card in table.device_cards[d]:
                owners.setdefault(card, []).append(u)
    seen: set[tuple[int, ...]] = set()
    for card, variables in sorted(owners.items()):
        key = tuple(sorted(variables))
        if len(key) > 1 and key not in seen:
            seen.add(key)
            model.add_row(f"card[{card}]", dict.fromkeys(key, 1), upper=1)


def add_some_pipeline(model: IntegerModel, slots: Sequence[Slot]) -> None:
    """Add that some pipeline exists: an instance where none fits is then infeasible, not worth zero."""
    model.add_row("some", dict.fromkeys((s.active for s in slots), 1), lower=1)


def add_symmetry_rows(model: IntegerModel, table: CostTable, slots: Sequence[Slot]) -> int:
    """Add the ordering rows of exchangeable devices; return the number of ordered pairs."""
    unused = table.num_devices
    pairs = [pair for group in exchangeable_groups(table) for pair in itertools.pairwise(group)]
    for a, b in pairs:
        rank_a = {s.used[a]: float(s.index - unused) for s in slots if a in s.used}
        rank_b = {s.used[b]: float(unused - s.index) for s in slots if b in s.used}
        model.add_row(f"rank[{a},{b}]", added(rank_a, rank_b), upper=0)
        for slot in slots:
            if a in slot.used and b in slot.used:
                _order_within(model, table, slot, a, b)
    return len(pairs)


def _order_within(model: IntegerModel, table: CostTable, slot: Slot, a: int, b: int) -> None:
    """Of two equal devices in one pipeline, a comes first; where order is free, a has the larger role and count."""
    name, num_layers = f"order[{slot.index},{a},{b}]", float(table.num_layers)
    both = {slot.used[a]: num_layers, slot.used[b]: num_layers}
    if slot.cut_first:
        starts = [
            {slot.cut_first[d, i]: sign * i for i in range(table.num_layers)} for d, sign in ((a, 1.0), (b, -1.0))
        ]
        model.add_row(name, added(*starts, both), upper=2 * num_layers)
    elif slot.start:
        model.add_row(name, {slot.start[a]: 1, slot.start[b]: -1}, upper=0, only_if=(slot.used[a], slot.used[b]))
    elif slot.flow:
        into_a = {v: 1.0 for q, v in slot.flow.items() if q[1] == a}
        into_b = {v: -1.0 for q, v in slot.flow.items() if q[1] == b}
        model.add_row(name, added(into_a, into_b, both), upper=2 * num_layers)
    else:
        large = num_layers + 1
        terms = added(_role_key(slot, a, large, -1), _role_key(slot, b, large, 1), {slot.used[a]: 4 * large})
        model.add_row(name, terms, upper=4 * large)


def _role_key(slot: Slot, device: int, large: float, sign: float) -> dict[int, float]:
    """2M f + M g + n, with M above any count, so that roles weigh more than layers."""
    roles = {slot.is_first[device]: 2 * large, slot.is_last[device]: large}
    return scaled(added(roles, slot.count[device]), sign)
