"""What the oldest are owed: the reference played out batch by batch, and the reach by hand."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_setups import fixed_clock, play

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.columns import RequestColumns
from slob_opt.scheduling.policy import KvUse, LaneView, PipelineLimits
from slob_opt.scheduling.records import Arrival
from slob_opt.slob.batching import SlobPolicy
from slob_opt.slob.oldest import Reference, References

CLOCK = fixed_clock((2_000_000, 50_000, 3_000))
LEAST = 16


@dataclass
class Recorder:
    """A policy that writes down where all requests are whenever it is asked, which is before every batch."""

    policy: SlobPolicy
    size: int
    name: str = "recorder"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True
    batches: list[tuple[int, int]] = field(default_factory=list)
    states: list[list[tuple[int, int] | None]] = field(default_factory=list)

    def decide(self, view: LaneView) -> BatchPlan | None:
        plan = self.policy.decide(view)
        if plan is None or not plan.slots.size:
            return plan
        columns, now = view.columns, [None] * self.size
        for slot in [*view.rows.tolist(), *view.waiting.tolist()]:
            now[int(columns.request[slot])] = (int(columns.cached[slot]), int(columns.generated[slot]))
        decodes = (columns.left[plan.slots] == 1) & (columns.cached[plan.slots] > 0)
        self.batches.append((view.now_ns, int(plan.tokens[~decodes].sum())))
        self.states.append(now)
        return plan._replace(max_repeats=1)


def reference_states(
    workload: Workload, limits: PipelineLimits, share: float, batches: list[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Return prompt tokens computed and tokens delivered of each request under the reference, after each batch."""
    size = workload.num_requests
    computed, delivered = [0] * size, [0] * size
    held: list[int] = []
    coming, last, found = 0, 0, []
    blocks = [
        min(limits.blocks_of(int(p + m)) + 1, limits.kv_blocks)
        for p, m in zip(workload.prompt_tokens, workload.max_new_tokens, strict=True)
    ]
    for now, prompt in batches:
        while coming < size and workload.arrival_ns[coming] <= now:
            rows = len(held) < max(1, math.ceil(share * limits.max_rows - 1e-9))
            if held and not (rows and sum(blocks[i] for i in [*held, coming]) <= share * limits.kv_blocks):
                break
            held.append(coming)
            coming += 1
        budget, last = math.ceil(share * max(last, LEAST)), prompt
        for i in held:
            if computed[i] == workload.prompt_tokens[i]:
                delivered[i] += 1
                continue
            given_now = min(budget, int(workload.prompt_tokens[i]) - computed[i])
            budget -= given_now
            computed[i] += given_now
            delivered[i] += computed[i] == workload.prompt_tokens[i]
        held = [i for i in held if delivered[i] < workload.output_tokens[i]]
        found.append(list(zip(computed, delivered, strict=True)))
    return found


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    size = draw(st.integers(2, 14))
    gaps = draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    prompt = draw(st.lists(st.one_of(st.integers(1, 30), st.integers(1, 200)), min_size=size, max_size=size))
    output = draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    priority = draw(st.lists(st.sampled_from([0.01, 1.0, 50.0]), min_size=size, max_size=size))
    return Workload.of("drawn", np.cumsum(gaps) / 1000, prompt, output, max_new_tokens=48, priority=priority)


@given(
    workload=workloads(), max_rows=st.integers(1, 9), blocks=st.integers(16, 60),
    share=st.sampled_from([0.1, 0.25, 0.5, 1.0]), is_padded=st.booleans(), uses_chunks=st.booleans(),
    foresight=st.sampled_from([0.0, 1.0]),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_no_request_is_ever_behind_the_reference(
    workload: Workload, max_rows: int, blocks: int, share: float, is_padded: bool, uses_chunks: bool, foresight: float
) -> None:
    limits = PipelineLimits(1, max_rows, blocks, 16, 64)
    policy = SlobPolicy(
        oldest_share=share, least_chunk=LEAST, full_tokens=LEAST, uses_chunks=uses_chunks, kv_foresight=foresight,
        max_repeats=1,
    )  # fmt: skip
    recorder = Recorder(policy, workload.num_requests)
    play(workload, recorder, CLOCK, limits, is_padded=is_padded)
    expected = reference_states(workload, limits, share, recorder.batches)
    for before, after in zip(recorder.states[1:], expected, strict=False):
        for state, (computed, delivered) in zip(before, after, strict=True):
            if state is not None:  # neither over nor still to come
                assert state[1] >= delivered
                assert state[1] > 0 or state[0] >= computed


def a_view(prompts: list[int], *, max_rows: int = 8, blocks: int = 400) -> LaneView:
    """A lane without rows on whose pipeline so many requests wait; each may have 16 tokens."""
    columns = RequestColumns()
    slots = [columns.enter(Arrival(i, p, 16, 1.0), 0, 0) for i, p in enumerate(prompts)]
    limits = PipelineLimits(1, max_rows, blocks, 16, 64)
    none = np.zeros(0, np.int64)
    return LaneView(0, 0, 0, limits, columns, none, np.array(slots), max_rows, blocks, 0, CLOCK, False)


def test_the_reach_goes_through_prompts_in_order_of_arrival() -> None:
    # A quarter of 8 rows is two; a quarter of 400 blocks is room for both of 100 + 16 and 60 + 16 tokens (9 and 6).
    view = a_view([100, 60, 30])
    slots = view.waiting.tolist()
    reference = Reference(0.25, 128)
    # A batch counts as the least chunk at least: 32 of 128.
    reference.update(view)
    assert reference.owed(view) == [(slots[0], 32)]
    assert reference.quiet(view.columns) == 1
    # After one of 480 prompt tokens 120 more: 152 in all, 100 of the first and 52 of the second.
    reference.note(view, BatchPlan(view.waiting[2:], np.array([480])))
    reference.update(view)
    assert reference.owed(view) == [(slots[0], 100), (slots[1], 52)]
    # The third finds no row while the others aren't over.
    reference.note(view, BatchPlan(view.waiting[2:], np.array([480])))
    reference.update(view)
    assert reference.owed(view) == [(slots[0], 100), (slots[1], 60)]
    assert reference.kept(view.columns) == set(slots[:2])


def test_one_that_is_over_still_takes_the_reference_its_time() -> None:
    view = a_view([100, 60], max_rows=4)
    first, second = view.waiting.tolist()
    reference = Reference(0.25, 128)  # one row
    reference.update(view)  # 32 of its 100 tokens
    view.columns.release(first)
    view = view._replace(waiting=view.waiting[1:])
    for _ in range(3):  # the rest
        reference.note(view, BatchPlan(view.waiting, np.array([60])))
        reference.update(view)
        assert reference.owed(view) == []
    reference.note(view, BatchPlan(view.waiting, np.array([60])))
    reference.update(view)  # now the row is free
    assert reference.owed(view) == [(second, 32)]


def test_references_belong_to_a_scheduler_and_copies_have_none() -> None:
    references, one, other = References(), a_view([10]), a_view([10])
    assert references.of(one, 0.25, 16) is references.of(one, 0.25, 16)
    assert references.of(one, 0.25, 16) is not references.of(other, 0.25, 16)
    policy = SlobPolicy(oldest_share=0.5)
    for twin in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy), replace(policy)):
        assert twin == policy


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_policy_decides_alike_the_second_time(share: float) -> None:
    workload = Workload.of("two", np.arange(40) * 0.01, [90, 20] * 20, [20] * 40, max_new_tokens=48)
    limits = PipelineLimits(2, 6, 30, 16, 64)
    policy = SlobPolicy(oldest_share=share, least_chunk=LEAST)
    first, second = (list(play(workload, policy, CLOCK, limits).result.log) for _ in range(2))
    assert first == second
