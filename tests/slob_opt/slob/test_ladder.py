"""What levels carry, and which of them are worth keeping."""

from __future__ import annotations

import numpy as np
import pytest
from serving_setups import fixed_clock, four_cards, one_card, play

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import InputError
from slob_opt.problem.placement import Pipeline, Stage
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.slob.ladder import Ladder, Lengths, Server

MEAN = Lengths(400.0, 150.0)


def server(clock: PipelineClock, *cards: int, limits: PipelineLimits | None = None) -> Server:
    layers = np.linspace(0, 32, len(cards) + 1).astype(int)
    stages = tuple(Stage((card,), int(a), int(b)) for card, a, b in zip(cards, layers, layers[1:], strict=False))
    return Server(Pipeline(stages), limits or PipelineLimits(1, 64, 5000), clock)


def test_the_rate_is_what_the_bottleneck_has_time_for() -> None:
    """One stage, 10 ms a decode whatever its size, 1 ms more a prompt token: 400 x 1 ms + 150 x 10 ms / 18 rows."""
    made = server(fixed_clock((10_000_000, 1_000_000)), 0, limits=PipelineLimits(1, 18, 9999))
    # A token of decode costs 1 ms as well: 28 ms for 18 rows.
    assert made.rows(MEAN, 0.19) == 18
    assert made.rate(MEAN) == pytest.approx(1 / (0.4 + 150 * 0.028 / 18))
    assert made.rows(MEAN, 0.02) == 10  # 10 ms + 10 x 1 ms
    short = server(fixed_clock((10_000_000, 1_000_000)), 0, limits=PipelineLimits(1, 18, 105))
    assert short.rows(MEAN, 0.19) == 3  # 550 tokens are 35 blocks


@pytest.mark.parametrize("kind", ["one", "four"])
def test_a_load_somewhat_below_the_rate_is_carried_and_one_above_is_not(kind: str) -> None:
    clock = one_card("l4") if kind == "one" else four_cards()
    limits = PipelineLimits(1 if kind == "one" else 4, 64, 4000)
    rate = server(clock, *((0,) if kind == "one" else (0, 1, 2, 3)), limits=limits).rate(MEAN)
    waits = []
    for share in (0.6, 1.6):
        rng = np.random.default_rng(3)
        size = 400
        arrivals = np.cumsum(rng.exponential(1 / (share * rate), size))
        workload = Workload.of("w", arrivals, [400] * size, [150] * size)
        found = play(workload, OrcaPagedPolicy(), clock, limits)
        started = np.array([found.deliveries[i].started_ns for i in range(size)])
        waits.append(float(np.mean((started - workload.arrival_ns)[-100:] / 1e9)))
    assert waits[0] < 1.0
    assert waits[1] > 10.0


def test_levels_that_another_one_beats_are_left_out() -> None:
    fast, slow = fixed_clock((10_000_000,)), fixed_clock((40_000_000,))
    servers = [server(fast, 0), server(slow, 1), server(slow, 2)]
    levels = [("fast", (0,)), ("slow", (1,)), ("both", (0, 1)), ("other", (2,)), ("all", (0, 1, 2))]
    ladder = Ladder.of(servers, levels, MEAN)
    # A slow card alone carries less with as many cards as the fast one.
    assert [level.name for level in ladder.levels] == ["fast", "both", "all"]
    assert [len(level.cards) for level in ladder.levels] == [1, 2, 3]
    assert ladder.rate(1, MEAN) == pytest.approx(servers[0].rate(MEAN) + servers[1].rate(MEAN))
    assert ladder.service_s(MEAN) == servers[0].service_s(MEAN)
    assert ladder.capacity(0, MEAN) == pytest.approx(ladder.rate(0, MEAN) * ladder.service_s(MEAN))


def test_wrong_ladders_are_refused() -> None:
    with pytest.raises(InputError, match="at least one level"):
        Ladder.of([], [], MEAN)
    with pytest.raises(InputError, match="level x has pipelines"):
        Ladder.of([server(fixed_clock((1,)), 0)], [("x", (4,))], MEAN)
    with pytest.raises(InputError, match="mean output length is 0"):
        Lengths(1.0, 0.0)
