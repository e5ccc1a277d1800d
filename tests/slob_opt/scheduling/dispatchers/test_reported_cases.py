"""Situations of load balancing that users reported, each with its right behaviour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from serving_setups import fixed_clock

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.columns import RequestColumns
from slob_opt.scheduling.dispatchers.blind import (
    LeastOutstandingDispatcher,
    PowerOfTwoDispatcher,
    RandomDispatcher,
    RoundRobinDispatcher,
    WeightedDispatcher,
)
from slob_opt.scheduling.dispatchers.shortest_time import ShortestTimeDispatcher
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy
from slob_opt.scheduling.policy import ArrivalView, Dispatcher, PipelineLimits
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.simulator import Simulator
from slob_opt.slob.dispatch import SlobDispatcher

ONE_ROW = PipelineLimits(1, 1, 10_000)
LOAD_AWARE: dict[str, Callable[[], Dispatcher]] = {
    "least-outstanding": LeastOutstandingDispatcher,
    "shortest-time": lambda: ShortestTimeDispatcher(expected_output=1000),
}


def replica(tokens_per_s: float) -> PipelineClock:
    """One request at a time, so many tokens/s, prompts free."""
    return fixed_clock((round(1e9 / tokens_per_s),))


def serve(
    workload: Workload, dispatcher: Dispatcher, clocks: Sequence[PipelineClock], limits: PipelineLimits = ONE_ROW
) -> list[Delivery]:
    found: dict[int, Delivery] = {}
    Simulator(
        workload, [limits] * len(clocks), clocks, [OrcaPagedPolicy() for _ in clocks], dispatcher,
        sink=lambda delivery: found.__setitem__(delivery.request, delivery),
    ).run()  # fmt: skip
    return [found[request] for request in range(workload.num_requests)]


def poisson(rate: float, count: int, seed: int, tokens: int = 100) -> Workload:
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return Workload.of("poisson", np.cumsum(gaps), [1] * count, [tokens] * count, max_new_tokens=tokens)


def waits_s(workload: Workload, found: list[Delivery]) -> np.ndarray:
    return np.array([(d.started_ns or 0) - int(workload.arrival_ns[d.request]) for d in found]) / 1e9


def offered(workload: Workload, found: list[Delivery], service_s: Sequence[float]) -> list[float]:
    """Work sent to each replica over the time in which it was sent."""
    counts = Counter(delivery.pipeline for delivery in found)
    return [counts[index] * service / workload.span_s for index, service in enumerate(service_s)]


class TestUnequalReplicas:
    """Case L01: 100 and 25 tokens/s, 0.9 requests/s of 100 tokens."""

    workload = poisson(0.9, 2000, seed=1)
    clocks = (replica(100.0), replica(25.0))

    def test_turns_overload_the_slow_one(self) -> None:
        found = serve(self.workload, RoundRobinDispatcher(), self.clocks)
        assert offered(self.workload, found, (1.0, 4.0))[1] == pytest.approx(1.8, rel=0.05)
        slow = np.array([w for w, d in zip(waits_s(self.workload, found), found, strict=True) if d.pipeline == 1])
        assert slow[-100:].mean() > 1.7 * slow[len(slow) // 2 - 50 : len(slow) // 2 + 50].mean() > 300

    def test_chances_by_speed_are_stable(self) -> None:
        found = serve(self.workload, WeightedDispatcher(), self.clocks)
        assert offered(self.workload, found, (1.0, 4.0)) == pytest.approx([0.72, 0.72], rel=0.08)
        assert waits_s(self.workload, found)[-200:].mean() < 60

    @pytest.mark.parametrize("dispatcher", [lambda: ShortestTimeDispatcher(100), SlobDispatcher])
    def test_knowing_speeds_is_stable(self, dispatcher: Callable[[], Dispatcher]) -> None:
        found = serve(self.workload, dispatcher(), self.clocks)
        assert max(offered(self.workload, found, (1.0, 4.0))) < 1.0
        assert waits_s(self.workload, found).mean() < 20


def test_costs_are_balanced_not_counts() -> None:
    """Case L02: eight jobs of 7.8 to 34.5 s on two replicas; 70.3 s is the optimum, turns take 109.4 s."""
    tenths = [345, 78, 345, 78, 202, 78, 202, 78]
    workload = Workload.of("jobs", np.zeros(8), [1] * 8, tenths, max_new_tokens=tenths)
    clocks = (replica(10.0), replica(10.0))
    makespan_s = {
        dispatcher.name: max(int(d.token_ns[-1]) for d in serve(workload, dispatcher, clocks)) / 1e9
        for dispatcher in (ShortestTimeDispatcher(expected_output=1000), RoundRobinDispatcher())
    }
    assert makespan_s == pytest.approx({"shortest-time": 70.3, "round-robin": 109.4})


@pytest.mark.parametrize("seed", range(3))
def test_expected_finish_beats_turns_on_unequal_replicas(seed: int) -> None:
    """Case L03: 60 and 20 tokens/s, 0.5 requests/s of 100 tokens."""
    workload, clocks = poisson(0.5, 600, seed), (replica(60.0), replica(20.0))
    times = {}
    for dispatcher in (ShortestTimeDispatcher(100), RoundRobinDispatcher(), LeastOutstandingDispatcher()):
        found = serve(workload, dispatcher, clocks)
        times[dispatcher.name] = np.mean([d.token_ns[-1] - workload.arrival_ns[d.request] for d in found])
    assert min(times, key=times.__getitem__) == "shortest-time"
    assert times["shortest-time"] < 0.6 * times["round-robin"]


@pytest.mark.parametrize("name", LOAD_AWARE)
def test_load_counts_from_when_a_request_is_sent(name: str) -> None:
    """Case L06: long prompts with one token of output, twelve at once on three equal replicas."""
    workload = Workload.of("prefill", np.zeros(12), [32_000] * 12, [1] * 12, max_new_tokens=1)
    found = serve(workload, LOAD_AWARE[name](), [fixed_clock((1_000_000, 100_000))] * 3)
    assert sorted(Counter(d.pipeline for d in found).values()) == [4, 4, 4]


@pytest.mark.parametrize("name", ["least-outstanding", "shortest-time"])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_equals_take_turns(name: str, replicas: int) -> None:
    """Case L07: one request at a time meets each of the equal replicas as often, and the same ones on repeat."""
    count = 100 * replicas
    workload = Workload.of("one", np.arange(count) * 10.0, [10] * count, [5] * count)
    first, again = (serve(workload, LOAD_AWARE[name](), [replica(50.0)] * replicas) for _ in range(2))
    assert set(Counter(d.pipeline for d in first).values()) == {100}
    assert [d.pipeline for d in first] == [d.pipeline for d in again]


@pytest.mark.parametrize("name", LOAD_AWARE)
def test_simultaneous_requests_are_shared_evenly(name: str) -> None:
    """Case L08 in simulation: the scheduler itself counts, so no transport can forget to; 100 on two is 50 and 50."""
    workload = poisson(2.0, 100, seed=3, tokens=20)
    found = serve(workload, LOAD_AWARE[name](), [replica(20.0)] * 2, PipelineLimits(1, 8, 10_000))
    assert sorted(Counter(d.pipeline for d in found).values()) == pytest.approx([50, 50], abs=3)


def view(outstanding: Sequence[int], limits: Sequence[PipelineLimits], clocks: Sequence[PipelineClock]) -> ArrivalView:
    """Replicas of which each has so many requests waiting, with 40 tokens of prompt and 100 of output."""
    columns = RequestColumns()
    members = []
    for index, count in enumerate(outstanding):
        slots = [columns.take() for _ in range(count)]
        for name, value in (("prompt", 40), ("left", 40), ("max_new", 100), ("state", 1), ("place", -1 - index)):
            columns.arrays[name][slots] = value
        for name in ("priority", "ttft_s", "tpot_s", "predicted"):
            columns.arrays[name][slots] = 1.0 if name == "priority" else np.nan
        members.append(np.array(slots, np.int64))
    return ArrivalView(0, 100, 50, 1.0, columns, limits, clocks, np.array(outstanding), members)


@pytest.mark.parametrize("made", [*LOAD_AWARE.values(), SlobDispatcher])
def test_a_backlog_is_avoided(made: Callable[[], Dispatcher]) -> None:
    """Case L09 without an affinity that could hold against it: 30 wait at one replica, the others are idle."""
    dispatcher = made()
    chosen = {dispatcher.choose(view([30, 0, 0], [ONE_ROW] * 3, [replica(20.0)] * 3)) for _ in range(4)}
    assert chosen <= {1, 2}


@pytest.mark.parametrize(
    "made",
    [
        RandomDispatcher, WeightedDispatcher, RoundRobinDispatcher, LeastOutstandingDispatcher, PowerOfTwoDispatcher,
        ShortestTimeDispatcher,
    ],
)  # fmt: skip
def test_who_may_serve_comes_before_who_is_fastest(made: Callable[[], Dispatcher]) -> None:
    """Case L10: a pool of unlike replicas; the fast ones have too short a context or too little memory."""
    limits = [PipelineLimits(1, 1, 10_000, max_tokens=128), PipelineLimits(1, 1, 10_000, max_tokens=4096), ONE_ROW]
    limits[2] = PipelineLimits(1, 1, 5)
    dispatcher = made()
    seen = {dispatcher.choose(view([0, 9, 0], limits, [replica(80.0), replica(20.0), replica(80.0)])) for _ in range(8)}
    assert seen == {1}


def test_then_expected_time_decides() -> None:
    """Case L10: 50 tokens take 2.5 s at 20 tokens/s; at 80, 0.625 s, and 1.25 s for each request before it."""
    clocks, limits = [replica(80.0), replica(20.0)], [ONE_ROW] * 2
    chosen = [ShortestTimeDispatcher(100).choose(view([n, 0], limits, clocks)) for n in range(5)]
    assert chosen == [0, 0, 1, 1, 1]
