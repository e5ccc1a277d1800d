"""Plans for other engines: what to set so that vLLM runs the stages of a plan.

vLLM takes the number of layers of each pipeline stage from ``VLLM_PP_LAYER_PARTITION`` and one tensor-parallel degree
for all stages; a pipeline of a plan becomes one engine.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import groupby

from slob_opt.problem.cluster import Cluster
from slob_opt.problem.placement import Pipeline, Placement


@dataclass(frozen=True, slots=True)
class EngineExport:
    """One engine, which runs one pipeline.

    Attributes
    ----------
    environment
        (name, value) of variables to set, in order.
    arguments
        Words to append to the engine's command line.
    stages
        (layers, names of cards) of each stage, in the order of the layer numbers.
    notes
        What the variables can't say, one sentence each.
    """

    environment: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    stages: tuple[tuple[int, tuple[str, ...]], ...]
    notes: tuple[str, ...]

    @property
    def command(self) -> str:
        """The start of the engine as one line of shell, with MODEL in place of the checkpoint's name."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*variables, "vllm", "serve", "MODEL", *map(shlex.quote, self.arguments)])


def vllm_obstacles(placement: Placement) -> tuple[str, ...]:
    """Return why vLLM can't run a plan, one sentence each; empty when it can.

    Examples
    --------
    >>> from slob_opt.problem.placement import Stage
    >>> plan = Placement((Pipeline((Stage((0, 1), 0, 5), Stage((2,), 5, 8))),))
    >>> vllm_obstacles(plan)[0][:53]
    'pipeline 0 has tensor-parallel degrees 2, 1 by stage;'
    """
    found = []
    if not placement.has_disjoint_pipelines:
        found.append("pipelines share cards; a vLLM engine needs its cards for itself")
    for index, pipeline in enumerate(placement.pipelines):
        degrees = [len(stage.cards) for stage in pipeline.stages]
        if len(set(degrees)) > 1:
            shown = ", ".join(map(str, degrees))
            found.append(
                f"pipeline {index} has tensor-parallel degrees {shown} by stage; per-stage degrees can't be exported, "
                "since vLLM has one --tensor-parallel-size for all stages"
            )
    return tuple(found)


def export_vllm(placement: Placement, cluster: Cluster) -> tuple[EngineExport, ...]:
    """Return what starts one vLLM engine per pipeline.

    Layer numbers stand in the order of the stages, cards in the order of the ranks: stage by stage, and inside a stage
    in the plan's order.

    Parameters
    ----------
    placement
        A plan without obstacles, see :func:`vllm_obstacles`.
    cluster
        The cluster that its cards belong to.

    References
    ----------
    vLLM documentation, "Parallelism and Scaling" and "Environment Variables", and its Ray executor, read 2025:
    VLLM_PP_LAYER_PARTITION holds a number per stage, which add up to the model's layers; Ray sorts workers by machine,
    the driver's first, then machines with fewer workers, then by address.
    """
    return tuple(_engine(pipeline, cluster) for pipeline in placement.pipelines)


def _engine(pipeline: Pipeline, cluster: Cluster) -> EngineExport:
    nodes, devices, node_of = cluster.nodes, cluster.devices, cluster.node_index
    first_card = [node_of.index(n) for n in range(len(nodes))]
    visited = [node for node, _ in groupby(node_of[card] for card in pipeline.cards)]
    environment = []
    if len(pipeline.stages) > 1:
        environment.append(("VLLM_PP_LAYER_PARTITION", ",".join(str(stage.num_layers) for stage in pipeline.stages)))
    if len(set(visited)) == 1:
        local = ",".join(str(card - first_card[node_of[card]]) for card in pipeline.cards)
        environment += [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", local)]
    arguments = ["--pipeline-parallel-size", str(len(pipeline.stages))]
    arguments += ["--tensor-parallel-size", str(len(pipeline.stages[0].cards))]
    notes = []
    if len(set(visited)) > 1:
        arguments += ["--distributed-executor-backend", "ray"]
        order = ", ".join(nodes[node].name for node in visited)
        notes.append(
            f"the stages run on machines {order}, in this order: start on {nodes[visited[0]].name}; Ray counts the "
            "driver's machine first, then those with fewer cards, then by address"
        )
    if len(visited) > len(set(visited)):
        notes.append(
            "a machine comes up twice in that order: VLLM_RAY_BUNDLE_INDICES has to fix the order of the cards"
        )
    stages = tuple((stage.num_layers, tuple(devices[card].name for card in stage.cards)) for stage in pipeline.stages)
    return EngineExport(tuple(environment), tuple(arguments), stages, tuple(notes))
