from cost_facts import ETHERNET, GIB, PCIE, a100, l4, llama_2_70b
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.cost.groups import form_groups
from slob_opt.cost.links import link_classes
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link


@st.composite
def clusters(draw):
    """Up to five nodes of up to four cards, with overrides between nodes and between cards, and some network cards."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    speed = st.builds(Link, st.sampled_from([1e8, 1e9, 1e10]), st.sampled_from([1e-5, 1e-3]))
    nodes = []
    for i, size in enumerate(sizes):
        cards = tuple(Device(f"n{i}/{j}", "g", 80 * GIB, 312e12, 2e12) for j in range(size))
        degrees = tuple(d for d in (1, 2, 4) if d <= size)
        nic = draw(st.none() | st.sampled_from([5e7, 2e9]))
        nodes.append(Node(f"n{i}", cards, draw(st.none() | speed), degrees, nic))
    names = [n.name for n in nodes], [c.name for n in nodes for c in n.devices]
    overrides = {}
    for pool in names:
        pairs = st.tuples(st.sampled_from(pool), st.sampled_from(pool)).filter(lambda pair: pair[0] != pair[1])
        if len(pool) > 1:
            overrides |= draw(st.dictionaries(pairs, speed, max_size=4))
    return Cluster("drawn", tuple(nodes), draw(speed), draw(speed), overrides)


@given(clusters())
def test_links_of_all_pairs_are_those_of_the_cluster_within_the_network_cards(cluster):
    groups = form_groups(cluster, llama_2_70b())
    link_class, speed, latency, nic = link_classes(cluster, groups)
    for a, cards_a in enumerate(groups.cards):
        for b, cards_b in enumerate(groups.cards):
            if set(cards_a) & set(cards_b):
                assert link_class[a, b] == -1
                continue
            link = cluster.link(cards_a[0], cards_b[0])
            limit = float("inf")
            if groups.node[a] != groups.node[b]:
                limit = min(nic[groups.node[a]], nic[groups.node[b]])
            assert speed[link_class[a, b]] == min(link.bytes_per_s, limit)
            assert latency[link_class[a, b]] == link.latency_s
    pairs = list(zip(speed, latency, strict=True))
    assert pairs == sorted(set(pairs))
    used = set(link_class[link_class >= 0].tolist())
    assert used == set(range(len(pairs))) or (not used and len(pairs) == 1)


def test_network_card_limits_links_between_nodes_only():
    """The 1 GB/s card of node n slows both directions to 1 GB/s; PCIe inside the node stays at 12 GB/s."""
    nodes = (Node("n", (a100("a"), a100("b")), nic_bytes_per_s=1e9), Node("m", (l4("c"),)))
    cluster = Cluster("two", nodes, ETHERNET, PCIE)
    groups = form_groups(cluster, llama_2_70b())
    link_class, speed, _, nic = link_classes(cluster, groups)
    assert speed[link_class[0, 2]] == speed[link_class[2, 0]] == 1e9
    assert speed[link_class[0, 1]] == 12e9
    assert nic.tolist() == [1e9, float("inf")]


def test_directed_override_holds_in_its_direction_only():
    nodes = (Node("n", (a100("a"),)), Node("m", (l4("c"),)))
    cluster = Cluster("two", nodes, ETHERNET, PCIE, {("n", "m"): Link(5e8, 2e-3)})
    link_class, speed, latency, _ = link_classes(cluster, form_groups(cluster, llama_2_70b()))
    assert (speed[link_class[0, 1]], latency[link_class[0, 1]]) == (5e8, 2e-3)
    assert (speed[link_class[1, 0]], latency[link_class[1, 0]]) == (1.25e9, 1e-3)


def test_single_device_still_has_a_link_class():
    cluster = Cluster("one", (Node("n", (l4("c"),)),), ETHERNET, PCIE)
    link_class, speed, latency, _ = link_classes(cluster, form_groups(cluster, llama_2_70b()))
    assert link_class.tolist() == [[-1]]
    assert (speed.tolist(), latency.tolist()) == ([1.25e9], [1e-3])
