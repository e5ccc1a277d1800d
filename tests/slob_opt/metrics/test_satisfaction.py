"""Satisfaction against its definition, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.metrics.satisfaction import Decay, SatisfactionMeter, SatisfactionSpec, satisfaction_summary

PHI = {
    Decay.HYPERBOLIC: lambda x: 1 / (1 + x),
    Decay.EXPONENTIAL: lambda x: math.exp(-x),
    Decay.QUADRATIC: lambda x: max(0.0, 1 - x * x),
}


def by_hand(spec: SatisfactionSpec, arrival_s: float, token_s: list[float], length: int) -> float:
    weights = [spec.first_weight] + [max(spec.weight_floor, spec.weight_decay ** (k - 1)) for k in range(2, length + 1)]
    worth = 0.0
    for k, time in enumerate(token_s, start=1):
        late = time - (arrival_s + spec.ttft_s + (k - 1) / spec.tokens_per_s)
        worth += weights[k - 1] * (1.0 if late <= 0 else PHI[spec.decay](late / spec.scale_s))
    return worth / sum(weights)


@given(st.data())
def test_is_the_weighted_sum(data: st.DataObject) -> None:
    spec = SatisfactionSpec(decay=data.draw(st.sampled_from(list(Decay))))
    arrival = data.draw(st.integers(0, 10**12))
    gaps = data.draw(st.lists(st.integers(0, 4 * 10**9), max_size=40))
    times = arrival + np.cumsum(np.array(gaps, np.int64))
    length = len(gaps) + data.draw(st.integers(0 if gaps else 1, 20))
    found = SatisfactionMeter(spec).of(arrival, times, length)
    assert found == pytest.approx(by_hand(spec, arrival / 1e9, (times / 1e9).tolist(), length), abs=1e-9)
    assert 0 <= found <= 1


def test_an_answer_that_stalls_for_ever_at_half() -> None:
    # 200 tokens, the first half on time: with the defaults 0.57 and not more, which the weights are chosen for.
    times = (np.arange(100) * 0.1 * 1e9).astype(np.int64)
    assert SatisfactionMeter(SatisfactionSpec()).of(0, times, 200) == pytest.approx(0.57, abs=0.005)


def test_own_targets_replace_the_defaults() -> None:
    meter = SatisfactionMeter(SatisfactionSpec())
    late = np.array([3_000_000_000, 4_000_000_000])
    assert meter.of(0, late, 2) < 1
    assert meter.of(0, late, 2, ttft_s=3.0, tpot_s=1.0) == 1.0
    assert meter.of(0, late, 2, ttft_s=3.0, tpot_s=0.5) < 1


def test_nothing_delivered_is_worth_nothing() -> None:
    assert SatisfactionMeter(SatisfactionSpec()).of(0, np.zeros(0, np.int64), 5) == 0.0


def test_answers_longer_than_the_table_at_hand() -> None:
    times = np.zeros(5000, np.int64)
    assert SatisfactionMeter(SatisfactionSpec()).of(0, times, 5000) == pytest.approx(1.0)


def test_summary() -> None:
    values = np.array([0.0, 0.5, 1.0, 1.0])
    found = satisfaction_summary(values, np.array([1.0, 1.0, 1.0, 5.0]))
    assert found["mean_satisfaction"] == 0.625
    assert found["weighted_mean_satisfaction"] == pytest.approx(6.5 / 8)
    assert found["p10_satisfaction"] == pytest.approx(0.15)
    with pytest.raises(InputError, match="no request"):
        satisfaction_summary(np.zeros(0))


@pytest.mark.parametrize(
    ("field", "value"), [("ttft_s", 0.0), ("tokens_per_s", float("inf")), ("scale_s", -1.0), ("weight_decay", 1.5)]
)
def test_wrong_parameters(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} is {value}"):
        SatisfactionSpec(**{field: value})
