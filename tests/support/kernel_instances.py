"""Random placement instances with the extremes that kernels trip over; a seed and the arguments fix an instance."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective

LINKS = ((1e9, 1e-5), (1e6, 1e-3), (1e5, 5e-3), (1e12, 0.0), (2e3, 1.0), (1e9, 40.0))
"""(bytes/s, latency in s): quick, slow enough to bind, free, and so slow that one device is best."""


def _classes(rng: random.Random, num_devices: int, num_layers: int, *, is_identical: bool) -> list[DirectClass]:
    """One class, all different classes, or up to three; equal or different times; ample, tight or no memory."""
    kind = rng.choice(["one", "all", "some"])
    counts = [num_devices] if kind == "one" else [1] * num_devices
    if kind == "some":
        counts = [1] * rng.randint(1, min(3, num_devices))
        for _ in range(num_devices - len(counts)):
            counts[rng.randrange(len(counts))] += 1
    is_tied, is_tight = rng.random() < 0.3, rng.random() < 0.5
    base_s = rng.uniform(0.5e-3, 10e-3)
    found = []
    for i, count in enumerate(counts):
        layer_s = base_s if is_tied else rng.uniform(0.5e-3, 10e-3)
        layer_s = 0.0 if rng.random() < 0.08 else layer_s
        capacity = rng.randint(150, 100 * (num_layers // num_devices + 2) + 60) if is_tight else None
        capacity = rng.randint(100, 100 * num_layers + 500) if capacity is None else capacity
        found.append(
            DirectClass(
                f"c{i}", count, 1 if rng.random() < 0.08 else capacity,
                layer_s if is_identical else [layer_s * rng.uniform(0.5, 2) for _ in range(num_layers)],
                layer_per_sequence_s=layer_s * rng.choice([0, 0.05, 0.3]),
                fixed_s=rng.choice([0.0, 1e-4, 2e-3]) if layer_s else 1e-4,
                embed_s=rng.choice([0, 0, 3e-3]), head_s=rng.choice([0, 0, 4e-3]),
            )
        )  # fmt: skip
    return found


def kernel_instance(
    seed: int,
    *,
    num_devices: int | None = None,
    max_layers: int = 7,
    is_uniform: bool | None = None,
    is_identical: bool = True,
    has_network_cards: bool = False,
    is_throughput: bool | None = None,
) -> PlacementInstance:
    """Return an instance; what is ``None`` is drawn (one to five devices)."""
    rng = random.Random(f"kernel/{seed}")
    devices = rng.randint(1, 5) if num_devices is None else num_devices
    layers = rng.randint(1, max_layers)
    classes = _classes(rng, devices, layers, is_identical=is_identical)
    nodes = [rng.randrange(3) for _ in range(devices)]
    drawn = rng.random() < 0.5
    speed, latency = rng.choice(LINKS)
    pairs = None
    if not (drawn if is_uniform is None else is_uniform):
        by_node = rng.random() < 0.5
        pairs = [
            [(LINKS[0] if nodes[i] == nodes[j] else (speed, latency)) if by_node else rng.choice(LINKS[:4])
             for j in range(devices)]
            for i in range(devices)
        ]  # fmt: skip
    table = direct_table(
        classes, layers,
        layer_bytes=100 if is_identical else [rng.randint(50, 150) for _ in range(layers)],
        kv_bytes=rng.choice([0, 5, 20]), embed_bytes=rng.choice([0, 60, 120]), head_bytes=rng.choice([0, 60, 150]),
        tied_saving_bytes=rng.choice([0, 50]), workspace_bytes=rng.choice([0, 20]),
        batch_sizes=rng.choice([(1,), (4,), (1, 2, 4), (1, 8)]), tokens_per_sequence=rng.choice([1.0, 3.0]),
        hop_bytes_per_token=rng.choice([0, 10, 10_000]), latency_s=latency, bytes_per_s=speed, pair_links=pairs,
        nodes=nodes,
    )  # fmt: skip
    if has_network_cards:
        limits = [rng.choice([np.inf, 1e5, 1e6, 1e7]) for _ in range(table.nic_bytes_per_s.size)]
        table = replace(table, nic_bytes_per_s=np.array(limits))
    throughput = rng.random() < 0.5
    objective: Objective = IntervalObjective(rng.choice([1, 1, 2, 4, 9]))
    if throughput if is_throughput is None else is_throughput:
        objective = ThroughputObjective(
            rng.choice([1, 2, 4, 5]), rng.choice([None, None, 0.02, 0.05, 0.2]), rng.choice([None, None, 1, 4, 8])
        )
    return PlacementInstance(table, objective, f"kernel-{seed}")
