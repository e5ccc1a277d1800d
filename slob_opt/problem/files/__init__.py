"""Files of clusters, models and traffic: strict keys, written units, one clear sentence for what is wrong.

>>> from slob_opt.problem.files import dump_cluster, find_cluster, find_model
>>> find_model("llama-2-70b").num_layers, dump_cluster(find_cluster("lab-3")).splitlines()[2]
(80, 'inter_link: {bandwidth: 312.5MB/s, latency: 200us}')
"""

from __future__ import annotations

from slob_opt.problem.files.cluster_dump import dump_cluster
from slob_opt.problem.files.cluster_file import load_cluster
from slob_opt.problem.files.find import find_cluster, find_model
from slob_opt.problem.files.model_file import load_model
from slob_opt.problem.files.profile_file import load_profile
from slob_opt.problem.files.traffic_file import load_traffic

__all__ = ["dump_cluster", "find_cluster", "find_model", "load_cluster", "load_model", "load_profile", "load_traffic"]
