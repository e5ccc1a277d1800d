"""Random placement problems from real GPUs, models and link speeds; a seed and the arguments fix each one.

A problem is redrawn until the model needs several devices and the cluster's memory holds it with some room. Nothing
else is asked, above all not that a planner finds a plan: choosing by a planner's success would hide its failures.

Problems for the enumerating oracle are short: the first few layers of a real model on cards whose usable share of
memory is cut by about as much, so that memory binds as it does for the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from experiments.instances import FIXED_LINK, StudyProblem
from slob_opt.cost.build import CostOptions
from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.problem import catalogue
from slob_opt.problem.catalogue import gpu_device
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Link
from slob_opt.problem.traffic import TrafficProfile

LinkKind = Literal["uniform", "general"]

GPUS = (
    "t4",
    "p100-pcie-16gb",
    "v100-pcie-16gb",
    "rtx-2080-ti",
    "rtx-3060-12gb",
    "rtx-3090",
    "rtx-4060-ti-16gb",
    "rtx-4090",
    "rtx-a5000",
    "rtx-a6000",
    "a10g",
    "l4",
    "a40",
    "l40s",
    "a100-pcie-40gb",
)
"""Types of 11 to 48 GB that labs and small companies have on their shelves."""

SMALL_MODELS = (
    "llama-2-7b",
    "llama-3.1-8b",
    "llama-2-13b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "yi-34b",
    "llama-2-70b",
    "qwen2.5-72b",
)
"""Dense models of 7B to 72B parameters with 28 to 80 equal layers."""

MEDIUM_MODELS = ("yi-34b", "qwen2.5-32b", "llama-2-70b", "llama-3.1-70b", "qwen2.5-72b")
"""Models of the medium problems, 60 to 80 layers."""

LINKS = (Link(1e9 / 8, 500e-6), Link(10e9 / 8, 200e-6), Link(25e9 / 8, 100e-6), Link(100e9 / 8, 50e-6))
"""Ethernet of 1, 10, 25 and 100 Gb/s with latencies of a message through a kernel's network stack. Chosen."""

BATCH_GRID = (1, 2, 4, 8, 16, 32)
"""Micro-batch sizes of the small throughput problems."""

MAX_MICRO_BATCHES = 8
"""Largest K of the small throughput problems."""

MAX_INTERVALS_S = (None, 0.4, 1.0)
MAX_IN_FLIGHTS = (None, 32, 64)
"""Caps that small throughput problems draw from."""

SHORT_LAYERS = (6, 8)
"""Fewest and most layers of a problem for the oracle; with six devices it looks at 1.3 million splits at most."""

MEMORY_SHARES = (0.9, 0.6, 0.4, 0.3, 0.2, 0.15)
"""Usable shares of memory that short problems draw from."""

LEAST_ROOM = 1.15
MOST_ROOM = 5.0
"""Smallest and largest ratio of the cluster's room to the model's need. Chosen."""

MAX_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What kind of problem to draw.

    Attributes
    ----------
    num_devices
        Cards, one a node.
    links
        ``"uniform"``: one speed for all pairs; ``"general"``: each directed pair draws its own from :data:`LINKS`.
    in_flight
        K of the interval objective; ``None`` is throughput.
    is_short
        Whether to take a few layers only, for the enumerating oracle.
    """

    num_devices: int
    links: LinkKind
    in_flight: int | None
    is_short: bool = False

    @property
    def name(self) -> str:
        """Name in rows."""
        goal = "throughput" if self.in_flight is None else f"interval-k{self.in_flight}"
        return f"{goal}-{self.links}-{self.num_devices}"


def draw_small(recipe: Recipe, seed: int) -> StudyProblem:
    """Return a problem of 2 to 12 cards of two to five types.

    Raises
    ------
    InputError
        When no problem of this kind is found; means that the constants above contradict each other.
    """
    rng = np.random.default_rng([seed, recipe.num_devices, recipe.in_flight or 0, recipe.links == "general"])
    for _ in range(MAX_DRAWS):
        cluster = _draw_cluster(rng, f"{recipe.name}-{seed}", recipe.num_devices, recipe.links, 1)
        model = catalogue.model(str(rng.choice(SMALL_MODELS)))
        cost = CostOptions(batch_grid=BATCH_GRID)
        if recipe.is_short:
            layers = int(rng.integers(SHORT_LAYERS[0], SHORT_LAYERS[1] + 1))
            model = replace(model, name=f"{model.name}[:{layers}]", layers=model.layers[:layers])
            cost = replace(cost, memory_utilization=float(rng.choice(MEMORY_SHARES)))
        traffic = TrafficProfile(int(rng.choice([200, 750, 2000])), int(rng.choice([100, 240, 500])))
        problem = StudyProblem(
            f"{recipe.name}-{seed}", cluster, model, traffic, cost, _draw_objective(rng, recipe.in_flight)
        )
        if is_stressed(problem.instance().table, recipe.in_flight or 1):
            return problem
    raise InputError(f"no problem of kind {recipe.name} in {MAX_DRAWS} draws")


def draw_medium(seed: int) -> StudyProblem:
    """Return a throughput problem of 16 to 42 cards of two to five types with equal links and a model of 32B to 72B.

    Batch grid, K and caps are those of the fixed problems.

    Raises
    ------
    InputError
        As :func:`draw_small`.
    """
    rng = np.random.default_rng([seed, 0x6D6564])
    for _ in range(MAX_DRAWS):
        size = int(rng.integers(16, 43))
        cluster = _draw_cluster(rng, f"medium-{seed}", size, "uniform", 2)
        model = catalogue.model(str(rng.choice(MEDIUM_MODELS)))
        traffic = TrafficProfile(750, 240)
        problem = StudyProblem(
            f"medium-{size}-{seed}", cluster, model, traffic, CostOptions(), ThroughputObjective(16, 0.4, 64)
        )
        if is_stressed(problem.instance().table, 1, most_room=np.inf):
            return problem
    raise InputError(f"no medium problem in {MAX_DRAWS} draws")


def is_stressed(table: CostTable, sequences: int, *, most_room: float = MOST_ROOM) -> bool:
    """Return whether no device holds the whole model with some sequences, and all together do with room to spare."""
    room = np.maximum(0, table.capacity_bytes - table.workspace_bytes[0])[table.device_class]
    layers = int(table.weight_prefix_bytes[0, -1] + sequences * table.kv_prefix_bytes[0, -1])
    need = layers + int(table.embed_bytes[0] + table.head_bytes[0, 0])
    return bool(room.max() < need and LEAST_ROOM * need <= room.sum() <= most_room * need)


def _draw_cluster(rng: np.random.Generator, name: str, num_devices: int, links: LinkKind, least_each: int) -> Cluster:
    """Two to five types with at least `least_each` cards of each, in random order."""
    num_types = int(rng.integers(2, min(5, num_devices // least_each) + 1))
    types = [str(t) for t in rng.choice(GPUS, num_types, replace=False)]
    gpus = types * least_each + [
        types[int(rng.integers(num_types))] for _ in range(num_devices - num_types * least_each)
    ]
    order = rng.permutation(num_devices)
    nodes = tuple(Node(f"n{i}", (gpu_device(gpus[order[i]], f"n{i}/0"),)) for i in range(num_devices))
    if links == "uniform":
        link = LINKS[int(rng.integers(len(LINKS)))]
        return Cluster(name, nodes, inter_link=link, intra_link=link)
    pairs = {(a.name, b.name): LINKS[int(rng.integers(len(LINKS)))] for a in nodes for b in nodes if a is not b}
    return Cluster(name, nodes, inter_link=FIXED_LINK, intra_link=FIXED_LINK, overrides=pairs)


def _draw_objective(rng: np.random.Generator, in_flight: int | None) -> Objective:
    if in_flight is not None:
        return IntervalObjective(in_flight)
    cap_s = MAX_INTERVALS_S[int(rng.integers(len(MAX_INTERVALS_S)))]
    cap = MAX_IN_FLIGHTS[int(rng.integers(len(MAX_IN_FLIGHTS)))]
    return ThroughputObjective(MAX_MICRO_BATCHES, cap_s, cap)
