"""Largest flow from source to sink when arcs and shared resources are limited, as one linear program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from slob_opt.errors import InputError

SOURCE, SINK = -1, -2
"""Node numbers of the two ends; all other nodes are numbered from 0."""

Arc = tuple[int, int]
"""From node to node."""


def largest_flow(
    capacity: Mapping[Arc, float], limits: Sequence[tuple[Mapping[Arc, float], float]], num_nodes: int
) -> tuple[float, dict[Arc, float]]:
    """Return the largest flow and the flow on each arc.

    Parameters
    ----------
    capacity
        Most flow on each arc; ``inf`` sets no limit.
    limits
        (weight by arc, largest weighted sum of flows) pairs.
    num_nodes
        Nodes between source and sink; what flows in flows out.

    Raises
    ------
    InputError
        When nothing limits the flow.
    """
    arcs = sorted(arc for arc, most in capacity.items() if most > 0)
    index = {arc: i for i, arc in enumerate(arcs)}
    if not any(a == SOURCE for a, _ in arcs) or not any(b == SINK for _, b in arcs):
        return 0.0, dict.fromkeys(arcs, 0.0)
    balance = [(v, i, 1.0) for (_, v), i in index.items() if v >= 0]
    balance += [(u, i, -1.0) for (u, _), i in index.items() if u >= 0]
    # Every row is divided by its limit, so that the solver's absolute tolerances are relative ones.
    scale = max([most for most in capacity.values() if math.isfinite(most)] + [0.0])
    scale = min([scale or math.inf] + [_alone(weights, most) for weights, most in limits if weights and most > 0])
    scale = scale if math.isfinite(scale) and scale > 0 else 1.0
    rows: list[tuple[int, int, float]] = []
    right: list[float] = []
    for weights, most in limits:
        entries = [(index[arc], w) for arc, w in weights.items() if arc in index and w > 0]
        if entries and math.isfinite(most):
            unit = most / scale if most > 0 else 1.0
            rows.extend((len(right), i, w / unit) for i, w in entries)
            right.append(1.0 if most > 0 else 0.0)
    gain = np.array([-1.0 if a == SOURCE else 0.0 for a, _ in arcs])
    solved = linprog(
        gain,
        A_ub=_matrix(rows, len(right), len(arcs)) if right else None,
        b_ub=right or None,
        A_eq=_matrix(balance, num_nodes, len(arcs)) if num_nodes else None,
        b_eq=np.zeros(num_nodes) if num_nodes else None,
        bounds=[(0.0, capacity[arc] / scale) for arc in arcs],
        method="highs",
    )
    if solved.x is None or solved.fun is None:  # no flow at all is allowed, so it can't be infeasible
        raise InputError("the flow has no limit: some way from source to sink has no capacity")
    flow = {arc: max(0.0, float(x)) * scale for arc, x in zip(arcs, solved.x, strict=True)}
    return float(-solved.fun) * scale, flow


def _alone(weights: Mapping[Arc, float], most: float) -> float:
    """Flow at which a limit binds by itself."""
    heaviest = max(weights.values())
    return most / heaviest if heaviest > 0 else math.inf


def _matrix(
    entries: Sequence[tuple[int, int, float]], num_rows: int, num_columns: int
) -> Any:  # scipy's stubs don't know that linprog takes sparse matrices
    """Sparse matrix of (row, column, value) entries."""
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return coo_array((value, (row, column)), shape=(num_rows, num_columns))
