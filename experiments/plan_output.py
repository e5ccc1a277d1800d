"""Plans to files and back: what :mod:`slob_opt.problem.files.plan_file` keeps, filled from a comparison."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from experiments.comparison import Comparison, MethodOutcome
from experiments.plain_data import decode, encode
from experiments.problem_setup import ProblemOptions, ProblemSetup
from experiments.provenance import Provenance, collect
from experiments.registry import nearest
from slob_opt.cost.build import CostOptions, build_table
from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.planning.witness import Witness
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.files.plan_file import (
    PlanCertificate,
    PlanFile,
    PlanPipeline,
    PlanStage,
    plan_inputs,
    read_inputs,
)
from slob_opt.problem.files.plan_file import write_plan as write_plan_file
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline, Placement, Stage
from slob_opt.problem.traffic import TrafficProfile

_WITNESSES = {kind.__name__: kind for kind in get_args(Witness)}


def digest(value: object) -> str:
    """Return the SHA-256 of a part of the problem, hex, over its plain JSON."""
    return hashlib.sha256(json.dumps(encode(value), sort_keys=True).encode()).hexdigest()


def witness_to_json(witness: Witness) -> dict[str, Any]:
    """Return a witness as plain JSON with the name of its class as ``type``."""
    plain: dict[str, Any] = encode(witness)
    return {"type": type(witness).__name__, **plain}


def witness_from_json(data: Mapping[str, Any]) -> Witness:
    """Return the witness in a plan file.

    Raises
    ------
    InputError
        When the type is unknown or a key is damaged.
    """
    rest = dict(data)
    name = rest.pop("type", None)
    if name not in _WITNESSES:
        raise InputError(f"found {name!r}{nearest(str(name), _WITNESSES)}", key="certificate.witness.type")
    witness: Witness = decode(_WITNESSES[name], rest, "certificate.witness")
    return witness


def objective_to_json(objective: Objective) -> dict[str, int | float | str | bool | None]:
    """Return an objective as plain JSON with its kind."""
    kind = "interval" if isinstance(objective, IntervalObjective) else "throughput"
    return {"kind": kind, **{key: value for key, value in asdict(objective).items() if value is not None}}


def objective_from_json(data: Mapping[str, Any]) -> Objective:
    """Return the objective in a plan file; what is left out takes the objective's own default."""
    given = {key: value for key, value in data.items() if key != "kind" and value is not None}
    kind = IntervalObjective if data.get("kind") == "interval" else ThroughputObjective
    try:
        return kind(**given)
    except TypeError as error:
        raise InputError(
            f"keys {', '.join(given)} don't belong to a {data.get('kind')} objective", key="objective"
        ) from error


def plan_of(comparison: Comparison, outcome: MethodOutcome, provenance: Provenance) -> PlanFile:
    """Return the content of a plan file for one method's plan."""
    setup, result, certificate = comparison.setup, outcome.result, outcome.certificate
    table = setup.table
    numerator = certificate.numerator
    if numerator is not None and setup.instance.is_throughput:  # the file keeps natural units, certify minimises
        numerator = numerator.removeprefix("-") if numerator.startswith("-") else f"-{numerator}"
    placement = result.placement
    return PlanFile(
        pipelines=() if placement is None else pipelines_to_plan(table, placement),
        name=setup.instance.name,
        num_layers=table.num_layers,
        objective=objective_to_json(setup.instance.objective),
        unit="tokens/s" if setup.instance.is_throughput else "s",
        value=comparison.natural(result.objective),
        bound=comparison.natural(result.bound),
        gap=result.gap,
        status=result.status.value,
        fingerprints={
            "cluster": digest(setup.cluster),
            "model": digest(setup.model),
            "traffic": digest(setup.traffic),
            "cost_table": table.fingerprint,
            "instance": setup.instance.fingerprint,
        },
        inputs=plan_inputs(
            setup.cluster,
            setup.model,
            setup.traffic,
            encode(setup.cost_options),
            encode_cluster=encode,
            encode_model=encode,
            encode_traffic=encode,
        ),
        certificate=PlanCertificate(
            bound_status=certificate.bound_status,
            witness=None if result.witness is None else witness_to_json(result.witness),
            numerator=numerator,
            denominator=certificate.denominator,
            reasons=certificate.reasons,
            violations=certificate.violations,
        ),
        planner=outcome.method,
        seed=result.limits.seed,
        limits={
            "time_s": result.limits.time_s,
            "memory_bytes": result.limits.memory_bytes,
            "workers": result.limits.workers,
        },
        versions=dict(provenance.versions),
        commit=provenance.commit,
        created=provenance.created,
    )


def write_plan(path: Path, comparison: Comparison, outcome: MethodOutcome) -> None:
    """Write a method's plan to a file, whole or not at all; makes the folder.

    Raises
    ------
    InputError
        When the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder can't be made: {error.strerror}", file=str(path.parent)) from error
    write_plan_file(plan_of(comparison, outcome, collect()), path)


def pipelines_to_plan(table: CostTable, placement: Placement) -> tuple[PlanPipeline, ...]:
    """Return pipelines with device names."""

    def stage(given: Stage) -> PlanStage:
        device = table.device_of_cards[frozenset(given.cards)]
        return PlanStage(table.device_names[device], given.first, given.end, given.cards)

    return tuple(
        PlanPipeline(tuple(stage(s) for s in p.stages), p.num_micro_batches, p.batch_size) for p in placement.pipelines
    )


def placement_from_plan(table: CostTable, plan: PlanFile, file: str) -> Placement:
    """Return the placement in a plan file; devices are found by name, else by cards.

    Raises
    ------
    InputError
        When a device is unknown (the nearest is named), or its cards are others than the file says.
    """
    index = {name: d for d, name in enumerate(table.device_names)}
    pipelines = []
    for p, pipeline in enumerate(plan.pipelines):
        stages = []
        for s, stage in enumerate(pipeline.stages):
            where = f"pipelines[{p}].stages[{s}]"
            device = index.get(stage.device)
            if device is None:
                raise InputError(
                    f"no device {stage.device!r}{nearest(stage.device, index)}", file=file, key=f"{where}.device"
                )
            cards = table.device_cards[device]
            if stage.cards is not None and set(stage.cards) != set(cards):
                message = f"device {stage.device} has cards {list(cards)}, the plan says {list(stage.cards)}"
                raise InputError(message, file=file, key=f"{where}.cards")
            stages.append(Stage(cards, stage.first, stage.end))
        pipelines.append(Pipeline(tuple(stages), pipeline.num_micro_batches, pipeline.batch_size))
    return Placement(tuple(pipelines))


def setup_from_plan(plan: PlanFile, file: str) -> ProblemSetup:
    """Return the problem that a plan file carries.

    Raises
    ------
    InputError
        When the file carries no inputs or they are damaged.
    """
    cluster, model, traffic, given = read_inputs(
        plan,
        decode_cluster=lambda data: decode(Cluster, data),
        decode_model=lambda data: decode(ModelSpec, data),
        decode_traffic=lambda data: decode(TrafficProfile, data),
        file=file,
    )
    try:
        options = decode(CostOptions, given) if given else CostOptions()
    except InputError as error:
        raise InputError(error.message, file=file, key=f"inputs.options.{error.key}") from error
    objective = (
        ThroughputObjective.for_traffic(traffic) if plan.objective is None else objective_from_json(plan.objective)
    )
    table = build_table(cluster, model, traffic, options)
    name = plan.name or f"{cluster.name}/{model.name}/{objective.name}"
    said = ProblemOptions(cluster=file, model=file)
    return ProblemSetup(said, cluster, model, traffic, options, PlacementInstance(table, objective, name))


def result_from_plan(
    plan: PlanFile, placement: Placement | None, computed: float | None, is_throughput: bool
) -> SolveResult:
    """Return the claim that a plan file makes, minimised scale.

    Parameters
    ----------
    plan
        The file's content.
    placement
        Its placement; ``None`` when it records that there is none.
    computed
        Worth of the placement, taken where a hand-made plan claims nothing.
    is_throughput
        Whether values are rates.
    """
    sign = -1.0 if is_throughput else 1.0
    witness = None
    if plan.certificate is not None and plan.certificate.witness is not None:
        witness = witness_from_json(plan.certificate.witness)
    objective = computed if plan.value is None else sign * plan.value
    default = Status.FEASIBLE if placement is not None else Status.UNKNOWN
    return SolveResult(
        planner=plan.planner or "hand-made",
        status=default if plan.status is None else Status(plan.status),
        placement=placement,
        objective=objective if placement is not None else None,
        bound=None if plan.bound is None else sign * plan.bound,
        elapsed_s=0.0,
        witness=witness,
        limits=SolveLimits(seed=plan.seed or 0),
    )
