from __future__ import annotations

import dataclasses
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slob_opt.problem import Cluster, ComputeProfile, Device, Link, Node
from slob_opt.problem.catalogue import cluster, cluster_ids, gpu_device
from slob_opt.problem.files import dump_cluster, load_cluster


def reloaded(made: Cluster, folder) -> Cluster:
    path = folder / "c.yaml"
    path.write_text(dump_cluster(made), encoding="utf-8")
    return load_cluster(path)


@pytest.mark.parametrize("id_", cluster_ids())
def test_catalogue_clusters_survive_and_raise_no_warning(id_, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reloaded(cluster(id_), tmp_path) == cluster(id_)


def test_spellings_survive(tmp_path):
    """Case G03: the round trip keeps the unit."""
    text = """\
schema_version: 1
name: office
inter_link: {bandwidth: 10Gbps, latency: 0.1ms}
intra_link: {bandwidth: 1.6e10B/s, latency: 10us}
nodes:
- name: box
  count: 2
  gpus:
  - {type: rtx-3090, memory: 24576MiB, count: 2}
  nic: 1250 MB/s
- name: odd
  gpus:
  - {memory: 8GiB, layer_time: 0.5ms}
  - {type: my-asic, memory: 32GiB, bandwidth: 1000GB/s, flops: 100TFLOP/s}
"""
    path = tmp_path / "office.yaml"
    path.write_text(text, encoding="utf-8")
    again = dump_cluster(load_cluster(path))
    for spelling in ("10Gbps", "0.1ms", "1.6e10B/s", "24576MiB", "1250 MB/s", "0.5ms", "1000GB/s", "100TFLOP/s"):
        assert spelling in again
    path.write_text(again, encoding="utf-8")
    assert dump_cluster(load_cluster(path)) == again


def test_equal_numbered_machines_are_written_once():
    text = dump_cluster(cluster("helix-single24"))
    assert text.count("- name:") == 3
    assert "count: 12" in text


def test_numbered_machines_stay_apart_where_the_short_form_would_rename(tmp_path):
    """`a` exists already, so `a-0` and `a-1` can't be written as `a` twice."""
    nodes = tuple(Node(name, (gpu_device("t4", f"{name}/0"),)) for name in ("a", "a-0", "a-1"))
    made = Cluster("c", nodes, Link(1e9, 1e-3), Link(1e10, 1e-5))
    assert reloaded(made, tmp_path) == made


def test_alternating_cards_keep_their_order(tmp_path):
    cards = tuple(gpu_device(gpu, f"a/{i}") for i, gpu in enumerate(["t4", "l4", "t4"]))
    made = Cluster("c", (Node("a", cards),), Link(1e9, 1e-3), Link(1e10, 1e-5))
    assert reloaded(made, tmp_path) == made


def test_names_that_yaml_reads_otherwise_survive(tmp_path):
    nodes = tuple(Node(name, (gpu_device("t4", f"{name}/0"),), region="no") for name in ("on", "12", "a: b", "é"))
    made = Cluster("null", nodes, Link(1e9, 1e-3), Link(1e10, 1e-5), overrides={("on", "12"): Link(2e9, 1e-3)})
    assert reloaded(made, tmp_path) == made


devices = st.builds(
    Device,
    name=st.just("x"),
    gpu=st.sampled_from(["custom", "t4", "rtx-3090", "A100", "abacus"]),
    memory_bytes=st.integers(1, 2**40),
    peak_flops=st.floats(1e9, 1e16),
    bytes_per_s=st.floats(1e6, 1e14),
    profile=st.builds(
        ComputeProfile,
        gemm_compute_eff=st.sampled_from([0.78, 0.5]),
        attn_t0_s=st.sampled_from([13e-6, 0.0, 1.7e-5]),
        p_norm=st.sampled_from([2.0, 1.62]),
        source=st.sampled_from(["inferred", "mine"]),
    ),
    layer_time_s=st.none() | st.floats(1e-6, 1.0),
)
links = st.builds(Link, bytes_per_s=st.floats(1e3, 1e13), latency_s=st.floats(0, 1))


@st.composite
def clusters(draw):
    nodes = []
    for n in range(draw(st.integers(1, 4))):
        cards = draw(st.lists(devices, min_size=1, max_size=3))
        stem = draw(st.sampled_from(["node", "box"]))
        named = tuple(dataclasses.replace(card, name=f"{stem}-{n}/{i}") for i, card in enumerate(cards))
        nodes.append(Node(f"{stem}-{n}", named, draw(st.none() | links), (1,), draw(st.none() | st.floats(1e6, 1e12))))
    pairs = [(a.name, b.name) for a in nodes for b in nodes if a is not b]
    pairs += [(a.name, b.name) for a in nodes[0].devices for b in nodes[-1].devices if a is not b]
    overrides = {pair: draw(links) for pair in pairs if draw(st.booleans())}
    return Cluster("c", tuple(nodes), draw(links), draw(links), overrides)


@given(made=clusters())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cluster_survives(made, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert reloaded(made, tmp_path) == made
