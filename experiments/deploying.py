"""From the options of `slob serve` and its kin to a deployment: plan, model folder, devices, policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from experiments.problem_setup import ProblemOptions
from experiments.registry import make_dispatcher, make_planner, make_policy, nearest
from experiments.serving_problem import SystemSource
from experiments.serving_setup import ServingOptions, with_lanes
from runtime.deployment import Deployment, WorkerPlace
from runtime.engine import Engine
from runtime.engine_report import EngineOptions, Recorder
from runtime.executor import Emulation, Executor
from runtime.hardware import check_hardware, find_hardware
from runtime.text import TextCodec
from slob_opt.cost.build import build_table
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.problem.cluster import Cluster, Node
from slob_opt.problem.device import Device, Link
from slob_opt.problem.files.find import find_cluster, find_model
from slob_opt.problem.files.plan_file import PlanFile, read_plan
from slob_opt.problem.files.workers_file import WorkerEntry, load_workers
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile
from slob_opt.scheduling.policy import Policy

LOCAL = "local/0"
"""Name of the device where a model is served whole."""

DTYPE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
"""Bits of a weight by the runtime's type."""


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What a user says of a deployment.

    Attributes
    ----------
    folder
        Of the model.
    plan, cluster
        Plan file, and cluster file or catalogue id; without a plan slob plans for the cluster, and without either the
        model is served whole from one device of this machine.
    workers
        Workers file; ``None`` runs every device on the CPU, or where `devices` says.
    devices
        Torch device by device of the plan.
    objective
        What to plan for without a plan: ``latency`` or ``throughput``.
    dtype
        Of the weights; ``None`` takes the checkpoint's.
    policy, params, dispatcher, dispatcher_params
        By name, with their parameters.
    serving
        Lanes, rows, chunk, KV blocks.
    is_padded
        Whether steps are computed as rectangles.
    deadline_s
        A step that takes longer is taken for a hung worker, seconds.
    """

    folder: Path
    plan: Path | None = None
    cluster: str | None = None
    workers: Path | None = None
    devices: Mapping[str, str] = field(default_factory=_nothing)
    objective: str = "throughput"
    dtype: str | None = None
    policy: str = "slob"
    params: Mapping[str, object] = field(default_factory=_nothing)
    dispatcher: str = "slob"
    dispatcher_params: Mapping[str, object] = field(default_factory=_nothing)
    serving: ServingOptions = field(default_factory=lambda: ServingOptions(max_rows=64))
    is_padded: bool = False
    deadline_s: float = 120.0

    def make_policy(self) -> Policy:
        """Return a policy for one pipeline."""
        return make_policy(self.policy, self.params)


@dataclass(frozen=True, slots=True)
class Deploying:
    """A deployment with what it was made from.

    Attributes
    ----------
    options
        As given.
    deployment
        What the runtime takes.
    plan
        The plan file; ``None`` when it was planned now.
    traffic
        What was planned for.
    """

    options: ServeOptions
    deployment: Deployment
    plan: PlanFile | None
    traffic: TrafficProfile

    @property
    def gap(self) -> float | None:
        """The plan's relative gap to its bound; ``None`` without a bound."""
        if self.plan is None or self.plan.value is None or not self.plan.bound:
            return None
        return abs(self.plan.bound - self.plan.value) / abs(self.plan.bound)

    @property
    def note(self) -> str | None:
        """The plan in a sentence; ``None`` where nothing is known of it."""
        plan = self.plan
        if plan is None or plan.value is None:
            return None
        bound = "no bound" if plan.bound is None else f"bound {plan.bound:.5g}"
        return f"{plan.planner or 'by hand'}: {plan.value:.5g} {plan.unit or ''}, {bound}, {plan.status or 'FEASIBLE'}"


def deploying(options: ServeOptions) -> Deploying:
    """Return the deployment that options describe.

    Raises
    ------
    InputError
        When the plan is for another model or cluster, there is no placement, or a worker is for an unknown device.
    """
    model = served_model(options.folder, options.dtype)
    plan, traffic = None, TrafficProfile()
    if options.plan is not None:
        plan = read_plan(options.plan)
        cluster, model, placement, traffic = _from_plan(options, options.plan, model)
    elif options.cluster is not None:
        cluster = find_cluster(options.cluster)
        placement = placed(cluster, model, traffic, options.objective)
    else:
        cluster = local_cluster(options.devices.get(LOCAL, "cpu"))
        placement = Placement((Pipeline((Stage((0,), 0, model.num_layers),)),))
    lanes = options.serving.num_lanes
    if lanes is not None:
        placement = with_lanes(placement, lanes)
    deployment = Deployment(
        cluster, model, placement, options.folder, options.dtype or _dtype(model), _places(options, cluster),
        options.serving.max_rows, options.serving.chunk_tokens, options.serving.block_tokens,
        options.serving.kv_blocks, is_padded=options.is_padded, deadline_s=options.deadline_s,
    )  # fmt: skip
    return Deploying(options, deployment, plan, traffic)


def served_model(folder: Path, dtype: str | None) -> ModelSpec:
    """Return the model in a folder, with weights, KV and activations of a type; ``None`` takes the checkpoint's."""
    model = find_model(str(folder))
    if dtype is None:
        return model
    bits = DTYPE_BITS[dtype]
    return replace(model, weight_bits=bits, kv_bits=bits, activation_bits=bits)


def _dtype(model: ModelSpec) -> str:
    return "float32" if model.weight_bits == DTYPE_BITS["float32"] else "bfloat16"


def _from_plan(
    options: ServeOptions, path: Path, model: ModelSpec
) -> tuple[Cluster, ModelSpec, Placement, TrafficProfile]:
    name = None if options.cluster is None else str(options.folder)
    problem = ProblemOptions(options.cluster or "", name or "")
    setup, placement = SystemSource(path, options.cluster, name, problem, options.serving).from_plan(path)
    difference = model_difference(setup.model, model)
    if difference:
        raise InputError(f"the plan is for another model, {setup.model.name}: {difference}", file=str(path))
    return setup.cluster, setup.model, placement, setup.traffic


def model_difference(planned: ModelSpec, found: ModelSpec) -> str:
    """Return how the model of a plan differs from the one that is to be served; empty when it's the same."""
    for what in ("num_layers", "hidden_size", "vocab_size"):
        if getattr(planned, what) != getattr(found, what):
            return f"{what} is {getattr(planned, what)} there and {getattr(found, what)} here"
    for index, (one, other) in enumerate(zip(planned.layers, found.layers, strict=True)):
        for what in ("num_heads", "num_kv_heads", "head_dim", "mlp_params", "window_tokens"):
            if getattr(one, what) != getattr(other, what):
                return f"{what} of layer {index} is {getattr(one, what)} there and {getattr(other, what)} here"
    if planned.weight_bits != found.weight_bits:
        return f"weights have {planned.weight_bits:g} bits there and {found.weight_bits:g} here"
    return ""


def placed(cluster: Cluster, model: ModelSpec, traffic: TrafficProfile, objective: str) -> Placement:
    """Return slob's placement; raises InputError with the reason when there is none."""
    found = try_place(cluster, model, traffic, objective)
    if isinstance(found, str):
        raise InputError(f"slob finds no placement of {model.name} on {cluster.name}: {found}")
    return found


def try_place(cluster: Cluster, model: ModelSpec, traffic: TrafficProfile, objective: str) -> Placement | str:
    """Return slob's placement on single cards, or why there is none."""
    goal: Objective = IntervalObjective(1) if objective == "latency" else ThroughputObjective.for_traffic(traffic)
    table = build_table(single_cards(cluster), model, traffic)
    solved = make_planner("slob").solve(PlacementInstance(table, goal, f"{cluster.name}/{model.name}/{goal.name}"))
    return solved.placement or solved.message or "it doesn't fit"


def single_cards(cluster: Cluster) -> Cluster:
    """Return the cluster without tensor-parallel groups, which the runtime can't run."""
    nodes = tuple(replace(node, tp_degrees=(1,)) for node in cluster.nodes)
    return replace(cluster, nodes=nodes, overrides=dict(cluster.overrides))


def local_cluster(torch_device: str) -> Cluster:
    """Return a cluster of one device of this machine, to serve a model whole; its speed is a guess and decides nothing.

    The numbers are those of a desktop processor; memory is what the machine has.
    """
    memory = psutil.virtual_memory().total
    device = Device(LOCAL, torch_device, memory, 1e12, 40e9)
    return Cluster("local", (Node("local", (device,)),), Link(1e9, 1e-4), Link(1e10, 1e-5))


def _places(options: ServeOptions, cluster: Cluster) -> dict[str, WorkerPlace]:
    entries: tuple[WorkerEntry, ...] = () if options.workers is None else load_workers(options.workers)
    places = {
        entry.device: WorkerPlace(
            entry.torch, Emulation(entry.slowdown, entry.memory_bytes), entry.host, entry.port
        )
        for entry in entries
    }  # fmt: skip
    for name, torch_device in options.devices.items():
        known = places.get(name, WorkerPlace())
        places[name] = replace(known, torch_device=torch_device)
    names = {device.name for device in cluster.devices}
    for name in places:
        if name not in names:
            where = "--on" if options.workers is None or name in options.devices else str(options.workers)
            raise InputError(f"found device {name!r}{nearest(name, sorted(names))}", key=where)
    return places


def check_profiles(deployment: Deployment) -> None:
    """Raise InputError when a device of the plan was measured on other hardware than it runs on here."""
    cards = {card for pipeline in deployment.placement.pipelines for card in pipeline.cards}
    for card in sorted(cards):
        device = deployment.cluster.devices[card]
        place = deployment.place(device.name)
        if device.measured is not None and place.host is None:
            found = find_hardware(place.torch_device, threads=device.measured.hardware.threads)
            try:
                check_hardware(device.measured, found)
            except InputError as error:
                raise error.located(key=device.name) from error


def engine_of(
    what: Deploying, codec: TextCodec, executor: Executor, *, recorder: Recorder | None = None, recovers: bool = True
) -> Engine:
    """Return an engine that will serve a deployment with an executor, not started yet."""
    options, deployment = what.options, what.deployment
    num_pipelines = len(deployment.placement.pipelines)

    def replan(cluster: Cluster, model: ModelSpec) -> Placement | None:
        found = try_place(cluster, model, what.traffic, options.objective)
        return None if isinstance(found, str) else found

    return Engine(
        executor,
        lambda capacities: deployment.build(capacities, options.make_policy),
        make_dispatcher(options.dispatcher, options.dispatcher_params),
        codec,
        EngineOptions(options.policy, options.dispatcher if num_pipelines > 1 else None, options.is_padded),
        recover=deployment.recovery(replan, options.make_policy) if recovers else None,
        recorder=recorder,
    )
