"""Facts about GPUs, models and published clusters, with their sources and what is uncertain about them.

The numbers are data files beside this module; they are read on first use and kept. Nothing but `json` is needed.

>>> gpu("RTX 4090").bytes_per_s, model("llama-2-70b").num_params, len(cluster("helix-single24").devices)
(1008000000000.0, 68976648192, 24)
"""

from __future__ import annotations

from slob_opt.problem.catalogue.clusters import cluster, cluster_ids, left_out_clusters
from slob_opt.problem.catalogue.gpus import GpuFacts, gpu, gpu_device, gpu_ids, is_ambiguous_gpu
from slob_opt.problem.catalogue.models import ModelFacts, model, model_facts, model_ids

__all__ = [
    "GpuFacts",
    "ModelFacts",
    "cluster",
    "cluster_ids",
    "gpu",
    "gpu_device",
    "gpu_ids",
    "is_ambiguous_gpu",
    "left_out_clusters",
    "model",
    "model_facts",
    "model_ids",
]
