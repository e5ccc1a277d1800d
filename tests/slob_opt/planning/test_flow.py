from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_data import REFERENCE_DATA, why_missing
from slob_builders import FREE_LINK, GB, MS, replicas_and_a_pair

from slob_opt.cost.direct import DirectClass, direct_table
from slob_opt.errors import InputError
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.flow import Holding, cover_value, device_rate, flow_value, network_flow, placement_flow
from slob_opt.planning.split import pipeline_of
from slob_opt.problem.placement import Pipeline, Placement, Stage

HELIX = REFERENCE_DATA / "helix"
needs_helix = pytest.mark.skipif(not HELIX.is_dir(), reason=why_missing("helix"))


@cache
def _load(name: str) -> Any:
    return json.loads((HELIX / name).read_text())


def _node_rate(record: dict[str, Any], node: str, count: int) -> float:
    """Tokens/s of a node; a force-loaded one beyond its table falls as 1 / k."""
    rates = _load("throughput_tables.json")[record["model"]][record["mix"]]["types"][record["node_types"][node]]
    table = rates["tokens_per_s"]
    return float(table[count - 1] if count <= len(table) else table[-1] * len(table) / count)


def _milp_flow(record: dict[str, Any], is_partial: bool) -> float:
    """The max flow that Helix's integer program maximises: every link of the cluster file."""
    model, cluster = _load("models.json")["models"][record["model"]], _load(f"clusters/{record['cluster']}.json")
    machines = _load("machines.json")["machines"]
    act, tok = model["activation_bytes_per_token"], model["token_bytes"]
    nodes = sorted(record["layers"], key=int)
    index = {int(n): i for i, n in enumerate(nodes)}
    holdings = []
    for n in nodes:
        first, end = record["layers"][n]
        machine = machines[record["node_types"][n]]
        nic = min(machine["inbound_nic_speed"], machine["outbound_nic_speed"]) / act
        holdings.append(Holding(first, end, min(nic, _node_rate(record, n, end - first))))
    links = {}
    for a, b, speed, _ in cluster["node_links"]:
        if a in index and b in index:
            links[index[a], index[b]] = links[index[b], index[a]] = speed / act
    return flow_value(
        holdings,
        model["num_layers"],
        links=links,
        entries={index[n]: speed / tok for n, speed, _ in cluster["source_links"] if n in index},
        exits={index[n]: speed / tok for n, speed, _ in cluster["sink_links"] if n in index},
        is_partial=is_partial,
    )


def _simulator_flow(record: dict[str, Any]) -> float:
    """The max flow of the links that Helix wrote for its simulator; tokens and activations share links and cards."""
    model, machines = _load("models.json")["models"][record["model"]], _load("machines.json")["machines"]
    act, tok = model["activation_bytes_per_token"], model["token_bytes"]
    nodes = sorted(record["layers"], key=int)
    index = {int(n): i for i, n in enumerate(nodes)}
    arcs = record["simulator_links_in_out_Bps_s"]
    rates = []
    for n in nodes:
        first, end = record["layers"][n]
        machine = machines[record["node_types"][n]]
        from_source_only = [a for a, b, _, _ in arcs if b == int(n)] == ["source"]
        to_sink_only = [b for a, b, _, _ in arcs if a == int(n)] == ["sink"]
        rates.append(
            min(
                machine["inbound_nic_speed"] / (tok if from_source_only else tok + act),
                _node_rate(record, n, end - first),
                machine["outbound_nic_speed"] / (tok if to_sink_only else tok + act),
            )
        )
    return min(
        machines["SourceNode"]["outbound_nic_speed"] / tok,
        machines["SinkNode"]["inbound_nic_speed"] / tok,
        network_flow(
            rates,
            {index[b]: speed / tok for a, b, speed, _ in arcs if a == "source"},
            {index[a]: speed / tok for a, b, speed, _ in arcs if b == "sink"},
            {(index[a], index[b]): speed / (tok + act) for a, b, speed, _ in arcs if a != "source" and b != "sink"},
        ),
    )


@needs_helix
def test_every_published_layout_has_the_published_max_flow() -> None:
    layouts = _load("layouts.json")
    num_checked = 0
    for record in layouts:
        published = record.get("helix_simulator_max_flow")
        if published is not None:
            num_checked += 1
            assert _simulator_flow(record) == pytest.approx(published, rel=1e-6), record["id"]
        published = record.get("sol_file_objective")
        if published is not None and record["cluster"]:
            num_checked += 1
            assert _milp_flow(record, is_partial=False) == pytest.approx(published, rel=1e-6), record["id"]
    assert len(layouts) == 48
    assert num_checked >= 36


@needs_helix
def test_cover_limits_every_published_layout() -> None:
    num_layers = {name: model["num_layers"] for name, model in _load("models.json")["models"].items()}
    for record in _load("layouts.json"):
        if not record["cluster"]:
            continue
        holdings = [
            Holding(first, end, _node_rate(record, n, end - first)) for n, (first, end) in record["layers"].items()
        ]
        strict, partial = _milp_flow(record, is_partial=False), _milp_flow(record, is_partial=True)
        cover = cover_value(holdings, num_layers[record["model"]])
        assert strict <= partial * (1 + 1e-6)
        assert partial <= cover * (1 + 1e-6)
        assert flow_value(holdings, num_layers[record["model"]], is_partial=True) == pytest.approx(cover, rel=1e-6)


@st.composite
def _holdings(draw: st.DrawFn, max_devices: int = 6) -> tuple[list[Holding], int]:
    num_layers = draw(st.integers(1, 5))
    found = []
    for _ in range(draw(st.integers(1, max_devices))):
        first = draw(st.integers(0, num_layers - 1))
        found.append(Holding(first, draw(st.integers(first + 1, num_layers)), float(draw(st.integers(1, 20)))))
    return found, num_layers


@settings(max_examples=80, deadline=None)
@given(_holdings())
def test_partial_flow_without_links_is_the_cover(case: tuple[list[Holding], int]) -> None:
    holdings, num_layers = case
    cover = cover_value(holdings, num_layers)
    assert flow_value(holdings, num_layers, is_partial=True) == pytest.approx(cover, rel=1e-9, abs=1e-9)
    assert flow_value(holdings, num_layers) <= cover * (1 + 1e-9) + 1e-9


@settings(max_examples=60, deadline=None)
@given(_holdings(max_devices=4), st.data())
def test_flow_equals_the_smallest_cut(case: tuple[list[Holding], int], data: st.DataObject) -> None:
    holdings, num_layers = case
    count = len(holdings)
    links = {(i, j): float(data.draw(st.integers(0, 9))) for i in range(count) for j in range(count) if i != j}
    entries = dict.fromkeys(range(count), 7.0)
    exits = dict.fromkeys(range(count), 8.0)
    value = flow_value(holdings, num_layers, links=links, entries=entries, exits=exits)
    # Every node is two points (in, out); a cut takes each point to the source's or to the sink's side.
    smallest = math.inf
    for sides in range(4**count):
        inside = [sides >> (2 * i) & 1 for i in range(count)]
        outside = [sides >> (2 * i + 1) & 1 for i in range(count)]
        cut = 0.0
        for i, h in enumerate(holdings):
            cut += h.rate if inside[i] and not outside[i] else 0.0
            cut += entries[i] if h.first == 0 and not inside[i] else 0.0
            cut += exits[i] if h.end == num_layers and outside[i] else 0.0
            for j, other in enumerate(holdings):
                if i != j and h.end == other.first and outside[i] and not inside[j]:
                    cut += links[i, j]
        smallest = min(smallest, cut)
    assert value == pytest.approx(smallest, rel=1e-9, abs=1e-9)


def _replicated(split: int) -> Placement:
    """Layers [0, split) on cards 0 and 1, the rest on card 2, which both pipelines share."""
    return Placement(tuple(Pipeline((Stage((card,), 0, split), Stage((2,), split, 40))) for card in (0, 1)))


def test_a_stage_replicated_on_two_slow_cards_feeds_one_fast_card() -> None:
    """Case P06."""
    # V100: 2 ms a layer, two of them share [0, a); A100: 0.8 ms a layer. Time between tokens max(2a / 2, 0.8 (40 - a)):
    # 18.0 ms at a = 18 (22 * 0.8 = 17.6 ms on the A100), 18.4 at 17, 19 at 19.
    table = direct_table(
        [DirectClass("V100", 2, 32 * GB, 2 * MS), DirectClass("A100", 1, 80 * GB, 0.8 * MS)],
        40,
        layer_bytes=800_000_000,
        batch_sizes=(1,),
        bytes_per_s=FREE_LINK,
    )
    best = {a: 1 / placement_flow(table, _replicated(a)).rate for a in range(10, 31)}
    assert min(best, key=lambda a: best[a]) == 18
    assert best[18] == pytest.approx(18 * MS, rel=1e-5)
    report = placement_flow(table, _replicated(18))
    assert report.bottlenecks == (0, 1)
    assert report.busy[2] == pytest.approx(17.6 / 18, rel=1e-5)


def test_flow_of_disjoint_pipelines_is_at_least_their_rates() -> None:
    # With K large enough each pipeline's rate is b / longest stage, which the flow counts: 250 tokens/s each.
    instance = replicas_and_a_pair().instance
    result = ExhaustivePlanner().solve(instance)
    assert result.placement is not None
    assert result.objective is not None
    report = placement_flow(instance.table, result.placement)
    assert report.rate == pytest.approx(-result.objective, rel=1e-6)
    assert sum(x for (_, first, _), x in report.slice_rates.items() if first == 0) == pytest.approx(report.rate)


def test_a_card_divides_its_time_among_its_slices() -> None:
    # One card executes [0, 1) and [2, 3), another [1, 2); 1 ms a layer. A token takes 2 ms of the first: 500 tokens/s.
    table = direct_table([DirectClass("a", 2, 3, 1 * MS)], 3, layer_bytes=1, batch_sizes=(1,), bytes_per_s=FREE_LINK)
    plan = Placement((Pipeline((Stage((0,), 0, 1), Stage((1,), 1, 2), Stage((0,), 2, 3))),))
    report = placement_flow(table, plan)
    assert report.rate == pytest.approx(500, rel=1e-5)
    assert report.busy[1] == pytest.approx(0.5, rel=1e-5)


def test_links_and_network_cards_limit_the_flow() -> None:
    # 1 ms a stage; a token's 1000 bytes need 4 ms of a link of 250 kB/s: 250 tokens/s. A card of 100 kB/s: 100.
    table = direct_table(
        [DirectClass("a", 2, 1, 1 * MS)],
        2,
        layer_bytes=1,
        batch_sizes=(1,),
        hop_bytes_per_token=1000,
        bytes_per_s=2.5e5,
    )
    plan = Placement((pipeline_of(table, (0, 1), (1, 1)),))
    assert placement_flow(table, plan).rate == pytest.approx(250, rel=1e-5)
    narrow = replace(table, nic_bytes_per_s=np.array([1e5, 1e9]))
    assert placement_flow(narrow, plan).rate == pytest.approx(100, rel=1e-5)


def test_rate_of_a_device_takes_the_batch_that_fits() -> None:
    # 10 layers of 1 byte, KV of 1 byte a layer and sequence: b = 4 needs 50 bytes, b = 2 needs 30. One layer takes 1 ms
    # whatever b is: 2 / 10 ms = 200 tokens/s; with 50 bytes 400, with 15 bytes nothing.
    def table(capacity: int) -> Any:
        return direct_table(
            [DirectClass("a", 1, capacity, 1 * MS)], 10, layer_bytes=1, kv_bytes=1, batch_sizes=(1, 2, 4)
        )

    assert device_rate(table(40), 0, 0, 10) == pytest.approx(200, rel=1e-5)
    assert device_rate(table(50), 0, 0, 10) == pytest.approx(400, rel=1e-5)
    assert device_rate(table(15), 0, 0, 10) == 0.0


def test_wrong_holdings_and_plans_are_told() -> None:
    with pytest.raises(InputError, match="expected 0 <= first < end"):
        Holding(3, 3, 1.0)
    with pytest.raises(InputError, match="rate of a holding is nan"):
        Holding(0, 1, math.nan)
    table = direct_table([DirectClass("a", 1, 5, 1 * MS)], 10, layer_bytes=2**30, batch_sizes=(1,))
    with pytest.raises(InputError, match=r"a-0 needs 10\.00 GiB for its slices \[0, 10\) and has 0\.00 GiB"):
        placement_flow(table, Placement((pipeline_of(table, (0,), (10,)),)))
    with pytest.raises(InputError, match="executes 3 layers, the model has 10"):
        placement_flow(table, Placement((Pipeline((Stage((0,), 0, 3),)),)))
    with pytest.raises(InputError, match="no limit"):
        network_flow([math.inf], {0: math.inf}, {0: math.inf}, {})


def test_no_way_through_is_no_flow() -> None:
    assert flow_value([Holding(0, 1, 3.0), Holding(2, 3, 3.0)], 3) == 0.0
    assert network_flow([1.0], {}, {0: 1.0}, {}) == 0.0
