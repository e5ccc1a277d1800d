"""From options to a problem; the problem as plain data and back; more of each resource."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments.plain_data import decode, encode
from experiments.plan_output import digest
from experiments.problem_setup import ProblemOptions, set_up, with_bits, with_tp
from experiments.what_if import link_sentence, scaled_clusters, what_if
from slob_opt.errors import InputError
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.objectives import IntervalObjective, ThroughputObjective
from slob_opt.planning.result import SolveLimits
from slob_opt.planning.split import pipeline_of
from slob_opt.problem import catalogue
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Placement


@pytest.mark.parametrize("name", catalogue.cluster_ids())
def test_clusters_survive_plain_json(name: str) -> None:
    cluster = catalogue.cluster(name)
    back = decode(Cluster, json.loads(json.dumps(encode(cluster))))
    assert back == cluster
    assert digest(back) == digest(cluster)


@pytest.mark.parametrize("name", catalogue.model_ids())
def test_models_survive_plain_json(name: str) -> None:
    assert decode(ModelSpec, json.loads(json.dumps(encode(catalogue.model(name))))) == catalogue.model(name)


def test_equal_layers_are_written_once() -> None:
    assert len(encode(catalogue.model("llama-2-70b"))["layers"]) == 1


@pytest.mark.parametrize(
    ("change", "key", "sentence"),
    [
        (lambda d: d.update(hiden_size=d.pop("hidden_size")), "hiden_size", "did you mean 'hidden_size'"),
        (lambda d: d.pop("vocab_size"), "vocab_size", "missing"),
        (lambda d: d.update(hidden_size="wide"), "hidden_size", "expected a value of type int"),
        (lambda d: d.update(hidden_size=True), "hidden_size", "expected a value of type int"),
        (lambda d: d.update(weight_bits=float("nan")), "weight_bits", "expected a value of type float"),
        (lambda d: d.update(layers={}), "layers", "expected a list"),
        (lambda d: d["layers"][0].update(repeat=-1), "layers[0].repeat", "whole number from 1"),
        (lambda d: d["layers"][0].update(num_kv_heads=7), "layers[0]", "do not divide"),
    ],
)
def test_damaged_plain_data_is_located(change: object, key: str, sentence: str) -> None:
    data = encode(catalogue.model("llama-2-70b"))
    assert callable(change)
    change(data)
    with pytest.raises(InputError, match=sentence) as caught:
        decode(ModelSpec, data)
    assert caught.value.key == key


def test_caps_come_from_the_traffic_unless_said_otherwise() -> None:
    base = ProblemOptions("lab-3", "llama-2-7b")
    assert set_up(base).instance.objective == ThroughputObjective(16, 0.4, 64)
    free = replace(base, max_interval="none", max_in_flight="none", max_micro_batches=4)
    assert set_up(free).instance.objective == ThroughputObjective(4, None, None)
    tight = replace(base, max_interval="250ms", max_in_flight="8")
    assert set_up(tight).instance.objective == ThroughputObjective(16, 0.25, 8)
    assert set_up(replace(base, objective="latency")).instance.objective == IntervalObjective(1)


def test_a_node_takes_the_degrees_that_it_has_cards_for() -> None:
    cluster = with_tp(catalogue.cluster("llmpq-8"), (2, 4))
    assert [node.tp_degrees for node in cluster.nodes] == [(2, 4), (2,)]
    mixed = with_tp(catalogue.cluster("factory-7"), (2,))
    assert {node.name: node.tp_degrees for node in mixed.nodes} == {"ada": (1,), "cell": (2,), "old": (2,)}
    with pytest.raises(InputError, match="the largest node"):
        with_tp(catalogue.cluster("lab-3"), (2,))


def test_bits_that_would_change_nothing_are_refused() -> None:
    model = catalogue.model("llama-2-7b")
    fixed = replace(
        model, layers=tuple(replace(layer, weight_bytes=10, kv_bytes_per_token=2) for layer in model.layers)
    )
    with pytest.raises(InputError, match="--weight-bits would change nothing"):
        with_bits(fixed, 8, None)
    with pytest.raises(InputError, match="--kv-bits would change nothing"):
        with_bits(fixed, None, 8)


def test_scaling_changes_one_resource_each() -> None:
    cluster = catalogue.cluster("helix-geo24")
    scaled = dict(scaled_clusters(cluster, 2.0))
    device, pair = cluster.devices[0], next(iter(cluster.overrides))
    assert scaled["link bandwidth +100%"].overrides[pair].bytes_per_s == 2 * cluster.overrides[pair].bytes_per_s
    assert scaled["link latency -50%"].inter_link.latency_s == cluster.inter_link.latency_s / 2
    assert scaled["device memory +100%"].devices[0] == replace(device, memory_bytes=2 * device.memory_bytes)
    assert scaled["memory bandwidth +100%"].devices[0] == replace(device, bytes_per_s=2 * device.bytes_per_s)
    assert scaled["FLOP/s +100%"].devices[0] == replace(device, peak_flops=2 * device.peak_flops)


def test_more_of_a_resource_never_costs_a_plan_anything() -> None:
    """The same plan on better hardware; the bottleneck resource comes first."""
    setup = set_up(ProblemOptions("lab-3", "llama-2-7b", objective="latency"))
    plan = Placement((pipeline_of(setup.table, (0, 1), (16, 16)),))
    rows = what_if(setup, plan, None, SolveLimits())
    assert len(rows) == 5
    assert all(row.same_plan_gain is not None and row.same_plan_gain >= 0 for row in rows)
    assert rows[0].resource == "memory bandwidth +10%"
    assert all(row.new_plan is None for row in rows)


@pytest.mark.parametrize(("gbps", "is_quick"), [(400, True), (1, False)])
def test_twice_a_quick_link_changes_nothing_and_the_table_names_what_would(gbps: int, is_quick: bool) -> None:
    """Case P38: 16 KiB of activations a token, 64 sequences: from 400 to 800 Gb/s nothing changes, from 1 to 2 it does.

    A hop of 64 tokens and their share of prefill is some 4 MB: 0.1 ms of a step of 380 ms, or 35 ms.
    """
    setup = set_up(ProblemOptions("lab-3", "llama-2-70b", weight_bits=4, max_interval="none"))
    nodes = tuple(
        replace(node, devices=tuple(replace(d, memory_bytes=96 * 2**30) for d in node.devices))
        for node in setup.cluster.nodes
    )
    link = replace(setup.cluster.inter_link, bytes_per_s=gbps * 1e9 / 8)
    setup = replace(setup, cluster=replace(setup.cluster, nodes=nodes, inter_link=link))
    setup = replace(setup, instance=replace(setup.instance, table=setup.rebuild()))
    plan = Placement((pipeline_of(setup.table, (0, 1), (50, 30), 1, 64),))
    sentence = link_sentence(evaluate(setup.instance, plan))
    assert sentence.startswith("links are not the bottleneck: they take 0.") == is_quick
    rows = what_if(setup, plan, None, SolveLimits(), 2.0)
    gains = {row.resource: row.same_plan_gain for row in rows}
    gain = gains["link bandwidth +100%"]
    assert gain is not None
    assert (gain < 0.01) == is_quick
    # 64 sequences with their prompts keep the arithmetic units busy; that is the row to look at first.
    assert rows[0].resource == "FLOP/s +100%"
    assert rows[0].same_plan_gain is not None
    assert rows[0].same_plan_gain > 0.3


def test_a_slow_link_is_told_as_the_bottleneck() -> None:
    """With many micro-batches a link of 1 MB/s is busier than any stage."""
    setup = set_up(ProblemOptions("lab-3", "llama-2-7b"))
    slow = replace(setup.cluster, inter_link=replace(setup.cluster.inter_link, bytes_per_s=1e6))
    from slob_opt.cost.build import build_table
    from slob_opt.planning.instance import PlacementInstance

    table = build_table(slow, setup.model, setup.traffic, setup.cost_options)
    plan = Placement((pipeline_of(table, (0, 1), (16, 16), 8, 1),))
    evaluation = evaluate(PlacementInstance(table, ThroughputObjective(8)), plan)
    assert link_sentence(evaluation).startswith("a link is the bottleneck of pipeline 0")
    alone = Placement((pipeline_of(table, (0,), (32,), 1, 1),))
    assert link_sentence(evaluate(PlacementInstance(table, ThroughputObjective(8)), alone)) == "no pipeline uses a link"
