"""From a placement and a model's folder to what the engine needs: workers, pipelines, and new ones after a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.engine_pipelines import BuiltPipeline, LostDevices, NewPipelines, Recovery, StageLayout
from runtime.executor import NOT_EMULATED, Capacity, Emulation, ExecutorSpec, SliceSpec, WorkerSpec
from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import InputError
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline, Placement
from slob_opt.scheduling.policy import PipelineLimits, Policy

MakePolicy = Callable[[], Policy]
"""Makes a policy for one pipeline."""

Replan = Callable[[Cluster, ModelSpec], Placement | None]
"""Plans for a smaller cluster; ``None`` when the model doesn't fit."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where the worker of a device of the plan runs.

    Attributes
    ----------
    torch_device
        As torch names it.
    emulation
        What it pretends to be.
    host, port
        Of a worker on another machine; ``None`` starts a process on this one.
    """

    torch_device: str = "cpu"
    emulation: Emulation = NOT_EMULATED
    host: str | None = None
    port: int = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """A placement that is to be served for real.

    Attributes
    ----------
    cluster, model, placement
        The plan.
    folder
        Model in Hugging Face format.
    dtype
        As in :class:`~runtime.executor.ExecutorSpec`.
    places
        By name of the device; a device that is missing runs on the CPU of this machine.
    max_rows, chunk_tokens, block_tokens
        As in :class:`~slob_opt.scheduling.policy.PipelineLimits`.
    num_blocks
        KV blocks of every pipeline; ``None`` takes what the memory holds.
    max_step_tokens
        Most tokens of a step for which room is kept.
    is_padded
        Whether steps are computed as rectangles.
    deadline_s
        A step that takes longer is taken for a hung worker, seconds.

    Raises
    ------
    InputError
        When a stage is a tensor-parallel group, or a place is for an unknown device.
    """

    cluster: Cluster
    model: ModelSpec
    placement: Placement
    folder: Path
    dtype: str
    places: Mapping[str, WorkerPlace]
    max_rows: int = 64
    chunk_tokens: int | None = 512
    block_tokens: int = 16
    num_blocks: int | None = None
    max_step_tokens: int = 1024
    is_padded: bool = False
    deadline_s: float = 120.0

    def __post_init__(self) -> None:
        names = [device.name for device in self.cluster.devices]
        for name in self.places:
            if name not in names:
                raise InputError(f"found device {name!r}, the plan's cluster has {', '.join(names)}")
        if self.placement.pipelines[0].num_layers != self.model.num_layers:
            raise InputError(
                f"the plan executes {self.placement.pipelines[0].num_layers} layers, model {self.model.name} has"
                f" {self.model.num_layers}"
            )
        for index, pipeline in enumerate(self.placement.pipelines):
            for stage in pipeline.stages:
                if len(stage.cards) > 1:
                    group = "+".join(names[card] for card in stage.cards)
                    raise InputError(
                        f"pipeline {index} has a tensor-parallel stage on {group}; the runtime runs stages of one"
                        " device only, plan with --tp 1"
                    )

    def place(self, device: str) -> WorkerPlace:
        """Return where a device's worker runs."""
        return self.places.get(device, WorkerPlace())

    def workers(self, first_pipeline: int = 0) -> tuple[WorkerSpec, ...]:
        """Return a worker for each device of the placement, pipelines numbered from `first_pipeline`."""
        slices: dict[str, list[SliceSpec]] = {}
        for index, pipeline in enumerate(self.placement.pipelines, first_pipeline):
            for number, stage in enumerate(pipeline.stages):
                piece = SliceSpec(index, number, len(pipeline.stages), stage.first, stage.end)
                slices.setdefault(self.cluster.devices[stage.cards[0]].name, []).append(piece)
        found = []
        for name, pieces in slices.items():
            place = self.place(name)
            found.append(
                WorkerSpec(name, place.torch_device, tuple(pieces), place.emulation, place.host, place.port)
            )  # fmt: skip
        return tuple(found)

    def executor_spec(self) -> ExecutorSpec:
        """Return what the executor is to hold."""
        return ExecutorSpec(
            self.folder, self.dtype, self.block_tokens, self.max_rows, self.num_blocks, self.max_step_tokens,
            self.workers(), self.deadline_s, self.is_padded,
        )  # fmt: skip

    def build(self, capacities: Sequence[Capacity], make_policy: MakePolicy) -> tuple[BuiltPipeline, ...]:
        """Return the pipelines, with the KV that they were found to hold."""
        return tuple(
            self._built(pipeline, capacity, make_policy())
            for pipeline, capacity in zip(self.placement.pipelines, capacities, strict=True)
        )

    def _built(self, pipeline: Pipeline, capacity: Capacity, policy: Policy) -> BuiltPipeline:
        lanes = pipeline.num_micro_batches
        limits = PipelineLimits(
            lanes, max(self.max_rows, lanes), capacity.kv_blocks, self.block_tokens, self.chunk_tokens,
            self.model.max_position,
        )  # fmt: skip
        stages = tuple(
            StageLayout(name, stage.first, stage.end, self.place(name).emulation.words)
            for stage in pipeline.stages
            for name in (self.cluster.devices[stage.cards[0]].name,)
        )
        return BuiltPipeline(limits, PipelineClock.of(self.cluster, self.model, pipeline), policy, stages)

    def recovery(self, replan: Replan, make_policy: MakePolicy) -> Recovery:
        """Return what plans anew, with `replan`, for the devices that are left when some are lost."""

        def recover(lost: LostDevices) -> NewPipelines | None:
            rest = without(self.cluster, lost.lost | lost.busy)
            placement = None if rest is None else replan(rest, self.model)
            if rest is None or placement is None:
                return None
            names = {device.name for device in rest.devices}
            places = {name: place for name, place in self.places.items() if name in names}
            smaller = replace(self, cluster=rest, placement=placement, places=places)
            return NewPipelines(
                smaller.workers(lost.next_pipeline), lambda capacities: smaller.build(capacities, make_policy)
            )

        return recover


def without(cluster: Cluster, names: frozenset[str]) -> Cluster | None:
    """Return a cluster without some devices; ``None`` when none is left."""
    nodes = []
    for node in cluster.nodes:
        devices = tuple(device for device in node.devices if device.name not in names)
        if devices:
            degrees = tuple(degree for degree in node.tp_degrees if degree <= len(devices)) or (1,)
            nodes.append(replace(node, devices=devices, tp_degrees=degrees))
    if not nodes:
        return None
    ends = {end for node in nodes for end in (node.name, *(device.name for device in node.devices))}
    kept = {pair: link for pair, link in cluster.overrides.items() if set(pair) <= ends}
    return replace(cluster, nodes=tuple(nodes), overrides=kept)
