"""From the `links:` of a cluster file to directed links by pair of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from slob_opt.errors import InputError
from slob_opt.problem.cluster import Node
from slob_opt.problem.device import Link
from slob_opt.problem.files import plausibility
from slob_opt.problem.files.cluster_schema import PairSchema

REGION = "region:"
"""Prefix of an end that stands for all nodes of a region, as ``region:eu``."""

MAX_LINKS = 2_000_000
"""Most directed links that the entries may make. Chosen: all pairs of 1,400 machines."""

_REGION_RANK, _GROUP_RANK, _SINGLE_RANK = 0, 1, 2


def expand_links(
    pairs: Sequence[PairSchema], nodes: tuple[Node, ...], groups: Mapping[str, tuple[str, ...]], *, file: str
) -> dict[tuple[str, str], Link]:
    """Return the directed links between single nodes or single cards.

    An end is a node, a card, the name of a counted entry of `nodes` (all its machines) or ``region:NAME``. Between two
    ends the narrower entry wins: a node or card over a group, a group over a region.

    Parameters
    ----------
    pairs
        The entries.
    nodes
        The nodes of the cluster.
    groups
        Names of the nodes that each entry of `nodes` made.
    file
        For messages.

    Raises
    ------
    InputError
        For an unknown end, a link from something to itself, a node linked to a card, or two entries of the same
        width for one pair.
    """
    found: dict[tuple[str, str], tuple[int, int, Link]] = {}
    num_links = 0
    node_of_card = {card.name: node.name for node in nodes for card in node.devices}
    for index, pair in enumerate(pairs):
        key = f"links[{index}]"
        a, b, is_symmetric = _ends(pair, key)
        left, left_rank, left_card = _members(a, nodes, groups, key)
        right, right_rank, right_card = _members(b, nodes, groups, key)
        if left_card != right_card:
            raise InputError(f"{a!r} and {b!r} are a node and a card, expected two nodes or two cards", key=key)
        if left == right and len(left) == 1:
            raise InputError(f"link from {a!r} to itself, expected two different ends", key=key)
        num_links += 2 * len(left) * len(right)
        if num_links > MAX_LINKS:
            raise InputError(f"the entries up to this one make more than {MAX_LINKS} links; use inter_link", key=key)
        link = Link(pair.bandwidth, pair.latency)
        is_inside = left_card and node_of_card[a] == node_of_card[b]
        check = plausibility.check_bus if is_inside else plausibility.check_network
        check(link.bytes_per_s, link.latency_s, file=file, key=key)
        directions = [(x, y) for x in left for y in right if x != y]
        if is_symmetric:
            directions += [(y, x) for x, y in directions]
        for ends in dict.fromkeys(directions):
            rank = left_rank + right_rank
            before = found.get(ends)
            if before is not None and before[0] == rank:
                raise InputError(f"{ends[0]!r} to {ends[1]!r} is given by links[{before[1]}] already", key=key)
            if before is None or before[0] < rank:
                found[ends] = (rank, index, link)
    return {ends: link for ends, (_, _, link) in found.items()}


def _ends(pair: PairSchema, key: str) -> tuple[str, str, bool]:
    if pair.between is not None and pair.source is None and pair.target is None:
        return pair.between[0], pair.between[1], True
    if pair.between is None and pair.source is not None and pair.target is not None:
        return pair.source, pair.target, False
    raise InputError("expected either between: [a, b], or from: a and to: b", key=key)


def _members(
    end: str, nodes: tuple[Node, ...], groups: Mapping[str, tuple[str, ...]], key: str
) -> tuple[tuple[str, ...], int, bool]:
    """Return the names an end stands for, how narrow it is, and whether it's a card."""
    if end.startswith(REGION):
        region = end.removeprefix(REGION)
        members = tuple(node.name for node in nodes if node.region == region)
        if not members:
            known = sorted({node.region for node in nodes if node.region is not None})
            raise InputError(f"no node is in region {region!r}; regions: {', '.join(known) or 'none'}", key=key)
        return members, _REGION_RANK, False
    node_names = {node.name for node in nodes}
    if end in node_names:
        return (end,), _SINGLE_RANK, False
    cards = {card.name for node in nodes for card in node.devices}
    if end in cards:
        return (end,), _SINGLE_RANK, True
    if end in groups:
        return groups[end], _GROUP_RANK, False
    known_names = [*node_names, *groups, *cards]
    near = get_close_matches(end, known_names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"link end {end!r} is neither a node nor a card of the cluster{hint}", key=key)
