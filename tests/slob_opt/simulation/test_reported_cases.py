"""Pipelines in simulation: situations that users reported, each with its right behaviour."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_setups import LLAMA, fixed_clock, play

from slob_opt.metrics.load import StageLoad, bubble_share
from slob_opt.problem.device import Link
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy
from slob_opt.scheduling.policy import PipelineLimits

MS = 1_000_000


def bubbles(stages: int, batches: int) -> float:
    """M micro-batches of a request each, all at once, through S stages of 10 ms."""
    workload = Workload.of("at once", [0.0] * batches, [1] * batches, [1] * batches)
    limits = PipelineLimits(batches, batches, 1000)
    found = play(workload, OrcaPagedPolicy(), fixed_clock(*[(10 * MS,)] * stages), limits)
    uses = found.result.stages[0]
    return bubble_share([[StageLoad(u.busy_ns, u.first_ns, u.last_ns, u.tokens, u.padding_tokens) for u in uses]])


@pytest.mark.parametrize(("batches", "expected"), [(1, 0.75), (2, 0.6), (4, 0.4286), (8, 0.2727)])
def test_bubbles_of_four_stages(batches: int, expected: float) -> None:
    """Case P34: (S - 1) / (S - 1 + M) comes out of the simulation by itself."""
    assert bubbles(4, batches) == pytest.approx(expected, abs=5e-5)


@given(st.integers(1, 7), st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_bubbles_of_any_pipeline(stages: int, batches: int) -> None:
    """Case P34 for any numbers."""
    assert bubbles(stages, batches) == pytest.approx((stages - 1) / (stages - 1 + batches))


def test_one_request_pays_every_hop() -> None:
    """Case P36: four stages of 5 ms with hops of 1 ms take 23 ms and the token's way back, one device 20 ms."""
    workload = Workload.of("one", [0.0], [1], [50])
    limits = PipelineLimits(1, 1, 100)
    link = Link(1e18, 1e-3)
    found = play(workload, OrcaPagedPolicy(), fixed_clock(*[(5 * MS,)] * 4, link=link), limits).times(0)
    assert set(np.diff(found).tolist()) == {24 * MS}
    alone = play(workload, OrcaPagedPolicy(), fixed_clock((20 * MS,)), limits).times(0)
    assert set(np.diff(alone).tolist()) == {20 * MS}


def pace_ms(lanes: int) -> float:
    """Time between tokens of all lanes together: two stages of 8 ms, and a link that is busy 32 ms with a row."""
    row_bytes = LLAMA.hidden_size * 2
    count = 40
    workload = Workload.of("lanes", [0.0] * lanes, [1] * lanes, [count] * lanes)
    clock = fixed_clock((8 * MS,), (8 * MS,), link=Link(row_bytes / 0.032, 0.0))
    found = play(workload, OrcaPagedPolicy(), clock, PipelineLimits(lanes, lanes, 1000))
    times = np.sort(np.concatenate([found.times(request) for request in range(lanes)]))
    middle = times[5 * lanes : -5 * lanes]
    return float((middle[-1] - middle[0]) / (middle.size - 1)) / MS


def test_a_slow_link_is_the_bottleneck_and_computing_overlaps_with_it() -> None:
    """Case P37: alone, a token takes both stages and the link; with more micro-batches the link alone sets the pace."""
    assert pace_ms(1) == pytest.approx(8 + 32 + 8, abs=0.1)
    for lanes in (2, 3, 6):
        assert pace_ms(lanes) == pytest.approx(32.0, rel=1e-3)
