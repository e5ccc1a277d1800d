"""Pipelines that are lost, and those that come instead: no request is lost, no token is computed for nobody twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_setups import fixed_clock

from experiments.registry import make_policy, policy_names
from slob_opt.errors import PolicyError
from slob_opt.scheduling.columns import State
from slob_opt.scheduling.dispatchers.blind import RoundRobinDispatcher
from slob_opt.scheduling.policy import ArrivalView, PipelineLimits
from slob_opt.scheduling.records import Arrival, Launch
from slob_opt.scheduling.scheduler import Scheduler

CLOCK = fixed_clock((1_000_000,), (2_000_000,))
LIMITS = PipelineLimits(2, 8, 40, 16, 64)


class Driver:
    """Runs whichever batch a number says next, and counts the tokens that each request gets."""

    def __init__(self, policy: str, num_pipelines: int) -> None:
        self.policy = policy
        policies = [make_policy(policy, {}) for _ in range(num_pipelines)]
        self.made = Scheduler([LIMITS] * num_pipelines, [CLOCK] * num_pipelines, policies, RoundRobinDispatcher())
        self.flights: dict[tuple[int, int], Launch] = {}
        self.tokens: dict[int, int] = {}
        self.length: dict[int, int] = {}
        self.now = 0

    def submit(self, prompt: int, output: int) -> None:
        request = len(self.length)
        found = self.made.submit(Arrival(request, prompt, output + 3), self.now)
        if found.slot is not None:
            self.length[request], self.tokens[request] = output, 0

    def step(self, which: int) -> bool:
        """Launch every lane that may, and end one batch in flight; return whether there was one."""
        self.now += 1_000_000
        for pipeline in range(len(self.made.limits)):
            for lane in range(LIMITS.num_lanes):
                if (pipeline, lane) not in self.flights and pipeline in self.made.open_pipelines:
                    launch = self.made.next_batch(pipeline, lane, self.now)
                    if launch is not None:
                        self.flights[pipeline, lane] = launch
        if not self.flights:
            return False
        where = sorted(self.flights)[which % len(self.flights)]
        launch = self.flights.pop(where)
        requests = self.made.columns.request
        ended = []
        for slot in launch.plan.slots[launch.emits].tolist():
            request = int(requests[slot])
            self.tokens[request] += 1
            if self.tokens[request] == self.length[request]:
                ended.append(slot)
        self.made.complete(*where, self.now, ended)
        return True

    def lose(self, pipeline: int) -> None:
        self.flights = {where: launch for where, launch in self.flights.items() if where[0] != pipeline}
        self.made.lose(pipeline, self.now)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from([name for name in policy_names() if "clairvoyant" not in name]),
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=12),
    before=st.lists(st.integers(0, 5), max_size=25),
    between=st.lists(st.integers(0, 5), max_size=25),
    has_two=st.booleans(),
)
def test_every_request_ends_with_all_its_tokens_whichever_pipeline_is_lost(
    policy: str, sizes: list[tuple[int, int]], before: list[int], between: list[int], has_two: bool
) -> None:
    driver = Driver(policy, 2 if has_two else 1)
    for prompt, output in sizes:
        driver.submit(prompt, output)
    for which in before:
        driver.step(which)
    driver.lose(0)
    for which in between:
        driver.step(which)
    if not has_two:  # all requests are parked until a pipeline comes
        assert driver.made.open_pipelines == ()
        assert driver.made.submit(Arrival(999, 5, 5), driver.now).reason == "no pipeline is open"
    driver.made.add_pipeline(LIMITS, CLOCK, make_policy(policy, {}))
    driver.made.rescue(driver.now)
    for _ in range(4000):
        if not driver.step(0):
            break
    assert driver.tokens == driver.length
    assert all(driver.made.outstanding(index) == 0 for index in range(len(driver.made.limits)))
    assert [driver.made.free_blocks(index) for index in driver.made.open_pipelines] == [LIMITS.kv_blocks] * len(
        driver.made.open_pipelines
    )
    assert driver.made.free_blocks(0) == LIMITS.kv_blocks


def test_what_was_delivered_is_computed_again_but_not_delivered_again() -> None:
    driver = Driver("orca-paged", 2)
    driver.submit(20, 10)
    for _ in range(4):
        driver.step(0)
    slot = next(iter(np.flatnonzero(driver.made.columns.state == State.RUNNING).tolist()))
    driver.made.settle()
    generated = int(driver.made.columns.generated[slot])
    assert generated == driver.tokens[0] > 0
    assert driver.made.lose(0, driver.now) == [1]
    assert driver.made.columns.state[slot] == State.PREEMPTED
    assert driver.made.columns.generated[slot] == generated
    assert driver.made.columns.left[slot] == 20 + generated
    driver.flights.clear()
    launch = driver.made.next_batch(1, 0, driver.now)
    assert launch is not None
    assert launch.plan.tokens.tolist() == [20 + generated]


def test_a_request_that_fits_no_other_pipeline_stays_where_it_is() -> None:
    small = PipelineLimits(1, 4, 2, 16)
    policies = [make_policy("orca", {}) for _ in range(2)]
    made = Scheduler([LIMITS, small], [CLOCK, CLOCK], policies, RoundRobinDispatcher())
    made.submit(Arrival(0, 100, 50), 0)
    assert made.lose(0, 10) == []
    assert made.waiting_at(0)
    assert made.rescue(20) == []
    made.abort(made.waiting_at(0)[0])
    assert made.outstanding(0) == 0


class Rejecting:
    """Wants no request anywhere."""

    name = "rejecting"

    def choose(self, view: ArrivalView) -> int | None:
        return None


def test_a_dispatcher_may_reject_new_requests_but_not_those_that_lost_their_pipeline() -> None:
    made = Scheduler(
        [LIMITS, LIMITS], [CLOCK, CLOCK], [make_policy("orca", {}) for _ in range(2)], RoundRobinDispatcher()
    )
    made.submit(Arrival(0, 10, 5), 0)
    made._routing._dispatcher = Rejecting()
    assert made.submit(Arrival(1, 10, 5), 0).slot is None
    assert made.lose(0, 10) == [1]


def test_closing_the_last_pipeline_is_refused_but_losing_it_is_not() -> None:
    driver = Driver("orca", 1)
    with pytest.raises(PolicyError, match="no other is open"):
        driver.made.set_open(0, is_open=False, now_ns=0)
    driver.lose(0)
    assert driver.made.open_pipelines == ()
