"""Situations that users of other schedulers reported, each with its right behaviour."""

from __future__ import annotations

import numpy as np
import pytest
from lane_views import Held, lane_view
from serving_policies import POLICIES
from serving_setups import fixed_clock, play

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.mlfq import MlfqPolicy
from slob_opt.scheduling.policies.prefill_first import PrefillFirstPolicy
from slob_opt.scheduling.policies.srpt import SrptPolicy
from slob_opt.scheduling.policy import KvUse, LaneView, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival
from slob_opt.scheduling.scheduler import Scheduler

PAGED = {name: policy for name, policy in POLICIES.items() if policy.kv_use is KvUse.PAGED}
CLOCK = fixed_clock((9_900_000, 100_000))


@pytest.mark.parametrize("name", [name for name in PAGED if not getattr(PAGED[name], "takes_kv", False)])
def test_a_prompt_that_does_not_fit_beside_others_waits(name: str) -> None:
    """Case S01: four prompts of 100,000 tokens fill 440,000 tokens of KV; the fifth waits, and nobody is preempted."""
    size = 5
    workload = Workload.of("long", np.zeros(size), [100_000] * size, [500] * size, max_new_tokens=500)
    limits = PipelineLimits(1, 16, 440_000 // 16, 16, 2048)
    found = play(workload, PAGED[name], fixed_clock((20_000_000, 10_000)), limits)
    assert sum(len(decision.preempted) for decision in found.result.log) == 0
    starts = sorted(found.deliveries[r].started_ns or 0 for r in range(size))
    ends = [found.times(r)[-1] for r in range(size)]
    assert starts[-1] >= min(ends)


@pytest.mark.parametrize("name", PAGED)
def test_who_cannot_grow_stops_nobody_else(name: str) -> None:
    """Case S03: the last to come fills its blocks and none is free; the others, who have room, decode in that step."""
    rows = [Held(100, 5, 0.0, 1.0), Held(100, 7, 0.1, 1.0), Held(126, 3, 0.2, 1.0)]
    plan = PAGED[name].decide(lane_view(CLOCK, PipelineLimits(1, 8, 100, 16), rows, [], free_blocks=0, now_s=1.0))
    assert plan is not None
    going = set(plan.slots.tolist())
    assert going
    if "small" not in name:  # two at a time
        assert len(going) >= 2
    assert not going & set(plan.preempt.tolist())


class Scripted:
    """Does what it is told, and shows who waits."""

    name, kv_use, holds_finished, is_streamed = "scripted", KvUse.PAGED, False, True

    def __init__(self) -> None:
        self.plan: BatchPlan | None = None
        self.waiting: list[int] = []

    def decide(self, view: LaneView) -> BatchPlan | None:
        self.waiting = view.columns.request[view.waiting].tolist()
        return self.plan


def test_who_was_preempted_goes_first_among_equals() -> None:
    """Case S04: B arrived before A and has never run; A lost its KV and waits in front of it."""
    policy = Scripted()
    made = Scheduler([PipelineLimits(1, 4, 100)], [CLOCK], [policy])
    b, a = (made.submit(Arrival(request, 40, 20), now).slot for request, now in ((1, 10), (0, 20)))
    assert a is not None
    assert b is not None
    policy.plan = BatchPlan(np.array([a]), np.array([40]))
    assert made.next_batch(0, 0, 30) is not None
    made.complete(0, 0, 40)
    policy.plan = BatchPlan(np.array([b]), np.array([40]), np.array([a]))
    made.next_batch(0, 0, 50)
    made.complete(0, 0, 60)
    made.submit(Arrival(2, 40, 20), 70)
    policy.plan = None
    made.next_batch(0, 0, 80)
    assert policy.waiting == [0, 2]


def urgent_ttft_s(policy: Policy) -> float:
    """Two of little weight hold both rows when one of more comes."""
    workload = Workload.of(
        "urgent", [0.0, 0.0, 1.0], [10, 10, 200], [500, 500, 20], max_new_tokens=600, priority=[1.0, 1.0, 10.0]
    )
    found = play(workload, policy, CLOCK, PipelineLimits(1, 2, 200, 16, 512))
    return (found.times(2)[0] - int(workload.arrival_ns[2])) / 1e9


def test_an_urgent_request_can_take_a_row_and_does_not_by_default() -> None:
    """Case S05: with priorities its first token comes after a step and its prefill; by default it waits for a row."""
    step_s, prefill_s = 0.0101, 0.0099 + 201 * 0.0001
    assert urgent_ttft_s(ChunkedPolicy(by_priority=True)) <= step_s + prefill_s + 1e-9
    assert urgent_ttft_s(ChunkedPolicy()) > 3.0


@pytest.mark.parametrize("name", PAGED)
def test_a_prompt_that_cannot_fit_whole_is_not_started(name: str) -> None:
    """Case S08: 4,096 tokens are free, a prompt of 9,000 waits although its first chunk of 1,024 would fit."""
    limits = PipelineLimits(1, 8, 2000, 16, 1024)
    rows, waiting = [Held(100, 5, 0.0, 1.0)], [Held(9000, 0, 0.5)]
    plan = PAGED[name].decide(lane_view(CLOCK, limits, rows, waiting, free_blocks=4096 // 16, now_s=1.0))
    assert plan is not None
    assert (plan.slots.tolist(), plan.preempt.tolist()) == ([0], [])


def longest_gap_s(policy: Policy, streams: int, prompt: int, clock_ns: tuple[int, int], chunk: int | None) -> float:
    """The longest time between two tokens of streams that are under way when a long prompt comes."""
    workload = Workload.of(
        "stall", [*[0.0] * streams, 10.0], [10] * streams + [prompt], [2000] * streams + [5], max_new_tokens=2000
    )
    limits = PipelineLimits(1, 32, 100_000, 16, chunk)
    found = play(workload, policy, fixed_clock(clock_ns), limits)
    times = [np.array(found.times(request)) for request in range(streams)]
    return max(float(np.diff(t[t > 9e9]).max()) for t in times) / 1e9


def test_a_long_prompt_does_not_stall_streams_when_it_is_chunked() -> None:
    """Case S09: 16 streams of 30 ms and a prompt of 8,000 tokens at 120 ms per 1,000: at most 91.4 ms, not 960."""
    clock = (30_000_000 - 16 * 120_000, 120_000)
    assert longest_gap_s(ChunkedPolicy(), 16, 8000, clock, 512) <= 0.0914
    assert longest_gap_s(PrefillFirstPolicy(), 16, 8000, clock, None) >= 0.960


@pytest.mark.parametrize("budget", [512, 2048, 4096])
def test_streams_go_on_while_a_very_long_prompt_is_computed(budget: int) -> None:
    """Case S10: 65,000 tokens at 1,160 a second; each of 8 streams gets a token every budget / 1,160 s and a decode."""
    token_ns = round(1e9 / 1160)
    gap_s = longest_gap_s(ChunkedPolicy(budget), 8, 65_000, (20_000_000, token_ns), None)
    assert gap_s <= budget / 1160 + 0.020 + 8 / 1160
    assert gap_s > 0.9 * budget / 1160


@pytest.mark.parametrize("policy", [SrptPolicy(), MlfqPolicy()], ids=lambda policy: policy.name)
def test_small_requests_use_the_memory_that_a_large_one_cannot(policy: Policy) -> None:
    """Case S13: 1,000 tokens are free; of needs of 1,500, 300 and 400 the latter two start at once."""
    waiting = [Held(1484, 0, 0.0, predicted=1000), Held(284, 0, 0.1, predicted=10), Held(384, 0, 0.2, predicted=10)]
    view = lane_view(CLOCK, PipelineLimits(1, 8, 1000, 16, 1024), [], waiting, free_blocks=1000 // 16, now_s=0.3)
    plan = policy.decide(view)
    assert plan is not None
    assert sorted(plan.slots.tolist()) == [1, 2]


def test_ageing_bounds_the_wait_of_a_large_request() -> None:
    """Case S13: small ones keep coming for two minutes; the large one still runs soon after its wait counts."""
    small = 600
    workload = Workload.of(
        "stream", [0.0, *(0.2 * np.arange(1, small + 1))], [1484, *[284] * small], [40, *[60] * small],
        max_new_tokens=64,
    )  # fmt: skip
    limits = PipelineLimits(1, 8, 100, 16, 2048)
    found = play(workload, MlfqPolicy(starvation_s=10.0), fixed_clock((40_000_000, 100_000)), limits)
    assert (found.times(0)[0]) / 1e9 < 25.0
