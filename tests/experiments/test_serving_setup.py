"""Limits of pipelines from the memory of their cards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from serving_systems import cards, one_l4, two_replicas

from experiments.serving_setup import ACTIVATION_TOKENS, ServingOptions, make_system, plan_placement
from slob_opt.cost import memory
from slob_opt.errors import InputError
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.problem.catalogue import gpu_device, model
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile

LLAMA = model("llama-3.1-8b")


def test_blocks_fill_what_weights_and_activations_leave() -> None:
    """One more block wouldn't fit, and the blocks there are do."""
    options = ServingOptions()
    system = one_l4()
    used = options.framework_bytes + memory.activation_bytes(LLAMA, ACTIVATION_TOKENS)
    used += sum(memory.weight_bytes(LLAMA, layer) for layer in LLAMA.layers)
    used += memory.embedding_bytes(LLAMA) + memory.head_weight_bytes(LLAMA) + memory.logits_bytes(LLAMA, 128)
    block = sum(memory.kv_bytes(LLAMA, layer, 16) for layer in LLAMA.layers)
    usable = int(gpu_device("l4", "x").memory_bytes * options.memory_utilization)
    blocks = system.limits[0].kv_blocks
    assert used + blocks * block <= usable < used + (blocks + 1) * block
    assert system.limits[0].max_tokens == LLAMA.max_position


def test_a_pool_is_as_large_as_its_smallest_stage() -> None:
    """Moving layers off the card that is short of memory gives the pipeline more KV."""

    def blocks(first: int) -> int:
        stages = (Stage((0,), 0, first), Stage((1,), first, 32))
        placement = Placement((Pipeline(stages, 2),))
        return make_system("x", cards("l4", "t4"), LLAMA, placement).limits[0].kv_blocks

    assert blocks(16) < blocks(20)


def test_a_shared_card_divides_what_is_left() -> None:
    """Two equal pipelines over one pair of cards have less than half the blocks of one alone: weights count twice."""
    pipeline = Pipeline((Stage((0,), 0, 16), Stage((1,), 16, 32)))
    twin = Pipeline((Stage((1,), 0, 16), Stage((0,), 16, 32)))
    both = make_system("x", cards("l4", "l4"), LLAMA, Placement((pipeline, twin)))
    alone = make_system("x", cards("l4", "l4"), LLAMA, Placement((pipeline,)))
    assert both.limits[0].kv_blocks == both.limits[1].kv_blocks < alone.limits[0].kv_blocks // 2


def test_lanes_and_blocks_can_be_set() -> None:
    system = one_l4(ServingOptions(num_lanes=4, kv_blocks=77, chunk_tokens=None))
    assert (system.limits[0].num_lanes, system.limits[0].kv_blocks) == (4, 77)
    assert system.limits[0].max_chunk_tokens is None
    assert system.effective()["pipelines"][0]["kv_blocks"] == 77  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_lanes": 0}, "num_lanes is 0"),
        ({"max_rows": 2, "num_lanes": 3}, "3 lanes for 2 rows"),
        ({"kv_blocks": -1}, "kv_blocks is -1"),
    ],
)
def test_wrong_options_are_told(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ServingOptions(**options)


def test_a_placement_of_another_model_or_cluster_is_refused() -> None:
    system = two_replicas()
    with pytest.raises(InputError, match=r"executes 32 layers, model qwen2\.5-7b has 28"):
        make_system("x", system.cluster, model("qwen2.5-7b"), system.placement)
    with pytest.raises(InputError, match="uses card 1, cluster l4 has 1"):
        make_system("x", cards("l4"), LLAMA, system.placement)


def test_weights_that_leave_no_room_are_refused() -> None:
    with pytest.raises(InputError, match="no memory left for KV"):
        make_system("x", cards("t4"), LLAMA, Placement((Pipeline((Stage((0,), 0, 32),)),)))


def test_slob_plans_where_no_placement_is_given() -> None:
    placement = plan_placement(cards("l4", "t4"), LLAMA, TrafficProfile(), IntervalObjective(1))
    assert placement.pipelines[0].num_layers == 32
    with pytest.raises(InputError, match="slob finds no placement"):
        plan_placement(cards("t4"), replace(LLAMA, weight_bits=32), TrafficProfile(), IntervalObjective(1))
