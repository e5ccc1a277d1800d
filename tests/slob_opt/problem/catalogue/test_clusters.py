from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from reference_data import reference_file

from slob_opt.errors import InputError
from slob_opt.problem.catalogue import cluster, cluster_ids, gpu, left_out_clusters


def counts(id_: str) -> Counter:
    return Counter(device.gpu for device in cluster(id_).devices)


@pytest.mark.parametrize("id_", cluster_ids())
def test_every_cluster_is_whole_and_says_what_is_uncertain(id_):
    made = cluster(id_)
    assert made.name == id_
    assert made.sources
    assert made.uncertain
    for device in made.devices:
        assert gpu(device.gpu).id == device.gpu
    for a in range(min(3, len(made.devices))):
        for b in range(len(made.devices)):
            if a != b:
                assert made.link(a, b).bytes_per_s > 0


def test_helix_single24():
    made = cluster("helix-single24")
    assert counts("helix-single24") == {"a100-sxm4-40gb": 4, "l4": 8, "t4": 12}
    assert len(made.nodes) == 24
    link = made.link(0, 23)
    assert (link.bytes_per_s, link.latency_s) == (1e9, 1e-3)


def test_helix_hetero42_has_one_tensor_parallel_device_a_node():
    made = cluster("helix-hetero42")
    assert len(made.nodes) == 42
    assert len(made.devices) == 64
    assert all(node.tp_degrees == (len(node.devices),) for node in made.nodes)


def test_helix_geo24_is_fast_inside_a_region_and_slow_across():
    made = cluster("helix-geo24")
    at = {device.name: i for i, device in enumerate(made.devices)}
    inside = made.link(at["l4-r1-0/0"], at["t4-r1-7/0"])
    across = made.link(at["l4-r1-0/0"], at["l4-r2-0/0"])
    assert (inside.bytes_per_s, inside.latency_s) == (1.25e9, 1e-3)
    assert (across.bytes_per_s, across.latency_s) == (12.5e6, 0.05)
    assert any("spread" in text for text in made.uncertain)


@pytest.mark.parametrize(("id_", "file"), [("helix-single24", "single24"), ("helix-small10", "small10")])
def test_helix_clusters_are_those_of_the_facts(id_, file):
    want = json.loads(reference_file(f"helix/clusters/{file}.json").read_text(encoding="utf-8"))
    short = {"a100-sxm4-40gb": "A100", "l4": "L4", "t4": "T4"}
    assert {short[name]: count for name, count in counts(id_).items()} == want["type_counts"]
    made = cluster(id_).inter_link
    assert {(made.bytes_per_s, made.latency_s)} == {(link[2], link[3]) for link in want["node_links"]}


def test_published_card_counts_are_those_of_the_facts():
    facts = json.loads(reference_file("clusters.json").read_text(encoding="utf-8"))
    rows = {row["id"]: row for row in facts["clusters"]}
    left_out = {id_ for id_, _ in left_out_clusters()}
    for id_, row in rows.items():
        if id_ in left_out:
            assert id_ not in cluster_ids()
            continue
        want = sum(node["count"] * node["gpus_per_node"] for node in row["nodes"])
        assert len(cluster(id_).devices) == want
        nominal = sorted(gpu(device.gpu).memory_bytes // 2**30 for device in cluster(id_).devices)
        assert nominal == sorted(
            node["gpu_mem_gb"] for node in row["nodes"] for _ in range(node["count"] * node["gpus_per_node"])
        )


def test_assumed_networks_are_flagged():
    for id_ in cluster_ids():
        if id_.startswith(("llmpq", "cara", "thunder", "hexgen")):
            assert any("assumed" in text and text.startswith("inter_link") for text in cluster(id_).uncertain)


def test_own_examples_say_so():
    own = [id_ for id_ in cluster_ids() if cluster(id_).sources == ("own example",)]
    assert set(own) == {"lab-3", "nvlink-pairs-2", "factory-7", "mixed-box-1"}


def test_an_unknown_cluster_names_the_nearest():
    with pytest.raises(InputError, match="did you mean helix-single24"):
        cluster("helix-single-24b")


def test_the_catalogue_needs_neither_yaml_nor_pydantic_nor_numpy():
    code = (
        "import sys; from slob_opt.problem.catalogue import cluster, model; cluster('lab-3'); model('opt-13b'); "
        "print([m for m in ('yaml', 'pydantic', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
