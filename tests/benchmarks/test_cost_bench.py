"""Speed of the cost model: table for large clusters, and one iteration's time as a simulator asks for it."""

import pytest
from cost_facts import ETHERNET, PCIE, a100, l4, llama_2_70b, nodes_of_one

from slob_opt.cost.batch import BatchShape
from slob_opt.cost.build import build_table
from slob_opt.cost.roofline import CardGroup, stage_s
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.traffic import TrafficProfile

pytestmark = pytest.mark.benchmark


def test_table_of_1024_single_cards(benchmark):
    cluster = nodes_of_one(*(l4(f"l{i}") if i % 3 else a100(f"a{i}") for i in range(1024)))
    table = benchmark(build_table, cluster, llama_2_70b(), TrafficProfile())
    assert table.num_devices == 1024


def test_table_of_1024_cards_in_nested_groups(benchmark):
    nodes = tuple(
        Node(f"n{i}", tuple(a100(f"n{i}/{j}") for j in range(8)), tp_degrees=(1, 2, 4, 8)) for i in range(128)
    )
    table = benchmark(build_table, Cluster("dgx", nodes, ETHERNET, PCIE), llama_2_70b(), TrafficProfile())
    assert table.num_devices == 128 * 15


def test_fingerprint_of_1024_cards(benchmark):
    table = build_table(nodes_of_one(*(l4(f"l{i}") for i in range(1024))), llama_2_70b(), TrafficProfile())
    first = table.fingerprint

    def again() -> str:
        table.__dict__.pop("fingerprint")  # drop the cached value
        return table.fingerprint

    assert benchmark(again) == first


def test_one_iteration_of_a_stage(benchmark):
    model, group = llama_2_70b(), CardGroup(l4())

    def step() -> float:
        return stage_s(group, model, 10, 30, BatchShape.ragged(range(500, 532), [(0, 512)]))

    assert benchmark(step) > 0
