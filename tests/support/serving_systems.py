"""Serving systems of one or two cards for tests of runs and studies."""

from __future__ import annotations

from experiments.serving_setup import ServingOptions, ServingSystem, make_system
from slob_opt.problem.catalogue import gpu_device, model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.placement import Pipeline, Placement, Stage


def cards(*gpus: str) -> Cluster:
    """Cards of one type each, one a node, on a 10 Gb/s network."""
    nodes = tuple(Node(f"n{i}", (gpu_device(gpu, f"n{i}/0"),)) for i, gpu in enumerate(gpus))
    return Cluster("-".join(gpus), nodes, Link(1.25e9, 1e-4), Link(1e10, 1e-5))


def one_l4(options: ServingOptions | None = None) -> ServingSystem:
    """Llama-3.1-8B on an L4."""
    placement = Placement((Pipeline((Stage((0,), 0, 32),)),))
    return make_system("one-l4", cards("l4"), model("llama-3.1-8b"), placement, options)


def two_replicas() -> ServingSystem:
    """Llama-3.1-8B on an A100 and on an L4, each alone."""
    placement = Placement(tuple(Pipeline((Stage((card,), 0, 32),)) for card in (0, 1)))
    return make_system("two", cards("a100-pcie-40gb", "l4"), model("llama-3.1-8b"), placement)
