"""The same problem with a bit more of something, or with its devices in another order.

Cards keep their numbers in every variant but :func:`relabelled`, so a plan of the original is a plan of the variant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.instances import StudyProblem
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.device import Link

MORE_MEMORY = 1.1
"""Factor on the memory of every card. Chosen: about one layer of a large model on a usual card."""

MORE_BANDWIDTH = 2.0
"""Factor on the bandwidth of every link; latencies stay."""


def with_another_device(problem: StudyProblem, seed: int) -> StudyProblem:
    """Return the problem with a copy of a random node, linked as the original is, after all others.

    The copy's link to the node it copies is the cluster's `inter_link`.
    """
    cluster = problem.cluster
    twin = cluster.nodes[int(np.random.default_rng([seed, 1]).integers(len(cluster.nodes)))]
    devices = tuple(replace(d, name=f"another/{i}") for i, d in enumerate(twin.devices))
    links: dict[tuple[str, str], Link] = dict(cluster.overrides)
    for (a, b), link in cluster.overrides.items():
        if a == twin.name:
            links["another", b] = link
        if b == twin.name:
            links[a, "another"] = link
    node = replace(twin, name="another", devices=devices)
    return _with_cluster(problem, "device", replace(cluster, nodes=(*cluster.nodes, node), overrides=links))


def with_more_memory(problem: StudyProblem) -> StudyProblem:
    """Return the problem with :data:`MORE_MEMORY` times the memory on every card."""
    nodes = tuple(
        replace(
            n,
            devices=tuple(replace(d, memory_bytes=int(d.memory_bytes * MORE_MEMORY)) for d in n.devices),
        )
        for n in problem.cluster.nodes
    )
    return _with_cluster(problem, "memory", replace(problem.cluster, nodes=nodes))


def with_more_bandwidth(problem: StudyProblem) -> StudyProblem:
    """Return the problem with :data:`MORE_BANDWIDTH` times the bandwidth on every link between nodes."""
    cluster = problem.cluster
    return _with_cluster(
        problem,
        "bandwidth",
        replace(
            cluster,
            inter_link=_faster(cluster.inter_link),
            overrides={pair: _faster(link) for pair, link in cluster.overrides.items()},
        ),
    )


def relabelled(problem: StudyProblem, seed: int) -> StudyProblem:
    """Return the problem with its nodes in a random other order; names and links go with them."""
    nodes = problem.cluster.nodes
    order = np.random.default_rng([seed, 2]).permutation(len(nodes))
    return _with_cluster(problem, "relabelled", replace(problem.cluster, nodes=tuple(nodes[int(i)] for i in order)))


VARIANTS = ("device", "memory", "bandwidth", "relabelled")
"""Names of all variants."""


def variant(problem: StudyProblem, name: str, seed: int) -> StudyProblem:
    """Return a variant by name.

    Raises
    ------
    InputError
        When the name is none of :data:`VARIANTS`.
    """
    match name:
        case "device":
            return with_another_device(problem, seed)
        case "memory":
            return with_more_memory(problem)
        case "bandwidth":
            return with_more_bandwidth(problem)
        case "relabelled":
            return relabelled(problem, seed)
    raise InputError(f"no variant {name!r}, expected one of {', '.join(VARIANTS)}")


def _faster(link: Link) -> Link:
    return Link(link.bytes_per_s * MORE_BANDWIDTH, link.latency_s)


def _with_cluster(problem: StudyProblem, what: str, cluster: Cluster) -> StudyProblem:
    return replace(problem, name=f"{problem.name}+{what}", cluster=cluster)
