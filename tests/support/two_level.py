"""Random clusters of nodes with quick links inside and slow ones between, with and without tensor-parallel groups."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective


def _nodes(rng: random.Random, max_devices: int) -> list[tuple[int, int, bool]]:
    """Nodes as (cost class of a card, cards, has a pair), at most `max_devices` planning devices in all."""
    nodes: list[tuple[int, int, bool]] = []
    used = 0
    while True:
        cards = rng.randint(1, 3)
        node = (rng.randrange(2), cards, cards >= 2 and rng.random() < 0.4)
        used += cards + node[2]
        if used > max_devices:
            return nodes or [(0, 2, False)]
        nodes += [node]
        if rng.random() < 0.4 and used + cards + node[2] <= max_devices:  # a second node of the kind
            nodes += [node]
            used += cards + node[2]


def two_level_table(seed: int, *, max_devices: int = 8, num_layers: int = 5) -> CostTable:
    """Return a table of nodes of one to three equal cards, some with a tensor-parallel pair beside the single cards.

    Cost classes: 0 and 1 are cards, 2 and 3 the pairs of such cards (twice as quick, half the bytes a card).
    """
    rng = random.Random(seed)
    nodes = _nodes(rng, max_devices)
    devices = [
        (node, kind + 2 * is_pair, cards)
        for node, (kind, count, has_pair) in enumerate(nodes)
        for is_pair, cards in [*((0, (c,)) for c in range(count)), *([(1, (0, 1))] if has_pair else [])]
    ]
    devices.sort(key=lambda d: d[1])  # direct_table numbers devices class by class
    first_card = np.cumsum([0, *(count for _, count, _ in nodes)])
    times = [rng.uniform(0.004, 0.02) for _ in range(2)]
    layer_s = [*times, *(t / 2 for t in times)]
    capacity = [rng.randint(150, 100 * num_layers + 100) for _ in range(2)] * 2
    fixed, embed, head = rng.choice([0.0, 2e-3]), rng.choice([0.0, 3e-3]), rng.choice([0.0, 5e-3])
    classes = [
        DirectClass(f"c{c}", sum(k == c for _, k, _ in devices), capacity[c], layer_s[c],
                    layer_per_sequence_s=layer_s[c] * rng.uniform(0, 0.3), fixed_s=fixed, embed_s=embed, head_s=head)
        for c in range(4)
    ]  # fmt: skip
    quick, slow = (1e9, 1e-4), (rng.choice([1e6, 1e7]), rng.choice([2e-3, 8e-3]))
    pairs = [[quick if a[0] == b[0] else slow for b in devices] for a in devices]
    table = direct_table(
        classes, num_layers,
        layer_bytes=100, kv_bytes=rng.choice([0, 8]), embed_bytes=rng.choice([0, 60, 120]),
        head_bytes=rng.choice([0, 60, 120]), tied_saving_bytes=rng.choice([0, 30]), batch_sizes=(1, 2),
        tokens_per_sequence=2.0, hop_bytes_per_token=rng.choice([0, 20_000]), pair_links=pairs,
        nodes=[node for node, _, _ in devices],
    )  # fmt: skip
    cards = tuple(tuple(int(first_card[node]) + c for c in own) for node, _, own in devices)
    links = np.array(table.link_class)
    for a, own in enumerate(cards):
        for b, other in enumerate(cards):
            if set(own) & set(other):
                links[a, b] = -1
    return replace(table, device_cards=cards, link_class=links)


def two_level_instance(
    seed: int, *, is_throughput: bool, max_devices: int = 8, num_layers: int = 5
) -> PlacementInstance:
    """Return an instance over :func:`two_level_table`; interval with K = 1 or 4, throughput with and without caps."""
    rng = random.Random(seed)
    objective: Objective = IntervalObjective(rng.choice([1, 4]))
    if is_throughput:
        objective = ThroughputObjective(
            rng.choice([2, 4]), rng.choice([None, 0.15, 0.4]), max_in_flight=rng.choice([None, 6])
        )
    table = two_level_table(seed, max_devices=max_devices, num_layers=num_layers)
    return PlacementInstance(table, objective, f"two-level-{seed}")
