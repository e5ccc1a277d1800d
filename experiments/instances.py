"""Placement problems that studies, benchmarks and tests share: what one is, and the fixed ones.

A fixed problem never changes once a figure about it is published; tests pin its fingerprint. Random ones are
drawn in :mod:`experiments.random_instances`.
"""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.cost.build import CostOptions, build_table
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import Objective, ThroughputObjective
from slob_opt.problem import catalogue
from slob_opt.problem.catalogue import gpu_device
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.traffic import TrafficProfile

FIXED_BATCH_GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batch sizes b of the fixed problems, written out so that another default can't move them."""

FIXED_TRAFFIC = TrafficProfile(prompt_tokens=750, output_tokens=240, tpot_s=0.4, max_in_flight=64)
"""750 prompt and 240 output tokens; at most 0.4 s per token and 64 sequences in flight per pipeline."""

FIXED_THROUGHPUT = ThroughputObjective(max_micro_batches=16, max_interval_s=0.4, max_in_flight=64)
"""K up to 16, with the caps of :data:`FIXED_TRAFFIC`."""

FIXED_LINK = Link(1e9, 1e-3)
"""1e9 bytes/s and 1 ms between any two devices."""

SCALE_GPUS = (
    "a100-sxm4-80gb",
    "a100-sxm4-40gb",
    "l40s",
    "rtx-4090",
    "a10g",
    "v100-pcie-16gb",
    "l4",
    "t4",
)
"""Eight types of the scale problems, equally many cards of each."""


@dataclass(frozen=True, slots=True)
class StudyProblem:
    """A placement problem before its costs are computed, so that cluster and caps can still be changed.

    Attributes
    ----------
    name
        Shown in rows.
    cluster, model, traffic, cost, objective
        What is given, see :func:`slob_opt.cost.build.build_table`.
    """

    name: str
    cluster: Cluster
    model: ModelSpec
    traffic: TrafficProfile
    cost: CostOptions
    objective: Objective

    def instance(self) -> PlacementInstance:
        """Return cost table and objective; a new one on each call."""
        table = build_table(self.cluster, self.model, self.traffic, self.cost)
        return PlacementInstance(table, self.objective, self.name)


def _fixed(name: str, cluster: Cluster, model: str) -> StudyProblem:
    cost = CostOptions(batch_grid=FIXED_BATCH_GRID)
    return StudyProblem(name, cluster, catalogue.model(model), FIXED_TRAFFIC, cost, FIXED_THROUGHPUT)


def single24() -> StudyProblem:
    """Return 4 A100-40G, 8 L4 and 12 T4 in nodes of one card, with Llama-2-70B in fp16, for throughput."""
    return _fixed("single24", catalogue.cluster("helix-single24"), "llama-2-70b")


def hetero42() -> StudyProblem:
    """Return 42 nodes with 64 GPUs of four types, a node being one tensor-parallel device, with Llama-2-70B in fp16."""
    return _fixed("hetero42", catalogue.cluster("helix-hetero42"), "llama-2-70b")


def scale_problem(num_devices: int) -> StudyProblem:
    """Return `num_devices` cards of the eight types of :data:`SCALE_GPUS` with Llama-3.1-70B (80 layers), throughput.

    Card i is of type ``i % 8``.
    """
    nodes = tuple(Node(f"n{i}", (gpu_device(SCALE_GPUS[i % len(SCALE_GPUS)], f"n{i}/0"),)) for i in range(num_devices))
    cluster = Cluster(f"scale-{num_devices}", nodes, inter_link=FIXED_LINK, intra_link=FIXED_LINK)
    return _fixed(f"scale{num_devices}", cluster, "llama-3.1-70b")
