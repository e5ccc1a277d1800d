"""Levels that change while requests are served: what loads when, what waits, and which cards are in use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from serving_setups import fixed_clock

from slob_opt.errors import InputError
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.dispatchers.blind import LeastOutstandingDispatcher
from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.control import Observation
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.levels import LevelController, LevelPlan
from slob_opt.simulation.simulator import Simulator

SECOND = 1_000_000_000
CARDS = [[(0,)], [(0,), (1,)], [(2,)]]
"""Pipeline 0 on card 0, pipeline 1 on cards 0 and 1, pipeline 2 on card 2."""


def plan(room: int = 100, levels: tuple[tuple[int, ...], ...] = ((0,), (1,), (0, 2))) -> LevelPlan:
    """A pipeline takes 60 bytes of each of its cards, 40 of them weights; loads take 4 s."""
    held = tuple({stage[0]: 60 for stage in stages} for stages in CARDS)
    weights = tuple({stage[0]: 40 for stage in stages} for stages in CARDS)
    return LevelPlan(levels, held, weights, dict.fromkeys(range(3), room), 10.0)


def simulate(
    workload: Workload, controller: LevelController, *, rows: int = 4
) -> tuple[dict[int, Delivery], int]:  # fmt: skip
    found: list[Delivery] = []
    clocks = [fixed_clock(*[(SECOND // len(stages),)] * len(stages)) for stages in CARDS]
    result = Simulator(
        workload, [PipelineLimits(1, rows, 99)] * 3, clocks, [OrcaPolicy()] * 3, LeastOutstandingDispatcher(),
        sink=found.append, controller=controller, cards=CARDS,
    ).run()  # fmt: skip
    return {one.request: one for one in found}, result.end_ns


def at(*times: tuple[int, int]) -> Callable[[Observation], int]:
    """Choose levels from times on, seconds."""
    return lambda seen: [level for time, level in times if time * SECOND <= seen.now_ns][-1]


def test_a_level_beside_loads_while_the_old_one_serves() -> None:
    """Level 2 adds pipeline 2 on card 2, asked for at 60 s: loaded at 64 s, and card 2 counts from 60 s on."""
    workload = Workload.of("pairs", np.repeat(np.arange(50) * 2.0, 2), [5] * 100, [1] * 100)
    controller = LevelController(plan(), at((0, 0), (60, 2)))
    found, _ = simulate(workload, controller)
    first = min(one.request for one in found.values() if one.pipeline == 2)
    assert workload.arrival_s[first] == 66.0  # those of 64 s came just before it opened
    assert all((one.token_ns[-1] - workload.arrival_ns[one.request]) == SECOND for one in found.values())
    assert [(change.at_ns // SECOND, change.level) for change in controller.changes] == [(0, 0), (60, 2)]
    assert controller.cards_until(100 * SECOND) == (60 * 1 + 40 * 2) * SECOND


def test_where_cards_hold_one_only_the_old_drains_and_the_new_takes_requests_meanwhile() -> None:
    """Level 1 needs card 0, asked for at 60 s. The request of 55 s has 20 tokens and ends at 75 s; loaded at 79 s."""
    workload = Workload.of("few", [55.0, 70.0, 90.0], [5] * 3, [20, 2, 2])
    controller = LevelController(plan(), at((0, 0), (60, 1)))
    found, _ = simulate(workload, controller)
    assert [found[i].pipeline for i in range(3)] == [0, 1, 1]
    assert found[0].token_ns[-1] == 75 * SECOND
    assert found[1].started_ns == 79 * SECOND
    assert found[2].started_ns == 90 * SECOND
    # Card 0 all the time, card 1 from the start of loading at 75 s.
    assert controller.cards_until(95 * SECOND) == (95 + 20) * SECOND


def test_levels_that_fit_together_switch_free_once_loaded() -> None:
    """With room for both, level 1 loads beside level 0 at 60 s; back at 120 s and up at 180 s nothing loads."""
    workload = Workload.of("steady", np.arange(120) * 2.0, [5] * 120, [1] * 120)
    controller = LevelController(plan(room=200), at((0, 0), (60, 1), (120, 0), (180, 1)))
    found, _ = simulate(workload, controller)
    by_time = {float(workload.arrival_s[one.request]): one.pipeline for one in found.values()}
    assert [by_time[t] for t in (62.0, 64.0, 118.0, 120.0, 178.0)] == [0, 1, 1, 0, 0]
    # Pipeline 1 was dropped at 120 s, since nothing else keeps card 1 in use: it loads again.
    assert [by_time[t] for t in (182.0, 184.0)] == [0, 1]
    assert controller.cards_until(240 * SECOND) == (240 + 60 + 60) * SECOND


def test_what_is_kept_on_cards_in_use_costs_nothing_on_the_way_back() -> None:
    """From level 1 (cards 0 and 1) down to level 0 (card 0) and up: pipeline 0 stays loaded beside pipeline 1."""
    workload = Workload.of("steady", np.arange(90) * 2.0, [5] * 90, [1] * 90)
    controller = LevelController(plan(room=200), at((0, 0), (60, 1), (120, 0)))
    found, _ = simulate(workload, controller)
    by_time = {float(workload.arrival_s[one.request]): one.pipeline for one in found.values()}
    assert [by_time[t] for t in (62.0, 64.0, 118.0, 120.0)] == [0, 1, 1, 0]  # no 4 s at 120 s


def test_every_request_is_served_whatever_changes() -> None:
    rng = np.random.default_rng(1)
    workload = Workload.of("busy", np.cumsum(rng.exponential(1.2, 300)), [5] * 300, rng.integers(1, 30, 300))
    for room in (100, 150, 200):
        levels = iter(rng.integers(0, 3, 1000).tolist())
        controller = LevelController(plan(room), lambda seen, levels=levels: next(levels))  # type: ignore[misc]
        found, _ = simulate(workload, controller, rows=8)
        assert len(found) == 300
        assert all(found[i].token_ns.size == workload.output_tokens[i] for i in range(300))


def test_wrong_plans_are_refused() -> None:
    with pytest.raises(InputError, match="level 0 don't fit"):
        plan(room=50)
    with pytest.raises(InputError, match="level 0 has pipelines"):
        plan(levels=((7,),))
    with pytest.raises(InputError, match="load_bytes_per_s is 0"):
        LevelPlan(((0,),), ({0: 1},), ({0: 1},), {0: 5}, 0.0)
    with pytest.raises(InputError, match="level 9 was chosen of 3"):
        simulate(Workload.of("one", [0.0], [5], [100]), LevelController(plan(), lambda seen: 9))
