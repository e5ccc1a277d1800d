"""Exchangeable devices, and the one plan that stands for all plans that differ only by exchanging them.

Proofs are in FORMULATION.md, section 3.
"""

from __future__ import annotations

import itertools

import numpy as np

from slob_opt.cost.table import CostTable
from slob_opt.problem.placement import Pipeline, Placement, Stage


def conflicts(table: CostTable) -> tuple[frozenset[int], ...]:
    """Return (D,) sets of devices that share a card with each device, itself left out."""
    cards = [frozenset(c) for c in table.device_cards]
    devices = range(table.num_devices)
    return tuple(frozenset(e for e in devices if e != d and cards[d] & cards[e]) for d in devices)


def _are_exchangeable(table: CostTable, shared: tuple[frozenset[int], ...], a: int, b: int) -> bool:
    """Whether exchanging a and b, all else fixed, changes neither costs nor links nor conflicts."""
    if table.device_class[a] != table.device_class[b] or len(table.device_cards[a]) != len(table.device_cards[b]):
        return False
    if table.device_node[a] != table.device_node[b] and np.any(np.isfinite(table.nic_bytes_per_s)):
        return False
    if shared[a] - {b} != shared[b] - {a}:
        return False
    if table.link_class[a, b] != table.link_class[b, a]:
        return False
    others = np.array([e for e in range(table.num_devices) if e not in (a, b)], np.int64)
    return bool(
        np.array_equal(table.link_class[a, others], table.link_class[b, others])
        and np.array_equal(table.link_class[others, a], table.link_class[others, b])
    )


def exchangeable_groups(table: CostTable) -> tuple[tuple[int, ...], ...]:
    """Return groups (ascending, two devices or more) in which any permutation leaves every plan's worth unchanged.

    Two devices are exchangeable when they have one class, equal links to and from each other device, equal conflicts
    and, where network cards are limited, one node. That is an equivalence: (a c) = (a b)(b c)(a b).
    """
    shared = conflicts(table)
    groups: list[list[int]] = []
    for d in range(table.num_devices):
        home = next((g for g in groups if _are_exchangeable(table, shared, g[0], d)), None)
        if home is None:
            groups.append([d])
        else:
            home.append(d)
    return tuple(tuple(g) for g in groups if len(g) > 1)


def devices_of(table: CostTable, pipeline: Pipeline) -> tuple[int, ...]:
    """Return the planning device of each stage.

    Not taken from ``planning.evaluate``, whose import of SciPy costs a solver's process more than a small solve.
    """
    return tuple(table.device_of_cards[frozenset(s.cards)] for s in pipeline.stages)


Route = tuple[tuple[int, int, int], ...]


def _key(routes: list[Route], unused: int, device: int) -> tuple[int, int]:
    """(smallest device of the pipeline, first layer); what the models' symmetry rows order by."""
    for route in routes:
        for d, first, _ in route:
            if d == device:
                return min(e for e, _, _ in route), first
    return unused, 0


def canonical_placement(table: CostTable, placement: Placement) -> Placement:
    """Return the plan of equal worth whose devices are in canonical order; does not change what pipelines look like.

    Exchangeable devices appear in ascending order of (smallest device of their pipeline, first layer), pipelines in
    ascending order of their smallest device. Applied to every plan a solver finds, so plans that differ only by
    names of equal cards come out as one plan: devices are first dealt out anew, in an order of pipelines that knows
    groups but no names, and then exchanged until the models' symmetry rows hold.
    """
    group_of = {d: group[0] for group in exchangeable_groups(table) for d in group}
    anonymous = sorted(
        (
            tuple((group_of.get(d, d), s.first, s.end) for d, s in zip(devices_of(table, p), p.stages, strict=True)),
            p.num_micro_batches,
            p.batch_size,
        )
        for p in placement.pipelines
    )
    left = {group[0]: list(group) for group in exchangeable_groups(table)}
    routes: list[Route] = [
        tuple((left[d].pop(0) if d in left else d, first, end) for d, first, end in route) for route, _, _ in anonymous
    ]
    pairs = [(a, b) for g in exchangeable_groups(table) for a, b in itertools.pairwise(g)]
    has_changed = True
    while has_changed:  # each exchange makes the vector of keys lexicographically smaller, so this ends
        has_changed = False
        for a, b in pairs:
            if _key(routes, table.num_devices, a) > _key(routes, table.num_devices, b):
                name = {a: b, b: a}
                routes = [tuple((name.get(d, d), first, end) for d, first, end in route) for route in routes]
                has_changed = True
    order = sorted(range(len(routes)), key=lambda i: min(d for d, _, _ in routes[i]))
    return Placement(
        tuple(
            Pipeline(
                tuple(Stage(table.device_cards[d], first, end) for d, first, end in routes[i]),
                anonymous[i][1],
                anonymous[i][2],
            )
            for i in order
        )
    )
