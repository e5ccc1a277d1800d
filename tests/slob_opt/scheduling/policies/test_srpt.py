"""Shortest remaining time first, by hand: an iteration of one request takes 10 ms, a prompt token 0.1 ms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lane_views import Held, lane_view
from serving_setups import chat, fixed_clock, play

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.srpt import SrptPolicy
from slob_opt.scheduling.policy import PipelineLimits, Policy

CLOCK = fixed_clock((9_900_000, 100_000))
ONE_ROW = PipelineLimits(1, 1, 1000, 16, 512)


def test_remaining_time_by_hand() -> None:
    """100 tokens to come are 1 s. A prompt of 51 takes 5 ms before its last token; with 10 of output, 105 ms."""
    rows, waiting = [Held(90, 11, predicted=111)], [Held(51, predicted=10), Held(51, max_new=20)]
    view = lane_view(CLOCK, ONE_ROW, rows, waiting, free_blocks=900)
    found = SrptPolicy.remaining_s(view, np.concatenate([view.rows, view.waiting]))
    assert found == pytest.approx([1.0, 0.105, 0.205])  # without a prediction the client's limit stands in


@pytest.mark.parametrize(("output", "gives_way"), [(10, True), (98, True), (99, False), (500, False)])
def test_a_longer_one_gives_way_where_the_sum_of_times_gets_shorter(output: int, gives_way: bool) -> None:
    """The row needs 1 s and 10 ms to compute its 100 cached tokens again: worth it for less than 0.99 s, not more."""
    row, new = Held(90, 11, predicted=111), Held(51, predicted=output)
    plan = SrptPolicy().decide(lane_view(CLOCK, ONE_ROW, [row], [new], free_blocks=900))
    assert plan is not None
    assert (plan.slots.tolist(), plan.preempt.tolist()) == (([1], [0]) if gives_way else ([0], []))


def test_the_shortest_prompt_is_computed_first() -> None:
    """A budget of 64: one decode, the shortest whole, and a chunk of the next."""
    limits = replace(ONE_ROW, max_rows=8, max_chunk_tokens=64)
    waiting = [Held(300, predicted=300), Held(100, predicted=50), Held(20, predicted=5)]
    plan = SrptPolicy().decide(lane_view(CLOCK, limits, [Held(10, 1, predicted=9)], waiting, free_blocks=900))
    assert plan is not None
    assert dict(zip(plan.slots.tolist(), plan.tokens.tolist(), strict=True)) == {0: 1, 3: 20, 2: 43}


def test_one_server_runs_the_textbook_order() -> None:
    """Jobs of 40, 10 and 20 tokens at 0, 0.05 and 0.06 s: 10 and 20 overtake."""
    workload = Workload.of("three", [0.0, 0.05, 0.06], [5, 5, 5], [40, 10, 20])
    found = play(workload, SrptPolicy(), CLOCK, ONE_ROW)
    ends = {request: found.times(request)[-1] for request in range(3)}
    assert sorted(ends, key=ends.__getitem__) == [1, 2, 0]


def mean_time_s(policy: Policy, limits: PipelineLimits) -> float:
    workload = chat(200, 6.0, seed=2, max_output=300)
    found = play(workload, policy, CLOCK, limits)
    return float(np.mean([found.times(r)[-1] - workload.arrival_ns[r] for r in range(200)])) / 1e9


def test_knowing_lengths_shortens_the_mean_time_where_rows_are_short() -> None:
    limits = PipelineLimits(1, 4, 4000, 16, 512)
    assert mean_time_s(SrptPolicy(), limits) < 0.7 * mean_time_s(ChunkedPolicy(), limits)
