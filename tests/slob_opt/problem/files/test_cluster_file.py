from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from slob_opt.errors import InputError, PlausibilityWarning
from slob_opt.problem import Cluster
from slob_opt.problem.catalogue import gpu, gpu_ids
from slob_opt.problem.files import load_cluster, plausibility

LINK = "inter_link: {bandwidth: 10Gbps, latency: 0.1ms}\n"
Load = Callable[[str], Cluster]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load the text of a cluster file."""

    def loaded(text: str) -> Cluster:
        path = tmp_path / "office.yaml"
        path.write_text(text, encoding="utf-8")
        return load_cluster(path)

    return loaded


def refused(load: Load, text: str) -> InputError:
    """Return the error of a file; nothing else may come out of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlausibilityWarning)
        with pytest.raises(InputError) as caught:
            load(text)
    error = caught.value
    assert error.file is not None
    assert error.file.endswith("office.yaml")
    assert "\n" not in str(error)
    return error


def test_a_whole_file(load):
    cluster = load("""
schema_version: 1
name: office
inter_link: {bandwidth: 10Gbps, latency: 0.1ms}
intra_link: {bandwidth: 16GB/s, latency: 10us}
nodes:
  - name: box
    count: 2
    gpus: {rtx-4090: 2}
    tp_degrees: [1, 2]
    nic: 10Gbps
    region: attic
    intra_link: {bandwidth: 25GB/s, latency: 5us}
  - name: odd
    gpus:
      - {type: rtx-3090, memory: 23GiB}
      - {name: s, memory: 24GiB, bandwidth: 900GB/s, flops: 70TFLOPS, profile: {gemm_compute_eff: 0.5, gemm_t0: 7us}}
      - {memory: 8GiB, layer_time: 0.5ms}
links:
  - {between: [box-0, odd], bandwidth: 1Gbps, latency: 1ms}
  - {from: odd, to: box-1, bandwidth: 2.5Gbps, latency: 2ms}
sources: [my desk]
uncertain: [the cable]
""")
    assert cluster.name == "office"
    assert [node.name for node in cluster.nodes] == ["box-0", "box-1", "odd"]
    names = ["box-0/0", "box-0/1", "box-1/0", "box-1/1", "odd/0", "s", "odd/2"]
    assert [device.name for device in cluster.devices] == names
    box, odd = cluster.nodes[0], cluster.nodes[2]
    assert (box.tp_degrees, box.nic_bytes_per_s, box.region) == ((1, 2), 1.25e9, "attic")
    assert box.intra_link is not None
    assert box.intra_link.bytes_per_s == 25e9
    assert odd.devices[0].memory_bytes == 23 * 2**30
    assert odd.devices[0].bytes_per_s == gpu("rtx-3090").bytes_per_s
    assert odd.devices[1].peak_flops == 70e12
    assert (odd.devices[1].profile.gemm_compute_eff, odd.devices[1].profile.gemm_t0_s) == (0.5, 7e-6)
    assert odd.devices[2].layer_time_s == 0.0005
    assert cluster.link(0, 4).bytes_per_s == cluster.link(4, 0).bytes_per_s == 0.125e9
    assert cluster.link(4, 2).latency_s == 0.002
    assert cluster.link(2, 4).latency_s == 0.0001  # one way only
    assert cluster.link(4, 5).bytes_per_s == 16e9
    assert (cluster.sources, cluster.uncertain) == (("my desk",), ("the cable",))


def test_json_is_read_as_well(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"nodes": [{"name": "a", "gpus": {"t4": 1}}]}', encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.name == "c"
    assert cluster.devices[0].gpu == "t4"


def test_groups_and_regions_name_many_nodes_and_the_narrower_entry_wins(load):
    cluster = load(
        LINK
        + """
nodes:
  - {name: a, count: 2, gpus: {t4: 1}, region: eu}
  - {name: b, count: 2, gpus: {l4: 1}, region: us}
links:
  - {between: [a-0, b-0], bandwidth: 3Gbps, latency: 3ms}
  - {between: ["region:eu", "region:us"], bandwidth: 1Gbps, latency: 50ms}
  - {between: [a, a], bandwidth: 100Gbps, latency: 10us}
  - {between: [a, b-1], bandwidth: 2Gbps, latency: 2ms}
"""
    )
    assert cluster.link(0, 1).bytes_per_s == 12.5e9
    assert cluster.link(0, 2).latency_s == cluster.link(2, 0).latency_s == 0.003
    assert cluster.link(0, 3).latency_s == 0.002
    assert cluster.link(1, 2).latency_s == 0.05
    assert cluster.link(2, 3).latency_s == 0.0001


ONE = "nodes: [{name: a, gpus: {t4: 1}}]\n"
TWO = LINK + "nodes: [{name: a, gpus: {t4: 2}}, {name: b, gpus: {t4: 1}}]\n"


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        # unknown keys, the nearest named
        (ONE + "inter_lnik: {}\n", "inter_lnik", "unknown key 'inter_lnik'; did you mean 'inter_link'"),
        ("nodes: [{name: a, gpu: {t4: 1}}]", "nodes[0].gpu", "unknown key 'gpu'; did you mean 'gpus'"),
        ("nodes: [{name: a, gpus: [{type: t4, memroy: 15GiB}]}]", "nodes[0].gpus[0].memroy", "did you mean 'memory'"),
        (ONE + "inter_link: {bandwith: 1Gbps, latency: 1ms}", "inter_link.bandwith", "did you mean 'bandwidth'"),
        # units
        (ONE + "inter_link: {bandwidth: 10, latency: 1ms}", "inter_link.bandwidth", "'10' without a unit"),
        (ONE + "inter_link: {bandwidth: 10Gbps, latency: 1}", "inter_link.latency", "'1' without a unit"),
        (ONE + "inter_link: {bandwidth: 10gbps, latency: 1ms}", "inter_link.bandwidth", "Gbps for bits or GB/s"),
        ("nodes: [{name: a, gpus: [{type: t4, memory: 24Gb}]}]", "nodes[0].gpus[0].memory", "bits"),
        # speeds (case G05)
        (ONE + "inter_link: {bandwidth: 0Gbps, latency: 1ms}", "inter_link.bandwidth", "above zero"),
        (ONE + "inter_link: {bandwidth: -1Gbps, latency: 1ms}", "inter_link.bandwidth", "above zero"),
        (ONE + "inter_link: {bandwidth: .nan, latency: 1ms}", "inter_link.bandwidth", "finite"),
        (ONE + "inter_link: {bandwidth: .inf, latency: 1ms}", "inter_link.bandwidth", "finite"),
        (ONE + "inter_link: {bandwidth: 1Gbps, latency: -1ms}", "inter_link.latency", "at least zero"),
        (
            "nodes: [{name: a, gpus: [{memory: 8GiB, bandwidth: 100GB/s, flops: 0TFLOPS}]}]",
            "nodes[0].gpus[0].flops",
            "above zero",
        ),
        ("nodes: [{name: a, gpus: [{memory: 8GiB, layer_time: 0s}]}]", "nodes[0].gpus[0].layer_time", "above zero"),
        # cards
        ("nodes: [{name: a, gpus: {}}]", "nodes[0].gpus", "node a has no GPUs"),
        ("nodes: [{name: a, gpus: []}]", "nodes[0].gpus", "node a has no GPUs"),
        ("nodes: [{name: a}]", "nodes[0].gpus", "is missing"),
        ("nodes: [{name: a, gpus: {t4: 0}}]", "nodes[0].gpus.t4", "found 0"),
        ("nodes: [{name: a, gpus: t4}]", "nodes[0].gpus", "found 't4'"),
        ("nodes: [{name: a, gpus: {t4: '2'}}]", "nodes[0].gpus.t4", "found '2', expected a whole number"),
        ("nodes: [{name: a, gpus: {rtx-4095: 1}}]", "nodes[0].gpus", "did you mean rtx-4090"),
        ("nodes: [{name: a, gpus: [{bandwidth: 1TB/s}]}]", "nodes[0].gpus[0]", "needs memory and either"),
        # names
        ("nodes: []", "nodes", "found []"),
        ("", "nodes", "is missing"),
        (LINK + "nodes: [{name: a, gpus: {t4: 1}}, {name: a, gpus: {t4: 1}}]", "nodes[1].name", "used twice"),
        (
            LINK + "nodes: [{name: a, count: 2, gpus: {t4: 1}}, {name: a-1, gpus: {t4: 1}}]",
            None,
            "'a-1' is used more than once",
        ),
        ("nodes: [{name: a, gpus: [{type: t4, name: a}]}]", None, "'a' is used more than once"),
        ("nodes: [{name: 3, gpus: {t4: 1}}]", "nodes[0].name", "found 3, expected text; put it in quotes"),
        # degrees
        ("nodes: [{name: a, gpus: {t4: 2}, tp_degrees: [4]}]", "nodes[0]", "degree 4 on node a, which has 2 GPUs"),
        ("nodes: [{name: a, gpus: {t4: 2}, tp_degrees: [0]}]", "nodes[0].tp_degrees[0]", "found 0"),
        # links
        ("nodes: [{name: a, count: 2, gpus: {t4: 1}}]", "inter_link", "2 nodes need a link between them"),
        (TWO + "links: [{between: [a, a], bandwidth: 1Gbps, latency: 1ms}]", "links[0]", "to itself"),
        (TWO + "links: [{between: [a, c], bandwidth: 1Gbps, latency: 1ms}]", "links[0]", "'c' is neither"),
        (TWO + "links: [{between: [a, b/0], bandwidth: 1Gbps, latency: 1ms}]", "links[0]", "a node and a card"),
        (TWO + "links: [{between: [a], bandwidth: 1Gbps, latency: 1ms}]", "links[0].between", "at least 2"),
        (TWO + "links: [{from: a, bandwidth: 1Gbps, latency: 1ms}]", "links[0]", "between: [a, b], or from"),
        (
            TWO
            + "links: [{between: [a, b], bandwidth: 1Gbps, latency: 0s}, "
            + "{from: b, to: a, bandwidth: 1Gbps, latency: 0s}]",
            "links[1]",
            "given by links[0] already",
        ),
        # sizes that would fill the memory
        (LINK + "nodes: [{name: a, count: 60000, gpus: [{type: t4, count: 60000}]}]", "nodes", "more than 65536 cards"),
        (
            LINK
            + "nodes: [{name: a, count: 2000, gpus: {t4: 1}}]\n"
            + "links: [{between: [a, a], bandwidth: 1Gbps, latency: 0s}]",
            "links[0]",
            "more than 2000000 links",
        ),
        # the file itself
        ("schema_version: 2\n" + ONE, "schema_version", "found 2, expected 1"),
        ("- a\n- b\n", None, "found a list at the top"),
        ("nodes: [{name: a", None, "not valid YAML"),
        ("nodes: 1\nnodes: 2\n", "nodes", "stands twice"),
        ("nodes: [{name: a, name: b}]", "name", "stands twice"),
    ],
)
def test_bad_input_is_one_sentence_with_file_and_key(load, text, key, message):
    error = refused(load, text)
    assert error.key == key
    assert message in error.message


def test_further_faults_are_counted(load):
    error = refused(load, "nodes: [{name: a, gpus: {t4: 0}, nic: 10}]\nfoo: 1\n")
    assert error.key == "foo"
    assert error.message.endswith("(and 2 more)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [{name: a, gpus: [{type: rtx-4090, memory: 24GB}]}]", "below the nominal 24GiB of rtx-4090"),
        (
            "nodes: [{name: a, gpus: [{type: rtx-4090, memory: 16GB}]}]",
            "16GB is taken as 14.90GiB, but a card sold as 16 GB has 16GiB; write 16GiB if that's meant, else 16000MB",
        ),
        (
            "nodes: [{name: a, gpus: [{memory: 24 GB, bandwidth: 1TB/s, flops: 80TFLOPS}]}]",
            "24 GB is taken as 22.35GiB",
        ),
        ("nodes: [{name: a, gpus: [{type: my-asic, memory: 8.0GB, layer_time: 1ms}]}]", "write 8GiB"),
        ("nodes: [{name: a, gpus: [{type: rtx-4090, memory: 48GiB}]}]", "above the nominal 24GiB"),
        ("nodes: [{name: a, gpus: [{type: rtx-4090, memory: 48GB}]}]", "above the nominal 24GiB"),
        ("nodes: [{name: a, gpus: [{type: rtx-4090, memory: 512MiB}]}]", "far below the nominal"),
        (
            "nodes: [{name: a, gpus: [{memory: 500GiB, bandwidth: 1TB/s, flops: 80TFLOPS}]}]",
            "more than any single GPU",
        ),
        ("nodes: [{name: a, gpus: [{memory: 24MiB, bandwidth: 1TB/s, flops: 80TFLOPS}]}]", "less than any GPU"),
        ("nodes: [{name: a, gpus: [{type: rtx-4090, bandwidth: 1008Gbps}]}]", "unusual memory bandwidth"),
        ("nodes: [{name: a, gpus: [{type: rtx-4090, flops: 1.3PFLOPS}]}]", "unusual dense 16-bit peak"),
        ("nodes: [{name: a, gpus: [{memory: 8GiB, layer_time: 4s}]}]", "per layer and token is unusual"),
        ("nodes: [{name: a, gpus: {A100: 1}}]", "several variants, taken as a100-sxm4-40gb"),
        (ONE + "inter_link: {bandwidth: 10GB/s, latency: 1ms}", "10GB/s is 80Gbps"),
        (ONE + "inter_link: {bandwidth: 10Gbps, latency: 1s}", "long latency"),
        ("nodes: [{name: a, gpus: {t4: 1}, nic: 25GB/s}]", "write 25Gbps"),
        (ONE + "intra_link: {bandwidth: 16Gbps, latency: 5us}", "slow for a link inside a machine"),
        (ONE + "intra_link: {bandwidth: 16GB/s, latency: 10ms}", "long inside a machine"),
    ],
)
def test_slips_of_units_are_warned_about(load, text, message):
    with pytest.warns(PlausibilityWarning, match=message) as caught:
        load(text)
    assert len(caught) == 1
    assert "office.yaml: " in str(caught[0].message)


@pytest.mark.parametrize("size", plausibility.CARD_GB)
def test_every_size_of_a_label_is_a_slip_in_gb_and_none_in_gib_or_mb(load, size):
    card = "nodes: [{{name: a, gpus: [{{memory: {memory}, bandwidth: 1TB/s, flops: 80TFLOPS}}]}}]"
    with pytest.warns(PlausibilityWarning, match=f"write {size}GiB if that's meant, else {size}000MB") as caught:
        made = load(card.format(memory=f"{size}GB"))
    assert len(caught) == 1
    assert made.devices[0].memory_bytes == size * 10**9, "taken as written"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(card.format(memory=f"{size}GiB")).devices[0].memory_bytes == size * 2**30
        assert load(card.format(memory=f"{size}000MB")).devices[0].memory_bytes == size * 10**9


def test_sizes_of_labels_cover_the_catalogue():
    sizes = {gpu(name).memory_bytes / 2**30 for name in gpu_ids()}
    assert sizes <= set(plausibility.CARD_GB)


@pytest.mark.parametrize(
    "text",
    [
        "nodes: [{name: a, gpus: [{memory: 23.5GB, bandwidth: 1TB/s, flops: 80TFLOPS}]}]",
        "nodes: [{name: a, gpus: [{memory: 17GB, bandwidth: 1TB/s, flops: 80TFLOPS}]}]",
        "nodes: [{name: a, gpus: [{type: rtx-4090, memory: 24GiB}]}]",
        "nodes: [{name: a, gpus: [{type: t4, memory: 15360MiB}]}]",
        ONE + "inter_link: {bandwidth: 1GB/s, latency: 1ms}",
        ONE + "inter_link: {bandwidth: 400Gbps, latency: 2us}",
        ONE + "inter_link: {bandwidth: 100Mbps, latency: 50ms}",
        ONE + "intra_link: {bandwidth: 300GB/s, latency: 5us}",
    ],
)
def test_usual_values_pass_without_a_word(load, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(text).devices


def test_a_card_described_in_full_may_have_any_name(load):
    cluster = load("nodes: [{name: a, gpus: [{type: my-asic, memory: 32GiB, bandwidth: 1TB/s, flops: 100TFLOPS}]}]")
    assert cluster.devices[0].gpu == "my-asic"


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_cluster(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="this is a folder"):
        load_cluster(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not UTF-8"):
        load_cluster(tmp_path / "b.yaml")
    (tmp_path / "c.json").write_text('{"nodes": [', encoding="utf-8")
    with pytest.raises(InputError, match=r"not valid JSON.*line 1"):
        load_cluster(tmp_path / "c.json")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 8)}]\n" for i in range(9)),
        "nodes: &n [*n]\n",
        "nodes: !!python/object/apply:os.getcwd []\n",
    ],
)
def test_hostile_yaml_is_refused(load, text):
    refused(load, text)
