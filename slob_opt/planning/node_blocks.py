"""Two-level links: pipelines as sets of blocks, a block being what one pipeline uses of one node.

Inside a node every hop has one cost, between nodes every hop has another that is no smaller. Then a pipeline loses
nothing by passing each of its nodes once on its round trip (the hop back to the first stage included), so its hops
follow from how many devices it takes from how many nodes. Nodes of one *kind* (equal devices, equal inner link) are
exchangeable; a *cut* splits a node into blocks. The proof is in solvers/FORMULATION.md, section 4.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb, prod

import numpy as np

from slob_opt.cost.table import CostTable, IntArray
from slob_opt.planning.instance import PlacementInstance

MAX_PATTERNS = 250_000
"""Most block patterns that are enumerated; chosen, about 40 MB."""

MAX_CUTS = 3_000
"""Most cuts of one kind of node. Chosen; eight cards in tensor-parallel groups of 1, 2, 4, 8 have 22."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes with equal devices and equal links inside.

    Attributes
    ----------
    nodes
        Indices of the nodes.
    groups
        Groups (indices into :attr:`BlockStructure.classes`) that devices of these nodes belong to.
    available
        (groups of the kind,) int, devices of each group on one node.
    usage
        (pools of a node, groups of the kind) int, cards that one device takes from a pool.
    pool_cards
        (pools of a node,) int, cards.
    link
        Class of the link inside; -1 when no two devices of a node can work together.
    """

    nodes: tuple[int, ...]
    groups: tuple[int, ...]
    available: tuple[int, ...]
    usage: IntArray
    pool_cards: IntArray
    link: int

    def blocks(self, max_devices: int) -> IntArray:
        """Return (B, groups of the kind) every non-empty set of devices of one node, by counts, that share no card."""
        counts = np.array(list(itertools.product(*(range(a + 1) for a in self.available))), np.int64)
        fits = np.all(counts @ self.usage.T <= self.pool_cards, axis=1)
        sizes = counts.sum(axis=1)
        return np.asarray(counts[fits & (sizes >= 1) & (sizes <= max_devices)])


@dataclass(frozen=True, slots=True)
class BlockStructure:
    """An instance seen through kinds of nodes.

    Attributes
    ----------
    kinds
        Kinds of nodes.
    classes
        (G,) int, cost class of each group; a group is what is exchangeable within a kind.
    kind_of_group
        (G,) int.
    devices
        (G,) by node: planning devices of a group on each node of its kind, ascending.
    inter_link
        Class of the link between nodes; -1 with a single node.
    """

    kinds: tuple[NodeKind, ...]
    classes: IntArray
    kind_of_group: IntArray
    devices: tuple[tuple[tuple[int, ...], ...], ...]
    inter_link: int

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.classes.size)


def block_structure(instance: PlacementInstance) -> BlockStructure | None:
    """Return the kinds of nodes of an instance, ``None`` where blocks don't fix a pipeline's worth.

    Needed are identical layers, dedicated links, one link class inside each node and one between nodes, none inside
    slower than the one between, and groups of cards that are nested.
    """
    table = instance.table
    if not table.has_identical_layers or bool(np.any(np.isfinite(table.nic_bytes_per_s))):
        return None
    inner = _inner_links(table)
    inter = _inter_link(table)
    if inner is None or inter is None or not _is_slower(table, inter, inner):
        return None
    members: dict[tuple[object, ...], list[tuple[int, list[list[int]], _Shape]]] = {}
    for node in range(int(table.device_node.max()) + 1):
        devices = np.flatnonzero(table.device_node == node)
        if devices.size == 0:
            continue
        described = _shape_of_node(table, devices)
        if described is None or not described[0].is_nested():
            return None
        shape, groups = described
        members.setdefault((inner[node], shape), []).append((node, groups, shape))
    kinds: list[NodeKind] = []
    classes: list[int] = []
    kind_of_group: list[int] = []
    by_node: list[tuple[tuple[int, ...], ...]] = []
    for (link, _), found in members.items():
        shape = found[0][2]
        start = len(classes)
        classes += [c for c, _, _, _ in shape.groups]
        kind_of_group += [len(kinds)] * len(shape.groups)
        by_node += [tuple(tuple(groups[i]) for _, groups, _ in found) for i in range(len(shape.groups))]
        usage = np.zeros((len(shape.pool_cards), len(shape.groups)), np.int64)
        for i, (_, pool, size, _) in enumerate(shape.groups):
            usage[pool, i] = size
        kinds.append(
            NodeKind(
                tuple(node for node, _, _ in found),
                tuple(range(start, len(classes))),
                tuple(count for _, _, _, count in shape.groups),
                usage,
                np.array(shape.pool_cards, np.int64),
                int(str(link)),
            )
        )
    return BlockStructure(
        tuple(kinds), np.array(classes, np.int64), np.array(kind_of_group, np.int64), tuple(by_node), inter
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What makes nodes equal: (cost class, pool, cards a device, devices) of each group, and the cards of each pool."""

    groups: tuple[tuple[int, int, int, int], ...]
    pool_cards: tuple[int, ...]

    def is_nested(self) -> bool:
        """Whether, in each pool, each size of a group divides the next."""
        for pool in range(len(self.pool_cards)):
            sizes = sorted({size for _, p, size, _ in self.groups if p == pool})
            if any(b % a for a, b in itertools.pairwise(sizes)):
                return False
        return True


def _shape_of_node(table: CostTable, devices: IntArray) -> tuple[_Shape, list[list[int]]] | None:
    """Return the shape of a node and its devices by group; ``None`` when a device's cards lie in several pools."""
    classes_of_card: dict[int, list[int]] = {}
    for d in devices.tolist():
        for card in table.device_cards[d]:
            classes_of_card.setdefault(card, []).append(int(table.device_class[d]))
    signature = {card: tuple(sorted(classes)) for card, classes in classes_of_card.items()}
    pools = sorted(set(signature.values()))
    pool_cards = tuple(sum(s == pool for s in signature.values()) for pool in pools)
    groups: dict[tuple[int, int, int], list[int]] = {}
    for d in devices.tolist():
        cards = table.device_cards[d]
        if len({signature[card] for card in cards}) > 1:
            return None
        key = (pools.index(signature[cards[0]]), len(cards), int(table.device_class[d]))
        groups.setdefault(key, []).append(d)
    ordered = sorted(groups)
    shape = _Shape(tuple((c, pool, size, len(groups[pool, size, c])) for pool, size, c in ordered), pool_cards)
    return shape, [groups[key] for key in ordered]


def _inner_links(table: CostTable) -> dict[int, int] | None:
    """Return the link class inside each node (-1 where there is none); ``None`` when a node has several."""
    found: dict[int, int] = {}
    for node in range(int(table.device_node.max()) + 1):
        inside = np.flatnonzero(table.device_node == node)
        links = np.unique(table.link_class[np.ix_(inside, inside)])
        links = links[links >= 0]
        if links.size > 1:
            return None
        found[node] = int(links[0]) if links.size else -1
    return found


def _inter_link(table: CostTable) -> int | None:
    """Return the one link class between nodes, -1 with a single node; ``None`` when there are several."""
    apart = table.device_node[:, None] != table.device_node[None, :]
    links = np.unique(table.link_class[apart])
    if links.size > 1:
        return None
    return int(links[0]) if links.size else -1


def _is_slower(table: CostTable, inter: int, inner: dict[int, int]) -> bool:
    """Whether no link inside a node is slower than the one between nodes, in any of the four times of any row."""
    if inter < 0:
        return True
    parts = (table.hop_s, table.occupancy_s, table.return_s, table.return_occupancy_s)
    links = sorted({link for link in inner.values() if link >= 0})
    return all(bool(np.all(part[:, link] <= part[:, inter])) for part in parts for link in links)


@dataclass(frozen=True, slots=True)
class BlockPatterns:
    """All sets of blocks that one pipeline may use.

    Attributes
    ----------
    blocks
        Block types as (kind, counts of the kind's groups).
    used
        (P, B) int16, how many blocks of each type a pattern has.
    """

    blocks: tuple[tuple[int, tuple[int, ...]], ...]
    used: np.ndarray[tuple[int, int], np.dtype[np.int16]]


def block_types(structure: BlockStructure, max_devices: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return all block types, kind by kind."""
    return tuple(
        (index, tuple(int(n) for n in counts))
        for index, kind in enumerate(structure.kinds)
        for counts in kind.blocks(max_devices)
    )


def num_patterns(structure: BlockStructure, max_devices: int) -> int:
    """Return how many sets of blocks there are before devices are limited, without listing them."""
    return prod(comb(len(k.blocks(max_devices)) + len(k.nodes), len(k.nodes)) for k in structure.kinds) - 1


def block_patterns(structure: BlockStructure, max_devices: int) -> BlockPatterns:
    """Return every non-empty set of blocks, at most one a node, with at most `max_devices` devices.

    Call :func:`num_patterns` first and keep it below :data:`MAX_PATTERNS`.
    """
    blocks = block_types(structure, max_devices)
    sizes = np.array([sum(counts) for _, counts in blocks], np.int64)
    used = np.zeros((1, 0), np.int16)
    start = 0
    for index, kind in enumerate(structure.kinds):
        width = sum(k == index for k, _ in blocks)
        own = np.array(list(_multisets(width, len(kind.nodes))), np.int16).reshape(-1, width)
        used = np.concatenate([np.repeat(used, own.shape[0], axis=0), np.tile(own, (used.shape[0], 1))], axis=1)
        start += width
        devices = used.astype(np.int64) @ sizes[:start]
        used = used[devices <= max_devices]
    return BlockPatterns(blocks, used[used.any(axis=1)])


def _multisets(kinds: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield (kinds,) counts that sum to at most `most`."""
    if kinds == 0:
        yield ()
        return
    for first in range(most + 1):
        for rest in _multisets(kinds - 1, most - first):
            yield (first, *rest)


def node_cuts(kind: NodeKind, widths: IntArray) -> IntArray | None:
    """Return (cuts, widths) how many blocks of each width a node of this kind can be cut into, at most.

    Parameters
    ----------
    widths
        (W, pools of a node) int, cards that blocks take, all different and none zero.

    Notes
    -----
    A width fits as long as the pools have cards left, because groups are nested. Cuts that leave room for another block
    are dropped, they are part of a larger one. ``None`` when there are more than :data:`MAX_CUTS`.
    """
    found: list[tuple[int, ...]] = []

    def extend(index: int, left: IntArray, chosen: tuple[int, ...]) -> bool:
        if index == len(widths):
            if not np.any(np.all(widths <= left, axis=1)):
                found.append(chosen)
            return len(found) <= MAX_CUTS
        most = int(np.min(left[widths[index] > 0] // widths[index][widths[index] > 0]))
        return all(extend(index + 1, left - n * widths[index], (*chosen, n)) for n in range(most + 1))

    if not extend(0, kind.pool_cards, ()):
        return None
    return np.array(found, np.int64).reshape(-1, len(widths))
