"""Plans as arguments of vLLM: numbers in the order of devices, and clear words where it can't be done."""

from __future__ import annotations

import pytest

from runtime.export import export_vllm, vllm_obstacles
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.placement import Pipeline, Placement, Stage

LINK = Link(1.25e9, 1e-4)


def cluster(**cards: int) -> Cluster:
    """Nodes by name with a number of equal cards each."""
    nodes = tuple(
        Node(name, tuple(Device(f"{name}/{i}", "x", 2**34, 1e14, 1e12) for i in range(count)))
        for name, count in cards.items()
    )
    return Cluster("test", nodes, LINK, LINK)


def plan(*stages: tuple[tuple[int, ...], int]) -> Placement:
    """One pipeline; each stage is (cards, number of layers)."""
    first, made = 0, []
    for cards, count in stages:
        made.append(Stage(cards, first, first + count))
        first += count
    return Placement((Pipeline(tuple(made)),))


def test_case_p05_numbers_stand_in_the_order_of_devices() -> None:
    """25 and 35 of 60 layers; the larger share comes first when the larger card does."""
    (engine,) = export_vllm(plan(((0,), 25), ((1,), 35)), cluster(box=2))
    assert dict(engine.environment)["VLLM_PP_LAYER_PARTITION"] == "25,35"
    assert dict(engine.environment)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert engine.arguments == ("--pipeline-parallel-size", "2", "--tensor-parallel-size", "1")
    (turned,) = export_vllm(plan(((1,), 35), ((0,), 25)), cluster(box=2))
    assert dict(turned.environment)["VLLM_PP_LAYER_PARTITION"] == "35,25"
    assert dict(turned.environment)["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert turned.stages == ((35, ("box/1",)), (25, ("box/0",)))
    assert turned.command == (
        "VLLM_PP_LAYER_PARTITION=35,25 CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1,0 "
        "vllm serve MODEL --pipeline-parallel-size 2 --tensor-parallel-size 1"
    )


def test_cards_are_counted_on_their_machine() -> None:
    """Cards 2 to 5 of the cluster are cards 0 to 3 of the second machine."""
    (engine,) = export_vllm(plan(((4, 5), 7), ((2, 3), 5)), cluster(a=2, b=4))
    assert dict(engine.environment)["CUDA_VISIBLE_DEVICES"] == "2,3,0,1"
    assert engine.arguments[-1] == "2"
    assert engine.notes == ()


def test_several_machines_are_told_in_order() -> None:
    (engine,) = export_vllm(plan(((2,), 7), ((0,), 5)), cluster(a=2, b=1))
    assert "CUDA_VISIBLE_DEVICES" not in dict(engine.environment)
    assert engine.arguments[-2:] == ("--distributed-executor-backend", "ray")
    assert "machines b, a, in this order: start on b" in engine.notes[0]
    (twice,) = export_vllm(plan(((0,), 3), ((2,), 4), ((1,), 5)), cluster(a=2, b=1))
    assert len(twice.notes) == 2
    assert "twice" in twice.notes[1]


def test_a_pipeline_on_one_device_has_no_partition() -> None:
    (engine,) = export_vllm(plan(((0, 1), 12)), cluster(a=2))
    assert "VLLM_PP_LAYER_PARTITION" not in dict(engine.environment)
    assert engine.arguments == ("--pipeline-parallel-size", "1", "--tensor-parallel-size", "2")


def test_each_pipeline_is_an_engine_of_its_own() -> None:
    two = Placement((*plan(((0, 1), 8)).pipelines, *plan(((2,), 3), ((3,), 5)).pipelines))
    assert vllm_obstacles(two) == ()
    whole, parts = export_vllm(two, cluster(a=2, b=2))
    assert (whole.arguments[3], parts.arguments[3]) == ("2", "1")
    assert dict(parts.environment)["VLLM_PP_LAYER_PARTITION"] == "3,5"


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (plan(((0, 1), 5), ((2,), 3)), "degrees 2, 1 by stage"),
        (Placement((*plan(((0,), 8)).pipelines, *plan(((0,), 8)).pipelines)), "pipelines share cards"),
    ],
)
def test_case_p07_what_can_t_be_exported_is_said(placement: Placement, sentence: str) -> None:
    (obstacle,) = vllm_obstacles(placement)
    assert sentence in obstacle
