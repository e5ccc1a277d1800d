"""Skip-join multi-level feedback queue, by hand: an iteration of one request takes 10 ms, a prompt token 0.1 ms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lane_views import Held, lane_view
from serving_setups import fixed_clock

from slob_opt.errors import InputError
from slob_opt.scheduling.policies.mlfq import MlfqPolicy
from slob_opt.scheduling.policy import PipelineLimits

CLOCK = fixed_clock((9_900_000, 100_000))
LIMITS = PipelineLimits(1, 8, 1000, 16)


@pytest.mark.parametrize(("prompt", "level"), [(1, 0), (100, 0), (101, 1), (200, 1), (400, 2), (401, 3), (1600, 4)])
def test_a_long_prompt_joins_further_down(prompt: int, level: int) -> None:
    """Quanta are 10, 20, 40, ... ms; a request joins the first that holds its prompt."""
    view = lane_view(CLOCK, LIMITS, [], [Held(prompt)], free_blocks=1000)
    assert MlfqPolicy().levels(view, view.waiting)[0].tolist() == [level]


@pytest.mark.parametrize(
    ("generated", "level", "steps"), [(1, 1, 2), (2, 1, 1), (3, 2, 4), (6, 2, 1), (7, 3, 8), (10**6, 11, math.inf)]
)
def test_who_has_used_a_quantum_falls(generated: int, level: int, steps: float) -> None:
    """A prompt of 10 ms uses the first quantum; the next two tokens the second of 20 ms, four more the third."""
    view = lane_view(CLOCK, LIMITS, [Held(100, generated)], [], free_blocks=1000)
    levels, until = MlfqPolicy().levels(view, view.rows)
    assert (levels.tolist(), until.tolist()) == ([level], [steps])


def test_who_joined_further_down_falls_later() -> None:
    """A prompt of 40 ms joined the third queue and has used it; with 70 ms more it has used the next, of 80 ms, not."""
    view = lane_view(CLOCK, LIMITS, [Held(400, 1), Held(400, 8), Held(400, 9)], [], free_blocks=1000)
    assert MlfqPolicy().levels(view, view.rows)[0].tolist() == [3, 3, 4]


def test_who_waited_too_long_rises() -> None:
    rows = [Held(400, 8, last_token_s=1.0), Held(400, 8, last_token_s=1.1)]
    view = lane_view(CLOCK, LIMITS, rows, [Held(1600)], free_blocks=1000, now_s=11.05)
    slots = np.concatenate([view.rows, view.waiting])
    assert MlfqPolicy(starvation_s=10.0).levels(view, slots)[0].tolist() == [0, 3, 0]


def test_a_new_short_request_goes_before_one_that_had_its_share() -> None:
    """The other is paused: it keeps its KV."""
    view = lane_view(CLOCK, LIMITS, [Held(100, 7)], [Held(100)], free_blocks=1000)
    plan = MlfqPolicy(max_batch=1).decide(view)
    assert plan is not None
    assert (plan.slots.tolist(), plan.tokens.tolist(), plan.preempt.tolist()) == ([1], [100], [])


def test_a_short_prompt_overtakes_a_long_one() -> None:
    view = lane_view(CLOCK, LIMITS, [], [Held(800), Held(50, arrival_s=0.1)], free_blocks=1000, now_s=0.2)
    plan = MlfqPolicy(max_batch=1).decide(view)
    assert plan is not None
    assert plan.slots.tolist() == [1]


def test_a_plan_holds_until_somebody_falls_or_starves() -> None:
    rows = [Held(100, 7, last_token_s=0.1), Held(100, 3, last_token_s=0.5)]
    view = lane_view(CLOCK, LIMITS, rows, [], free_blocks=1000, now_s=0.5)
    plan = MlfqPolicy(max_batch=1).decide(view)
    assert plan is not None
    assert (plan.slots.tolist(), plan.max_repeats) == ([1], 4)  # in the third queue until its seventh token
    plan = MlfqPolicy(max_batch=1, starvation_s=0.4201).decide(view)
    assert plan is not None
    assert plan.max_repeats == 2  # the other starves in 20.1 ms, two iterations away


def test_those_who_had_most_lose_their_kv_to_who_cannot_go_on() -> None:
    """Both rows fill their blocks and none is free: the lower queue's gives way."""
    view = lane_view(CLOCK, LIMITS, [Held(100, 29), Held(127, 2)], [], free_blocks=0)
    plan = MlfqPolicy().decide(view)
    assert plan is not None
    assert (plan.slots.tolist(), plan.preempt.tolist()) == ([1], [0])


def test_waiting_ones_take_kv_only_where_they_may() -> None:
    view = lane_view(CLOCK, LIMITS, [Held(100, 7)], [Held(50)], free_blocks=2)
    kept, taken = MlfqPolicy().decide(view), MlfqPolicy(takes_kv=True).decide(view)
    assert kept is not None
    assert taken is not None
    assert (kept.slots.tolist(), kept.preempt.tolist()) == ([0], [])
    assert (taken.slots.tolist(), taken.preempt.tolist()) == ([1], [0])


@pytest.mark.parametrize(
    "wrong", [{"max_batch": 0}, {"num_levels": 0}, {"quantum_s": 0.0}, {"quantum_growth": 1.0}, {"starvation_s": -1.0}]
)
def test_wrong_parameters(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        MlfqPolicy(**wrong)  # type: ignore[arg-type]
