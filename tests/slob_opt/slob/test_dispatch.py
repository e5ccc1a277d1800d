"""The slob dispatcher on unequal pipelines."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from serving_setups import chat, one_card

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policy import ArrivalView, Dispatcher, PipelineLimits
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.simulator import Simulator
from slob_opt.slob.dispatch import SlobDispatcher

LIMITS = (PipelineLimits(1, 64, 4000, 16, 512), PipelineLimits(1, 16, 600, 16, 512))


@dataclass
class Alternating:
    """Round robin, to compare with."""

    name: str = "alternating"
    count: int = field(default=0)

    def choose(self, view: ArrivalView) -> int | None:
        self.count += 1
        return self.count % len(view.limits)


def serve(workload: Workload, dispatcher: Dispatcher) -> dict[int, Delivery]:
    found: dict[int, Delivery] = {}
    Simulator(
        workload, LIMITS, (one_card("a100-pcie-40gb"), one_card("t4")), (ChunkedPolicy(), ChunkedPolicy()), dispatcher,
        sink=lambda delivery: found.__setitem__(delivery.request, delivery),
    ).run()  # fmt: skip
    return found


def first_token_s(workload: Workload, found: dict[int, Delivery]) -> np.ndarray:
    return np.array([(found[i].token_ns[0] - workload.arrival_ns[i]) / 1e9 for i in range(workload.num_requests)])


def test_a_lone_request_goes_to_the_fast_card() -> None:
    workload = Workload.of("apart", np.arange(5) * 60.0, [500] * 5, [50] * 5)
    assert {d.pipeline for d in serve(workload, SlobDispatcher()).values()} == {0}


def test_both_cards_work_when_there_is_enough_to_do() -> None:
    workload = chat(400, 12.0, seed=1, max_output=400)
    found = serve(workload, SlobDispatcher())
    share = np.mean([found[i].pipeline == 1 for i in range(400)])
    assert 0.01 < share < 0.4
    assert all(delivery.end is End.FINISHED for delivery in found.values())


@pytest.mark.parametrize("rate", [2.0, 6.0])
def test_first_tokens_come_sooner_than_by_turns(rate: float) -> None:
    workload = chat(200, rate, seed=3, max_output=400)
    ours, turns = (first_token_s(workload, serve(workload, d)) for d in (SlobDispatcher(), Alternating()))
    assert ours.mean() < turns.mean()


def test_a_request_too_long_for_one_pipeline_goes_to_the_other() -> None:
    # 600 blocks hold 9,600 tokens.
    workload = Workload.of("long", [0.0, 0.1], [12_000, 100], [5, 5], max_new_tokens=100)
    found = serve(workload, SlobDispatcher())
    assert found[0].pipeline == 0
    assert found[0].end is End.FINISHED


def test_a_request_too_long_for_all_is_rejected_with_the_numbers() -> None:
    workload = Workload.of("longer", [0.0], [90_000], [5])
    delivery = serve(workload, SlobDispatcher())[0]
    assert delivery.end is End.REJECTED
    assert "KV blocks" in delivery.reason
