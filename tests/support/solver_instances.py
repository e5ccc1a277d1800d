"""Small random placement instances for exact solvers; a seed and the arguments fix an instance."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.table import CostTable
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective

FAST, SLOW = (1e9, 1e-4), (1e8, 1e-3)


def random_table(seed: int, num_devices: int, num_layers: int, *, is_uniform: bool, is_identical: bool) -> CostTable:
    """One to three classes, memory from tight to ample, embedding, head, workspace and KV present or not."""
    rng = random.Random(f"{seed}/{num_devices}/{num_layers}/{is_uniform}/{is_identical}")
    counts = [1] * rng.randint(1, min(3, num_devices))
    for _ in range(num_devices - len(counts)):
        counts[rng.randrange(len(counts))] += 1
    classes = []
    for i, count in enumerate(counts):
        layer_s = rng.uniform(0.001, 0.01)
        each = layer_s if is_identical else [layer_s * rng.uniform(0.5, 2) for _ in range(num_layers)]
        classes.append(
            DirectClass(
                f"c{i}", count, rng.randint(150, 160 * num_layers), each,
                layer_per_sequence_s=layer_s * rng.uniform(0, 0.3), fixed_s=rng.choice([0.0, 1e-4, 1e-3]),
                embed_s=rng.choice([0.0, 5e-4]), head_s=rng.choice([0.0, 2e-3]),
            )
        )  # fmt: skip
    nodes = [rng.randrange(2) for _ in range(num_devices)]
    pairs = None
    if not is_uniform:
        by_node = rng.random() < 0.5
        pairs = [
            [
                (FAST if nodes[i] == nodes[j] else SLOW)
                if by_node
                else (rng.choice([1e7, 1e8, 1e9]), rng.choice([1e-4, 1e-3, 3e-3]))
                for j in range(num_devices)
            ]
            for i in range(num_devices)
        ]
    return direct_table(
        classes,
        num_layers,
        layer_bytes=100 if is_identical else [rng.randint(50, 200) for _ in range(num_layers)],
        kv_bytes=rng.choice([0, 5, 10]),
        embed_bytes=rng.choice([0, 40]),
        head_bytes=rng.choice([0, 60]),
        tied_saving_bytes=rng.choice([0, 30]),
        workspace_bytes=rng.choice([0, 20]),
        batch_sizes=(1, 2, 4),
        tokens_per_sequence=2.0,
        hop_bytes_per_token=rng.choice([0, 10000]),
        latency_s=rng.choice([0.0, 1e-3]),
        bytes_per_s=1e8,
        pair_links=pairs,
        nodes=nodes,
    )


def random_instance(
    seed: int, num_devices: int, num_layers: int, *, objective: str, is_uniform: bool, is_identical: bool
) -> PlacementInstance:
    """`objective` is "interval" (K = 1 or 4) or "throughput" (with and without caps)."""
    rng = random.Random(seed)
    chosen: Objective
    if objective == "interval":
        chosen = IntervalObjective(rng.choice([1, 4]))
    else:
        chosen = ThroughputObjective(
            rng.choice([2, 4]), max_interval_s=rng.choice([None, 0.2, 0.05]), max_in_flight=rng.choice([None, 8])
        )
    table = random_table(seed, num_devices, num_layers, is_uniform=is_uniform, is_identical=is_identical)
    return PlacementInstance(table, chosen, f"{objective}-{seed}")


def with_group(table: CostTable, members: tuple[int, ...], device: int) -> CostTable:
    """Turn a device into a tensor-parallel group of the cards of others, which it then excludes."""
    cards = [(d,) for d in range(table.num_devices)]
    cards[device] = members
    numbered = {c: i for i, c in enumerate(sorted({c for group in cards for c in group}))}
    links = np.array(table.link_class)
    links[device, list(members)] = links[list(members), device] = -1
    return replace(table, device_cards=tuple(tuple(numbered[c] for c in group) for group in cards), link_class=links)
