from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from slob_builders import MS, one_gigabyte_short, tiny_instances

from slob_opt.cost.build import build_table
from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.infeasible import explain_infeasible, largest_in_flight
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Status
from slob_opt.problem.catalogue import cluster, model
from slob_opt.problem.traffic import TrafficProfile

GIB = 2**30


def _two_cards(in_flight: int) -> PlacementInstance:
    """48 layers of 0.95 GB on two cards of 24 GB; 2048 tokens of KV at 1900 bytes a layer are 3.9 MB a sequence.

    24 layers a card: 24 * (0.95 + 0.0038912 * q) <= 24 GB up to q = 12; 23 + 25 hold fewer.
    """
    table = direct_table(
        [DirectClass("card", 2, 24 * 10**9, 1 * MS)], 48, layer_bytes=950_000_000, kv_bytes=1900 * 2048
    )
    return PlacementInstance(table, IntervalObjective(in_flight))


def test_largest_feasible_batch_is_told() -> None:
    """Case P24."""
    assert ExhaustivePlanner().solve(_two_cards(12)).status is Status.OPTIMAL
    result = ExhaustivePlanner().solve(_two_cards(16))
    assert result.status is Status.INFEASIBLE
    assert "largest feasible batch is 12 sequences in flight" in result.message
    assert largest_in_flight(_two_cards(16).table, 0, 16) == 12


def test_less_context_is_told_in_tokens() -> None:
    # 16 sequences fit with 12.85 / 16 of 2048 tokens: 24 * (0.95e9 + 16 * 1900 * t) <= 24e9, t <= 1644: 404 fewer.
    text = explain_infeasible(_two_cards(16), context_tokens=2048)
    assert "404 tokens less context" in text
    assert "8-bit weights" in text


@pytest.mark.parametrize(
    ("card_gib", "weight_bits", "offered"),
    [
        (9, 32, 8),  # 16 GiB of 16 bits or 32 GiB of 32 bits: always 8 GiB at 8 bits
        (9, 16, 8),
        (5, 16, 4),
        (3, 16, None),
        (8, 8.5, 8),
        (5, 8, 4),
        (3, 8, None),
        (5, 6, 4),
        (4, 4.25, 4),
        (3, 4, None),
        (1, 3, None),
        (9, None, None),
    ],
)
def test_the_widest_smaller_weights_that_fit_are_offered(
    card_gib: int, weight_bits: float | None, offered: int | None
) -> None:
    """One card and 8 layers of 2 GiB at 16 bits; no KV, no ends."""
    layer = 2 * GIB if weight_bits is None else int(2 * GIB * weight_bits / 16)
    cards = [DirectClass("a", 1, card_gib * GIB, 1 * MS)]
    table = direct_table(cards, 8, layer_bytes=layer, weight_bits=weight_bits)
    text = explain_infeasible(PlacementInstance(table, IntervalObjective(1)))
    assert re.findall(r"(\d+)-bit weights", text) == ([] if offered is None else [str(offered)]), text


@pytest.mark.parametrize("weight_bits", [32, 16, 8, 6, 4, 3])
@pytest.mark.parametrize(
    ("cluster_id", "model_id"),
    [("lab-3", "llama-2-70b"), ("lab-3", "llama-3.1-70b"), ("llmpq-3", "opt-66b"), ("mixed-box-1", "gemma-2-27b")],
)
def test_offered_weights_are_what_the_models_own_table_says(cluster_id: str, model_id: str, weight_bits: float) -> None:
    """The table built anew with those bits, embedding and head included, has room; with wider ones it hasn't."""

    def instance(bits: float) -> PlacementInstance:
        spec = replace(model(model_id), weight_bits=bits)
        return PlacementInstance(build_table(cluster(cluster_id), spec, TrafficProfile()), IntervalObjective(1))

    if largest_in_flight(instance(weight_bits).table, 0, 1):
        return
    fitting = [b for b in (8, 4) if b < weight_bits and largest_in_flight(instance(b).table, 0, 1)]
    text = explain_infeasible(instance(weight_bits))
    assert re.findall(r"(\d+)-bit weights", text) == [str(b) for b in fitting[:1]], text


def test_missing_memory_is_told_in_gib_with_the_card_and_it_is_enough() -> None:
    # Five layers of 1 GiB on two cards of 2 GiB: 1 GiB more on one of them.
    def table(first: int) -> PlacementInstance:
        classes = [DirectClass("a", 1, first, 0.1), DirectClass("b", 1, 2 * GIB, 0.1)]
        return PlacementInstance(direct_table(classes, 5, layer_bytes=GIB), IntervalObjective(1))

    text = explain_infeasible(table(2 * GIB))
    assert "needs 5.00 GiB" in text
    assert "offer 4.00 GiB" in text
    assert "1.00 GiB more on a card of class a" in text
    assert ExhaustivePlanner().solve(table(3 * GIB)).status is Status.OPTIMAL
    assert ExhaustivePlanner().solve(table(3 * GIB - 1)).status is Status.INFEASIBLE


def test_one_gigabyte_short_is_found_before_any_search() -> None:
    """Case O09."""
    # One layer of 1 GB does not fit, so the repair is 1 GB in whole MiB: 0.93 GiB.
    text = explain_infeasible(one_gigabyte_short().instance)
    assert "needs 44.70 GiB" in text
    assert "offer 43.77 GiB" in text
    assert "0.93 GiB more on a card of class" in text


def test_cut_into_whole_layers_can_be_the_conflict() -> None:
    # 2 + 2 + 2 layers of 2 GiB fit three cards of 5 GiB, the seventh doesn't, though 14 GiB are less than 15.
    table = direct_table([DirectClass("a", 3, 5 * GIB, 1 * MS)], 7, layer_bytes=2 * GIB)
    text = explain_infeasible(PlacementInstance(table, IntervalObjective(1)))
    assert "1.00 GiB more on a card of class a" in text
    assert "needs 14.00 GiB" in text
    assert "offer 15.00 GiB, yet no cut into whole layers fits them" in text


def test_time_can_be_the_conflict() -> None:
    table = direct_table([DirectClass("a", 1, 100, 0.1)], 10, layer_bytes=1)
    instance = PlacementInstance(table, ThroughputObjective(2, max_interval_s=0.4))
    result = ExhaustivePlanner().solve(instance)
    assert result.status is Status.INFEASIBLE
    assert "token interval of at most 0.4 s" in result.message


def test_no_shape_can_be_the_conflict() -> None:
    table = direct_table([DirectClass("a", 1, 100, 0.1)], 10, layer_bytes=1, batch_sizes=(4, 8))
    instance = PlacementInstance(table, ThroughputObjective(2, max_in_flight=2))
    result = ExhaustivePlanner().solve(instance)
    assert result.status is Status.INFEASIBLE
    assert "max_in_flight" in result.message


@settings(max_examples=120, deadline=None)
@given(tiny_instances())
def test_every_infeasible_instance_gets_a_text_and_a_true_batch(instance: PlacementInstance) -> None:
    result = ExhaustivePlanner().solve(instance)
    if result.status is not Status.INFEASIBLE:
        return
    assert result.message
    found = re.search(r"largest feasible batch is (\d+)", result.message)
    if found and not instance.is_throughput:
        smaller = PlacementInstance(instance.table, IntervalObjective(int(found[1])))
        assert ExhaustivePlanner().solve(smaller).status is Status.OPTIMAL
        larger = PlacementInstance(instance.table, IntervalObjective(int(found[1]) + 1))
        assert ExhaustivePlanner().solve(larger).status is Status.INFEASIBLE


@settings(max_examples=80, deadline=None)
@given(tiny_instances())
def test_the_memory_check_agrees_with_enumeration(instance: PlacementInstance) -> None:
    for in_flight in (1, 3):
        fits = largest_in_flight(instance.table, 0, in_flight) == in_flight
        found = ExhaustivePlanner().solve(PlacementInstance(instance.table, IntervalObjective(in_flight)))
        assert fits == (found.status is Status.OPTIMAL)


def test_a_negative_case_has_no_batch() -> None:
    table = direct_table([DirectClass("a", 1, 5, 0.1)], 10, layer_bytes=1)
    assert largest_in_flight(table, 0, 8) == 0
    assert "largest feasible batch" not in explain_infeasible(PlacementInstance(table, IntervalObjective(1)))


@pytest.mark.parametrize("count", [1, 3])
def test_words_agree_in_number(count: int) -> None:
    table = direct_table([DirectClass("a", 1, 5, 0.1)], 10, layer_bytes=1)
    text = explain_infeasible(PlacementInstance(table, IntervalObjective(count)))
    assert f"{count} sequence{'' if count == 1 else 's'} in flight" in text


def test_a_card_in_several_groups_counts_once() -> None:
    """Two boxes of two 24 GiB cards that may also work in pairs: 4 cards offer four times 22.08 GiB less overheads."""
    table = build_table(cluster("nvlink-pairs-2"), model("llama-2-70b"), TrafficProfile())
    assert table.num_devices == 4 + 2
    text = explain_infeasible(PlacementInstance(table, IntervalObjective(1)))
    offered = re.search(r"the 4 cards offer ([0-9.]+) GiB", text)
    assert offered is not None, text
    assert 4 * 20 < float(offered.group(1)) < 4 * 22.08
    assert "yet no cut" not in text
