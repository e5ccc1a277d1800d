"""Classes of links between planning devices, and the capacity of network cards."""

from __future__ import annotations

import numpy as np

from slob_opt.cost.groups import PlanningGroups
from slob_opt.cost.table import FloatArray, IntArray
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.device import Link


def link_classes(cluster: Cluster, groups: PlanningGroups) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return the link between each pair of planning devices, by class of equal speed and latency.

    A group speaks through its first card. Between nodes a link is no faster than the network card at either end.
    The rule for which link holds is that of :meth:`Cluster.link`, evaluated for all pairs at once.

    Returns
    -------
    link_class
        (D, D) int64; -1 on the diagonal and between devices that share a card.
    bytes_per_s, latency_s
        (classes,) float64, bytes/s and seconds; sorted, at least one class even when there is no pair.
    nic_bytes_per_s
        (nodes,) float64, bytes/s; ``inf`` for a node without a network card of its own.
    """
    links: dict[tuple[float, float], int] = {}

    def link_id(link: Link) -> int:
        return links.setdefault((link.bytes_per_s, link.latency_s), len(links))

    node_index = {node.name: i for i, node in enumerate(cluster.nodes)}
    num_nodes = len(cluster.nodes)
    by_node = np.full((num_nodes, num_nodes), link_id(cluster.inter_link), np.int64)
    np.fill_diagonal(by_node, [link_id(node.intra_link or cluster.intra_link) for node in cluster.nodes])
    card_index = {device.name: i for i, device in enumerate(cluster.devices)}
    leaders: dict[int, list[int]] = {}
    for device, cards in enumerate(groups.cards):
        leaders.setdefault(cards[0], []).append(device)
    for (a, b), link in cluster.overrides.items():
        if a in node_index and b in node_index:
            by_node[node_index[a], node_index[b]] = link_id(link)
    pair = by_node[np.ix_(groups.node, groups.node)]
    for (a, b), link in cluster.overrides.items():
        if a in card_index and b in card_index:
            for source in leaders.get(card_index[a], ()):
                pair[source, leaders.get(card_index[b], [])] = link_id(link)
    nic = np.array([np.inf if n.nic_bytes_per_s is None else n.nic_bytes_per_s for n in cluster.nodes])
    speeds, nic_id = np.unique(nic[groups.node], return_inverse=True)
    limits = np.append(speeds, np.inf)
    # The slower network card on the way; inside a node the card plays no part. One code for (link, slower card).
    slower = np.minimum(nic_id[:, None], nic_id[None, :])
    slower[groups.node[:, None] == groups.node[None, :]] = speeds.size
    code = pair * limits.size + slower
    _exclude_shared(code, groups)
    num_codes = len(links) * limits.size
    found: dict[int, tuple[float, float]] = {}
    for used in np.flatnonzero(np.bincount(code[code >= 0], minlength=num_codes)).tolist():
        link_index, card = divmod(used, limits.size)
        bytes_per_s, latency_s = list(links)[link_index]
        found[used] = (min(bytes_per_s, float(limits[card])), latency_s)
    numbers = sorted(set(found.values())) or [(cluster.inter_link.bytes_per_s, cluster.inter_link.latency_s)]
    class_of_code = np.full(num_codes + 1, -1, np.int64)  # the last entry serves code -1
    for used, number in found.items():
        class_of_code[used] = numbers.index(number)
    table = np.array(numbers)
    return class_of_code[code], table[:, 0], table[:, 1], nic


def _exclude_shared(code: IntArray, groups: PlanningGroups) -> None:
    """Set `code` to -1 between devices that share a card; changes `code`."""
    holders: dict[int, list[int]] = {}
    for device, cards in enumerate(groups.cards):
        for card in cards:
            holders.setdefault(card, []).append(device)
    for devices in holders.values():
        code[np.ix_(devices, devices)] = -1
