"""The slob policy: legal everywhere, better where it matters, exact where it says so, and fair to the oldest."""

from __future__ import annotations

import numpy as np
import pytest
from serving_setups import Played, chat, fixed_clock, four_cards, one_card, play

from slob_opt.problem.workload import Workload
from slob_opt.scheduling.columns import RequestColumns
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policies.fcfs import OrcaPolicy
from slob_opt.scheduling.policy import LaneView, PipelineLimits
from slob_opt.scheduling.records import Arrival
from slob_opt.simulation.delivery import End
from slob_opt.slob.batching import LEAST_CHUNK, MAX_REPEATS, MOST_CHUNK, SlobPolicy

TIGHT = PipelineLimits(1, 16, 260, 16, 512)
VARIANTS = {
    "slob": SlobPolicy(),
    "no-share": SlobPolicy(oldest_share=0.0),
    "no-chunks": SlobPolicy(uses_chunks=False),
    "no-padding-rule": SlobPolicy(uses_padding=False),
    "no-priorities": SlobPolicy(uses_priority=False),
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


def waiting_for(prompts: list[int], *, priority: list[float] | None = None, **options: object) -> LaneView:
    """An idle lane at 0.5 s for which requests of 16 tokens at most wait that came at 0 s."""
    columns = RequestColumns()
    weights = priority or [1.0] * len(prompts)
    slots = [columns.enter(Arrival(i, p, 16, w), 0, 0) for i, (p, w) in enumerate(zip(prompts, weights, strict=True))]
    limits = PipelineLimits(1, 8, 400, 16, 512)
    view = LaneView(
        500_000_000, 0, 0, limits, columns, np.zeros(0, np.int64), np.array(slots), 8, 400, 0,
        fixed_clock((2_000_000, 1_000_000)), False,
    )  # fmt: skip
    return view._replace(**options)  # type: ignore[arg-type]


def tokens_of(view: LaneView, policy: SlobPolicy) -> dict[int, int]:
    """Tokens of each request in the plan."""
    plan = policy.decide(view)
    assert plan is not None
    return dict(zip(view.columns.request[plan.slots].tolist(), plan.tokens.tolist(), strict=True))


NO_SHARE = SlobPolicy(oldest_share=0.0)


def test_the_shorter_of_two_late_prompts_comes_first() -> None:
    # A prompt token takes 1 ms here. Both are due at 1 s and lose about alike by waiting, but one takes 600 ms and the
    # other 400 ms. The batch is full at 512 tokens.
    view = waiting_for([600, 400], now_ns=2_000_000_000)
    assert list(tokens_of(view, NO_SHARE).items()) == [(1, 400), (0, 600)]


def test_a_full_batch_takes_no_more() -> None:
    assert list(tokens_of(waiting_for([300, 300, 300]), NO_SHARE)) == [0, 1]


def test_a_long_prompt_is_cut_so_that_others_may_come_between() -> None:
    assert tokens_of(waiting_for([3000]), NO_SHARE) == {0: MOST_CHUNK}
    assert tokens_of(waiting_for([3000]), SlobPolicy(oldest_share=0.0, most_chunk=300)) == {0: 300}
    assert tokens_of(waiting_for([3000]), SlobPolicy(oldest_share=0.0, uses_chunks=False)) == {0: 3000}
    assert tokens_of(waiting_for([3000], is_padded=True), NO_SHARE) == {0: 3000}


@pytest.mark.parametrize(("free_blocks", "first"), [(390, 1), (45, 0)])
def test_a_begun_prompt_goes_first_only_where_blocks_are_scarce(free_blocks: int, first: int) -> None:
    # Of 400 blocks; the begun one has 2,900 tokens to go, the new one 100.
    view = waiting_for([3000, 100], now_ns=500_000_000)
    columns, (begun, new) = view.columns, view.waiting.tolist()
    for name, value in (("cached", 100), ("left", 2900), ("blocks", 7), ("state", 3), ("place", 0)):
        columns.arrays[name][begun] = value
    view = view._replace(rows=np.array([begun]), waiting=np.array([new]), free_blocks=free_blocks)
    assert next(iter(tokens_of(view, NO_SHARE))) == first


def test_a_priority_of_three_outweighs_twice_the_length() -> None:
    view = waiting_for([1200, 600, 600], priority=[3.0, 1.0, 1.0])
    assert list(tokens_of(view, NO_SHARE)) == [0]
    assert list(tokens_of(view, SlobPolicy(oldest_share=0.0, uses_priority=False))) == [1]


def test_one_that_is_hopelessly_late_waits_for_one_that_is_not() -> None:
    # At 200 s the first tokens of the old one are worth 5 / (5 + 199) of the new one's.
    view = waiting_for([600, 600], now_ns=200_000_000_000)
    columns = RequestColumns()
    slots = [columns.enter(Arrival(0, 600, 16, 1.0), 0, 0), columns.enter(Arrival(1, 600, 16, 1.0), 199_500_000_000, 0)]
    view = view._replace(columns=columns, waiting=np.array(slots))
    assert list(tokens_of(view, NO_SHARE)) == [1]
    # With a share the old one gets a quarter of the least chunk all the same.
    assert tokens_of(view, SlobPolicy()) == {0: LEAST_CHUNK // 4, 1: 600}


def test_padding_keeps_a_long_prompt_out_of_a_batch_of_short_ones() -> None:
    # A rectangle of 3 x 100 tokens serves three; with the long one 4 x 3000 are computed for four.
    view = waiting_for([100, 3000, 100, 100], now_ns=5_000_000_000, is_padded=True)
    assert tokens_of(view, NO_SHARE) == {0: 100, 2: 100, 3: 100}
    without = tokens_of(view, SlobPolicy(oldest_share=0.0, uses_padding=False))
    assert without == {0: 100, 2: 100, 3: 100, 1: 3000}


def test_a_long_prompt_is_cut_to_what_streams_bear() -> None:
    # A stream of 10 tokens that is just in time, and a prompt of 3 s: only the least chunk goes with it.
    view = waiting_for([50, 3000])
    columns = view.columns
    stream, prompt = view.waiting.tolist()
    for name, value in (("cached", 60), ("left", 1), ("generated", 11), ("blocks", 5), ("state", 3), ("place", 0)):
        columns.arrays[name][stream] = value
    columns.arrays["priority"][stream] = 50.0
    now = int((1.0 + 11 / 5.3) * 1e9)
    view = view._replace(now_ns=now, rows=np.array([stream]), waiting=np.array([prompt]), free_blocks=395)
    assert tokens_of(view, NO_SHARE) == {0: 1, 1: LEAST_CHUNK}
    assert tokens_of(view, SlobPolicy(oldest_share=0.0, uses_chunks=False)) == {0: 1, 1: 3000}


def test_who_is_ahead_of_the_reader_loses_the_kv_when_blocks_run_short() -> None:
    # Both streams need a block and one is free. The second has 100 tokens, 18 s of reading, after 2 s; the first has 2.
    view = waiting_for([16, 16], now_ns=2_000_000_000)
    columns, (behind, ahead) = view.columns, view.waiting.tolist()
    for slot, generated in ((behind, 1), (ahead, 97)):
        for name, value in (("max_new", 200), ("cached", 15 + generated), ("left", 1), ("generated", generated)):
            columns.arrays[name][slot] = value
        columns.arrays["blocks"][slot] = (15 + generated) // 16
        columns.arrays["state"][slot], columns.arrays["place"][slot] = 3, 0
    view = view._replace(rows=np.array([behind, ahead]), waiting=np.zeros(0, np.int64), free_blocks=1)
    plan = NO_SHARE.decide(view)
    assert plan is not None
    assert (plan.slots.tolist(), plan.preempt.tolist()) == ([behind], [ahead])


def test_the_oldest_advances_whatever_it_is_worth() -> None:
    # A long prompt among short ones that are always worth more and keep coming: with a share of all it isn't last.
    size = 400
    arrival = np.sort(np.concatenate([[5.05], np.linspace(0.0, 20.0, size)]))
    long = int(np.searchsorted(arrival, 5.05))
    prompt = np.full(size + 1, 300)
    prompt[long] = 3000
    workload = Workload.of("long", arrival, prompt, np.full(size + 1, 8), max_new_tokens=64)
    limits = PipelineLimits(1, 32, 1500, 16, 512)
    fair, greedy = (
        play(workload, SlobPolicy(oldest_share=share), one_card("t4"), limits, keeps_log=False).times(long)[0]
        for share in (1.0, 0.0)
    )
    assert fair < 0.5 * greedy
