"""Cards that serve several stages: who comes first, what it costs, and that nothing changes where nobody meets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from serving_policies import POLICIES
from serving_setups import chat, fixed_clock, four_cards

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.metrics.iterations import Iteration
from slob_opt.problem.device import Link
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.dispatchers.blind import RoundRobinDispatcher
from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import ArrivalView, PipelineLimits, Policy
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.options import EngineOptions, SimulationResult
from slob_opt.simulation.sharing import Server, servers_of
from slob_opt.simulation.simulator import Simulator


@dataclass(frozen=True)
class Always:
    """A dispatcher that knows one pipeline."""

    index: int = 0
    name: str = "always"

    def choose(self, view: ArrivalView) -> int | None:
        return self.index


def simulate(
    workload: Workload, policy: Policy, clocks: Sequence[PipelineClock], limits: PipelineLimits,
    cards: Sequence[Sequence[Sequence[int]]] | None, dispatcher: object = None, *, is_watched: bool = False,
    **options: object,
) -> tuple[SimulationResult, dict[int, Delivery], list[Iteration]]:  # fmt: skip
    found: list[Delivery] = []
    seen: list[Iteration] = []
    result = Simulator(
        workload, [limits] * len(clocks), clocks, [policy] * len(clocks),
        dispatcher or (Always() if len(clocks) > 1 else None), sink=found.append, cards=cards,  # type: ignore[arg-type]
        options=EngineOptions(keeps_log=True, **options),  # type: ignore[arg-type]
        observer=seen.append if is_watched else None,
    ).run()  # fmt: skip
    return result, {one.request: one for one in found}, seen


@pytest.mark.parametrize("name", ["orca", "orca-paged", "chunked", "slob", "rtc"])
@pytest.mark.parametrize(("num_lanes", "rate"), [(1, 3.0), (2, 2.0), (4, 6.0)])
def test_a_neighbour_without_requests_changes_nothing(name: str, num_lanes: int, rate: float) -> None:
    workload, clock = chat(60, rate, seed=num_lanes, max_output=60), four_cards()
    limits = PipelineLimits(num_lanes, 16, 900, 16, 256)
    alone, first, _ = simulate(workload, POLICIES[name], [clock], limits, None)
    beside, second, _ = simulate(
        workload, POLICIES[name], [clock, clock], limits, [[(0,), (1,), (2,), (3,)], [(3,), (2,), (1,), (0,)]]
    )
    assert list(alone.log) == list(beside.log)
    assert alone.stages[0] == beside.stages[0]
    for request, delivery in first.items():
        assert delivery.token_ns.tolist() == second[request].token_ns.tolist()


def test_two_pipelines_on_one_card_take_turns() -> None:
    """One request each, 1 s a token: each gets a token every 2 s."""
    workload = Workload.of("two", [0.0, 0.0], [1, 1], [3, 3])
    clock = fixed_clock((1_000_000_000,))
    _, found, _ = simulate(
        workload, OrcaPolicy(), [clock, clock], PipelineLimits(1, 4, 99), [[(0,)], [(0,)]], RoundRobinDispatcher()
    )
    assert (found[0].token_ns / 1e9).tolist() == [1, 3, 5]
    assert (found[1].token_ns / 1e9).tolist() == [2, 4, 6]


def test_both_stages_of_a_pipeline_on_one_card() -> None:
    """Stages of 2 s and 1 s on one card: two lanes get one token each every 6 s, not every 4 s as on two cards."""
    workload = Workload.of("two", [0.0, 0.0], [1, 1], [4, 4])
    clock = fixed_clock((2_000_000_000,), (1_000_000_000,))
    limits = PipelineLimits(2, 4, 99)
    result, found, _ = simulate(workload, OrcaPolicy(), [clock], limits, [[(7,), (7,)]])
    assert result.end_ns == 8 * 3_000_000_000
    assert sorted(np.concatenate([found[0].token_ns, found[1].token_ns]).tolist())[-1] == 24_000_000_000
    apart, _, _ = simulate(workload, OrcaPolicy(), [clock], limits, [[(7,), (8,)]])
    assert apart.end_ns == 8 * 2_000_000_000 + 1_000_000_000


@pytest.mark.parametrize("name", ["orca", "slob", "chunked"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_card_does_one_thing_at_a_time(name: str, seed: int) -> None:
    workload = chat(40, 8.0, seed=seed, max_output=40)
    clocks = [
        fixed_clock((3_000_000, 4_000), (2_000_000, 9_000), link=Link(1e9, 1e-4)),
        fixed_clock((1_000_000, 7_000), (4_000_000, 1_000), (2_000_000, 500), link=Link(1e8, 1e-3)),
    ]
    cards = [[(0,), (1,)], [(1,), (2,), (0, 3)]]
    result, found, seen = simulate(
        workload,
        POLICIES[name],
        clocks,
        PipelineLimits(2, 8, 500, 16, 128),
        cards,
        RoundRobinDispatcher(),
        is_watched=True,
    )
    assert result.num_finished == 40
    spans: dict[int, list[tuple[int, int]]] = {}
    busy = [[0] * len(stages) for stages in cards]
    for one in seen:
        for stage, span in enumerate(zip(one.start_ns, one.end_ns, strict=True)):
            busy[one.pipeline][stage] += span[1] - span[0]
            for card in cards[one.pipeline][stage]:
                spans.setdefault(card, []).append(span)
    assert busy == [[stage.busy_ns for stage in stages] for stages in result.stages]
    for held in spans.values():
        held.sort()
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(held))
    assert sum(len(one.requests) for one in seen) >= sum(found[request].token_ns.size for request in found)


def test_leaps_beside_an_idle_neighbour_change_nothing() -> None:
    workload = chat(40, 0.4, seed=3, max_output=200)
    clock = four_cards()
    cards = [[(0,), (1,), (2,), (3,)], [(0,), (1,), (2,), (3,)]]
    limits = PipelineLimits(2, 16, 900)
    runs = [
        simulate(workload, OrcaPolicy(), [clock, clock], limits, cards, RoundRobinDispatcher(), is_leaping=leaps)
        for leaps in (True, False)
    ]
    assert list(runs[0][0].log) == list(runs[1][0].log)
    assert runs[0][0].stages == runs[1][0].stages
    assert all(runs[0][1][i].token_ns.tolist() == runs[1][1][i].token_ns.tolist() for i in range(40))


def test_stages_that_share_a_card_have_one_server() -> None:
    found = servers_of([[(0, 1), (2,)], [(1, 3), (3,)], [(9,), (8,)]])
    first, second, third = found
    assert first is not None
    assert second is not None
    assert third is None
    assert first[0] is second[0] is second[1]
    assert isinstance(first[1], Server)
    assert first[1] is not first[0]


def test_watching_changes_nothing() -> None:
    workload, clock = chat(50, 2.0, seed=5, max_output=80), four_cards()
    limits = PipelineLimits(3, 16, 900)
    plain, first, _ = simulate(workload, OrcaPolicy(), [clock], limits, None)
    watched, second, seen = simulate(workload, OrcaPolicy(), [clock], limits, None, is_watched=True)
    assert plain.stages == watched.stages
    assert list(plain.log) == list(watched.log)
    assert all(first[i].token_ns.tolist() == second[i].token_ns.tolist() for i in range(50))
    assert sum(one.end_ns[0] - one.start_ns[0] for one in seen) == plain.stages[0][0].busy_ns
    assert all(one.back_ns >= one.end_ns[-1] > one.start_ns[0] for one in seen)
    assert sum(decision.repeats for decision in plain.log) == len(seen)
