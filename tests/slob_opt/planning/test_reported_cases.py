"""Situations that users of other engines reported, with the behaviour they should have seen; one kind a test.

Each runs with every planner of the core that looks for the best plan; one that refuses the size is skipped.
"""

from __future__ import annotations

import pytest
from cost_facts import one_node
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

from slob_opt.cost.build import build_table
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.cost.memory import TokenCapacity, token_capacity
from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.baselines.even import EvenPlanner
from slob_opt.planning.evaluate import Evaluation, evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Planner, SolveResult, Status
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.architecture import Architecture, build_model
from slob_opt.problem.device import Device
from slob_opt.problem.placement import Placement
from slob_opt.problem.traffic import TrafficProfile

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
    """Case P02."""
    assert _layers(_reaches(planner, fast_and_slow())) == {0: 32}
    # For throughput both may work: 28.4 layers on the fast card against 3.6 on the slow one take equal time.
    table = fast_and_slow().instance.table
    both = _solve(planner, PlacementInstance(table, ThroughputObjective(8)))
    assert both.objective is not None
    assert both.objective < -8 / (16 * MS) * 1.05


def test_a_third_slower_machine_over_the_network_changes_nothing(planner: Planner) -> None:
    """Case P03, the reported machines."""
    for count in (1, 2, 3):
        assert _layers(_reaches(planner, laptops(count))) == {0: 28}


@pytest.mark.parametrize("path", [EXHAUSTIVE, PARAMETRIC, SLOB])
@settings(max_examples=40, deadline=None)
@given(tiny_instances())
def test_one_device_more_never_makes_a_plan_worse(path: str, instance: PlacementInstance) -> None:
    """Case P03, the whole kind."""
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


def _seven_large_and_one_small(sequences: int) -> CostTable:
    """Llama-3-70B with 4 sequences of 4,096 tokens in flight, or the same KV as more and shorter sequences."""
    return direct_table(
        [DirectClass("big", 7, 21_600_000_000, 1 * MS), DirectClass("small", 1, 10_800_000_000, 1 * MS)],
        80,
        layer_bytes=1_711_000_000,
        kv_bytes=4096 * 4096 * 4 // sequences,
        embed_bytes=2_100_000_000,
        head_bytes=2_100_000_000,
        bytes_per_s=FREE_LINK,
    )


def test_a_small_card_among_large_ones_gets_what_it_can_hold(planner: Planner) -> None:
    """Case P04."""
    # 90 % of 24 and 12 GB; a layer with the KV of 4 sequences of 4096 tokens is 1.711 + 0.067 GB: 12 layers on a large
    # card, 10 with embedding or head (2.1 GB), 6 on the small one: 2 * 10 + 5 * 12 + 6 = 86 >= 80.
    instance = PlacementInstance(_seven_large_and_one_small(4), IntervalObjective(4))
    result = _solve(planner, instance)
    layers = _layers(result)
    assert sum(layers.values()) == 80
    assert layers.get(7, 0) <= 6
    assert all(n <= 12 for n in layers.values())
    even = EvenPlanner().solve(instance)
    assert even.status is Status.UNKNOWN
    assert even.message == "failed: small-0 needs 18.52 GiB for layers [70, 80) and has 10.06 GiB"
    # Sixteen sequences of a quarter of the length: 16 * longest stage counts. Ten layers on each large card and six on
    # the small one are 76, so one stage has 11; the ends have at most 10 and the small card 6, the five others 54.
    result = _solve(planner, PlacementInstance(_seven_large_and_one_small(16), IntervalObjective(16)))
    layers = _layers(result)
    assert result.objective == pytest.approx(16 * 11 * MS, rel=HAND)
    assert max(layers.values()) == 11
    assert min(n for card, n in layers.items() if card != 7) >= 8


def test_free_memory_of_each_card_limits_its_own_share(planner: Planner) -> None:
    """Case P05; the export is in ``tests/runtime/test_export.py``."""
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
    """Case P10."""
    solved = heavy_first_layers()
    result = _reaches(planner, solved)
    assert sorted(_layers(result).values()) in ([27, 53], [28, 52])
    cuts = {n: evaluate(solved.instance, Placement((pipeline_of(solved.instance.table, (0, 1), (n, 80 - n), 2),)))
            for n in range(1, 80)}  # fmt: skip
    assert [n for n, found in cuts.items() if found.is_feasible] == list(range(20, 36))
    assert cuts[40].violations == ("card-0 needs 24.21 GiB for layers [0, 40) and has 22.35 GiB",)  # 26.0 and 24 GB
    even = EvenPlanner().solve(solved.instance)
    assert even.status is Status.UNKNOWN
    assert even.message.startswith("failed: card-0 needs 24.21 GiB for layers [0, 40)")


def test_embedding_head_and_logits_are_counted_on_the_ends(planner: Planner) -> None:
    """Case P11."""
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
    """Case P13."""
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


def _capacity(result: SolveResult, instance: PlacementInstance) -> TokenCapacity:
    """Sequences that the stages of a plan's only pipeline have room for."""
    assert result.placement is not None
    (pipeline,) = evaluate(instance, result.placement).pipelines
    parts = [dict(stage.memory) for stage in pipeline.stages]
    units = [int(instance.table.kv_prefix_bytes[0, s.end] - instance.table.kv_prefix_bytes[0, s.first])
             for s in pipeline.stages]  # fmt: skip
    free = [s.capacity_bytes - sum(p.values()) + p["kv"] for s, p in zip(pipeline.stages, parts, strict=True)]
    return token_capacity(free, units)


@pytest.mark.parametrize("free_gib", [1, 3, 6, 13])
def test_layers_leave_the_stage_with_little_kv_room(planner: Planner, free_gib: int) -> None:
    """Case P14: where sequences in flight limit the rate, layers move away from the card that is full."""
    # 78 layers of 12 GiB: ten on each of seven cards leave 28 GiB, eight on the last one 1, 3, 6 or 13. A sequence is
    # 2^14 tokens of 1152 bytes a layer, 18 MiB. A stage takes 10 ms whatever it holds: only sequences raise the rate.
    # Eleven layers beside 16 GiB hold 82 sequences, and 7 * 11 leave one to seven for the last card; more than 82 take
    # ten layers a card, which leaves eight for the last one, where only 13 GiB hold more: 13 * 1024 / (8 * 18) = 92.
    cards = [DirectClass("roomy", 7, 148 * 2**30, 1e-6, fixed_s=10 * MS)]
    cards.append(DirectClass("full", 1, (96 + free_gib) * 2**30, 1e-6, fixed_s=10 * MS))
    table = direct_table(
        cards,
        78,
        layer_bytes=12 * 2**30,
        kv_bytes=1152 * 2**14,
        batch_sizes=tuple(range(1, 161)),
        bytes_per_s=FREE_LINK,
    )
    instance = PlacementInstance(table, ThroughputObjective(1))
    asked = token_capacity([28 * 2**30] * 7 + [free_gib * 2**30], [n * 18 * 2**20 for n in [10] * 7 + [8]])
    assert (asked.limiting_stage, asked.total) == (7, free_gib * 1024 // (8 * 18))
    result = _solve(planner, instance)
    found = _capacity(result, instance)
    assert found.total == (92 if free_gib == 13 else 82)
    assert result.placement is not None
    assert result.placement.pipelines[0].num_in_flight == found.total
    layers = _layers(result)
    assert sum(layers.values()) == 78
    assert layers[7] == 8 if free_gib == 13 else layers[7] < 8


def test_a_card_without_room_beside_the_workspace_is_dropped(planner: Planner) -> None:
    """Case P17: each card needs the whole workspace of 4,200 MiB; the shares 45, 45, 5 and 5 % are refused."""

    # 40 layers. On 7,707 MiB there are 3,507 left. Layers of 900 MiB: 18 + 18 + 2 + 2 holds 16,200 and 1,800 MiB beside
    # the workspace and fits. Layers of 1,800 MiB on cards of 49,152: 18 * 1,800 + 4,200 = 36,600 and 2 * 1,800 + 4,200
    # = 7,800 > 7,707; both small cards take one layer at most.
    def instance(layer_mib: int, large_mib: int) -> PlacementInstance:
        mib = 2**20
        cards = [DirectClass("large", 2, large_mib * mib, 1 * MS), DirectClass("small", 2, 7707 * mib, 1 * MS)]
        table = direct_table(cards, 40, layer_bytes=layer_mib * mib, workspace_bytes=4200 * mib, latency_s=1 * MS)
        return PlacementInstance(table, IntervalObjective(1))

    def shares(problem: PlacementInstance) -> Evaluation:
        return evaluate(problem, Placement((pipeline_of(problem.table, (0, 1, 2, 3), (18, 18, 2, 2)),)))

    fits = shares(instance(900, 24576))
    assert fits.is_feasible
    parts = [dict(stage.memory) for stage in fits.pipelines[0].stages]
    assert {part["workspace"] for part in parts} == {4200 * 2**20}
    assert [part["weights"] // 2**20 for part in parts] == [16200, 16200, 1800, 1800]
    tight = instance(1800, 49152)
    assert shares(tight).violations == (
        "small-0 needs 7.62 GiB for layers [36, 38) and has 7.53 GiB",
        "small-1 needs 7.62 GiB for layers [38, 40) and has 7.53 GiB",
    )
    result = _solve(planner, tight)
    assert set(_layers(result)) == {0, 1}  # 24 layers fit each large card
    # Where the model needs the small cards too, what is left beside the workspace decides: 18 + 18 + 3 + 3 layers of
    # 1,100 MiB are enough, 16 + 16 + 2 + 2 of 1,200 MiB are not.
    for layer_mib, has_plan in ((1100, True), (1200, False)):
        problem = instance(layer_mib, 24576)
        result = _solve(planner, problem)
        assert (result.placement is not None) is has_plan
        if result.placement is not None:
            assert evaluate(problem, result.placement).violations == ()


def test_capacity_bounds_and_speed_decides(planner: Planner) -> None:
    """Case P19."""
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
    """Case P20."""
    assert _layers(_reaches(planner, by_bandwidth())) == {0: 39, 1: 25}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.sampled_from([EXHAUSTIVE, PARAMETRIC, SLOB]))
def test_nothing_spills_to_the_slow_memory_while_a_card_has_room(a: int, b: int, num_layers: int, path: str) -> None:
    """Case P21."""
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
    """Case P23; the greedy filler that fails is in ``test_baselines.py``."""
    # The 8 GB block with at most two small layers on one card, the other small ones on two: 10 + 10 + 1 and so on.
    result = _reaches(planner, big_last_block())
    layers = _layers(result)
    assert len(layers) == 3
    assert min(layers.values()) <= 3


def test_batch_is_an_input_of_memory(planner: Planner) -> None:
    """Case P24."""
    # See test_infeasible: 12 sequences fit, 13 don't.
    table = direct_table([DirectClass("card", 2, 24 * GB, 1 * MS)], 48, layer_bytes=950_000_000, kv_bytes=1900 * 2048)
    assert _solve(planner, PlacementInstance(table, IntervalObjective(12))).placement is not None
    result = _solve(planner, PlacementInstance(table, IntervalObjective(13)))
    assert result.placement is None
    if result.status is Status.INFEASIBLE and planner.name == "exhaustive":
        assert "largest feasible batch is 12" in result.message


def test_three_cards_and_forty_heads_become_a_pipeline_and_no_group_of_three(planner: Planner) -> None:
    """Case P27: stages of one or two cards, each of the three in use."""
    # 13B parameters in 16 bits are 26 GB; two cards of 12 GiB hold 24 layers at most, three hold 40.
    model = build_model(Architecture("llama-2-13b", 5120, 40, 40, 40, 128, 13824, 32000))
    cards = tuple(Device(f"c{i}", "card", 12 * 2**30, 100e12, 900e9) for i in range(3))
    for degrees in ((1,), (1, 2), (1, 3), (1, 2, 3)):
        table = build_table(one_node(*cards, tp_degrees=degrees), model, TrafficProfile())
        for objective in (IntervalObjective(1), IntervalObjective(4), ThroughputObjective(4)):
            result = _solve(planner, PlacementInstance(table, objective))
            assert result.placement is not None, result.message
            (pipeline,) = result.placement.pipelines
            widths = sorted(len(stage.cards) for stage in pipeline.stages)
            assert widths in ([1, 1, 1], [1, 2])
            assert result.placement.used_cards == {0, 1, 2}
            counts = sorted(stage.num_layers for stage in pipeline.stages)
            assert sum(counts) == 40
            if widths == [1, 1, 1] and objective == IntervalObjective(4):
                assert counts == [13, 13, 14]
    with pytest.raises(InputError, match="40 heads % TP 3 = 1"):
        build_table(one_node(*cards, tp_degrees=(3,)), model, TrafficProfile())


@pytest.mark.parametrize(("num_layers", "num_devices"), [(2, 4), (3, 5), (1, 2)])
def test_no_more_stages_than_layers(planner: Planner, num_layers: int, num_devices: int) -> None:
    """Cases P29 and P30."""
    result = _reaches(planner, more_devices_than_layers(num_layers, num_devices))
    assert len(_layers(result)) == num_layers


def test_one_request_alone_gains_nothing_from_a_pipeline(planner: Planner) -> None:
    """Case P36: one device takes 20 ms a token, four stages pay three hops more and the token's way back."""
    table = direct_table([DirectClass("card", 4, 4 * GB, 5 * MS)], 4, layer_bytes=GB, latency_s=1 * MS)
    instance = PlacementInstance(table, IntervalObjective(1))
    result = _solve(planner, instance)
    assert len(_layers(result)) == 1
    assert result.objective == pytest.approx(20 * MS, rel=HAND)
    (four,) = evaluate(instance, Placement((pipeline_of(table, (0, 1, 2, 3), (1, 1, 1, 1)),))).pipelines
    assert four.interval_s - four.return_s == pytest.approx(23 * MS, rel=HAND)
    assert four.return_s == pytest.approx(1 * MS, rel=HAND)


def test_two_replicas_beat_one_pipeline_when_the_model_fits_each_box(planner: Planner) -> None:
    """Case P40: both kinds of plan are worth tokens/s."""
    result = _reaches(planner, two_boxes_on_a_cable())
    assert result.placement is not None
    assert [len(p.stages) for p in result.placement.pipelines] == [1, 1]


def test_memory_that_is_short_in_total_is_found(planner: Planner) -> None:
    """Case O09."""
    result = planner.solve(one_gigabyte_short().instance)
    assert result.placement is None
    assert result.status is not Status.OPTIMAL
