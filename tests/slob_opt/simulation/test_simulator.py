"""The simulator against queueing formulas, against itself step by step, and against what must be conserved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from serving_policies import POLICIES
from serving_setups import FAST, LLAMA, chat, fixed_clock, four_cards, one_card, play
from virtual_engine import VirtualEngine

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.cost.roofline import CardGroup
from slob_opt.cost.stage_clock import StageClock
from slob_opt.errors import InputError
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.fcfs import OrcaPagedPolicy, OrcaPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.delivery import End
from slob_opt.simulation.lanes import PipelineDriver
from slob_opt.simulation.simulator import EngineOptions

ROOMY = PipelineLimits(1, 64, 25_000, 16, 512)
TIGHT = PipelineLimits(1, 16, 260, 16, 512)
"""260 blocks hold 4,160 tokens: one long request and little beside it."""


def lanes(limits: PipelineLimits, num_lanes: int) -> PipelineLimits:
    return PipelineLimits(num_lanes, limits.max_rows, limits.kv_blocks, 16, 512)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("limits", "rate"), [(ROOMY, 3.0), (TIGHT, 3.0)], ids=["roomy", "tight"])
def test_leaps_change_nothing(name: str, is_padded: bool, limits: PipelineLimits, rate: float) -> None:
    workload = chat(60, rate, max_output=300)
    for clock, num_lanes in ((one_card(), 1), (four_cards(), 1), (four_cards(), 4)):
        leaping, stepping = (
            play(workload, POLICIES[name], clock, lanes(limits, num_lanes), is_leaping=leaps, is_padded=is_padded)
            for leaps in (True, False)
        )
        assert leaping.result.end_ns == stepping.result.end_ns
        assert list(leaping.result.log) == list(stepping.result.log)
        assert leaping.result.stages == stepping.result.stages
        assert leaping.result.num_preempted == stepping.result.num_preempted
        assert stepping.result.num_preempted == sum(len(one.preempted) for one in stepping.result.log)
        for request, delivery in stepping.deliveries.items():
            assert leaping.times(request) == stepping.times(request)
            assert leaping.deliveries[request].started_ns == delivery.started_ns


def windowed(*windows: int | None) -> PipelineClock:
    """Two L4s; the layers of the model have these attention windows in turn."""
    layers = tuple(
        replace(layer, window_tokens=windows[index % len(windows)]) for index, layer in enumerate(LLAMA.layers)
    )
    model = replace(LLAMA, layers=layers)
    group = CardGroup(gpu_device("l4", "n/0"))
    return PipelineClock([StageClock(group, model, 0, 20), StageClock(group, model, 20, 32)], [FAST], FAST)


@pytest.mark.parametrize("windows", [(300,), (300, None), (100, 700, None)])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_leaps_of_models_with_windows(windows: tuple[int | None, ...], is_padded: bool, num_lanes: int) -> None:
    """Decodes read more with each token until a window is full."""
    workload = chat(40, 1.0, seed=num_lanes, max_output=400)
    leaping, stepping = (
        play(
            workload, POLICIES["orca-paged"], windowed(*windows), lanes(ROOMY, num_lanes), is_leaping=leaps,
            is_padded=is_padded,
        )
        for leaps in (True, False)
    )  # fmt: skip
    assert list(leaping.result.log) == list(stepping.result.log)
    assert leaping.result.stages == stepping.result.stages
    assert all(leaping.times(r) == stepping.times(r) for r in range(40))
    engine = VirtualEngine(workload, lanes(ROOMY, num_lanes), windowed(*windows), POLICIES["orca-paged"], is_padded)
    engine.run()
    assert all(leaping.times(r) == engine.token_ns[r] for r in range(40))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_lanes", [2, 3])
def test_lanes_that_wait_for_one_stage(num_lanes: int, seed: int) -> None:
    """One stage, several lanes: lanes that went on by themselves and then wait once kept an event that was over."""
    workload = chat(40, 3.0, seed=seed, max_output=150)
    limits = PipelineLimits(num_lanes, 16, 600, 16, 512)
    leaping, stepping = (
        play(workload, POLICIES["chunked"], one_card("t4"), limits, is_leaping=leaps) for leaps in (True, False)
    )
    assert list(leaping.result.log) == list(stepping.result.log)
    assert all(leaping.times(r) == stepping.times(r) for r in range(40))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("limits", "num_lanes"), [(ROOMY, 1), (TIGHT, 1), (ROOMY, 4), (TIGHT, 3)])
def test_stage_0_is_never_idle_while_the_policy_would_run_something(
    name: str, limits: PipelineLimits, num_lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every event: where stage 0 is free, the policy has nothing for any lane that is free."""
    start, num_idle = PipelineDriver.start, [0]

    def checked(driver: PipelineDriver, now: int) -> None:
        start(driver, now)
        if driver.line.stage_free[0] <= now:
            num_idle[0] += 1
            for lane, run in enumerate(driver.line.runs):
                if not run.is_busy:
                    assert driver.scheduler.next_batch(driver.index, lane, now) is None

    monkeypatch.setattr(PipelineDriver, "start", checked)
    play(chat(60, 2.0, seed=4, max_output=100), POLICIES[name], four_cards(), lanes(limits, num_lanes))
    assert num_idle[0] > 0


@pytest.mark.parametrize("name", POLICIES)
def test_tokens_are_conserved(name: str) -> None:
    workload = chat(80, 4.0, seed=3, max_output=400)
    found = play(workload, POLICIES[name], four_cards(), lanes(TIGHT, 2))
    for request in range(workload.num_requests):
        delivery = found.deliveries[request]
        assert delivery.end is End.FINISHED
        assert delivery.token_ns.size == workload.output_tokens[request]
        assert np.all(np.diff(delivery.token_ns) >= 0)
        assert delivery.started_ns is not None
        assert workload.arrival_ns[request] <= delivery.started_ns < delivery.token_ns[0]
    # Every prompt token was computed, and every output token but the last of each request was fed back.
    needed = int(workload.prompt_tokens.sum() + (workload.output_tokens - 1).sum())
    done = found.result.stages[0][0]
    assert done.tokens - done.padding_tokens >= needed
    if POLICIES[name].kv_use.value == "reserve":
        assert done.tokens - done.padding_tokens == needed


def test_same_input_same_output() -> None:
    first, second = (
        play(chat(40, 2.0), OrcaPagedPolicy(), four_cards(), lanes(TIGHT, 3), noise=0.2, seed=5) for _ in "ab"
    )
    assert list(first.result.log) == list(second.result.log)
    assert all(first.times(r) == second.times(r) for r in range(40))
    other = play(chat(40, 2.0), OrcaPagedPolicy(), four_cards(), lanes(TIGHT, 3), noise=0.2, seed=6)
    assert any(first.times(r) != other.times(r) for r in range(40))


def test_d_d_1() -> None:
    # One token each, 10 ms a batch of one row, one arrival every 8 ms: request i ends at 10 (i + 1) ms.
    workload = Workload.of("d/d/1", np.arange(50) * 0.008, [5] * 50, [1] * 50)
    found = play(workload, OrcaPolicy(), fixed_clock((10_000_000,)), PipelineLimits(1, 1, 100))
    assert [found.times(i)[0] for i in range(50)] == [10_000_000 * (i + 1) for i in range(50)]


def test_m_d_1_waits_as_the_formula_says() -> None:
    # Pollaczek-Khinchine with fixed service s: mean wait = rho s / (2 (1 - rho)).
    service, rho, size = 0.01, 0.7, 12_000
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(service / rho, size))
    workload = Workload.of("m/d/1", arrivals, [5] * size, [1] * size)
    found = play(workload, OrcaPolicy(), fixed_clock((10_000_000,)), PipelineLimits(1, 1, 100), keeps_log=False)
    waits = np.array([found.deliveries[i].token_ns[0] for i in range(size)]) / 1e9 - arrivals - service
    assert waits.mean() == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.08)


def test_littles_law() -> None:
    workload = chat(300, 3.0, seed=2)
    found = play(workload, OrcaPolicy(), one_card(), ROOMY)
    ends = np.array([found.deliveries[i].token_ns[-1] for i in range(300)])
    times = np.sort(np.concatenate([workload.arrival_ns, ends]))
    number = np.searchsorted(np.sort(workload.arrival_ns), times, side="right") - np.searchsorted(
        np.sort(ends), times, side="right"
    )
    area = float((number[:-1] * np.diff(times)).sum())
    assert area == pytest.approx(float((ends - workload.arrival_ns).sum()), rel=1e-9)


@pytest.mark.parametrize("num_jobs", [1, 2, 7])
def test_makespan_is_fill_and_bottleneck(num_jobs: int) -> None:
    # One-token requests in as many lanes: fill = 3 + 5 + 2 ms, then one more every 5 ms (the bottleneck).
    workload = Workload.of("burst", [0.0] * num_jobs, [4] * num_jobs, [1] * num_jobs)
    clock = fixed_clock((3_000_000,), (5_000_000,), (2_000_000,))
    found = play(workload, OrcaPolicy(), clock, PipelineLimits(num_jobs, num_jobs, 1000))
    assert max(found.times(i)[0] for i in range(num_jobs)) == 10_000_000 + (num_jobs - 1) * 5_000_000


def test_lanes_fill_the_pipeline() -> None:
    # Two stages of 10 ms: one lane leaves each idle half of the time, two lanes none.
    workload = Workload.of("pair", [0.0, 0.0], [4, 4], [100, 100])
    one = play(workload, OrcaPolicy(), fixed_clock((10_000_000,), (10_000_000,)), PipelineLimits(1, 2, 1000))
    two = play(workload, OrcaPolicy(), fixed_clock((10_000_000,), (10_000_000,)), PipelineLimits(2, 2, 1000))
    assert one.result.end_ns == 100 * 20_000_000
    assert two.result.end_ns == 101 * 20_000_000 - 10_000_000


def test_a_link_is_a_server_too() -> None:
    # 8,192 bytes a token over 8.192e5 B/s are 10 ms a token on the link, the stages take 1 ms.
    from slob_opt.problem.device import Link

    workload = Workload.of("burst", [0.0] * 3, [1] * 3, [1] * 3)
    clock = fixed_clock((1_000_000,), (1_000_000,), link=FAST)
    clock = type(clock)(clock.stages, [Link(8.192e5, 0.0)], FAST)
    found = play(workload, OrcaPolicy(), clock, PipelineLimits(3, 3, 100))
    assert [found.times(i)[0] for i in range(3)] == [12_000_000, 22_000_000, 32_000_000]


def test_horizon_cuts_and_counts() -> None:
    workload = chat(100, 5.0)
    found = play(workload, OrcaPolicy(), one_card(), ROOMY, horizon_ns=10_000_000_000)
    ends = [d.end for d in found.deliveries.values()]
    assert ends.count(End.FINISHED) == found.result.num_finished > 0
    assert ends.count(End.UNFINISHED) == found.result.num_unfinished > 0
    assert all(t <= 10_000_000_000 for r in range(100) for t in found.times(r))


def test_unstreamed_answers_come_with_the_batch() -> None:
    workload = Workload.of("two", [0.0, 0.0], [4, 4], [2, 5])
    clock, limits = fixed_clock((10_000_000,)), PipelineLimits(1, 2, 100)
    found = play(workload, POLICIES["rtc"], clock, limits)
    assert found.times(0) == [50_000_000] * 2
    assert found.times(1) == [50_000_000] * 5
    # Request 0 ended after two iterations and its row was computed in the three that followed.
    assert found.result.stages[0][0].padding_tokens == 3
    dropped = play(workload, POLICIES["rtc-drops"], clock, limits)
    assert dropped.result.stages[0][0].padding_tokens == 0
    streamed = play(workload, POLICIES["rtc-streamed"], clock, limits)
    assert streamed.times(0) == [10_000_000, 20_000_000]


def test_requests_that_can_never_fit_are_rejected_with_the_numbers() -> None:
    workload = Workload.of("long", [0.0, 1.0], [5000, 10], [10, 10])
    found = play(workload, OrcaPolicy(), one_card(), TIGHT)
    assert found.deliveries[0].end is End.REJECTED
    assert found.deliveries[0].reason == ("5010 tokens need 314 KV blocks of 16 tokens, the pipeline has 260")
    assert found.deliveries[1].end is End.FINISHED


def test_wrong_noise_is_refused() -> None:
    with pytest.raises(InputError, match="noise is -1"):
        EngineOptions(noise=-1)
