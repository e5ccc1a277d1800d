"""What fits on a card beside what."""

from __future__ import annotations

from slob_opt.cost import memory
from slob_opt.cost.build import CostOptions
from slob_opt.problem.catalogue.gpus import gpu_device
from slob_opt.problem.catalogue.models import model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.placement import Pipeline, Stage
from slob_opt.slob.ladder_memory import CardMemory

LLAMA = model("llama-3.1-8b")
WHOLE = [Pipeline((Stage((card,), 0, 32),)) for card in (0, 1)]
HALVES = Pipeline((Stage((0,), 0, 16), Stage((1,), 16, 32)))


def cards(gpu: str) -> CardMemory:
    node = Node("n", (gpu_device(gpu, "n/0"), gpu_device(gpu, "n/1")))
    return CardMemory(Cluster("two", (node,), Link(1e9, 1e-4), Link(1e10, 1e-5)), LLAMA, 64, CostOptions())


def test_weights_of_the_parts_are_those_of_the_whole() -> None:
    made = cards("l4")
    layers = sum(memory.weight_bytes(LLAMA, layer) for layer in LLAMA.layers)
    ends = memory.embedding_bytes(LLAMA) + memory.head_weight_bytes(LLAMA)
    assert made.weight_bytes(0, WHOLE[0]) == layers + ends
    assert made.weight_bytes(1, WHOLE[0]) == 0
    assert made.weight_bytes(0, HALVES) + made.weight_bytes(1, HALVES) == layers + ends


def test_the_kv_pool_fills_what_weights_leave() -> None:
    made = cards("l4")
    blocks = made.kv_blocks(WHOLE[0], WHOLE)
    free = made.room_bytes(0) - made.weight_bytes(0, WHOLE[0])
    assert made.kv_bytes(0, WHOLE[0], blocks) <= free < made.kv_bytes(0, WHOLE[0], blocks + 1)


def test_pipelines_that_meet_share_what_is_left() -> None:
    """An 80 GB card holds the model one and a half times and has room: about half the blocks each."""
    made = cards("a100-sxm4-80gb")
    alone, together = made.kv_blocks(WHOLE[0], WHOLE[:1]), made.kv_blocks(WHOLE[0], [WHOLE[0], HALVES])
    assert 0.35 * alone < together < 0.5 * alone
    small = cards("l4")
    # 24 GB hold 16 GB of weights, not 24.
    assert small.kv_blocks(WHOLE[0], [WHOLE[0], HALVES]) == 0


def test_resident_sets_join_neighbours_that_fit() -> None:
    levels = [(WHOLE[0],), (WHOLE[0], WHOLE[1]), (HALVES,)]
    # The second whole model is on a card of its own; the halves don't fit beside whole ones.
    assert cards("l4").resident_sets(levels) == ((0, 1), (2,))
    # On large cards they fit, but leave less than half of the KV.
    assert cards("a100-sxm4-80gb").resident_sets(levels) == ((0, 1), (2,))
