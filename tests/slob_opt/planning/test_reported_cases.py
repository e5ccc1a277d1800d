"""Situations that users of other engines reported, with the behaviour they should have seen; one kind a test.

Each runs with every planner of the core that looks for the best plan; one that refuses the size is skipped.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from slob_builders import (
    FREE_LINK,
    GB,
    MS,
    Solved,
    big_last_block,
    by_bandwidth,
    fast_and_slow,
    heavy_first_layers,
    laptops,
    more_devices_than_layers,
    one_gigabyte_short,
    tiny_instances,
    two_boxes_on_a_cable,
    with_capacity,
    without_last_device,
)
from slob_contract import HAND, find_planner

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.baselines.even import EvenPlanner
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Planner, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.placement import Placement

EXHAUSTIVE = "slob_opt.planning.exhaustive:ExhaustivePlanner"
PARAMETRIC = "slob_opt.planning.parametric:ParametricPlanner"
SLOB = "slob_opt.slob.placement:SlobPlanner"


@pytest.fixture(params=[EXHAUSTIVE, PARAMETRIC, SLOB], ids=["exhaustive", "parametric", "slob"])
def planner(request: pytest.FixtureRequest) -> Planner:
    return find_planner(request.param)


def _solve(planner: Planner, instance: PlacementInstance) -> SolveResult:
    result = planner.solve(instance)
    if result.message.startswith("not enumerated"):
        pytest.skip(f"{planner.name} refuses this size: {result.message}")
    return result


def _layers(result: SolveResult) -> dict[int, int]:
    """Layers by card."""
    assert result.placement is not None, result.message
    return {s.cards[0]: s.num_layers for p in result.placement.pipelines for s in p.stages}


def _reaches(planner: Planner, solved: Solved) -> SolveResult:
    result = _solve(planner, solved.instance)
    assert solved.objective is not None
    assert result.objective == pytest.approx(solved.objective, rel=HAND)
    return result


def test_a_slow_device_is_left_out_when_the_model_fits_on_the_fast_one(planner: Planner) -> None:
    assert _layers(_reaches(planner, fast_and_slow())) == {0: 32}
    # For throughput both may work: 28.4 layers on the fast card against 3.6 on the slow one take equal time.
    table = fast_and_slow().instance.table
    both = _solve(planner, PlacementInstance(table, ThroughputObjective(8)))
    assert both.objective is not None
    assert both.objective < -8 / (16 * MS) * 1.05


def test_a_third_slower_machine_over_the_network_changes_nothing(planner: Planner) -> None:
    for count in (1, 2, 3):
        assert _layers(_reaches(planner, laptops(count))) == {0: 28}


@pytest.mark.parametrize("path", [EXHAUSTIVE, PARAMETRIC, SLOB])
@settings(max_examples=40, deadline=None)
@given(tiny_instances())
def test_one_device_more_never_makes_a_plan_worse(path: str, instance: PlacementInstance) -> None:
    planner = find_planner(path)
    assume(instance.table.num_devices > 1)
    smaller = without_last_device(instance)
    before = planner.solve(smaller)
    after = planner.solve(instance, incumbent=before.placement)
    if before.objective is not None:
        assert after.objective is not None
        assert after.objective <= before.objective + 1e-9 * abs(before.objective)
    fresh = planner.solve(instance)
    if before.status is fresh.status is Status.OPTIMAL:
        assert before.objective is not None
        assert fresh.objective is not None
        assert fresh.objective <= before.objective + 1e-6 * abs(before.objective)


def test_a_small_card_among_large_ones_gets_what_it_can_hold(planner: Planner) -> None:
    # 90 % of 24 and 12 GB; a layer with the KV of 4 sequences of 4096 tokens is 1.711 + 0.067 GB: 12 layers on a large
    # card, 10 with embedding or head (2.1 GB), 6 on the small one: 2 * 10 + 5 * 12 + 6 = 86 >= 80.
    table = direct_table(
        [DirectClass("big", 7, 21_600_000_000, 1 * MS), DirectClass("small", 1, 10_800_000_000, 1 * MS)],
        80,
        layer_bytes=1_711_000_000,
        kv_bytes=4096 * 4096,
        embed_bytes=2_100_000_000,
        head_bytes=2_100_000_000,
    )
    instance = PlacementInstance(table, IntervalObjective(4))
    result = _solve(planner, instance)
    layers = _layers(result)
    assert sum(layers.values()) == 80
    assert layers.get(7, 0) <= 6
    assert all(n <= 12 for n in layers.values())
    assert EvenPlanner().solve(instance).status is Status.UNKNOWN


def test_free_memory_of_each_card_limits_its_own_share(planner: Planner) -> None:
    # 60 layers of 1.1 + 2 * 0.05 GB on 30 and 50 GB: at most 25 and 41; the longer stage counts twice, so 25 and 35.
    table = direct_table(
        [DirectClass("small", 1, 30 * GB, 1 * MS), DirectClass("large", 1, 50 * GB, 1 * MS)],
        60,
        layer_bytes=1_100_000_000,
        kv_bytes=50_000_000,
        bytes_per_s=FREE_LINK,
    )
    result = _solve(planner, PlacementInstance(table, IntervalObjective(2)))
    assert _layers(result) == {0: 25, 1: 35}
    assert result.objective == pytest.approx(70 * MS, rel=HAND)


def test_large_first_layers_are_split_by_bytes(planner: Planner) -> None:
    solved = heavy_first_layers()
    result = _reaches(planner, solved)
    assert sorted(_layers(result).values()) in ([27, 53], [28, 52])
    halves = evaluate(solved.instance, Placement((pipeline_of(solved.instance.table, (0, 1), (40, 40), 2),)))
    assert halves.violations == ("card-0 needs 24.21 GiB for layers [0, 40) and has 22.35 GiB",)  # 26.0 and 24 GB


def test_embedding_head_and_logits_are_counted_on_the_ends(planner: Planner) -> None:
    # 32 layers of 0.436 + 0.9 GB on four cards of 13 GB: at most 9 inside, 8 beside the embedding of 1.05 GB, 8 beside
    # head and logits of 1.55 GB: 8 + 9 + 9 + 8 = 34 >= 32. On 12 GB: 8 + 8 + 8 + 7 = 31 < 32.
    table = direct_table(
        [DirectClass("card", 4, 13 * GB, 1 * MS)],
        32,
        layer_bytes=436_000_000,
        kv_bytes=900_000_000,
        embed_bytes=1_050_000_000,
        head_bytes=1_550_000_000,
        bytes_per_s=FREE_LINK,
    )
    instance = PlacementInstance(table, IntervalObjective(1))
    result = _solve(planner, instance)
    assert result.placement is not None
    stages = evaluate(instance, result.placement).pipelines[0].stages
    assert stages[0].end - stages[0].first <= 8
    assert stages[-1].end - stages[-1].first <= 8
    assert dict(stages[0].memory)["embedding"] == 1_050_000_000
    assert dict(stages[-1].memory)["head"] == 1_550_000_000
    short = _solve(planner, PlacementInstance(with_capacity(table, [12 * GB]), IntervalObjective(1)))
    assert short.placement is None
    assert short.status in (Status.INFEASIBLE, Status.UNKNOWN)


def test_kv_room_is_a_minimum_over_stages_not_the_need_of_the_whole_model() -> None:
    # 16 layers beside 3 GiB and 32 layers beside 14 GiB at 2048 bytes a token and layer: min(98304, 229376) tokens.
    table = direct_table(
        [DirectClass("small", 1, 3 * 2**30, 1 * MS), DirectClass("large", 1, 14 * 2**30, 1 * MS)],
        48,
        layer_bytes=0,
        kv_bytes=2048,
    )
    for tokens, is_feasible in ((98304, True), (98305, False)):
        plan = Placement((pipeline_of(table, (0, 1), (16, 32), tokens),))
        assert evaluate(PlacementInstance(table, IntervalObjective(tokens)), plan).is_feasible is is_feasible


def test_capacity_bounds_and_speed_decides(planner: Planner) -> None:
    # 26 layers of 0.45 GB fit the fast card (12 GB), the slow machine has memory for all 40. The more on the fast card
    # the better, whatever the slow one could hold: 26 and 14.
    table = direct_table(
        [DirectClass("card", 1, 12 * GB, 1 * MS), DirectClass("ram", 1, 264 * GB, 9 * MS)],
        40,
        layer_bytes=450_000_000,
        batch_sizes=(1,),
        bytes_per_s=FREE_LINK,
    )
    result = _solve(planner, PlacementInstance(table, ThroughputObjective(4)))
    assert _layers(result) == {0: 26, 1: 14}
    assert result.objective == pytest.approx(-1 / (14 * 9 * MS), rel=HAND)


def test_layers_balance_time_and_not_memory(planner: Planner) -> None:
    assert _layers(_reaches(planner, by_bandwidth())) == {0: 39, 1: 25}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.sampled_from([EXHAUSTIVE, PARAMETRIC, SLOB]))
def test_nothing_spills_to_the_slow_memory_while_a_card_has_room(a: int, b: int, num_layers: int, path: str) -> None:
    # Cards of a and b layers (0.8 and 0.9 ms), system memory for all at 10 ms; no hops, so only layers count.
    planner = find_planner(path)
    classes = [
        DirectClass("card", 1, a * GB, 0.8 * MS),
        DirectClass("other", 1, b * GB, 0.9 * MS),
        DirectClass("ram", 1, 99 * GB, 10 * MS),
    ]
    table = direct_table(classes, num_layers, layer_bytes=GB, bytes_per_s=FREE_LINK)
    layers = _layers(planner.solve(PlacementInstance(table, IntervalObjective(1))))
    assert layers.get(2, 0) == max(0, num_layers - a - b)


def test_a_large_block_is_no_reason_to_leave_room_everywhere(planner: Planner) -> None:
    # The 8 GB block with at most two small layers on one card, the other small ones on two: 10 + 10 + 1 and so on.
    result = _reaches(planner, big_last_block())
    layers = _layers(result)
    assert len(layers) == 3
    assert min(layers.values()) <= 3


def test_batch_is_an_input_of_memory(planner: Planner) -> None:
    # See test_infeasible: 12 sequences fit, 13 don't.
    table = direct_table([DirectClass("card", 2, 24 * GB, 1 * MS)], 48, layer_bytes=950_000_000, kv_bytes=1900 * 2048)
    assert _solve(planner, PlacementInstance(table, IntervalObjective(12))).placement is not None
    result = _solve(planner, PlacementInstance(table, IntervalObjective(13)))
    assert result.placement is None
    if result.status is Status.INFEASIBLE and planner.name == "exhaustive":
        assert "largest feasible batch is 12" in result.message


@pytest.mark.parametrize(("num_layers", "num_devices"), [(2, 4), (3, 5), (1, 2)])
def test_no_more_stages_than_layers(planner: Planner, num_layers: int, num_devices: int) -> None:
    result = _reaches(planner, more_devices_than_layers(num_layers, num_devices))
    assert len(_layers(result)) == num_layers


def test_two_replicas_beat_one_pipeline_when_the_model_fits_each_box(planner: Planner) -> None:
    result = _reaches(planner, two_boxes_on_a_cable())
    assert result.placement is not None
    assert [len(p.stages) for p in result.placement.pipelines] == [1, 1]


def test_memory_that_is_short_in_total_is_found(planner: Planner) -> None:
    result = planner.solve(one_gigabyte_short().instance)
    assert result.placement is None
    assert result.status is not Status.OPTIMAL
