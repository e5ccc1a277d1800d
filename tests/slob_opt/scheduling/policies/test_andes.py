"""Andes, by hand: an iteration takes 50 ms for each request in it, a prompt token no time worth mentioning."""

from __future__ import annotations

import numpy as np
import pytest
from lane_views import Held, lane_view
from serving_setups import chat, fixed_clock, play

from slob_opt.errors import InputError
from slob_opt.metrics.qoe import qoe
from slob_opt.scheduling.policies.andes import AndesPolicy, Metric
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy
from slob_opt.scheduling.policy import PipelineLimits, Policy

SLOW = fixed_clock((0, 50_000_000))
QUICK = fixed_clock((10_000_000, 1_000))
LIMITS = PipelineLimits(1, 16, 1000, 16)
PLAIN = AndesPolicy(ttft_s=1.0, tokens_per_s=1.0, horizon_s=11.0)
"""A reader who waits a second and reads a token a second; the ideal area up to 11 s is 10 * 10 / 2 = 50."""


def gain(policy: AndesPolicy, held: Held, pace_s: float, *, is_row: bool, now_s: float = 0.0) -> float:
    rows, waiting = ([held], []) if is_row else ([], [held])
    view = lane_view(QUICK, LIMITS, rows, waiting, free_blocks=900, now_s=now_s)
    slots = view.rows if is_row else view.waiting
    return float(policy.gains(policy._streams(view, slots), pace_s)[0])


@pytest.mark.parametrize(
    ("pace_s", "expected"),
    [
        (0.5, 1.0),  # read from 0.5 s on, before it's due: all that there is to gain
        (2.0, (9.0**2 / 4) / 50),  # from 2 s on a token every 2 s: 20.25 of 50
        (11.0, 0.0),  # nothing comes before the horizon
    ],
)
def test_gain_of_a_new_request_is_its_area(pace_s: float, expected: float) -> None:
    assert gain(PLAIN, Held(1), pace_s, is_row=False) == pytest.approx(expected)


def test_a_reader_with_a_buffer_gains_nothing() -> None:
    """At 3 s it has 20 tokens of which two are due: it reads until 21 s, beyond the horizon at 14 s."""
    held = Held(1, generated=20, last_token_s=2.9)
    assert gain(PLAIN, held, 0.1, is_row=True, now_s=3.0) == 0.0
    assert gain(PLAIN, Held(1, generated=2, last_token_s=2.9), 0.1, is_row=True, now_s=3.0) > 0.3


@pytest.mark.parametrize("pace_s", [0.5, 2.0])
def test_gain_is_the_difference_of_quality_at_the_horizon(pace_s: float) -> None:
    """Against the metric: one token at 4 s, then either nothing or one every `pace_s` from now, 5 s, on."""
    found = gain(PLAIN, Held(1, generated=1, last_token_s=4.0), pace_s, is_row=True, now_s=5.0)
    more = np.arange(5.0 + pace_s, 16.0, pace_s)
    waits, serves = (qoe(np.array([4.0, *times]), 1000, 1.0, 1.0, 16.0) for times in ([], more))
    assert found == pytest.approx(serves - waits, abs=0.03)  # a line for stairs


def test_a_late_reader_takes_the_kv_of_one_who_has_enough_to_read() -> None:
    """Blocks are short: a new request needs what the buffered one holds, and the one that is behind stays."""
    limits = PipelineLimits(1, 16, 40, 16)
    buffered, behind = Held(100, 400, last_token_s=4.9), Held(100, 5, last_token_s=4.9)
    # 32 blocks and 7 of 40 are held; the new one needs 3 and one to grow.
    policy = AndesPolicy(max_preempted_share=0.5)
    plan = policy.decide(lane_view(QUICK, limits, [buffered, behind], [Held(40)], free_blocks=1, now_s=5.0))
    assert plan is not None
    assert (sorted(plan.slots.tolist()), plan.preempt.tolist()) == ([1, 2], [0])
    capped = AndesPolicy(max_preempted_share=0.0).decide(
        lane_view(QUICK, limits, [buffered, behind], [Held(40)], free_blocks=1, now_s=5.0)
    )
    assert capped is not None
    assert capped.preempt.size == 0


def test_batches_shrink_to_what_readers_keep_up_with_unless_more_is_worth_it() -> None:
    """5.3 tokens/s are 189 ms: three requests of 50 ms each, not four; up to eight of them are tried."""
    rows = [Held(10, 10, last_token_s=1.0) for _ in range(8)]
    view = lane_view(SLOW, LIMITS, rows, [], free_blocks=900, now_s=1.0)
    sizes = AndesPolicy()._sizes(view, view.rows, 8, 20.0)
    assert (sizes[0], sizes[-1]) == (3, 8)


def test_nobody_is_paused_where_all_can_be_served() -> None:
    rows, waiting = [Held(10, 60, last_token_s=1.0), Held(10, 1, last_token_s=1.0)], [Held(30), Held(50)]
    plan = AndesPolicy().decide(lane_view(QUICK, LIMITS, rows, waiting, free_blocks=900, now_s=1.0))
    assert plan is not None
    assert sorted(plan.slots.tolist()) == [0, 1, 2, 3]


def test_satisfaction_as_metric_prefers_the_first_token() -> None:
    policy = AndesPolicy(metric=Metric.SATISFACTION)
    first = gain(policy, Held(10, arrival_s=-1.0), 0.02, is_row=False)
    later = gain(policy, Held(10, generated=5, arrival_s=-2.0), 0.02, is_row=True)
    ahead = gain(policy, Held(10, generated=900, arrival_s=-2.0), 0.02, is_row=True)
    assert first > later > ahead >= 0.0


def mean_qoe(policy: Policy) -> float:
    """Small KV memory and more requests than it holds."""
    workload = chat(150, 5.0, seed=4, max_output=200)
    found = play(workload, policy, fixed_clock((30_000_000, 30_000, 50_000)), PipelineLimits(1, 64, 400, 16))
    values = []
    for request in range(150):
        since = (np.array(found.times(request)) - workload.arrival_ns[request]) / 1e9
        values.append(qoe(since, since.size, 1.0, 5.3))
    return float(np.mean(values))


def test_quality_is_better_than_first_come_first_served_under_load() -> None:
    assert mean_qoe(AndesPolicy()) > mean_qoe(OrcaPagedPolicy()) + 0.1


@pytest.mark.parametrize("wrong", [{"horizon_s": 0.0}, {"watermark": 1.1}, {"weight_decay": 1.0}, {"scale_s": -1.0}])
def test_wrong_parameters(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        AndesPolicy(**wrong)  # type: ignore[arg-type]
