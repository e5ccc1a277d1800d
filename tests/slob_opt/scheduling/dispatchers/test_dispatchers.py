"""Every dispatcher on two unequal pipelines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from serving_setups import chat, one_card

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.dispatchers.blind import (
    LeastOutstandingDispatcher,
    PowerOfTwoDispatcher,
    RandomDispatcher,
    RoundRobinDispatcher,
    WeightedDispatcher,
)
from slob_opt.scheduling.dispatchers.shortest_time import ShortestTimeDispatcher
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policy import Dispatcher, PipelineLimits
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.simulator import EngineOptions, Simulator
from slob_opt.slob.dispatch import SlobDispatcher

LIMITS = (PipelineLimits(1, 64, 4000, 16, 512), PipelineLimits(2, 16, 600, 16, 512))
DISPATCHERS: dict[str, Callable[[], Dispatcher]] = {
    "random": RandomDispatcher,
    "weighted": WeightedDispatcher,
    "round-robin": RoundRobinDispatcher,
    "least-outstanding": LeastOutstandingDispatcher,
    "power-of-two": PowerOfTwoDispatcher,
    "shortest-time": ShortestTimeDispatcher,
    "slob": SlobDispatcher,
}


def serve(workload: Workload, dispatcher: Dispatcher, **options: bool) -> tuple[dict[int, Delivery], list[object]]:
    found: dict[int, Delivery] = {}
    result = Simulator(
        workload, LIMITS, (one_card("a100-pcie-40gb"), one_card("t4")), (ChunkedPolicy(), ChunkedPolicy()), dispatcher,
        sink=lambda delivery: found.__setitem__(delivery.request, delivery),
        options=EngineOptions(keeps_log=True, **options),
    ).run()  # fmt: skip
    return found, list(result.log)


def mean_time_s(workload: Workload, found: dict[int, Delivery]) -> float:
    return float(np.mean([found[i].token_ns[-1] - workload.arrival_ns[i] for i in range(workload.num_requests)])) / 1e9


@pytest.mark.parametrize("name", DISPATCHERS)
class TestEveryDispatcher:
    def test_all_requests_end_and_leaps_change_nothing(self, name: str) -> None:
        workload = chat(80, 4.0, seed=5, max_output=200)
        leaping, first = serve(workload, DISPATCHERS[name]())
        stepping, second = serve(workload, DISPATCHERS[name](), is_leaping=False)
        assert first == second
        for request in range(80):
            assert leaping[request].end is End.FINISHED
            assert leaping[request].pipeline == stepping[request].pipeline
            assert leaping[request].token_ns.tolist() == stepping[request].token_ns.tolist()

    def test_what_only_one_pipeline_can_hold_goes_there(self, name: str) -> None:
        # 600 blocks hold 9,600 tokens.
        workload = Workload.of("long", np.arange(6) * 0.1, [12_000] * 6, [5] * 6)
        found, _ = serve(workload, DISPATCHERS[name]())
        assert {delivery.pipeline for delivery in found.values()} == {0}

    def test_what_none_can_hold_is_rejected(self, name: str) -> None:
        found, _ = serve(Workload.of("longer", [0.0], [90_000], [5]), DISPATCHERS[name]())
        assert found[0].end is End.REJECTED


def test_turns() -> None:
    workload = Workload.of("apart", np.arange(6) * 50.0, [10] * 6, [5] * 6)
    found, _ = serve(workload, RoundRobinDispatcher())
    assert [found[i].pipeline for i in range(6)] == [0, 1, 0, 1, 0, 1]


def test_fewest_requests() -> None:
    workload = Workload.of("together", [0.0, 0.0, 0.0, 60.0], [10] * 4, [5] * 4)
    found, _ = serve(workload, LeastOutstandingDispatcher())
    assert [found[i].pipeline for i in range(4)] == [0, 1, 0, 1]  # equals take turns


def test_chance_is_fair_and_repeats() -> None:
    workload = Workload.of("many", np.arange(400) * 20.0, [10] * 400, [2] * 400)
    first, again, other = (serve(workload, RandomDispatcher(seed))[0] for seed in (1, 1, 2))
    chosen = [first[i].pipeline for i in range(400)]
    assert 150 < sum(p == 0 for p in chosen) < 250
    assert chosen == [again[i].pipeline for i in range(400)]
    assert chosen != [other[i].pipeline for i in range(400)]


def test_knowing_speeds_beats_counting() -> None:
    workload = chat(150, 3.0, seed=8, max_output=300)
    known, counted, turns = (
        mean_time_s(workload, serve(workload, made())[0])
        for made in (ShortestTimeDispatcher, LeastOutstandingDispatcher, RoundRobinDispatcher)
    )
    assert known < counted < turns
