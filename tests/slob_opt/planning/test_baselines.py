from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slob_builders import (
    FREE_LINK,
    GB,
    MS,
    big_last_block,
    laptops,
    more_devices_than_layers,
    pair_or_group,
    tiny_instances,
)

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.baselines.even import EvenPlanner, even_counts
from slob_opt.planning.baselines.fixed_split import largest_remainder, whole_devices
from slob_opt.planning.baselines.memory_proportional import MemoryProportionalPlanner
from slob_opt.planning.baselines.parallax_dp import ParallaxDpPlanner, fewest_stages, water_fill
from slob_opt.planning.baselines.petals_greedy import PetalsGreedyPlanner, choose_start
from slob_opt.planning.baselines.speed_chain import SpeedChainPlanner, speed_chain
from slob_opt.planning.baselines.speed_proportional import SpeedProportionalPlanner
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Planner, SolveResult, Status

BASELINES: tuple[type, ...] = (
    EvenPlanner,
    MemoryProportionalPlanner,
    SpeedProportionalPlanner,
    PetalsGreedyPlanner,
    ParallaxDpPlanner,
    SpeedChainPlanner,
)


def _counts(result: SolveResult) -> list[list[tuple[int, int]]]:
    """(first card, layers) of each stage of each pipeline."""
    assert result.placement is not None, result.message
    return [[(s.cards[0], s.num_layers) for s in p.stages] for p in result.placement.pipelines]


@settings(max_examples=40, deadline=None)
@given(tiny_instances(), st.sampled_from(BASELINES))
def test_baselines_keep_the_rules_on_any_instance(instance: PlacementInstance, make: type) -> None:
    planner: Planner = make()
    result, optimum = planner.solve(instance), ExhaustivePlanner().solve(instance)
    if result.placement is None:
        assert result.status is Status.UNKNOWN
        assert result.message.startswith("failed: ")
        return
    assert result.status is Status.FEASIBLE
    assert result.bound is None
    assert evaluate(instance, result.placement).objective == pytest.approx(result.objective)
    assert optimum.objective is not None
    assert result.objective is not None
    assert result.objective >= optimum.objective - 1e-9 * abs(optimum.objective)


def test_even_counts_spare_the_last_stage() -> None:
    assert even_counts(80, 8) == (10,) * 8
    assert even_counts(30, 4) == (7, 8, 8, 7)
    assert even_counts(5, 2) == (3, 2)
    assert even_counts(3, 1) == (3,)
    assert all(sum(even_counts(layers, stages)) == layers for layers in range(1, 40) for stages in range(1, layers + 1))


def test_even_split_that_breaks_memory_names_card_need_and_have() -> None:
    """Case P04."""
    # Seven cards of 24 GB and one of 12, 90 % usable. Ten layers of 1.711 GB with the KV of 4 sequences of 4096 tokens
    # (67 MB a layer) and the head of 2.1 GB are 19.88 GB on the small card, which offers 10.8: 18.52 and 10.06 GiB.
    table = direct_table(
        [DirectClass("big", 7, 21_600_000_000, 1 * MS), DirectClass("small", 1, 10_800_000_000, 1 * MS)],
        80,
        layer_bytes=1_711_000_000,
        kv_bytes=4096 * 4096,
        embed_bytes=2_100_000_000,
        head_bytes=2_100_000_000,
    )
    result = EvenPlanner().solve(PlacementInstance(table, IntervalObjective(4)))
    assert result.status is Status.UNKNOWN
    assert result.message == "failed: small-0 needs 18.52 GiB for layers [70, 80) and has 10.06 GiB"


def test_even_uses_the_first_devices_when_layers_are_few_and_lists_the_rest() -> None:
    """Case P29."""
    result = EvenPlanner().solve(more_devices_than_layers(2, 4).instance)
    assert _counts(result) == [[(0, 1), (1, 1)]]
    assert result.message == "unused: card-2, card-3"


def test_even_tries_replicas_for_throughput_only() -> None:
    # Every card holds the model; a stage has 1 ms of its own, so two replicas of 5 ms beat one pipeline 2 + 2.
    table = direct_table([DirectClass("card", 2, 4 * GB, 1 * MS, fixed_s=1 * MS)], 4, layer_bytes=GB, batch_sizes=(1,))
    replicas = EvenPlanner().solve(PlacementInstance(table, ThroughputObjective(4)))
    assert _counts(replicas) == [[(0, 4)], [(1, 4)]]
    assert replicas.objective == pytest.approx(-400, rel=1e-4)
    assert len(_counts(EvenPlanner().solve(PlacementInstance(table, IntervalObjective(1))))) == 1


def test_memory_shares_send_most_layers_to_the_slow_machine_with_much_memory() -> None:
    """Case P19: what the reported planner did."""
    # 12 GB at 1 ms a layer against 264 GB at 9 ms: shares 264 / 276 and 12 / 276 of 40 layers cut at int(38.26) = 38.
    table = direct_table(
        [DirectClass("card", 1, 12 * GB, 1 * MS), DirectClass("ram", 1, 264 * GB, 9 * MS)], 40, layer_bytes=450_000_000
    )
    result = MemoryProportionalPlanner().solve(PlacementInstance(table, IntervalObjective(1)))
    assert _counts(result) == [[(1, 38), (0, 2)]]


def test_memory_shares_leave_out_a_device_without_a_whole_layer() -> None:
    table = direct_table(
        [DirectClass("big", 1, 100 * GB, 1 * MS), DirectClass("tiny", 1, GB, 1 * MS)], 10, layer_bytes=GB // 10
    )
    # Cut at int(10 * 0.9901) = 9: the last one takes what is left, one layer.
    result = MemoryProportionalPlanner().solve(PlacementInstance(table, IntervalObjective(1)))
    assert _counts(result) == [[(0, 9), (1, 1)]]


def test_speed_shares() -> None:
    # 1, 2 and 4 ms a layer: shares 4/7, 2/7, 1/7 of 14 layers, fastest first whatever the table's order.
    table = direct_table(
        [DirectClass(n, 1, 20 * GB, ms * MS) for n, ms in (("c", 4.0), ("a", 1.0), ("b", 2.0))], 14, layer_bytes=GB
    )
    result = SpeedProportionalPlanner().solve(PlacementInstance(table, IntervalObjective(1)))
    assert _counts(result) == [[(1, 8), (2, 4), (0, 2)]]


def test_adding_a_slow_machine_makes_a_proportional_split_worse_as_users_report() -> None:
    """Case P03: what the reported planner did."""
    # Two machines of 22 and 110 ms, then a third of 30 ms behind 0.5 ms hops: no split by shares reaches 22 ms alone.
    results = [SpeedProportionalPlanner().solve(laptops(n).instance).objective for n in (1, 2, 3)]
    assert results[0] == pytest.approx(22 * MS, rel=1e-5)
    assert all(r is not None and r > 22 * MS * 1.2 for r in results[1:])


def test_greedy_filler_that_fails_is_no_proof() -> None:
    """Case P23."""
    # Average layers of 1.33 GB: seven on each 10 GB card, so the last card gets six small ones and the 8 GB block.
    result = PetalsGreedyPlanner().solve(big_last_block().instance)
    assert result.status is Status.UNKNOWN
    assert result.message.startswith("failed: card-2 needs 13.04 GiB for layers [14, 21)")
    assert ExhaustivePlanner().solve(big_last_block().instance).status is Status.OPTIMAL


def test_swarm_takes_the_weakest_run() -> None:
    assert choose_start([3.0, 1.0, 1.0, 2.0], 2) == 1
    assert choose_start([0.0, 0.0, 0.0], 2) == 0
    assert choose_start([1.0, 0.0, 5.0, 0.0], 2) == 0  # sorted (0, 1) before (0, 5)


def test_swarm_forms_a_pipeline_for_each_full_cover() -> None:
    # Cards of 2 layers join as [0, 2), [2, 4), [0, 2), [2, 4): two pipelines of two.
    table = direct_table([DirectClass("card", 4, 2, 1 * MS)], 4, layer_bytes=1, batch_sizes=(1,), bytes_per_s=FREE_LINK)
    result = PetalsGreedyPlanner().solve(PlacementInstance(table, ThroughputObjective(2)))
    assert _counts(result) == [[(0, 2), (1, 2)], [(2, 2), (3, 2)]]
    assert result.objective == pytest.approx(-1000, rel=1e-5)  # each 2 / max(4, 2 * 2) ms


def test_grouping_has_the_fewest_stages() -> None:
    assert fewest_stages({0: 4, 1: 4, 2: 8}, 8, 1) == ((2,),)
    assert fewest_stages({0: 4, 1: 4, 2: 8}, 8, 2) == ((0, 1), (2,))
    assert fewest_stages({0: 4, 1: 4, 2: 8}, 8, 3) is None
    # Largest first into one pipeline would leave 5 + 3 + 3 < 12 for the other.
    assert fewest_stages({0: 7, 1: 7, 2: 5, 3: 5}, 12, 2) == ((0, 2), (1, 3))


def test_water_level_stops_at_memory() -> None:
    assert water_fill([1.0, 1.0, 2.0], [9, 9, 9], 8) == [2, 2, 4]
    assert water_fill([1.0, 1.0, 2.0], [9, 9, 2], 8) == [3, 3, 2]
    assert water_fill([1.0, 1.0], [3, 3], 8) is None
    assert water_fill([1.0, 9.0, 9.0], [1, 1, 1], 2) is None


def test_parallax_prefers_replicas_when_they_pay() -> None:
    table = direct_table([DirectClass("card", 4, 4 * GB, 1 * MS, fixed_s=1 * MS)], 4, layer_bytes=GB, batch_sizes=(1,))
    result = ParallaxDpPlanner().solve(PlacementInstance(table, ThroughputObjective(4)))
    assert sorted(_counts(result)) == [[(0, 4)], [(1, 4)], [(2, 4)], [(3, 4)]]


def test_speed_chain_by_hand() -> None:
    # Rates with 1, 2, 3 layers: at 3 tokens/s the first holds 2 layers and the second 1; at 4 only 1 + 0.
    assert speed_chain([[6.0, 3.0, 2.0], [3.0, 1.5]], 3) == (3.0, (2, 1))
    assert speed_chain([[6.0, 3.0, 2.0], [3.0, 1.5]], 6) is None
    # A table that isn't monotone (rounded measurements): 3 layers at 5 tokens/s count, though 2 layers make only 4.
    assert speed_chain([[6.0, 4.0, 5.0]], 3) == (5.0, (3,))


def test_speed_chain_balances_time_and_leaves_the_slowest_what_is_left() -> None:
    # 1 and 3 ms a layer, 8 layers: stages of 6 ms, 6 + 2.
    table = direct_table(
        [DirectClass("slow", 1, 9, 3 * MS), DirectClass("fast", 1, 9, 1 * MS)],
        8,
        layer_bytes=1,
        batch_sizes=(1,),
        bytes_per_s=FREE_LINK,
    )
    result = SpeedChainPlanner().solve(PlacementInstance(table, ThroughputObjective(4)))
    assert _counts(result) == [[(1, 6), (0, 2)]]
    assert result.objective == pytest.approx(-1 / (6 * MS), rel=1e-5)


def test_asked_shares_of_49_and_51_per_cent_do_not_drift() -> None:
    """Case P22: 64 layers of 5,120 rows at 49 % are 160,563 rows; cut in each layer to whole 256 they'd be 147,456.

    Whole layers are the step here: 31 (158,720 rows) or 32 (163,840) of them are within one step of what was asked.
    """
    rows, asked = 5120, (0.49, 0.51)
    assert 64 * (int(asked[0] * rows) // 256 * 256) == 147_456
    assert largest_remainder(asked, 64) == [31, 33]
    assert _memory_counts([49, 51], 64) == [32, 32]  # the ring starts with the 51: int(32.64)
    for counts in (largest_remainder(asked, 64), _memory_counts([49, 51], 64)):
        assert all(abs(n * rows - share * 64 * rows) <= rows for n, share in zip(counts, asked, strict=True))


def _memory_counts(memory: list[int], num_layers: int) -> list[int]:
    """Layers of each card when memory is in these proportions, in the order of the cards."""
    table = direct_table(
        [DirectClass(f"c{i}", 1, m * GB, 1 * MS) for i, m in enumerate(memory)], num_layers, layer_bytes=1
    )
    (pipeline,) = _counts(MemoryProportionalPlanner().solve(PlacementInstance(table, IntervalObjective(1))))
    counts = dict(pipeline)
    return [counts.get(i, 0) for i in range(len(memory))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=9), st.integers(1, 120))
def test_memory_shares_carry_the_error_of_rounding_over(memory: list[int], num_layers: int) -> None:
    """Case P22: each card, and all cards up to any one, are within one layer of the shares asked for."""
    counts = _memory_counts(memory, num_layers)
    assert sum(counts) == num_layers
    order = sorted(range(len(memory)), key=lambda i: (-memory[i], i))  # the rule's own order of the ring
    so_far = asked_so_far = 0.0
    slack = 1 + len(memory) * num_layers * 1e-5  # shares themselves are rounded to five digits
    for i in order:
        asked = memory[i] / sum(memory) * num_layers
        assert abs(counts[i] - asked) <= slack
        so_far, asked_so_far = so_far + counts[i], asked_so_far + asked
        assert abs(so_far - asked_so_far) <= slack


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 120))
def test_speed_shares_stay_within_one_layer(speeds: list[int], num_layers: int) -> None:
    """Case P22, for shares by speed."""
    table = direct_table(
        [DirectClass(f"c{i}", 1, 999 * GB, 1.0 / v) for i, v in enumerate(speeds)], num_layers, layer_bytes=1
    )
    (pipeline,) = _counts(SpeedProportionalPlanner().solve(PlacementInstance(table, IntervalObjective(1))))
    counts = dict(pipeline)
    assert sum(counts.values()) == num_layers
    for i, v in enumerate(speeds):
        assert abs(counts.get(i, 0) - v / sum(speeds) * num_layers) < 1 + 1e-5


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(0, 200))
def test_rounded_shares_sum_up_and_stay_within_one(weights: list[float], total: int) -> None:
    """Case P22, the whole kind."""
    counts = largest_remainder(weights, total)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - weight * total / sum(weights)) < 1 + 1e-6


def test_whole_devices_use_each_card_once_and_prefer_groups() -> None:
    assert whole_devices(pair_or_group().instance.table) == (2,)
    assert whole_devices(laptops().instance.table) == (0, 1, 2)
