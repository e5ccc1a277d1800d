"""What is given and what is chosen: devices, links, clusters, models, traffic; stages, pipelines, placements.

File formats are in :mod:`slob_opt.problem.files`, known GPUs, models and clusters in :mod:`slob_opt.problem.catalogue`;
both are imported on their own, since only they need more than the standard library.

>>> card = Device("box/0", "my-card", memory_bytes=24 * 2**30, peak_flops=80e12, bytes_per_s=900e9)
>>> Cluster("mine", (Node("box", (card,)),), inter_link=Link(1.25e9, 1e-4), intra_link=Link(16e9, 1e-5)).devices[0].name
'box/0'
"""

from __future__ import annotations

from slob_opt.problem.architecture import Architecture, ExpertShape, LatentShape, build_model
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import ComputeProfile, Device, Link
from slob_opt.problem.divisibility import allowed_tp_degrees, check_divisibility
from slob_opt.problem.model import LayerSpec, ModelSpec
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile

__all__ = [
    "Architecture",
    "Cluster",
    "ComputeProfile",
    "Device",
    "ExpertShape",
    "LatentShape",
    "LayerSpec",
    "Link",
    "ModelSpec",
    "Node",
    "Pipeline",
    "Placement",
    "Stage",
    "TrafficProfile",
    "allowed_tp_degrees",
    "build_model",
    "check_divisibility",
]
