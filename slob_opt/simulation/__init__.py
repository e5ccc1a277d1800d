"""Serving played forward in virtual time: stages as servers, lanes in flight, links, KV blocks.

Examples
--------
Two requests on one L4 under Orca's rule: how long until each has its first token, and what that was worth.

>>> from slob_opt.cost.pipeline_clock import PipelineClock
>>> from slob_opt.metrics.accumulator import MetricsAccumulator
>>> from slob_opt.metrics.request_columns import Status
>>> from slob_opt.problem.catalogue.gpus import gpu_device
>>> from slob_opt.problem.catalogue.models import model
>>> from slob_opt.problem.cluster import Cluster, Node
>>> from slob_opt.problem.device import Link
>>> from slob_opt.problem.placement import Pipeline, Stage
>>> from slob_opt.problem.workload import Workload
>>> from slob_opt.scheduling.policies.fcfs import OrcaPolicy
>>> from slob_opt.scheduling.policy import PipelineLimits
>>> from slob_opt.simulation.simulator import Simulator
>>> cluster = Cluster("one", (Node("n", (gpu_device("l4", "n/0"),)),), Link(1e9, 1e-4), Link(1e10, 1e-5))
>>> clock = PipelineClock.of(cluster, model("llama-3.1-8b"), Pipeline((Stage((0,), 0, 32),)))
>>> workload = Workload.of("two", [0.0, 0.5], [800, 200], [50, 20])
>>> metrics = MetricsAccumulator(workload)
>>> def enter(d):
...     metrics.add(d.request, Status(d.end), d.started_ns, d.token_ns)
>>> result = Simulator(workload, [PipelineLimits(1, 8, 500)], [clock], [OrcaPolicy()], sink=enter).run()
>>> result.num_finished, metrics.columns().satisfaction.tolist()
(2, [1.0, 1.0])
>>> [round(t, 2) for t in metrics.columns().ttft_s.tolist()]
[0.18, 0.09]
"""
