"""The slob policy: legal everywhere, better where it matters, exact where it says so, and fair to the oldest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_setups import Played, chat, four_cards, one_card, play

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.delivery import End
from slob_opt.slob.batching import MAX_REPEATS, SlobPolicy

TIGHT = PipelineLimits(1, 16, 260, 16, 512)
VARIANTS = {
    "slob": SlobPolicy(),
    "no-share": SlobPolicy(oldest_share=0.0),
    "no-chunks": SlobPolicy(uses_chunks=False),
    "no-padding-rule": SlobPolicy(uses_padding=False),
    "foresight": SlobPolicy(kv_foresight=0.5),
}


def satisfaction(workload: Workload, found: Played) -> np.ndarray:
    """Mean weighted worth of each request's tokens, with the defaults of the metric."""
    values = []
    for request in range(workload.num_requests):
        size = int(workload.output_tokens[request])
        k = np.arange(1, size + 1)
        weight = np.where(k == 1, 10.0, np.maximum(0.5, 0.98 ** (k - 1)))
        times = np.array(found.times(request)) / 1e9 - workload.arrival_s[request]
        late = np.maximum(0.0, times - 1.0 - (k[: times.size] - 1) / 5.3)
        values.append(float((weight[: times.size] / (1 + late / 5)).sum() / weight.sum()))
    return np.array(values)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_leaps_change_nothing_and_all_ends(name: str, is_padded: bool, num_lanes: int) -> None:
    workload = chat(40, 3.0, seed=num_lanes, max_output=200)
    clock = one_card() if num_lanes == 1 else four_cards()
    limits = PipelineLimits(num_lanes, 15, 260, 16, 512)
    leaping, stepping = (
        play(workload, VARIANTS[name], clock, limits, is_leaping=leaps, is_padded=is_padded) for leaps in (True, False)
    )
    assert list(leaping.result.log) == list(stepping.result.log)
    for request in range(40):
        assert leaping.deliveries[request].end is End.FINISHED
        assert len(leaping.times(request)) == workload.output_tokens[request]
        assert leaping.times(request) == stepping.times(request)


def test_decides_again_after_a_few_steps() -> None:
    found = play(Workload.of("one", [0.0], [50], [100]), SlobPolicy(), one_card(), TIGHT)
    runs = [decision.repeats for decision in found.result.log]
    assert sum(runs) == 100
    assert MAX_REPEATS == 8


def test_beats_first_come_first_served_in_overload() -> None:
    # One L4 at 2.3 requests a second is just over what it can do.
    workload = chat(700, 2.3, seed=1)
    limits = PipelineLimits(1, 64, 1500, 16, 512)
    slob, chunked, orca = (
        satisfaction(workload, play(workload, policy, one_card("l4"), limits, keeps_log=False)).mean()
        for policy in (SlobPolicy(), ChunkedPolicy(), OrcaPolicy())
    )
    assert slob > 1.1 * chunked > 1.1 * orca


def test_priorities_come_first() -> None:
    rng = np.random.default_rng(4)
    base = chat(500, 2.3, seed=2)
    vip = rng.random(500) < 0.2
    workload = Workload.of(
        "vips", base.arrival_s, base.prompt_tokens, base.output_tokens, max_new_tokens=1024,
        priority=np.where(vip, 8.0, 1.0),
    )  # fmt: skip
    limits = PipelineLimits(1, 64, 1500, 16, 512)
    worth = satisfaction(workload, play(workload, SlobPolicy(), one_card("l4"), limits, keeps_log=False))
    without = satisfaction(
        workload, play(workload, SlobPolicy(uses_priority=False), one_card("l4"), limits, keeps_log=False)
    )
    assert worth[vip].mean() > worth[~vip].mean()
    assert worth[vip].mean() > without[vip].mean()


def test_the_oldest_advances_whatever_it_is_worth() -> None:
    # A long prompt among short ones that are always worth more and keep coming: with a share it isn't last.
    size = 400
    arrival = np.sort(np.concatenate([[5.05], np.linspace(0.0, 20.0, size)]))
    long = int(np.searchsorted(arrival, 5.05))
    prompt = np.full(size + 1, 300)
    prompt[long] = 3000
    workload = Workload.of("long", arrival, prompt, np.full(size + 1, 8), max_new_tokens=64)
    limits = PipelineLimits(1, 32, 1500, 16, 512)
    fair, greedy = (
        play(workload, SlobPolicy(oldest_share=share), one_card("t4"), limits, keeps_log=False).times(long)[0]
        for share in (0.25, 0.0)
    )
    assert fair < greedy


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_rectangles_gain_most_per_token(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    left = np.array(data.draw(st.lists(st.integers(1, 60), min_size=size, max_size=size)))
    urgency = np.array(data.draw(st.lists(st.floats(0.01, 5.0), min_size=size, max_size=size)))
    order = np.arange(size)
    chosen = SlobPolicy()._rectangle(left, urgency, order, order[:0])
    rate = urgency[chosen].sum() / (chosen.size * left[chosen].max())
    best = max(
        urgency[list(members)].sum() / (len(members) * left[list(members)].max())
        for count in range(1, size + 1)
        for members in itertools.combinations(range(size), count)
    )
    assert rate == pytest.approx(best, rel=1e-6)
