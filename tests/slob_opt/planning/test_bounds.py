from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_data import REFERENCE_DATA, why_missing
from slob_builders import GB, MS, SOLVED, Solved, one_gigabyte_short, pair_or_group, tiny_instances

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError
from slob_opt.planning.baselines.speed_chain import speed_chain
from slob_opt.planning.bounds import (
    CAPACITY,
    FILL,
    capacity_bound,
    closed_form_bound,
    memory_shortage,
    recompute_bound,
    simple_capacity_bound,
)
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.flow import Holding, flow_value
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import Status

HELIX = REFERENCE_DATA / "helix"
needs_helix = pytest.mark.skipif(not HELIX.is_dir(), reason=why_missing("helix"))


def _rates(model: str, mix: str, cluster: str) -> tuple[list[list[float]], int]:
    """Rates T(k) of each node of a Helix cluster, and the layers of the model."""
    types = json.loads((HELIX / "throughput_tables.json").read_text())[model][mix]["types"]
    nodes = json.loads((HELIX / "clusters" / f"{cluster}.json").read_text())["node_types"]
    layers = json.loads((HELIX / "models.json").read_text())["models"][model]["num_layers"]
    return [types[t]["tokens_per_s"] for t in nodes], layers


@needs_helix
def test_published_placement_is_far_below_a_chain_that_the_bound_proves_optimal() -> None:
    """Case O28; that the best of all bounds is reported is in ``tests/experiments/test_comparison.py``."""
    # Helix, 24 nodes with Llama-2-70B: published 1289.56 tokens/s with a solver bound of 78062 (gap 5953 %).
    rates, num_layers = _rates("llama70b", "24", "single24")
    published, chain = 1289.56, speed_chain(rates, num_layers)
    assert chain is not None
    simple, tight = simple_capacity_bound(rates, num_layers), capacity_bound(rates, num_layers)
    assert simple == pytest.approx(2803.86, abs=0.005)
    assert chain[0] == pytest.approx(2045.64, abs=0.005)
    assert sum(chain[1]) == num_layers
    assert published < chain[0] <= tight <= simple
    assert (simple - chain[0]) / chain[0] == pytest.approx(0.371, abs=5e-4)
    # The tighter bound leaves no gap: no placement of these nodes has a larger max flow.
    assert tight == pytest.approx(chain[0], rel=1e-9)


@needs_helix
@pytest.mark.parametrize(
    ("model", "mix", "cluster"),
    [("llama30b", "24", "single24"), ("llama70b", "42", "hetero42"), ("llama30b", "10", "small10")],
)
def test_chain_never_exceeds_the_capacity_bound(model: str, mix: str, cluster: str) -> None:
    rates, num_layers = _rates(model, mix, cluster)
    chain = speed_chain(rates, num_layers)
    assert chain is not None
    assert chain[0] <= capacity_bound(rates, num_layers) <= simple_capacity_bound(rates, num_layers) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=2, max_size=4), st.data())
def test_no_holdings_flow_more_than_the_capacity_bound(tables: list[list[int]], data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(2, 5))
    rates = [sorted((float(x) for x in table), reverse=True) for table in tables]
    holdings = []
    for rate in rates:
        count = data.draw(st.integers(1, min(len(rate), num_layers)))
        first = data.draw(st.integers(0, num_layers - count))
        holdings.append(Holding(first, first + count, rate[count - 1]))
    value = flow_value(holdings, num_layers, is_partial=True)
    assert value <= capacity_bound(rates, num_layers) * (1 + 1e-9)


def test_capacity_bound_by_hand() -> None:
    # One device makes 10 tokens/s with one of two layers, another 1. No more than 1 token/s comes through:
    # 1 * min(10, F) + 1 * min(1, F) >= 2 F up to F = 1. The simple bound says (10 + 1) / 2.
    assert capacity_bound([[10.0], [1.0]], 2) == pytest.approx(1.0)
    assert simple_capacity_bound([[10.0], [1.0]], 2) == pytest.approx(5.5)
    assert capacity_bound([[10.0]], 2) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(tiny_instances())
def test_closed_form_bound_never_crosses_the_optimum(instance: PlacementInstance) -> None:
    optimum, found = ExhaustivePlanner().solve(instance), closed_form_bound(instance)
    if found is None:
        assert optimum.status is Status.INFEASIBLE
    elif optimum.objective is not None:
        assert found[0] <= optimum.objective
        assert recompute_bound(instance, found[1].formula) == found[0]


@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
def test_closed_form_bound_on_named_instances(build: object) -> None:
    solved: Solved = build()  # type: ignore[operator]
    found = closed_form_bound(solved.instance)
    if solved.objective is None:
        assert found is None or memory_shortage(solved.instance) is not None
    else:
        assert found is not None
        assert found[0] <= solved.objective * (1 + math.copysign(1e-5, solved.objective))
        # These instances are simple enough for the bound to be of use: within 40 % of the optimum.
        assert abs(found[0] - solved.objective) <= 0.4 * abs(solved.objective)


def test_a_group_and_its_cards_count_once() -> None:
    # A group of two cards at 0.6 ms a layer against 1 ms a card: 4 layers, K = 1; the group's 2.4 ms is the bound too.
    found = closed_form_bound(pair_or_group().instance)
    assert found is not None
    assert found[0] == pytest.approx(2.4 * MS, rel=1e-5)


def test_formula_must_fit_the_objective() -> None:
    table = direct_table([DirectClass("a", 1, 10, 1 * MS)], 2, layer_bytes=1)
    with pytest.raises(InputError, match="no bound formula 'capacity' for objective interval-k1"):
        recompute_bound(PlacementInstance(table, IntervalObjective(1)), CAPACITY)
    with pytest.raises(InputError, match="no bound formula 'fill'"):
        recompute_bound(PlacementInstance(table, ThroughputObjective(1)), FILL)


def test_memory_is_short_by_one_gigabyte() -> None:
    """Case O09."""
    witness = memory_shortage(one_gigabyte_short().instance)
    assert witness is not None
    assert (witness.need_bytes, witness.have_bytes) == (48 * GB, 47 * GB)


def test_half_a_layer_is_no_use() -> None:
    # 3 cards of 5 GB hold two layers of 2 GB each: 6 layers; 7 layers are 14 GB of 15.
    table = direct_table([DirectClass("a", 3, 5 * GB, 1 * MS)], 7, layer_bytes=2 * GB)
    witness = memory_shortage(PlacementInstance(table, IntervalObjective(1)))
    assert witness is not None
    assert (witness.need_bytes, witness.have_bytes) == (14 * GB, 12 * GB)


def test_workspace_embedding_head_and_kv_count_once_a_plan() -> None:
    # 4 layers of 2 GB + 3 * 0.5 GB KV, embedding 1 GB, head 2 GB, tied 1 GB: 8 + 6 + 2 = 16 GB; two cards of 9 GB with
    # 1 GB workspace offer 16 GB. With K = 4 it's 18 GB.
    def instance(k: int) -> PlacementInstance:
        table = direct_table(
            [DirectClass("a", 2, 9 * GB, 1 * MS)],
            4,
            layer_bytes=2 * GB,
            kv_bytes=GB // 2,
            embed_bytes=GB,
            head_bytes=2 * GB,
            tied_saving_bytes=GB,
            workspace_bytes=GB,
        )
        return PlacementInstance(table, IntervalObjective(k))

    assert memory_shortage(instance(3)) is None
    witness = memory_shortage(instance(4))
    assert witness is not None
    assert witness.need_bytes - witness.have_bytes == 2 * GB


@settings(max_examples=150, deadline=None)
@given(tiny_instances())
def test_memory_shortage_is_a_proof(instance: PlacementInstance) -> None:
    witness = memory_shortage(instance)
    if witness is not None:
        assert witness.need_bytes > witness.have_bytes
        assert ExhaustivePlanner().solve(instance).status is Status.INFEASIBLE


def test_bound_of_many_devices_and_layers_is_finite_and_positive() -> None:
    classes = [DirectClass(f"c{i}", 32, (8 + 8 * i) * GB, (8 - i) * MS, 0.1 * MS, 0.2 * MS) for i in range(8)]
    table = direct_table(classes, 80, layer_bytes=2 * GB, kv_bytes=4_000_000, latency_s=1 * MS)
    rate = closed_form_bound(PlacementInstance(table, ThroughputObjective(16, 0.4, 64)))
    interval = closed_form_bound(PlacementInstance(table, IntervalObjective(4)))
    assert rate is not None
    assert interval is not None
    assert -1e6 < rate[0] < -1
    # 80 layers at 1 ms on the fastest cards, none of which holds more than 32: three stages, two hops and one back.
    assert 80 * MS <= interval[0] <= 90 * MS
    assert np.isfinite(rate[0])
