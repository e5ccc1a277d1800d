"""Planning devices: single cards and the tensor-parallel groups that may be formed from equal cards of one node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from slob_opt.cost.roofline import CardGroup
from slob_opt.cost.table import IntArray
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.divisibility import allowed_tp_degrees, check_divisibility
from slob_opt.problem.model import ModelSpec


@dataclass(frozen=True)
class PlanningGroups:
    """D planning devices in C classes.

    Attributes
    ----------
    names
        (D,) names: the card's, or the first card's with the degree.
    cards
        (D,) indices into ``Cluster.devices``.
    node
        (D,) int64, index of the node.
    class_of
        (D,) int64, index into `classes`.
    classes
        (C,) what the members of a class have in common.
    class_names
        (C,) distinct names.
    """

    names: tuple[str, ...]
    cards: tuple[tuple[int, ...], ...]
    node: IntArray
    class_of: IntArray
    classes: tuple[CardGroup, ...]
    class_names: tuple[str, ...]


def _numbers(device: Device) -> Device:
    """The card without its names: what makes cards equal."""
    return replace(device, name="card", gpu="card")


def usable_degrees(model: ModelSpec, node: Node) -> tuple[int, ...]:
    """Return the tensor-parallel degrees of a node that the model allows, ascending.

    A node's degrees are a choice, so one that doesn't divide the model's heads is left out of it.

    Raises
    ------
    InputError
        When the model allows none of them; names the node and every violated rule.
    """
    degrees = sorted(set(node.tp_degrees))
    allowed = set(allowed_tp_degrees(model, len(node.devices)))
    usable = tuple(degree for degree in degrees if degree in allowed)
    if not usable:
        try:
            check_divisibility(model, degrees, num_gpus=len(node.devices))
        except InputError as error:
            raise InputError(f"tp_degrees of node {node.name}: {error.message}") from error
    return usable


def skipped_degrees(cluster: Cluster, model: ModelSpec) -> tuple[tuple[str, int], ...]:
    """Return (node, degree) of every tensor-parallel degree that nodes offer and planners do without.

    Raises
    ------
    InputError
        As in :func:`usable_degrees`.
    """
    return tuple(
        (node.name, degree)
        for node in cluster.nodes
        for degree in sorted(set(node.tp_degrees) - set(usable_degrees(model, node)))
    )


def most_equal_cards(node: Node) -> int:
    """Return the number of cards of a node's largest set of equal ones: no group of it can be larger."""
    return max(Counter(_numbers(device) for device in node.devices).values())


def _slowest_link(cluster: Cluster, node: Node, cards: tuple[Device, ...]) -> Link:
    """Slowest of the links between the cards of a group, in both numbers."""
    usual = node.intra_link or cluster.intra_link
    links = [cluster.overrides.get((a.name, b.name), usual) for a in cards for b in cards if a is not b]
    return Link(min(link.bytes_per_s for link in links), max(link.latency_s for link in links))


def form_groups(cluster: Cluster, model: ModelSpec) -> PlanningGroups:
    """Return the planning devices of a cluster, node by node, smaller degrees first.

    The equal cards of a node are cut into groups of each degree in PCI order, starting at multiples of the degree, so
    that groups are nested when each degree divides the next (1, 2, 4, 8). Cards left over stay unused at that degree.
    A degree that doesn't divide the model's heads is left out where the node offers others, see
    :func:`skipped_degrees`.

    Raises
    ------
    InputError
        When no degree of a node divides the model's heads, or a node has too few equal cards for a degree.
    """
    names: list[str] = []
    cards: list[tuple[int, ...]] = []
    node_of: list[int] = []
    class_of: list[int] = []
    class_index: dict[CardGroup, int] = {}
    gpu_names: list[dict[str, None]] = []
    first_card = 0
    for node_id, node in enumerate(cluster.nodes):
        equal: dict[Device, list[int]] = {}
        for position, device in enumerate(node.devices):
            equal.setdefault(_numbers(device), []).append(position)
        for degree in usable_degrees(model, node):
            formed = 0
            for numbers, members in equal.items():
                for start in range(0, len(members) - degree + 1, degree):
                    chosen = tuple(node.devices[p] for p in members[start : start + degree])
                    link = _slowest_link(cluster, node, chosen) if degree > 1 else None
                    index = class_index.setdefault(CardGroup(numbers, degree, link), len(class_index))
                    if index == len(gpu_names):
                        gpu_names.append({})
                    gpu_names[index][chosen[0].gpu] = None
                    names.append(chosen[0].name if degree == 1 else f"{chosen[0].name}x{degree}")
                    cards.append(tuple(first_card + p for p in members[start : start + degree]))
                    node_of.append(node_id)
                    class_of.append(index)
                    formed += 1
            if not formed:
                raise InputError(
                    f"tensor-parallel degree {degree} on node {node.name}, "
                    f"which has at most {most_equal_cards(node)} equal GPUs"
                )
        first_card += len(node.devices)
    return PlanningGroups(
        names=tuple(names),
        cards=tuple(cards),
        node=np.array(node_of, np.int64),
        class_of=np.array(class_of, np.int64),
        classes=tuple(class_index),
        class_names=_class_names(gpu_names, [g.degree for g in class_index]),
    )


def _class_names(gpu_names: list[dict[str, None]], degrees: list[int]) -> tuple[str, ...]:
    """Distinct names: the types of the cards, the degree, and a number where that isn't enough."""
    types = ["/".join(names) for names in gpu_names]
    plain = [name if g == 1 else f"{name} x{g}" for name, g in zip(types, degrees, strict=True)]
    seen: dict[str, int] = {}
    found = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return tuple(found)
