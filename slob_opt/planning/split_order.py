"""Layers of each stage of a pipeline in a given order, at an interval that it reaches."""

from __future__ import annotations

import numpy as np

from slob_opt.planning.groups import ShapeCosts


def layers_in_order(costs: ShapeCosts, order: tuple[int, ...], num_layers: int, interval: float) -> list[int]:
    """Return the layers of each device in an order that reaches an interval (ticks)."""
    per_stage = float(np.floor(interval / costs.num_micro_batches))
    layers, remaining = [1] * len(order), num_layers - len(order)
    if len(order) == 1:
        return [num_layers]
    for i in sorted(range(len(order)), key=lambda i: (costs.layer[order[i]], i)):
        d = order[i]
        extra, cap = 0.0, costs.cap[d]
        if i == 0:
            extra, cap = costs.embed[d], costs.cap_first[d]
        elif i == len(order) - 1:
            extra, cap = costs.head[d], costs.cap_last[d]
        budget = per_stage - costs.fixed[d] - extra
        most = min(float(np.floor(budget / costs.layer[d])), float(cap)) if costs.layer[d] > 0 else float(cap)
        take = int(min(remaining, most - 1))
        layers[i] += take
        remaining -= take
    return layers
