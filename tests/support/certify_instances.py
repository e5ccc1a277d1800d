"""Random tiny instances for tests of the certifier; small enough for the exhaustive planner."""

from __future__ import annotations

import numpy as np

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective


def random_instance(
    seed: int, *, is_throughput: bool, has_pair_links: bool = False, has_unequal_layers: bool = False
) -> PlacementInstance:
    """Return an instance of at most four devices and six layers in which memory, hops and end stages all matter."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 4))
    counts = [int(n) for n in rng.integers(1, 3, num_classes)]
    while sum(counts) > 4:
        counts[counts.index(max(counts))] -= 1
    num_devices, num_layers = sum(counts), int(rng.integers(2, 7))

    def layer_time() -> float | list[float]:
        return (
            [float(t) for t in rng.uniform(0.01, 0.1, num_layers)]
            if has_unequal_layers
            else float(rng.uniform(0.01, 0.1))
        )

    classes = [
        DirectClass(
            f"c{i}",
            counts[i],
            int(rng.integers(25, 90)),
            layer_time(),
            layer_per_sequence_s=float(rng.uniform(0, 0.01)),
            fixed_s=float(rng.uniform(0, 0.02)),
            embed_s=float(rng.uniform(0, 0.02)),
            head_s=float(rng.uniform(0, 0.04)),
        )
        for i in range(num_classes)
    ]
    links = None
    if has_pair_links:
        links = [
            [(float(rng.choice([1e6, 1e5, 2e4])), float(rng.choice([1e-3, 5e-3, 2e-2]))) for _ in range(num_devices)]
            for _ in range(num_devices)
        ]
    table = direct_table(
        classes,
        num_layers,
        layer_bytes=[int(b) for b in rng.integers(6, 14, num_layers)] if has_unequal_layers else 10,
        kv_bytes=1,
        embed_bytes=4,
        head_bytes=6,
        tied_saving_bytes=3,
        workspace_bytes=2,
        batch_sizes=(1, 2, 4),
        hop_bytes_per_token=400,
        latency_s=float(rng.uniform(0, 0.01)),
        bytes_per_s=1e5,
        pair_links=links,
    )
    objective: Objective = IntervalObjective(int(rng.integers(1, 5)))
    if is_throughput:
        objective = ThroughputObjective(4, float(rng.choice([0.3, 1.0, 3.0])), 8)
    return PlacementInstance(table, objective, f"random-{seed}")
