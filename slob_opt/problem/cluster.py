"""A cluster: nodes with cards, the links inside and between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from slob_opt.errors import InputError
from slob_opt.problem.device import Device, Link, require_positive


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that holds cards.

    Attributes
    ----------
    name
        Unique within the cluster.
    devices
        The cards, in PCI order.
    intra_link
        Link between two cards of this node; ``None`` takes the cluster's `intra_link`.
    tp_degrees
        Tensor-parallel degrees that planners may form from equal cards of this node; ``(1,)`` is none.
        A node that always works as one device has only its full degree, as ``(4,)``.
    nic_bytes_per_s
        Capacity of the node's network card per direction, bytes/s; ``None`` means links are dedicated.
    region
        Free label, shown in reports; ``None`` when there are no regions.
    """

    name: str
    devices: tuple[Device, ...]
    intra_link: Link | None = None
    tp_degrees: tuple[int, ...] = (1,)
    nic_bytes_per_s: float | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError(f"node {self.name} has 0 GPUs, expected at least one")
        if not self.tp_degrees or any(d < 1 or int(d) != d for d in self.tp_degrees):
            raise InputError(f"tp_degrees of node {self.name} are {self.tp_degrees}, expected whole numbers from 1")
        if max(self.tp_degrees) > len(self.devices):
            raise InputError(
                f"tensor-parallel degree {max(self.tp_degrees)} on node {self.name}, which has {len(self.devices)} GPUs"
            )
        if self.nic_bytes_per_s is not None:
            require_positive(self.nic_bytes_per_s, f"NIC capacity of node {self.name}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and links.

    The link from card a to card b is the override for (a, b) if there is one, else the override for their
    nodes, else the node's `intra_link` (same node) or the cluster's `inter_link`.

    Attributes
    ----------
    name
        Shown in reports.
    nodes
        The machines, in the order in which devices are numbered.
    inter_link
        Link between cards of different nodes.
    intra_link
        Link between cards of one node, unless the node has its own.
    overrides
        Directed links by pair of names (two devices or two nodes).
    sources
        Where the facts come from; empty for a user's own cluster.
    uncertain
        Facts that were not checked, in words.
    """

    name: str
    nodes: tuple[Node, ...]
    inter_link: Link
    intra_link: Link
    overrides: Mapping[tuple[str, str], Link] = field(default_factory=lambda: MappingProxyType({}))
    sources: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InputError(f"cluster {self.name} has no nodes")
        names = Counter([n.name for n in self.nodes] + [d.name for n in self.nodes for d in n.devices])
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise InputError(f"name {twice[0]!r} is used more than once in cluster {self.name}, names must be unique")
        for a, b in self.overrides:
            if a == b:
                raise InputError(f"link from {a!r} to itself, expected two different ends")
            for end in (a, b):
                if end not in names:
                    raise InputError(f"link end {end!r} is neither a node nor a device of cluster {self.name}")
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))

    def __reduce__(self) -> tuple[type[Cluster], tuple[object, ...]]:
        """Return what copies and other processes rebuild the cluster from; a read-only mapping can't be pickled."""
        values = (getattr(self, item.name) for item in fields(self))
        return type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All cards, node by node."""
        return tuple(d for n in self.nodes for d in n.devices)

    @property
    def node_index(self) -> tuple[int, ...]:
        """Index of the node of each card, in the order of `devices`."""
        return tuple(i for i, n in enumerate(self.nodes) for _ in n.devices)

    def link(self, source: int, target: int) -> Link:
        """Return the link from card `source` to card `target` (indices into `devices`)."""
        if source == target:
            raise InputError(f"no link from device {source} to itself")
        devices, node_index = self.devices, self.node_index
        a, b = self.nodes[node_index[source]], self.nodes[node_index[target]]
        found = self.overrides.get((devices[source].name, devices[target].name))
        if found is None and a is not b:
            found = self.overrides.get((a.name, b.name), self.inter_link)
        if found is None:
            found = a.intra_link or self.intra_link
        return found
