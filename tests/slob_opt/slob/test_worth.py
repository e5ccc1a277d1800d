"""What a delay of requests in a lane costs, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from serving_setups import fixed_clock

from slob_opt.scheduling.columns import RequestColumns
from slob_opt.scheduling.policy import LaneView, PipelineLimits
from slob_opt.scheduling.records import Arrival
from slob_opt.slob.urgency import Reading
from slob_opt.slob.worth import Worth


def worth_at(now_s: float, *arrivals: Arrival, uses_priority: bool = True) -> tuple[Worth, np.ndarray]:
    columns = RequestColumns()
    slots = np.array([columns.enter(arrival, 0, 0) for arrival in arrivals])
    limits = PipelineLimits(1, 8, 400, 16, 512)
    clock = fixed_clock((2_000_000, 1_000_000))
    none = np.zeros(0, np.int64)
    view = LaneView(int(now_s * 1e9), 0, 0, limits, columns, none, slots, 8, 400, 0, clock, False)
    return Worth(view, Reading(), 256, 0.0, uses_priority), slots


def test_first_tokens_are_due_after_the_patience_of_their_client() -> None:
    worth, slots = worth_at(0.4, Arrival(0, 10, 16, 1.0), Arrival(1, 10, 16, 1.0, 3.0, 0.1))
    due, tpot = worth.due_s(slots)
    assert due == pytest.approx([0.6, 2.6])
    assert tpot == pytest.approx([1 / 5.3, 0.1])
    assert worth.slack_s(slots) == pytest.approx(0.6)


def test_nothing_is_lost_before_it_is_due() -> None:
    worth, slots = worth_at(0.0, Arrival(0, 10, 16, 1.0))
    assert worth.of_delay(slots, 0.2, 1.0) == pytest.approx([0.0])


def test_a_single_token_loses_its_weight_by_lateness() -> None:
    # One token, due at 1 s: 0 s late it has all its worth, 5 s late half. It's taken to be followed by 8 at most.
    worth, slots = worth_at(1.0, Arrival(0, 10, 1, 1.0))
    reading = Reading()
    total = float(reading.total_weight(np.array(8.0)))
    first = 10.0 * 0.5 / total
    found = worth.of_delay(slots, 0.0, 5.0)[0]
    assert first < found < 0.5


def test_a_hopeless_request_loses_less_by_waiting_than_one_that_is_just_late() -> None:
    near, slots = worth_at(2.0, Arrival(0, 10, 100, 1.0))
    far, _ = worth_at(100.0, Arrival(0, 10, 100, 1.0))
    assert far.of_delay(slots, 0.0, 1.0)[0] < 0.05 * near.of_delay(slots, 0.0, 1.0)[0]


def test_priorities_multiply() -> None:
    for uses, ratio in ((True, 4.0), (False, 1.0)):
        worth, slots = worth_at(2.0, Arrival(0, 10, 100, 1.0), Arrival(1, 10, 100, 4.0), uses_priority=uses)
        loss = worth.of_delay(slots, 0.0, 1.0)
        assert loss[1] / loss[0] == pytest.approx(ratio)


def test_streams_bear_what_prompts_are_worth() -> None:
    # A stream that is due now against a prompt that gains nothing, and one that gains a lot.
    worth, slots = worth_at(1.0, Arrival(0, 10, 100, 1.0))
    worth = Worth(worth.view, Reading(), 256, 0.02, True)
    work = np.array([2.0])
    little = worth.bearable_s(slots, work, np.array([0.0]))
    much = worth.bearable_s(slots, work, np.array([100.0]))
    assert little <= 1 / 64
    assert much >= 2.0
