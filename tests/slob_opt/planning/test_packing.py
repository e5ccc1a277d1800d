"""Packings against enumeration of every multiset."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slob_opt.planning.packing import best_values, num_states, pack, trace


def best_by_enumeration(cards: np.ndarray, usage: np.ndarray, rates: np.ndarray) -> float:
    most = [int(min(c // n for c, n in zip(cards, row, strict=True) if n)) for row in usage]
    best = 0.0
    for copies in itertools.product(*(range(m + 1) for m in most)):
        if np.all(np.array(copies) @ usage <= cards):
            best = max(best, float(np.array(copies) @ rates))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_matches_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools, patterns = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    cards = rng.integers(1, 6, pools)
    usage = rng.integers(0, 4, (patterns, pools))
    usage[usage.sum(axis=1) == 0, 0] = 1
    rates = rng.integers(1, 20, patterns) / 7.0
    value, chosen = pack(cards, usage, rates)
    assert value == pytest.approx(best_by_enumeration(cards, usage, rates), rel=1e-12)
    assert sum(rates[i] for i in chosen) == pytest.approx(value, rel=1e-12)
    assert np.all(usage[list(chosen)].sum(axis=0) <= cards)


def test_known_packing_and_ties() -> None:
    # Three cards: a pair (5) and a card (2) make 7; three cards alone make 6.
    assert pack(np.array([3]), np.array([[2], [1]]), np.array([5.0, 2.0])) == (7.0, (0, 1))
    assert pack(np.array([4]), np.array([[2], [1]]), np.array([4.0, 2.0]))[0] == 8.0


def test_nothing_fits_or_earns() -> None:
    assert pack(np.array([1]), np.array([[2]]), np.array([5.0])) == (0.0, ())
    assert pack(np.array([2, 2]), np.zeros((0, 2), np.int64), np.zeros(0)) == (0.0, ())
    assert pack(np.array([2]), np.array([[1]]), np.array([0.0])) == (0.0, ())


def test_states() -> None:
    assert num_states(np.array([3, 4])) == 20.0


@pytest.mark.parametrize("seed", range(6))
def test_best_values_of_every_box(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cards = np.array([3, 2])
    usage = np.array([[a, b] for a in range(4) for b in range(3) if a + b])
    rates = rng.random(len(usage)) * (rng.random(len(usage)) < 0.7)
    value, kept = best_values(cards, usage, rates)
    assert value.shape == (4, 3)
    for a in range(4):
        for b in range(3):
            assert value[a, b] == pytest.approx(pack(np.array([a, b]), usage, rates)[0])
    assert trace(value, cards, usage, rates, kept) == pack(cards, usage, rates)[1]
