"""Cards, models and clusters with rounded datasheet numbers, for tests of the cost model."""

from __future__ import annotations

from slob_opt.problem.architecture import Architecture, build_model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.model import ModelSpec

GIB = 2**30
ETHERNET = Link(1.25e9, 1e-3)
PCIE = Link(12e9, 1e-5)


def a100(name: str = "a100/0", memory_gib: int = 80) -> Device:
    """Return an A100: 312 TFLOP/s, 2,039 GB/s."""
    return Device(name, f"a100-{memory_gib}gb", memory_gib * GIB, 312e12, 2039e9)


def l4(name: str = "l4/0") -> Device:
    """Return an L4: 24 GiB, 121 TFLOP/s, 300 GB/s."""
    return Device(name, "l4", 24 * GIB, 121e12, 300e9)


def llama_2_7b() -> ModelSpec:
    """Return Llama-2-7B: 32 layers of 202,383,360 parameters, no grouped queries."""
    return build_model(Architecture("llama-2-7b", 4096, 32, 32, 32, 128, 11008, 32000))


def llama_2_70b() -> ModelSpec:
    """Return Llama-2-70B: 80 layers of 855,654,400 parameters, 64 heads that share 8 KV heads."""
    return build_model(Architecture("llama-2-70b", 8192, 80, 64, 8, 128, 28672, 32000))


def one_node(*devices: Device, tp_degrees: tuple[int, ...] = (1,), **node: object) -> Cluster:
    """Return a cluster of one node."""
    return Cluster("one node", (Node("n", devices, tp_degrees=tp_degrees, **node),), ETHERNET, PCIE)  # type: ignore[arg-type]


def nodes_of_one(*devices: Device) -> Cluster:
    """Return a cluster with each card on a node of its own."""
    nodes = tuple(Node(f"n{i}", (device,)) for i, device in enumerate(devices))
    return Cluster("nodes of one", nodes, ETHERNET, PCIE)
