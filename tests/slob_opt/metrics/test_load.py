"""Loads of stages by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.metrics.load import (
    StageLoad,
    bubble_share,
    imbalance,
    load_figures,
    padding_waste,
    pipeline_imbalance,
    stage_imbalance,
    starved_share,
    utilisation,
)


def flow(stage_ns: list[int], num_batches: int) -> list[StageLoad]:
    """Micro-batches that enter one after the other and never wait but for the stage before or the batch before."""
    free, first, busy = [0] * len(stage_ns), [-1] * len(stage_ns), [0] * len(stage_ns)
    for _ in range(num_batches):
        at = 0
        for stage, time in enumerate(stage_ns):
            at = max(at, free[stage])
            first[stage] = at if first[stage] < 0 else first[stage]
            at += time
            free[stage], busy[stage] = at, busy[stage] + time
    return [StageLoad(b, f, e, 0, 0) for b, f, e in zip(busy, first, free, strict=True)]


@pytest.mark.parametrize(("num_batches", "expected"), [(1, 0.75), (2, 0.6), (4, 0.4286), (8, 0.2727)])
def test_bubbles_of_equal_stages(num_batches: int, expected: float) -> None:
    """Case P34: the share of bubbles of M micro-batches through S = 4 stages is (S - 1) / (S - 1 + M)."""
    found = bubble_share([flow([10, 10, 10, 10], num_batches)])
    assert found == pytest.approx(expected, abs=5e-5)
    assert found == pytest.approx(3 / (3 + num_batches))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 20))
def test_bubbles_of_any_stages(stage_ns: list[int], num_batches: int) -> None:
    """Makespan is fill plus (M - 1) bottlenecks; what stages don't work in it is bubbles."""
    makespan = sum(stage_ns) + (num_batches - 1) * max(stage_ns)
    expected = 1 - num_batches * sum(stage_ns) / (len(stage_ns) * makespan)
    assert bubble_share([flow(stage_ns, num_batches)]) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.lists(st.integers(1, 1000), min_size=1, max_size=8), min_size=1, max_size=8))
def test_padding_waste_of_rectangles(batches: list[list[int]]) -> None:
    """Case S11: waste is 1 - sum(len) / sum(max * batch)."""
    rectangles = [(max(lengths) * len(lengths), sum(lengths)) for lengths in batches]
    stage = StageLoad(0, None, None, sum(r for r, _ in rectangles), sum(r - s for r, s in rectangles))
    expected = 1 - sum(s for _, s in rectangles) / sum(r for r, _ in rectangles)
    assert padding_waste([[stage]]) == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1))
def test_sorted_grouping_wastes_no_more_than_arrival_order(seed: int) -> None:
    """Case S11: fifty requests of 10, five of 100 and one of 1,000 tokens, mixed, in batches of 8, on any seed."""
    lengths = np.random.default_rng(seed).permutation(np.array([10] * 50 + [100] * 5 + [1000]))

    def waste(order: np.ndarray) -> float:
        rows = order.reshape(-1, 8)
        computed = int((rows.max(axis=1) * 8).sum())
        return padding_waste([[StageLoad(0, None, None, computed, computed - int(order.sum()))]])

    assert waste(np.sort(lengths)) <= waste(lengths)


def test_two_pipelines() -> None:
    first = [StageLoad(60, 0, 100, 10, 5, starved_ns=10), StageLoad(30, 20, 80, 10, 5, starved_ns=0)]
    second = [StageLoad(20, 100, 140, 20, 0, starved_ns=4)]
    both = [first, second]
    assert bubble_share(both) == pytest.approx(1 - 110 / (2 * 100 + 40))
    assert starved_share(both) == pytest.approx(14 / 240)
    assert utilisation(both, 200) == pytest.approx(110 / 600)
    assert stage_imbalance(both) == pytest.approx(60 / 45)
    assert pipeline_imbalance(both) == pytest.approx(60 / 40)
    assert padding_waste(both) == 10 / 40
    assert load_figures(both, 200)["starved_share"] == pytest.approx(14 / 240)


def test_nothing_ran() -> None:
    idle = [[StageLoad(0, None, None, 0, 0)]]
    assert load_figures(idle, 10) == {
        "padding_waste": 0.0,
        "bubble_share": 0.0,
        "utilisation": 0.0,
        "stage_imbalance": 1.0,
        "pipeline_imbalance": 1.0,
    }
    assert load_figures([], 10)["utilisation"] == 0.0
    assert imbalance([]) == 1.0


def test_starving_that_nobody_measured_is_no_zero() -> None:
    stages = [StageLoad(5, 0, 10, 0, 0, starved_ns=1), StageLoad(5, 0, 10, 0, 0)]
    assert starved_share([stages]) is None
    assert "starved_share" not in load_figures([stages], 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"busy_ns": 11}, "busy 11 ns of the 10 ns"),
        ({"busy_ns": -1}, "busy -1 ns"),
        ({"last_ns": None}, "expected both or none"),
        ({"padding_tokens": 9}, "9 pads among 8 computed tokens"),
        ({"starved_ns": -1}, "starved_ns is -1"),
    ],
)
def test_numbers_that_contradict_each_other(change: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"busy_ns": 5, "first_ns": 0, "last_ns": 10, "computed_tokens": 8, "padding_tokens": 1}
    with pytest.raises(InputError, match=message):
        StageLoad(**(right | change))
