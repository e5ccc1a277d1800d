"""Shortest routes through subsets against all permutations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slob_opt.planning.subset_routes import compatible_subsets, route_lengths, route_order


@pytest.mark.parametrize("seed", range(8))
def test_routes_match_permutations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 6))
    hop = rng.integers(1, 50, (d, d)).astype(float)
    hop[rng.random((d, d)) < 0.15] = np.inf
    routes = route_lengths(hop)
    for mask in range(1, 1 << d):
        members = [i for i in range(d) if mask >> i & 1]
        for first, last in itertools.product(range(d), repeat=2):
            options = [
                sum(hop[a, b] for a, b in itertools.pairwise(order))
                for order in itertools.permutations(members)
                if order[0] == first and order[-1] == last
            ]
            assert routes[mask, first, last] == min(options, default=np.inf)
            if np.isfinite(routes[mask, first, last]):
                order = route_order(hop, members, first, last)
                assert sorted(order) == members
                assert sum(hop[a, b] for a, b in itertools.pairwise(order)) == routes[mask, first, last]


def test_subsets_whose_devices_share_cards() -> None:
    allowed = compatible_subsets(((0,), (1,), (0, 1)))
    assert np.flatnonzero(allowed).tolist() == [0, 1, 2, 3, 4]
