"""Ladders from clusters: certified levels that carry more with more cards."""

from __future__ import annotations

import itertools

import pytest

from slob_opt.errors import InputError
from slob_opt.problem.catalogue.clusters import cluster
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.slob.ladder_planning import LadderOptions, PlannedLadder, build_ladder, without_cards

LLAMA = model("llama-3.1-8b")
TRAFFIC = TrafficProfile(1000, 200, tpot_s=0.19)


@pytest.fixture(scope="module")
def planned() -> PlannedLadder:
    """Three workstations, each of which but the smallest holds the model."""
    return build_ladder(cluster("lab-3"), LLAMA, TRAFFIC)


def test_levels_carry_more_with_more_cards(planned: PlannedLadder) -> None:
    ladder = planned.ladder
    assert len(ladder.levels) >= 2
    for lower, higher in itertools.pairwise(ladder.levels):
        assert len(lower.cards) < len(higher.cards)
        assert higher.rate_per_s >= LadderOptions().least_step * lower.rate_per_s
    assert len(ladder.levels[0].cards) == 1  # one fast card serves a sparse load
    starts = [planned.from_offered(level, 0.7) for level in range(len(ladder.levels))]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert starts[1] == pytest.approx(0.7 * ladder.capacity(0, ladder.lengths))


def test_each_level_fits_its_cards_with_its_kv(planned: PlannedLadder) -> None:
    memory = planned.memory
    for level in range(len(planned.ladder.levels)):
        for card, weights in planned.level_bytes(level).items():
            servers = [planned.ladder.servers[place] for place in planned.ladder.levels[level].servers]
            pools = sum(memory.kv_bytes(card, one.pipeline, one.limits.kv_blocks) for one in servers)
            assert weights + pools <= memory.room_bytes(card)
    assert {level for held in planned.resident_sets for level in held} == set(range(len(planned.ladder.levels)))


def test_the_same_input_gives_the_same_ladder(planned: PlannedLadder) -> None:
    again = build_ladder(cluster("lab-3"), LLAMA, TRAFFIC)
    assert again.ladder.levels == planned.ladder.levels
    assert [one.pipeline for one in again.ladder.servers] == [one.pipeline for one in planned.ladder.servers]


def test_what_fits_nowhere_is_told() -> None:
    with pytest.raises(InputError, match="no placement of llama-2-70b on lab-3"):
        build_ladder(cluster("lab-3"), model("llama-2-70b"), TRAFFIC)
    with pytest.raises(InputError, match="holds a request of 900000 tokens"):
        build_ladder(cluster("lab-3"), LLAMA, TRAFFIC, longest_tokens=900_000)
    with pytest.raises(InputError, match=r"least_step is 0\.5"):
        LadderOptions(least_step=0.5)


def test_cards_are_taken_away_with_the_nodes_that_need_them() -> None:
    pair = Node("pair", (gpu_device("l4", "pair/0"), gpu_device("l4", "pair/1")), tp_degrees=(2,))
    box = Node("box", (gpu_device("t4", "box/0"), gpu_device("t4", "box/1")), tp_degrees=(1, 2))
    whole = Cluster("c", (pair, box), Link(1e9, 1e-4), Link(1e10, 1e-5))
    found = without_cards(whole, frozenset({0, 2}))
    assert found is not None
    left, kept = found
    # The pair works only as one and goes as a whole; of the box the second card stays, alone.
    assert kept == (3,)
    assert [(node.name, len(node.devices), node.tp_degrees) for node in left.nodes] == [("box", 1, (1,))]
    assert without_cards(whole, frozenset(range(4))) is None
