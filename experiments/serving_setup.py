"""From cluster, model and placement to what serves: limits and clocks of each pipeline."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from experiments.registry import make_planner
from slob_opt.cost import memory
from slob_opt.cost.build import CostOptions, build_table
from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import Objective
from slob_opt.planning.result import SolveLimits
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import LayerSpec, ModelSpec
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.scheduling.policy import PipelineLimits

ACTIVATION_TOKENS = 2048
"""Tokens whose activations are kept free for an iteration; vLLM's default of ``max_num_batched_tokens`` (0.6 and
later). The same for every policy, so that none has more KV memory than another; longer prompts are taken to pass
through the layers in slices of this size."""

DEFAULT_ROWS = 128
"""Most requests that hold KV in a pipeline. Chosen; vLLM's ``max_num_seqs`` of 256 rarely binds on small cards."""

DEFAULT_CHUNK = 512
"""Tokens of an iteration for policies that chunk; Sarathi-Serve's under a strict target (section 5.1)."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """How pipelines serve, beyond their placement.

    Attributes
    ----------
    num_lanes
        K of every pipeline; ``None`` takes each pipeline's own.
    max_rows
        Most requests that hold KV in a pipeline.
    chunk_tokens
        Most tokens of a micro-batch, for policies that chunk; ``None`` leaves it to the policy.
    kv_blocks
        Blocks of every pipeline's KV pool; ``None`` derives them from the cards' memory.
    memory_utilization, framework_bytes, block_tokens
        As in :class:`~slob_opt.cost.build.CostOptions`.
    """

    num_lanes: int | None = None
    max_rows: int = DEFAULT_ROWS
    chunk_tokens: int | None = DEFAULT_CHUNK
    kv_blocks: int | None = None
    memory_utilization: float = CostOptions().memory_utilization
    framework_bytes: int = CostOptions().framework_bytes
    block_tokens: int = CostOptions().block_tokens

    def __post_init__(self) -> None:
        for name in ("num_lanes", "max_rows", "chunk_tokens", "kv_blocks", "block_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, expected at least 1")
        if self.num_lanes is not None and self.num_lanes > self.max_rows:
            raise InputError(f"{self.num_lanes} lanes for {self.max_rows} rows, expected at least one row a lane")


@dataclass(frozen=True, slots=True)
class ServingSystem:
    """What serves: a placement with its limits and clocks.

    Attributes
    ----------
    name
        Shown in tables.
    cluster, model, placement
        What it was made from.
    options
        As they were given.
    limits, clocks
        Of each pipeline.
    """

    name: str
    cluster: Cluster
    model: ModelSpec
    placement: Placement
    options: ServingOptions
    limits: tuple[PipelineLimits, ...]
    clocks: tuple[PipelineClock, ...]

    def effective(self) -> dict[str, object]:
        """Return plain JSON: pipelines with their stages and limits."""
        devices = self.cluster.devices
        return {
            "name": self.name,
            "cluster": self.cluster.name,
            "model": self.model.name,
            "weight_bits": float(self.model.weight_bits),
            "max_rows": self.options.max_rows,
            "chunk_tokens": self.options.chunk_tokens,
            "pipelines": [
                {
                    "stages": [
                        {
                            "device": "+".join(devices[card].name for card in stage.cards),
                            "gpu": devices[stage.cards[0]].gpu,
                            "layers": [stage.first, stage.end],
                        }
                        for stage in pipeline.stages
                    ],
                    "lanes": limits.num_lanes,
                    "kv_blocks": limits.kv_blocks,
                    "block_tokens": limits.block_tokens,
                }
                for pipeline, limits in zip(self.placement.pipelines, self.limits, strict=True)
            ],
        }


def make_system(
    name: str, cluster: Cluster, model: ModelSpec, placement: Placement, options: ServingOptions | None = None
) -> ServingSystem:
    """Return what serves a model with a placement.

    Parameters
    ----------
    name
        Shown in tables.
    cluster, model, placement
        What is given.
    options
        ``None`` takes the defaults.

    Raises
    ------
    InputError
        When the placement is for another number of layers or cards, or its weights leave no room for KV.
    """
    options = options or ServingOptions()
    if placement.pipelines[0].num_layers != model.num_layers:
        raise InputError(
            f"the placement executes {placement.pipelines[0].num_layers} layers, model {model.name} has"
            f" {model.num_layers}"
        )
    known = len(cluster.devices)
    if max(placement.used_cards) >= known:
        raise InputError(f"the placement uses card {max(placement.used_cards)}, cluster {cluster.name} has {known}")
    slices = Counter(card for pipeline in placement.pipelines for card in pipeline.cards)
    limits = []
    for index, pipeline in enumerate(placement.pipelines):
        lanes = pipeline.num_micro_batches if options.num_lanes is None else options.num_lanes
        blocks = options.kv_blocks or kv_blocks(cluster, model, placement, pipeline, slices, options)
        if blocks < 1:
            raise InputError(f"pipeline {index} of {name} has no memory left for KV beside its weights")
        limits.append(
            PipelineLimits(
                lanes, max(options.max_rows, lanes), blocks, options.block_tokens, options.chunk_tokens,
                model.max_position,
            )
        )  # fmt: skip
    clocks = tuple(PipelineClock.of(cluster, model, pipeline) for pipeline in placement.pipelines)
    return ServingSystem(name, cluster, model, placement, options, tuple(limits), clocks)


def kv_blocks(
    cluster: Cluster,
    model: ModelSpec,
    placement: Placement,
    pipeline: Pipeline,
    slices: Counter[int],
    options: ServingOptions,
) -> int:
    """Return the KV blocks that a pipeline can hold: the fewest of its stages; below one where nothing fits.

    A card that serves several stages divides what its weights leave among them in equal parts.
    """
    held = [stage for other in placement.pipelines for stage in other.stages]
    most = None
    for stage in pipeline.stages:
        unit = kv_unit_bytes(model, stage, options.block_tokens)
        for card in stage.cards:
            device = cluster.devices[card]
            room = int(device.memory_bytes * options.memory_utilization)
            room -= memory.framework_bytes(device, options.framework_bytes)
            mine = [other for other in held if card in other.cards]
            room -= sum(fixed_bytes(model, other, options.max_rows) for other in mine)
            room -= max(memory.activation_bytes(model, ACTIVATION_TOKENS, len(other.cards)) for other in mine)
            fits = max(0, room) // slices[card] // max(1, unit)
            most = fits if most is None else min(most, fits)
    assert most is not None
    return most


def _layers(model: ModelSpec, stage: Stage) -> tuple[LayerSpec, ...]:
    return model.layers[stage.first : stage.end]


def kv_unit_bytes(model: ModelSpec, stage: Stage, block_tokens: int) -> int:
    """Return the bytes of one KV block on a card of a stage."""
    return sum(memory.kv_bytes(model, layer, block_tokens, len(stage.cards)) for layer in _layers(model, stage))


def fixed_bytes(model: ModelSpec, stage: Stage, rows: int) -> int:
    """Return the bytes that a card of a stage holds whatever is served: weights, embedding, head, logits of rows."""
    degree = len(stage.cards)
    size = sum(memory.weight_bytes(model, layer, degree) for layer in _layers(model, stage))
    if stage.first == 0:
        size += memory.embedding_bytes(model, degree)
    if stage.end == model.num_layers:
        size += memory.head_weight_bytes(model, degree) + memory.logits_bytes(model, rows)
        if stage.first == 0:
            size -= memory.tied_saving_bytes(model, degree)
    return size


def plan_placement(
    cluster: Cluster,
    model: ModelSpec,
    traffic: TrafficProfile,
    objective: Objective,
    *,
    planner: str = "slob",
    limits: SolveLimits | None = None,
) -> Placement:
    """Return the placement that a planner finds.

    Raises
    ------
    InputError
        When it finds none; its message says why.
    """
    table = build_table(cluster, model, traffic)
    instance = PlacementInstance(table, objective, f"{cluster.name}/{model.name}/{objective.name}")
    found = make_planner(planner).solve(instance, limits=limits)
    if found.placement is None:
        why = f": {found.message}" if found.message else ""
        raise InputError(f"{planner} finds no placement of {model.name} on {cluster.name}{why}")
    return found.placement


def with_lanes(placement: Placement, num_lanes: int) -> Placement:
    """Return the placement with K lanes in every pipeline."""
    return Placement(tuple(replace(pipeline, num_micro_batches=num_lanes) for pipeline in placement.pipelines))
