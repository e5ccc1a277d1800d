"""Every kind of witness proves a true bound, and none proves a bound above the truth.

The truth comes from the exhaustive planner, which shares no code with the checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from certify_instances import random_instance
from scipy.optimize import linprog

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.certify import certify, check_bound, check_infeasible
from slob_opt.planning.check_enumeration import check_enumeration
from slob_opt.planning.check_kernel import cap_tables, fewest_micro_batches
from slob_opt.planning.check_layers import check_layered_threshold
from slob_opt.planning.check_patterns import (
    best_packing,
    check_pattern_threshold,
    check_pattern_witness,
    first_pattern_above,
    pattern_box,
)
from slob_opt.planning.check_reach import reaches
from slob_opt.planning.check_relaxed import check_relaxed_witness
from slob_opt.planning.check_subsets import check_subset_threshold, check_subset_witness, least_path_sums
from slob_opt.planning.exact_worth import exact_worth
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Status
from slob_opt.planning.ticks import (
    UNREACHABLE,
    count_box,
    group_index,
    is_exact_by_counts,
    row_ticks,
    ticks_below,
    ticks_within,
)
from slob_opt.planning.verdict import Verdict
from slob_opt.planning.witness import (
    CapacityWitness,
    EnumerationWitness,
    MemoryWitness,
    PatternWitness,
    RelaxedPriceWitness,
    SubsetWitness,
    ThresholdWitness,
)
from slob_opt.problem.placement import Pipeline, Placement, Stage

NUDGE = 1e-6


def subset_rates(instance: PlacementInstance) -> dict[int, float]:
    """Best rate of one pipeline on exactly each mask of devices: the exhaustive planner on each sub-cluster."""
    table = instance.table
    rates: dict[int, float] = {}
    for mask in range(1, 1 << table.num_devices):
        devices = [d for d in range(table.num_devices) if mask >> d & 1]
        part = replace(
            table,
            device_names=tuple(table.device_names[d] for d in devices),
            device_cards=tuple((i,) for i in range(len(devices))),
            device_node=np.arange(len(devices)),
            device_class=table.device_class[devices],
            link_class=table.link_class[np.ix_(devices, devices)],
            nic_bytes_per_s=np.full(len(devices), np.inf),
        )
        best = 0.0
        for shape in instance.shapes():
            row, k, b = shape
            if part.num_devices > part.num_layers:
                continue
            best = max(best, _rate_on_all(PlacementInstance(part, instance.objective), row, k, b))
        rates[mask] = best
    return rates


def _rate_on_all(instance: PlacementInstance, row: int, k: int, b: int) -> float:
    """Best rate of a pipeline that uses all devices in one shape, by the plainest loops."""
    table, best = instance.table, 0.0
    for order in itertools.permutations(range(table.num_devices)):
        for inner in itertools.combinations(range(1, table.num_layers), table.num_devices - 1):
            cuts = (0, *inner, table.num_layers)
            stages = tuple(Stage((d,), cuts[i], cuts[i + 1]) for i, d in enumerate(order))
            worth = exact_worth(instance, Placement((Pipeline(stages, k, b),)))
            if not worth.violations and worth.objective is not None:
                best = max(best, -float(worth.objective))
    return best


def small_throughput(seed: int, *, has_pair_links: bool = False) -> PlacementInstance:
    """A random instance cut to three devices and two batch sizes, so that all pipelines can be listed in a test."""
    instance = random_instance(seed, is_throughput=True, has_pair_links=has_pair_links)
    while instance.table.num_devices > 3 or instance.table.num_layers > 5:
        seed += 1000
        instance = random_instance(seed, is_throughput=True, has_pair_links=has_pair_links)
    return replace(instance, objective=replace(instance.objective, max_micro_batches=3))  # type: ignore[type-var]


def threshold_checks(instance: PlacementInstance) -> list[Callable[[PlacementInstance, float | None], Verdict]]:
    """The checks of interval bounds that suit an instance."""
    checks: list[Callable[[PlacementInstance, float | None], Verdict]] = [check_enumeration, check_layered_threshold]
    if instance.table.has_identical_layers:
        checks.append(check_subset_threshold)
    if is_exact_by_counts(instance):
        checks.append(check_pattern_threshold)
    return checks


def with_less_memory(instance: PlacementInstance, missing: int) -> PlacementInstance:
    """The instance with so many bytes less on every card."""
    capacity = np.maximum(0, instance.table.capacity_bytes - missing)
    return replace(instance, table=replace(instance.table, capacity_bytes=capacity))


@pytest.mark.parametrize("has_unequal_layers", [False, True])
@pytest.mark.parametrize("has_pair_links", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_no_plan_is_proven_from_the_first_byte_that_is_missing(
    seed: int, has_pair_links: bool, has_unequal_layers: bool
) -> None:
    """Memory shrinks until no plan is left: proven there, and refuted with one byte more on each card."""
    instance = random_instance(
        seed, is_throughput=False, has_pair_links=has_pair_links, has_unequal_layers=has_unequal_layers
    )
    missing = next(
        m for m in itertools.count(1)
        if ExhaustivePlanner().solve(with_less_memory(instance, m)).status is Status.INFEASIBLE
    )  # fmt: skip
    short, enough = with_less_memory(instance, missing), with_less_memory(instance, missing - 1)
    for check in threshold_checks(instance):
        assert check(short, None).status == "verified", check
        assert check(enough, None).status == "refuted", check


@pytest.mark.parametrize("has_unequal_layers", [False, True])
@pytest.mark.parametrize("has_pair_links", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_thresholds_prove_the_optimum_and_no_tick_more(
    seed: int, has_pair_links: bool, has_unequal_layers: bool
) -> None:
    instance = random_instance(
        seed, is_throughput=False, has_pair_links=has_pair_links, has_unequal_layers=has_unequal_layers
    )
    truth = ExhaustivePlanner().solve(instance)
    assert truth.objective is not None
    for check in threshold_checks(instance):
        assert check(instance, truth.objective).status == "verified", check
        assert check(instance, truth.objective - 2.0**-30).status == "verified", check
        assert check(instance, truth.objective + 2.0**-30).status == "refuted", check
        assert check(instance, None).status == "refuted", check


@pytest.mark.parametrize("seed", range(12))
def test_a_relaxed_threshold_never_proves_too_much_and_never_refutes(seed: int) -> None:
    """With unequal links or layers the counts are a relaxation: true bounds may stay claimed, false ones too."""
    instance, truth = None, None
    while truth is None or truth.objective is None:
        instance = random_instance(seed, is_throughput=False, has_pair_links=seed % 2 == 0, has_unequal_layers=True)
        truth = ExhaustivePlanner().solve(instance)
        seed += 1000
    assert instance is not None
    for check in (check_pattern_threshold, check_subset_threshold):
        assert check(instance, truth.objective * 1.0001).status == "claimed"
        assert check(instance, truth.objective * 0.1).status == "verified"


def test_throughput_bounds_by_enumeration() -> None:
    for seed in range(12):
        instance = random_instance(
            seed, is_throughput=True, has_pair_links=seed % 2 == 0, has_unequal_layers=seed % 3 == 0
        )
        truth = ExhaustivePlanner().solve(instance)
        if truth.bound is None:
            assert check_infeasible(EnumerationWitness(1), instance).status == "verified"
            continue
        assert check_bound(EnumerationWitness(1), instance, truth.bound).status == "verified"
        assert check_bound(EnumerationWitness(1), instance, truth.bound * (1 - NUDGE)).status == "refuted"


def priced(instance: PlacementInstance) -> tuple[PatternWitness, float, dict[tuple[int, ...], float]]:
    """Dual prices of the linear program over all patterns of an instance, its value, and the patterns' rates."""
    groups = group_index(instance.table)
    rates: dict[tuple[int, ...], float] = {}
    for mask, rate in subset_rates(instance).items():
        counts = [0] * groups.num_groups
        for d, g in enumerate(groups.group_of_device):
            counts[g] += mask >> d & 1
        rates[tuple(counts)] = rate
    worth = np.array(list(rates.values()))
    solved = linprog(-worth, A_ub=np.array(list(rates)).T, b_ub=groups.available, method="highs")
    prices = np.maximum(0.0, -solved.ineqlin.marginals) * (1 + 1e-12)
    return PatternWitness(tuple(float(p) for p in prices)), float(prices @ groups.available), rates


@pytest.mark.parametrize("seed", range(8))
def test_prices_prove_the_linear_bound_and_nothing_below(seed: int) -> None:
    instance = small_throughput(seed)
    witness, value, _ = priced(instance)
    if value == 0:
        assert check_infeasible(witness, instance).status == "verified"
        return
    assert check_pattern_witness(instance, witness, value).status == "verified"
    assert check_bound(RelaxedPriceWitness(witness.prices, 10, (1.0,)), instance, -value).status == "verified"
    assert check_pattern_witness(instance, witness, value * (1 - NUDGE)).status == "refuted"
    lowered = PatternWitness(tuple(p * (1 - NUDGE) for p in witness.prices))
    assert check_pattern_witness(instance, lowered, value * (1 - NUDGE)).status == "refuted"


@pytest.mark.parametrize("seed", range(8))
def test_listed_patterns_are_packed_and_unlisted_ones_held_to_the_slack(seed: int) -> None:
    value = 0.0
    while value == 0:
        instance = small_throughput(seed)
        bare, value, rates = priced(instance)
        seed += 1000
    truth = ExhaustivePlanner().solve(instance)
    assert truth.objective is not None
    best = -truth.objective
    slack = value - best + 0.05 * value
    price = {n: float(np.dot(n, bare.prices)) for n in rates}
    listed = [n for n in rates if rates[n] > 0 and price[n] - rates[n] <= slack]
    witness = PatternWitness(bare.prices, slack, tuple(listed), tuple(rates[n] for n in listed))
    # What is listed contains the optimum, and all else is worth at most value - slack = best - 0.05 value.
    assert check_pattern_witness(instance, witness, best).status == "verified"
    assert check_pattern_witness(instance, witness, best * (1 - NUDGE)).status == "refuted"
    for left_out in range(len(listed)):
        kept = [n for i, n in enumerate(listed) if i != left_out]
        if rates[listed[left_out]] <= (price[listed[left_out]] - slack) * (1 + 1e-9):
            continue
        gap = replace(witness, patterns=tuple(kept), rates=tuple(rates[n] for n in kept))
        assert check_pattern_witness(instance, gap, best).status == "refuted"
    understated = replace(witness, rates=tuple(r * (1 - NUDGE) for r in witness.rates))
    assert check_pattern_witness(instance, understated, best * (1 - NUDGE)).status == "refuted"


@pytest.mark.parametrize("seed", range(8))
def test_the_rate_of_every_pattern_is_known_to_the_tolerance(seed: int) -> None:
    instance = small_throughput(seed)
    _, _, rates = priced(instance)
    box = pattern_box(instance)
    for counts, rate in rates.items():
        one = np.array([counts])
        assert first_pattern_above(box, one, np.array([rate if rate > 0 else 1e-6])) is None
        assert (first_pattern_above(box, one, np.array([rate * (1 - NUDGE)])) is not None) == (rate > 0)


@pytest.mark.parametrize(
    "broken",
    [
        PatternWitness((-1.0, 1.0)),
        PatternWitness((float("nan"), 1.0)),
        PatternWitness((9.0, 9.0), slack=-1.0),
        PatternWitness((9.0, 9.0), slack=1.0, patterns=((1, 0),), rates=()),
        PatternWitness((9.0, 9.0), slack=1.0, patterns=((2, 0),), rates=(1.0,)),
        PatternWitness((9.0, 9.0), slack=1.0, patterns=((0, 0),), rates=(1.0,)),
    ],
)
def test_meaningless_witnesses_are_refuted(broken: PatternWitness) -> None:
    table = direct_table([DirectClass("a", 1, 100, 0.25), DirectClass("b", 1, 100, 0.5)], 2, layer_bytes=10)
    assert check_pattern_witness(PlacementInstance(table, ThroughputObjective(2)), broken, 99.0).status == "refuted"


def test_prices_of_another_cluster_stay_claimed() -> None:
    table = direct_table([DirectClass("a", 1, 100, 0.25), DirectClass("b", 1, 100, 0.5)], 2, layer_bytes=10)
    instance = PlacementInstance(table, ThroughputObjective(2))
    assert check_pattern_witness(instance, PatternWitness((9.0,)), 99.0).status == "claimed"
    assert check_subset_witness(instance, SubsetWitness((0.0,)), 99.0).status == "refuted"


def worths(rates: dict[int, float], num_devices: int) -> list[float]:
    """Least superadditive worths above the rates."""
    value = [0.0] * (1 << num_devices)
    for mask in range(1, 1 << num_devices):
        part = mask
        while part:
            value[mask] = max(value[mask], rates[part] + value[mask ^ part])
            part = (part - 1) & mask
    return value


@pytest.mark.parametrize("has_pair_links", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_subset_worths_prove_the_optimum_and_nothing_below(seed: int, has_pair_links: bool) -> None:
    instance = small_throughput(seed, has_pair_links=has_pair_links)
    value = worths(subset_rates(instance), instance.table.num_devices)
    best = value[-1]
    if best == 0:
        assert check_infeasible(SubsetWitness(tuple(value)), instance).status == "verified"
        return
    truth = ExhaustivePlanner().solve(instance)
    assert truth.objective == pytest.approx(-best, rel=1e-12)
    assert check_subset_witness(instance, SubsetWitness(tuple(value)), best).status == "verified"
    assert check_subset_witness(instance, SubsetWitness(tuple(value)), best * (1 - NUDGE)).status == "refuted"
    for mask in range(1, len(value)):
        if value[mask] > 0:
            lowered = list(value)
            lowered[mask] *= 1 - NUDGE
            assert check_subset_witness(instance, SubsetWitness(tuple(lowered)), best).status == "refuted", mask


@pytest.mark.parametrize("seed", range(5))
def test_least_path_sums_against_all_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hops = rng.integers(1, 100, (5, 5))
    hops[rng.random((5, 5)) < 0.2] = UNREACHABLE
    np.fill_diagonal(hops, UNREACHABLE)
    sums = least_path_sums(hops)
    for mask in range(1, 32):
        members = [d for d in range(5) if mask >> d & 1]
        for first, last in product(members, members):
            orders = [o for o in itertools.permutations(members) if (o[0], o[-1]) == (first, last)]
            least = min((sum(int(hops[a, b]) for a, b in itertools.pairwise(o)) for o in orders), default=UNREACHABLE)
            assert sums[mask, first, last] == min(least, UNREACHABLE)


@pytest.mark.parametrize("seed", range(6))
def test_reach_without_patterns_agrees_with_walking_all_patterns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = [
        DirectClass(
            f"c{i}", int(rng.integers(1, 4)), int(rng.integers(15, 60)), float(rng.uniform(0.01, 0.1)),
            fixed_s=float(rng.uniform(0, 0.05)), embed_s=float(rng.uniform(0, 0.05)),
            head_s=float(rng.uniform(0, 0.05)),
        )
        for i in range(3)
    ]  # fmt: skip
    table = direct_table(classes, 9, layer_bytes=10, embed_bytes=4, head_bytes=6, latency_s=0.01)
    instance = PlacementInstance(table, IntervalObjective(2))
    groups = group_index(table)
    seen = set()
    for longest_s in np.linspace(0.1, 1.2, 23):
        row = row_ticks(instance, groups, longest=ticks_within(float(longest_s)))[0]
        caps, works = cap_tables(row), False
        counts = count_box(groups.available, 1, 1 + int(np.prod(groups.available + 1)) - 1)
        counts = counts[counts.sum(axis=1) > 1]
        overhead = (counts.sum(axis=1) - 1) * row.hop + row.ret
        for f, g in product(range(3), range(3)):
            need = np.zeros(3, np.int64)
            need[f] += 1
            need[g] += 1
            holds = np.all(counts >= need, axis=1)
            limits = np.full(int(holds.sum()), float(UNREACHABLE))
            found = fewest_micro_batches(row, caps, counts[holds], overhead[holds], limits, ends=(f, g), at_least=2)
            works = works or bool(np.any(found))
        alone = check_pattern_threshold(
            PlacementInstance(direct_table([replace(c, count=1) for c in classes], 9, layer_bytes=10, embed_bytes=4,
                                           head_bytes=6, latency_s=10.0), IntervalObjective(2)),
            float(longest_s),
        ).status == "refuted"  # fmt: skip
        assert reaches(row, groups, 2) == (works or alone)
        seen.add(works or alone)
    assert seen == {False, True}


@pytest.mark.parametrize("seed", range(5))
def test_packing_against_a_linear_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = [DirectClass(f"c{i}", int(rng.integers(1, 4)), 10, 0.1) for i in range(3)]
    groups = group_index(direct_table(classes, 4, layer_bytes=1))
    patterns = rng.integers(0, 3, (5, 3))
    patterns[:, 0] = np.maximum(patterns[:, 0], 1 - patterns[:, 1:].sum(axis=1).clip(max=1))
    rates = rng.uniform(1, 5, 5)
    best = 0.0
    for times in product(range(4), repeat=5):
        if np.all(np.array(times) @ patterns <= groups.available):
            best = max(best, float(np.array(times) @ rates))
    assert best_packing(groups, patterns, rates) == pytest.approx(best, rel=1e-12)


def test_memory_shortage_is_recomputed() -> None:
    # 4 layers of 12 and the head of 5: 53 bytes. Two cards of 27 offer 54, two of 26 offer 52.
    table = direct_table([DirectClass("a", 2, 27, 0.25)], 4, layer_bytes=12, head_bytes=5)
    fits = PlacementInstance(table, IntervalObjective(1))
    assert check_infeasible(MemoryWitness(53, 52), fits).status == "refuted"
    assert check_infeasible(MemoryWitness(52, 53), fits).status == "refuted"
    short = PlacementInstance(
        direct_table([DirectClass("a", 2, 26, 0.25)], 4, layer_bytes=12, head_bytes=5), fits.objective
    )
    assert check_infeasible(MemoryWitness(53, 52), short).status == "verified"
    # Three layers of 20 into three cards of 19 with 60 bytes in all: bytes suffice, whole layers don't.
    whole = direct_table([DirectClass("a", 4, 19, 0.25)], 3, layer_bytes=20)
    assert check_infeasible(MemoryWitness(60, 57), PlacementInstance(whole, fits.objective)).status == "verified"
    assert check_bound(MemoryWitness(53, 52), short, 1.0).status == "claimed"


def test_a_witness_of_the_wrong_objective_stays_claimed() -> None:
    table = direct_table([DirectClass("a", 12, 100, 0.25)], 9, layer_bytes=10)
    interval, rate = PlacementInstance(table, IntervalObjective(1)), PlacementInstance(table, ThroughputObjective(2))
    for witness in (PatternWitness((1.0,)), SubsetWitness((1.0,)), RelaxedPriceWitness((1.0,), 9, (1.0,))):
        assert check_bound(witness, interval, 0.1).status == "claimed"
    for kind in ("pattern", "subset", "layered", "no such kind"):
        assert check_bound(ThresholdWitness(kind), rate, -1.0).status == "claimed"
    assert check_bound(CapacityWitness("no such formula"), interval, 0.1).status == "claimed"
    assert check_infeasible(CapacityWitness("no such formula"), interval).status == "refuted"


def test_relaxed_prices_on_a_box_too_large_to_walk() -> None:
    # 8 groups of 40 cards: 41^8 patterns. A card of class i alone takes (1 + i / 8) * 0.25 s a token, whatever K; a
    # chain of cards makes no more than they would alone, less its hops.
    classes = [DirectClass(f"c{i}", 40, 1000, 0.25 / 8 * (1 + i / 8)) for i in range(8)]
    table = direct_table(classes, 8, layer_bytes=10, batch_sizes=(1,), latency_s=0.01)
    instance = PlacementInstance(table, ThroughputObjective(2))
    groups = group_index(table)
    row = row_ticks(instance, groups)[0]
    alone = (1 << 30) / (row.num_layers * row.layer)
    fair = tuple(float(p) for p in alone * 1.05)
    witness = RelaxedPriceWitness(fair, 240, (0.0, 0.25, 0.5, 1.0, 1.5))
    bound = float(40 * np.sum(fair))
    assert check_relaxed_witness(instance, witness, bound).status == "verified"
    assert check_relaxed_witness(instance, witness, bound * (1 - NUDGE)).status == "refuted"
    low = replace(witness, prices=tuple(float(p) for p in alone * (1 - NUDGE)))
    assert check_relaxed_witness(instance, low, float(40 * np.sum(low.prices)) * 1.01).status == "claimed"


def test_relaxed_prices_hold_for_random_chains() -> None:
    """Prices that the linear program over all patterns gives pass; scaled down they don't."""
    for seed in range(4):
        instance = small_throughput(seed)
        bare, value, _ = priced(instance)
        if value == 0:
            continue
        for factor in (2.0, 1.0, 1 - NUDGE, 0.9):
            prices = tuple(p * factor for p in bare.prices)
            total = float(np.dot(prices, group_index(instance.table).available))
            status = check_relaxed_witness(instance, RelaxedPriceWitness(prices, 50, (1.0,)), total).status
            assert status == ("verified" if factor >= 1.0 else "refuted"), (seed, factor)


def test_ticks_are_exact_at_the_edge() -> None:
    assert ticks_below(2.0**-30) == 0
    assert ticks_below(1.5 * 2.0**-30) == 1
    assert ticks_within(2.0**-30) == 1
    assert ticks_within(None) == UNREACHABLE
    assert Fraction(ticks_below(0.1), 1 << 30) < Fraction(0.1) <= Fraction(ticks_below(0.1) + 1, 1 << 30)


def test_devices_that_share_cards_are_bounded_by_their_pool() -> None:
    """Two cards alone or as a pair: prices a card, and a packing that can't use a card twice."""
    base = direct_table([DirectClass("one", 2, 100, 0.25), DirectClass("pair", 1, 100, 0.125)], 2, layer_bytes=10,
                        batch_sizes=(1,))  # fmt: skip
    links = base.link_class.copy()
    links[2, :] = links[:, 2] = -1
    table = replace(base, device_cards=((0,), (1,), (0, 1)), link_class=links, device_node=np.zeros(3, np.int64))
    instance = PlacementInstance(table, ThroughputObjective(1))
    truth = ExhaustivePlanner().solve(instance)
    # One card makes 1 / 0.5 = 2 tokens/s, the pair 1 / 0.25 = 4: at most 4 either way, 2 a card.
    assert truth.objective == pytest.approx(-4.0, abs=1e-6)
    groups = group_index(table)
    assert (groups.pool_units.tolist(), groups.usage.tolist()) == ([2], [[1, 2]])
    assert check_pattern_witness(instance, PatternWitness((2.0,)), 4.0).status in ("verified", "claimed")
    assert check_pattern_witness(instance, PatternWitness((2.0, 4.0)), 4.0).status == "verified"
    assert check_pattern_witness(instance, PatternWitness((2.0, 4.0)), 3.99).status == "refuted"
    assert certify(truth, instance).status is Status.OPTIMAL
