"""Between planning and ``plan.json``: a certified result as a file's content, and that content as a claim to check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from slob_opt.cost.table import CostTable
from slob_opt.errors import InputError
from slob_opt.planning.certify import Certificate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective, Objective, ThroughputObjective
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.planning.witness_json import witness_from_json, witness_to_json
from slob_opt.problem.files.plan_file import PlanCertificate, PlanFile, PlanPipeline, PlanStage, Scalar
from slob_opt.problem.placement import Pipeline, Placement, Stage


def plan_record(
    result: SolveResult,
    certificate: Certificate,
    instance: PlacementInstance,
    *,
    inputs: Mapping[str, Any] | None = None,
    fingerprints: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    commit: str | None = None,
    created: str | None = None,
) -> PlanFile:
    """Return the content of a plan file for a certified result.

    Parameters
    ----------
    result, certificate, instance
        The claim, what was re-checked, and what it was planned for.
    inputs
        See :func:`slob_opt.problem.files.plan_file.plan_inputs`; ``None`` leaves them out.
    fingerprints
        Of cluster, model and traffic; those of cost table and instance are added.
    versions, commit, created
        Versions of programs, commit of the code, ISO 8601 time; ``None`` leaves them out.
    """
    table = instance.table
    sign = -1 if instance.is_throughput else 1
    numerator = None if certificate.numerator is None else str(sign * int(certificate.numerator))
    proof = PlanCertificate(
        bound_status=certificate.bound_status,
        witness=None if result.witness is None else witness_to_json(result.witness),
        numerator=numerator,
        denominator=certificate.denominator,
        reasons=certificate.reasons,
        violations=certificate.violations,
    )
    own = {"cost_table": table.fingerprint, "instance": instance.fingerprint}
    return PlanFile(
        pipelines=() if result.placement is None else _pipelines(result.placement, table),
        name=instance.name,
        num_layers=table.num_layers,
        objective=objective_to_json(instance.objective),
        unit="tokens/s" if instance.is_throughput else "s",
        value=_natural(result.objective, sign),
        bound=_natural(result.bound, sign),
        gap=certificate.gap,
        status=str(certificate.status),
        fingerprints={**(fingerprints or {}), **own},
        inputs=inputs,
        certificate=proof,
        planner=result.planner,
        seed=result.limits.seed,
        limits={key: value for key, value in asdict(result.limits).items() if key != "seed"},
        versions=versions or {},
        commit=commit,
        created=created,
    )


def _natural(value: float | None, sign: int) -> float | None:
    """Return a figure in natural units; ``None`` when there is none or it is infinite."""
    return None if value is None or not math.isfinite(value) else sign * value + 0.0


def _pipelines(placement: Placement, table: CostTable) -> tuple[PlanPipeline, ...]:
    found = []
    for pipeline in placement.pipelines:
        stages = []
        for stage in pipeline.stages:
            device = table.device_of_cards.get(frozenset(stage.cards))
            if device is None:
                raise InputError(f"cards {stage.cards} are no device or tensor-parallel group of this cluster")
            stages.append(PlanStage(table.device_names[device], stage.first, stage.end, table.device_cards[device]))
        found.append(PlanPipeline(tuple(stages), pipeline.num_micro_batches, pipeline.batch_size))
    return tuple(found)


def objective_to_json(objective: Objective) -> Mapping[str, Scalar]:
    """Return an objective's kind and parameters as plain JSON."""
    kind = "interval" if isinstance(objective, IntervalObjective) else "throughput"
    return {"kind": kind, **asdict(objective)}


def objective_from_json(data: Mapping[str, Any]) -> Objective:
    """Return the objective in plain JSON.

    Raises
    ------
    InputError
        When the kind is unknown or a parameter belongs to the other kind.
    """
    kinds: dict[str, type[Objective]] = {"interval": IntervalObjective, "throughput": ThroughputObjective}
    given = {key: value for key, value in data.items() if key != "kind"}
    kind = kinds.get(str(data.get("kind")))
    if kind is None:
        raise InputError(f"found {data.get('kind')!r}, expected one of {', '.join(kinds)}", key="objective.kind")
    known = set(kind.__dataclass_fields__)
    for key in given:
        if key not in known:
            message = f"not a parameter of {data['kind']}, which has {', '.join(sorted(known))}"
            raise InputError(message, key=f"objective.{key}")
    return kind(**given)


def placement_of(plan: PlanFile, table: CostTable, *, file: str = "plan.json") -> Placement | None:
    """Return the placement in a plan file; ``None`` when the file records that there is none.

    Raises
    ------
    InputError
        When a device is not in the table, its cards are others, or the layers are not those of the model.
    """
    if not plan.pipelines:
        return None
    device_of_name = {name: d for d, name in enumerate(table.device_names)}
    pipelines = []
    for p, item in enumerate(plan.pipelines):
        done = item.stages[-1].end
        if done != table.num_layers:
            counts = " + ".join(str(s.end - s.first) for s in item.stages)
            message = f"the stages execute {counts} = {done} layers, the model has {table.num_layers}"
            raise InputError(message, file=file, key=f"pipelines[{p}].stages")
        stages = []
        for s, stage in enumerate(item.stages):
            device = device_of_name.get(stage.device)
            key = f"pipelines[{p}].stages[{s}]"
            if device is None:
                raise InputError(_unknown(stage.device, table.device_names), file=file, key=f"{key}.device")
            cards = table.device_cards[device]
            if stage.cards is not None and sorted(stage.cards) != sorted(cards):
                message = f"found cards {list(stage.cards)}, device {stage.device} has {list(cards)}"
                raise InputError(message, file=file, key=f"{key}.cards")
            stages.append(Stage(cards, stage.first, stage.end))
        pipelines.append(Pipeline(tuple(stages), item.num_micro_batches, item.batch_size))
    return Placement(tuple(pipelines))


def _unknown(name: str, known: Sequence[str]) -> str:
    """Return what is wrong with a device's name, with the nearest known ones."""
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    if near:
        return f"found {name!r}; did you mean {near[0]!r}?"
    return f"found {name!r}, known are {', '.join(known[:8])}" + (", ..." if len(known) > 8 else "")


def claim_of(plan: PlanFile, instance: PlacementInstance, *, file: str = "plan.json") -> SolveResult:
    """Return what a plan file claims, to be certified against an instance.

    What a hand-made plan does not claim is filled in as modestly as possible: status FEASIBLE, no bound, and a value
    that the certificate recomputes.

    Raises
    ------
    InputError
        When the plan does not belong to the instance (cost table, objective) or its witness is damaged.
    """
    written = plan.fingerprints.get("cost_table")
    if written is not None and written != instance.table.fingerprint:
        message = f"the plan was made for cost table {written[:12]}, this one is {instance.table.fingerprint[:12]}"
        raise InputError(message, file=file, key="fingerprints.cost_table")
    if plan.objective is not None:
        try:
            objective = objective_from_json(plan.objective)
        except InputError as error:
            raise error.located(file=file) from error
        if objective != instance.objective:
            message = f"the plan was made for {objective}, expected {instance.objective}"
            raise InputError(message, file=file, key="objective")
    expected = "tokens/s" if instance.is_throughput else "s"
    if plan.unit is not None and plan.unit != expected:
        raise InputError(f"found {plan.unit!r}, this objective has {expected!r}", file=file, key="unit")
    sign = -1 if instance.is_throughput else 1
    witness = None
    if plan.certificate is not None and plan.certificate.witness is not None:
        try:
            witness = witness_from_json(plan.certificate.witness)
        except InputError as error:
            key = "certificate.witness" + (f".{error.key}" if error.key else "")
            raise InputError(error.message, file=file, key=key) from error
    placement = placement_of(plan, instance.table, file=file)
    default = Status.UNKNOWN if placement is None else Status.FEASIBLE
    return SolveResult(
        planner=plan.planner or "by hand",
        status=default if plan.status is None else Status(plan.status),
        placement=placement,
        objective=_natural(plan.value, sign),
        bound=_natural(plan.bound, sign),
        elapsed_s=0.0,
        witness=witness,
        limits=SolveLimits() if plan.seed is None else SolveLimits(seed=plan.seed),
    )
