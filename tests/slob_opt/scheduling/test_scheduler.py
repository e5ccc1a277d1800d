"""The scheduler's rules one by one: what it takes, what it refuses, and how blocks and promises are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from serving_setups import fixed_clock

from slob_opt.errors import PolicyError
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.columns import State
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy, OrcaPolicy
from slob_opt.scheduling.policy import KvUse, LaneView, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival
from slob_opt.scheduling.scheduler import Scheduler

CLOCK = fixed_clock((1_000_000,))
LIMITS = PipelineLimits(1, 4, 20, 16)


@dataclass
class Scripted:
    """Decides what a test says."""

    script: Callable[[LaneView], BatchPlan | None]
    name: str = "scripted"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        return self.script(view)


def plan(slots: list[int], tokens: list[int], **more: object) -> BatchPlan:
    return BatchPlan(np.array(slots, np.int64), np.array(tokens, np.int64), **more)  # type: ignore[arg-type]


def scheduler(policy: Policy, limits: PipelineLimits = LIMITS) -> Scheduler:
    return Scheduler([limits], [CLOCK], [policy])


def submit(made: Scheduler, *prompts: int, max_new: int = 16) -> list[int]:
    slots = []
    for request, prompt in enumerate(prompts):
        slot = made.submit(Arrival(request, prompt, max_new), now_ns=request).slot
        assert slot is not None
        slots.append(slot)
    return slots


def test_reserve_takes_all_blocks_at_once() -> None:
    made = scheduler(OrcaPolicy())
    submit(made, 40, 40)  # 56 tokens each: 4 blocks
    made.next_batch(0, 0, 10)
    assert made.free_blocks(0) == 20 - 8
    assert made.complete(0, 0, 20) == []
    made.next_batch(0, 0, 20)
    assert made.free_blocks(0) == 20 - 8


def test_paged_takes_blocks_as_they_fill() -> None:
    made = scheduler(OrcaPagedPolicy())
    (slot,) = submit(made, 31)
    made.next_batch(0, 0, 10)
    assert made.free_blocks(0) == 18  # 31 tokens: 2 blocks
    made.complete(0, 0, 20)
    made.next_batch(0, 0, 20)  # the 32nd token still fits
    assert made.free_blocks(0) == 18
    made.complete(0, 0, 30)
    made.next_batch(0, 0, 30)  # the 33rd doesn't
    assert made.free_blocks(0) == 17
    made.complete(0, 0, 40, [slot])
    assert made.free_blocks(0) == 20


def test_what_can_never_fit_is_rejected_with_the_numbers() -> None:
    made = scheduler(OrcaPolicy(), PipelineLimits(1, 4, 20, 16, None, 200))
    found = made.submit(Arrival(0, 150, 60), 0)
    assert (found.slot, found.reason) == (
        None, "prompt of 150 and max_new_tokens of 60 make 210 tokens, the model takes 200",
    )  # fmt: skip
    assert "400 tokens need 25 KV blocks of 16 tokens, the pipeline has 20" in (
        scheduler(OrcaPolicy()).submit(Arrival(0, 390, 10), 0).reason
    )


@pytest.mark.parametrize(("prompt", "max_new", "priority"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)])
def test_senseless_requests_are_errors(prompt: int, max_new: int, priority: float) -> None:
    with pytest.raises(PolicyError, match="expected at least 1, 1 and above 0"):
        scheduler(OrcaPolicy()).submit(Arrival(0, prompt, max_new, priority), 0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda a, b: plan([], []), "plan without a request"),
        (lambda a, b: plan([a, a], [1, 1]), "a request twice"),
        (lambda a, b: plan([a], [0]), "computes 0 tokens of request 0, which has 10 left"),
        (lambda a, b: plan([a], [11]), "computes 11 tokens of request 0, which has 10 left"),
        (lambda a, b: plan([a, 77], [1, 1]), "slot 77, which is neither in lane 0 nor waits"),
        (lambda a, b: plan([a, b], [1]), "2,.* slots and .1,.* token counts"),
        (lambda a, b: plan([a], [10], max_repeats=0), "max_repeats 0"),
        (lambda a, b: plan([a], [10], max_repeats=5), "may repeat"),
        (lambda a, b: plan([a], [10], preempt=np.array([b])), "preempts request 1, which doesn't run"),
    ],
)
def test_illegal_plans_are_refused(bad: Callable[[int, int], BatchPlan], message: str) -> None:
    slots: list[int] = []
    made = scheduler(Scripted(lambda view: bad(*slots)))
    slots += submit(made, 10, 20)
    with pytest.raises(PolicyError, match=message):
        made.next_batch(0, 0, 5)


def test_more_rows_than_the_lane_may_have() -> None:
    made = scheduler(Scripted(lambda view: plan(view.waiting.tolist(), [5] * 5)))
    submit(made, *[5] * 5)
    with pytest.raises(PolicyError, match="admits 5 requests, lane 0 may take 4"):
        made.next_batch(0, 0, 5)


def test_admission_needs_the_whole_prompt_and_a_block_more() -> None:
    made = scheduler(Scripted(lambda view: plan(view.waiting.tolist(), view.columns.left[view.waiting].tolist())))
    submit(made, 160, 160)  # 10 blocks each, none left for either's next token
    with pytest.raises(PolicyError, match="need 21 KV blocks, 20 are free"):
        made.next_batch(0, 0, 5)


def test_a_lane_runs_one_batch() -> None:
    made = scheduler(OrcaPolicy())
    submit(made, 10)
    made.next_batch(0, 0, 5)
    with pytest.raises(PolicyError, match="still has a batch in flight"):
        made.next_batch(0, 0, 6)
    made.complete(0, 0, 7)
    with pytest.raises(PolicyError, match="has no batch in flight"):
        made.complete(0, 0, 8)


def test_preempted_ones_wait_in_front_by_arrival_and_start_anew() -> None:
    step = {"plan": None}
    made = scheduler(Scripted(lambda view: step["plan"]))  # type: ignore[arg-type,return-value]
    a, b, c, d = submit(made, 10, 10, 10, 10)
    step["plan"] = plan([a, b, c], [10, 10, 10])
    made.next_batch(0, 0, 5)
    made.complete(0, 0, 6)
    step["plan"] = plan([a], [1], preempt=np.array([c, b]))
    made.next_batch(0, 0, 7)
    seen: list[list[int]] = []
    made.complete(0, 0, 8)
    made._pipes[0].policy = Scripted(lambda view: seen.append(view.waiting.tolist()))  # type: ignore[func-returns-value]
    made.next_batch(0, 0, 9)
    assert seen == [[b, c, d]]
    columns = made.columns
    assert columns.state[b] == State.PREEMPTED
    # Its one delivered token isn't sent again: 11 tokens to compute, then the next one.
    assert (columns.cached[b], columns.generated[b], columns.left[b]) == (0, 1, 11)


def test_abort_frees_blocks_at_once() -> None:
    made = scheduler(OrcaPagedPolicy())
    a, b = submit(made, 40, 40)
    made.next_batch(0, 0, 5)
    with pytest.raises(PolicyError, match="request 0 is in a batch in flight"):
        made.abort(a)
    made.complete(0, 0, 6)
    free = made.free_blocks(0)
    made.abort(a)
    assert made.free_blocks(0) == free + 3
    assert made.num_rows(0, 0) == 1
    waiting = made.submit(Arrival(9, 300, 5), 7).slot
    assert waiting is not None
    made.abort(waiting)
    assert made.num_waiting(0) == 0
    made.next_batch(0, 0, 8)
    assert made.complete(0, 0, 9, [b]) == [b]
    assert made.free_blocks(0) == 20


def test_a_promise_holds_until_something_happens() -> None:
    asked = []

    def script(view: LaneView) -> BatchPlan | None:
        asked.append(view.now_ns)
        return OrcaPagedPolicy().decide(view)

    made = scheduler(Scripted(script))
    submit(made, 10, max_new=100)
    for now in range(5, 12):
        assert made.next_batch(0, 0, now) is not None
        made.complete(0, 0, now)
    assert asked == [5, 6]  # the prompt, then decodes that repeat
    made.submit(Arrival(7, 10, 5), 12)
    made.next_batch(0, 0, 12)
    assert asked == [5, 6, 12]


def test_a_promise_is_void_when_blocks_run_short() -> None:
    asked = []

    def script(view: LaneView) -> BatchPlan | None:
        asked.append(view.free_blocks)
        return OrcaPagedPolicy().decide(view)

    made = scheduler(Scripted(script), PipelineLimits(1, 4, 6, 16))
    submit(made, 30, 30, max_new=60)
    for now in range(40):
        assert made.next_batch(0, 0, now) is not None
        made.complete(0, 0, now)
    # 2 + 2 blocks at first; both grow to 3 and fill the six; then one gives its blocks up.
    assert asked[-2] == 0
    assert made.num_waiting(0) == 1


def test_whoever_looks_sees_completed_steps() -> None:
    made = scheduler(OrcaPolicy())
    (slot,) = submit(made, 10, max_new=100)
    for now in range(5):
        made.next_batch(0, 0, now)
        made.complete(0, 0, now)
    made.settle()
    assert made.columns.generated[slot] == 5
    assert made.columns.cached[slot] == 14
    assert made.columns.last_token_ns[slot] == 4


def test_requests_end_at_their_limit_by_themselves() -> None:
    made = scheduler(OrcaPolicy())
    (slot,) = submit(made, 10, max_new=3)
    over = []
    for now in range(3):
        made.next_batch(0, 0, now)
        over.append(made.complete(0, 0, now))
    assert over == [[], [], [slot]]
    assert made.next_batch(0, 0, 9) is None


def test_lanes_share_what_waits() -> None:
    made = scheduler(OrcaPagedPolicy(), PipelineLimits(2, 8, 100, 16))
    submit(made, *[10] * 6)
    first, second = made.next_batch(0, 0, 5), made.next_batch(0, 1, 6)
    assert first is not None
    assert second is not None
    assert (first.plan.slots.size, second.plan.slots.size) == (3, 3)


def test_several_pipelines_need_a_dispatcher() -> None:
    with pytest.raises(PolicyError, match="2 pipelines need a dispatcher"):
        Scheduler([LIMITS] * 2, [CLOCK] * 2, [OrcaPolicy()] * 2)
    with pytest.raises(PolicyError, match="1 limits, 2 clocks and 1 policies"):
        Scheduler([LIMITS], [CLOCK] * 2, [OrcaPolicy()])


def test_columns_cannot_be_written_by_policies() -> None:
    made = scheduler(OrcaPolicy())
    submit(made, 10)
    with pytest.raises(ValueError, match="read-only"):
        made.columns.cached[0] = 5


def test_a_plan_that_is_a_slice_of_the_queue_stays_what_it_was() -> None:
    """The queue changes while the batch is in flight: a preempted request once took the place of the one computed."""
    made = Scheduler([PipelineLimits(2, 8, 99)], [CLOCK], [Scripted(lambda view: None)])
    a, b = submit(made, 10, 20)

    def whole(view: LaneView) -> BatchPlan:
        waiting = view.waiting[:1]
        return BatchPlan(waiting, view.columns.left[waiting])

    made._pipes[0].policy = Scripted(whole)
    made.next_batch(0, 0, 5)
    made.complete(0, 0, 6)
    launch = made.next_batch(0, 1, 6)
    assert launch is not None
    assert launch.plan.slots.tolist() == [b]
    made._pipes[0].policy = Scripted(lambda view: plan([], [], preempt=view.rows) if view.rows.size else None)
    made.next_batch(0, 0, 7)  # a is preempted, and waits where b was
    assert made.num_waiting(0) == 1
    made.complete(0, 1, 8)
    assert (made.columns.cached[a], made.columns.generated[a]) == (0, 1)
    assert (made.columns.cached[b], made.columns.generated[b]) == (20, 1)
