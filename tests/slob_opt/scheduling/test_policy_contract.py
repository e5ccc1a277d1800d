"""What every policy and the scheduler must keep, whatever arrives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_policies import POLICIES
from serving_setups import chat, fixed_clock, four_cards, play
from virtual_engine import VirtualEngine

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.problem.device import Link
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import PipelineLimits, is_clairvoyant
from slob_opt.simulation.delivery import End

CLOCK = fixed_clock((2_000_000, 10_000, 300), (3_000_000, 5_000, 100))
CLOCKS = (
    CLOCK,
    fixed_clock((2_000_000, 10_000, 300)),
    fixed_clock((1_000_000, 0, 50), (4_000_000, 2_000, 900), (500_000, 1_000, 10), link=Link(1e6, 2e-3)),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    size = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    prompt = draw(st.lists(st.integers(1, 120), min_size=size, max_size=size))
    output = draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    priority = draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=size, max_size=size))
    return Workload.of("drawn", np.cumsum(gaps) / 1000, prompt, output, max_new_tokens=48, priority=priority)


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineLimits:
    # 11 blocks of 16 tokens hold the longest request (120 + 48 tokens) and hardly another.
    return PipelineLimits(draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(11, 40)), 16, 64)


@pytest.mark.parametrize("name", POLICIES)
class TestEveryPolicy:
    @given(workload=workloads(), limits=pipelines(), is_padded=st.booleans())
    @settings(max_examples=25, deadline=None)
    def test_all_requests_end_with_their_tokens_and_all_blocks_are_free(
        self, name: str, workload: Workload, limits: PipelineLimits, is_padded: bool
    ) -> None:
        engine = VirtualEngine(workload, limits, CLOCK, POLICIES[name], is_padded)
        engine.run()
        for request in range(workload.num_requests):
            assert len(engine.token_ns[request]) == workload.output_tokens[request]
        assert engine.scheduler.free_blocks(0) == limits.kv_blocks
        assert engine.scheduler.num_waiting(0) == 0
        assert all(engine.scheduler.num_rows(0, lane) == 0 for lane in range(limits.num_lanes))

    @given(workload=workloads(), limits=pipelines(), is_padded=st.booleans(), clock=st.sampled_from(CLOCKS))
    @settings(max_examples=40, deadline=None)
    def test_two_drivers_log_the_same_decisions(
        self, name: str, workload: Workload, limits: PipelineLimits, is_padded: bool, clock: PipelineClock
    ) -> None:
        engine = VirtualEngine(workload, limits, clock, POLICIES[name], is_padded)
        engine.run()
        found = play(workload, POLICIES[name], clock, limits, is_padded=is_padded)
        assert list(found.result.log) == list(engine.scheduler.log)
        if POLICIES[name].is_streamed:
            for request in range(workload.num_requests):
                assert found.times(request) == engine.token_ns[request]

    @given(workload=workloads(), limits=pipelines())
    @settings(max_examples=20, deadline=None)
    def test_no_request_is_twice_in_a_batch_and_none_computes_too_much(
        self, name: str, workload: Workload, limits: PipelineLimits
    ) -> None:
        found = play(workload, POLICIES[name], CLOCK, limits)
        computed = np.zeros(workload.num_requests, np.int64)
        lost = np.zeros(workload.num_requests, dtype=bool)
        for decision in found.result.log:
            assert len(set(decision.requests)) == len(decision.requests)
            assert decision.requests or decision.preempted
            assert len(decision.requests) <= limits.lane_rows
            lost[list(decision.preempted)] = True
            for request, tokens in zip(decision.requests, decision.tokens, strict=True):
                computed[request] += tokens * decision.repeats
        needed = workload.prompt_tokens + workload.output_tokens - 1
        assert np.all(computed[~lost] == needed[~lost])
        assert np.all(computed[lost] >= needed[lost])

    @pytest.mark.parametrize("num_lanes", [1, 2])
    def test_later_lengths_change_no_earlier_decision(self, name: str, num_lanes: int) -> None:
        """True lengths are never seen: until a request ends sooner or later, all is decided alike."""
        workload = chat(30, 6.0, seed=7, max_output=120)
        output = workload.output_tokens.copy()
        last = int(np.argmax(workload.arrival_ns))
        output[last] = 900
        other = Workload.of(
            "longer", workload.arrival_s, workload.prompt_tokens, output, max_new_tokens=1024
        )  # fmt: skip
        limits = PipelineLimits(num_lanes, 16, 2000, 16, 512)
        if is_clairvoyant(POLICIES[name]):
            return  # it is told them, and named so
        first, second = (list(play(w, POLICIES[name], four_cards(), limits).result.log) for w in (workload, other))
        computed, until = 0, 0
        for until, (one, two) in enumerate(zip(first, second, strict=False)):  # noqa: B007 - asserted below
            if (one.requests, one.tokens, one.preempted) != (two.requests, two.tokens, two.preempted):
                break
            tokens = dict(zip(one.requests, one.tokens, strict=True)).get(last, 0)
            computed += tokens * min(one.repeats, two.repeats)
            if one != two:
                break
        assert computed >= workload.prompt_tokens[last] + workload.output_tokens[last] - 1
        assert until > 10

    @pytest.mark.parametrize("num_lanes", [1, 3])
    def test_the_pipeline_is_never_idle_while_someone_waits(self, name: str, num_lanes: int) -> None:
        """With room for all, the first batch after an arrival at an idle pipeline starts at once."""
        workload = Workload.of("apart", np.arange(6) * 100.0, [50] * 6, [10] * 6)
        found = play(workload, POLICIES[name], CLOCK, PipelineLimits(num_lanes, 8, 100, 16, 64))
        for request in range(6):
            assert found.deliveries[request].end is End.FINISHED
            assert found.deliveries[request].started_ns == workload.arrival_ns[request]
