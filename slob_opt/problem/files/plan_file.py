"""``plan.json``: a placement with its claim, its proof and its origin, strict and self-contained.

A plan that a person wrote needs ``pipelines`` only, each stage with a device and ``layers: [first, end]`` or
``num_layers``. The file keeps natural units: seconds for an interval, output tokens/s for a throughput.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from slob_opt.errors import InputError
from slob_opt.problem.files.checking import check
from slob_opt.problem.files.documents import read_text, write_whole
from slob_opt.problem.files.plan_schema import CertificateSchema, PipelineSchema, PlanSchema, Unit

Scalar = int | float | str | bool | None
C = TypeVar("C")
M = TypeVar("M")
T = TypeVar("T")


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage.

    Attributes
    ----------
    device
        Name of the planning device: a card, or a tensor-parallel group.
    first, end
        Half-open range of layers.
    cards
        Indices of the device's cards; ``None`` leaves them to the name.
    """

    device: str
    first: int
    end: int
    cards: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PlanPipeline:
    """One pipeline: stages in execution order, K micro-batches in flight, b sequences each."""

    stages: tuple[PlanStage, ...]
    num_micro_batches: int = 1
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class PlanCertificate:
    """What was re-checked when the plan was written.

    Attributes
    ----------
    bound_status
        ``"verified"``, ``"claimed"``, ``"none"`` or ``"refuted"``.
    witness
        Plain JSON of the bound's witness; ``None`` when there is none.
    numerator, denominator
        The exact value in natural units as a fraction, decimal digits; ``None`` when it could not be computed.
    reasons, violations
        One sentence each.
    """

    bound_status: str
    witness: Mapping[str, Any] | None = None
    numerator: str | None = None
    denominator: str | None = None
    reasons: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanFile:
    """Content of a ``plan.json``; whatever a hand-made plan leaves out is ``None`` or empty.

    Attributes
    ----------
    pipelines
        The placement; empty when the file records that there is none.
    name
        Of the instance.
    num_layers
        Layers of the model; every pipeline executes so many.
    objective
        ``kind`` (``"interval"`` or ``"throughput"``) and the objective's parameters.
    unit
        Of `value` and `bound`: ``"s"`` or ``"tokens/s"``.
    value, bound, gap
        In natural units; the gap is relative.
    status
        OPTIMAL, FEASIBLE, INFEASIBLE or UNKNOWN.
    fingerprints
        SHA-256, hex, by ``cluster``, ``model``, ``traffic``, ``cost_table``, ``instance``.
    inputs
        Plain JSON by ``cluster``, ``model``, ``traffic``, ``options``: enough to check the plan alone.
    certificate
        What was re-checked.
    planner, seed, limits, versions, commit, created
        Origin: method, seed, limits of the solve, versions of programs, commit of the code, ISO 8601 time.
    """

    pipelines: tuple[PlanPipeline, ...]
    name: str | None = None
    num_layers: int | None = None
    objective: Mapping[str, Scalar] | None = None
    unit: Unit | None = None
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    status: str | None = None
    fingerprints: Mapping[str, str] = field(default_factory=_nothing)
    inputs: Mapping[str, Any] | None = None
    certificate: PlanCertificate | None = None
    planner: str | None = None
    seed: int | None = None
    limits: Mapping[str, Scalar] = field(default_factory=_nothing)
    versions: Mapping[str, str] = field(default_factory=_nothing)
    commit: str | None = None
    created: str | None = None


def plan_to_json(plan: PlanFile) -> str:
    """Return the text of a plan file; the same plan gives the same bytes.

    Examples
    --------
    >>> plan = PlanFile((PlanPipeline((PlanStage("a", 0, 4),)),), num_layers=4)
    >>> plan_from_json(plan_to_json(plan)) == plan
    True
    """
    data: dict[str, Any] = {
        "schema_version": 1,
        "name": plan.name,
        "objective": None if plan.objective is None else dict(plan.objective),
        "status": plan.status,
        "unit": plan.unit,
        "value": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "num_layers": plan.num_layers,
        "pipelines": [_pipeline_to_json(p) for p in plan.pipelines],
        "certificate": None if plan.certificate is None else _certificate_to_json(plan.certificate),
        "planner": plan.planner,
        "seed": plan.seed,
        "limits": dict(plan.limits),
        "versions": dict(plan.versions),
        "commit": plan.commit,
        "created": plan.created,
        "fingerprints": dict(plan.fingerprints),
        "inputs": None if plan.inputs is None else dict(plan.inputs),
    }
    given = {key: value for key, value in data.items() if value is not None and value != {}}
    try:
        return json.dumps(given, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"the plan holds something that JSON can't: {error}") from error


def _pipeline_to_json(pipeline: PlanPipeline) -> dict[str, Any]:
    stages = []
    for stage in pipeline.stages:
        item: dict[str, Any] = {"device": stage.device, "layers": [stage.first, stage.end]}
        if stage.cards is not None:
            item["cards"] = list(stage.cards)
        stages.append(item)
    return {"stages": stages, "num_micro_batches": pipeline.num_micro_batches, "batch_size": pipeline.batch_size}


def _certificate_to_json(certificate: PlanCertificate) -> dict[str, Any]:
    return {
        "bound_status": certificate.bound_status,
        "numerator": certificate.numerator,
        "denominator": certificate.denominator,
        "reasons": list(certificate.reasons),
        "violations": list(certificate.violations),
        "witness": None if certificate.witness is None else dict(certificate.witness),
    }


def plan_from_json(text: str, *, file: str = "plan.json", num_layers: int | None = None) -> PlanFile:
    """Return the plan in a text.

    Parameters
    ----------
    text
        JSON.
    file
        Name for messages.
    num_layers
        Layers of the model; ``None`` takes the file's own ``num_layers``, and without that compares pipelines only.

    Raises
    ------
    InputError
        When the text is cut off or no JSON, a key is unknown, missing, twice there or of the wrong kind, a range of
        layers has a hole, or the layers of a pipeline do not add up to those of the model.
    """
    raw = check(PlanSchema, _parse(text, file), file=file)
    if num_layers is not None and raw.num_layers is not None and raw.num_layers != num_layers:
        raise InputError(
            f"the plan is for {raw.num_layers} layers, the model has {num_layers}", file=file, key="num_layers"
        )
    expected = num_layers if num_layers is not None else raw.num_layers
    pipelines = []
    for index, item in enumerate(raw.pipelines):
        pipeline = _pipeline_from(item, f"pipelines[{index}]", file)
        counts = [s.end - s.first for s in pipeline.stages]
        if expected is not None and sum(counts) != expected:
            total = f"{' + '.join(map(str, counts))} = {sum(counts)}"
            message = f"the stages execute {total} layers, the model has {expected}"
            raise InputError(message, file=file, key=f"pipelines[{index}].stages")
        expected = sum(counts)
        pipelines.append(pipeline)
    return PlanFile(
        pipelines=tuple(pipelines),
        name=raw.name,
        num_layers=raw.num_layers,
        objective=None if raw.objective is None else raw.objective.model_dump(exclude_unset=True),
        unit=raw.unit,
        value=raw.value,
        bound=raw.bound,
        gap=raw.gap,
        status=raw.status,
        fingerprints=raw.fingerprints.model_dump(exclude_none=True),
        inputs=None if raw.inputs is None else raw.inputs.model_dump(),
        certificate=None if raw.certificate is None else _certificate_from(raw.certificate),
        planner=raw.planner,
        seed=raw.seed,
        limits=raw.limits,
        versions=raw.versions,
        commit=raw.commit,
        created=raw.created,
    )


def _parse(text: str, file: str) -> dict[str, Any]:
    """Return the top mapping of a JSON text."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for position, (key, _) in enumerate(pairs):
            if any(key == other for other, _ in pairs[:position]):
                raise InputError(f"key {key!r} stands twice in one object", file=file, key=key)
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise InputError(f"found {constant}, expected a finite number", file=file)

    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()):
            raise InputError("the file ends in the middle; it is cut off or empty", file=file) from error
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not valid JSON: {error.msg} at {where}", file=file) from error
    except (RecursionError, ValueError) as error:
        raise error if isinstance(error, InputError) else InputError(f"not valid JSON: {error}", file=file) from error
    if not isinstance(data, dict):
        raise InputError("found no mapping at the top, expected the keys of a plan", file=file)
    return data


def _pipeline_from(raw: PipelineSchema, key: str, file: str) -> PlanPipeline:
    stages: list[PlanStage] = []
    at = 0
    for index, item in enumerate(raw.stages):
        where = f"{key}.stages[{index}]"
        if item.layers is None and item.num_layers is None:
            raise InputError("neither layers nor num_layers is given, expected one of them", file=file, key=where)
        first, end = item.layers if item.layers is not None else (at, at + (item.num_layers or 0))
        if first >= end:
            raise InputError(f"layers [{first}, {end}) are none, expected first < end", file=file, key=where)
        if first != at:
            message = f"the stage starts at layer {first}, the stages before it end at {at}"
            raise InputError(message, file=file, key=where)
        if item.num_layers is not None and end - first != item.num_layers:
            message = f"layers [{first}, {end}) are {end - first}, num_layers says {item.num_layers}"
            raise InputError(message, file=file, key=where)
        stages.append(PlanStage(item.device, first, end, None if item.cards is None else tuple(item.cards)))
        at = end
    return PlanPipeline(tuple(stages), raw.num_micro_batches, raw.batch_size)


def _certificate_from(raw: CertificateSchema) -> PlanCertificate:
    return PlanCertificate(
        raw.bound_status, raw.witness, raw.numerator, raw.denominator, tuple(raw.reasons), tuple(raw.violations)
    )


def read_plan(path: Path, *, num_layers: int | None = None) -> PlanFile:
    """Return the plan in a file; see :func:`plan_from_json` for what is refused."""
    return plan_from_json(read_text(path), file=str(path), num_layers=num_layers)


def write_plan(plan: PlanFile, path: Path) -> None:
    """Write a plan file, whole or not at all; see :func:`slob_opt.problem.files.documents.write_whole`."""
    write_whole(path, plan_to_json(plan))


def plan_inputs(
    cluster: C,
    model: M,
    traffic: T,
    options: Mapping[str, Any],
    *,
    encode_cluster: Callable[[C], Mapping[str, Any]],
    encode_model: Callable[[M], Mapping[str, Any]],
    encode_traffic: Callable[[T], Mapping[str, Any]],
) -> Mapping[str, Any]:
    """Return the ``inputs`` of a plan file as plain JSON, by functions that know the parts' own formats."""
    return {
        "cluster": dict(encode_cluster(cluster)),
        "model": dict(encode_model(model)),
        "traffic": dict(encode_traffic(traffic)),
        "options": dict(options),
    }


def read_inputs(
    plan: PlanFile,
    *,
    decode_cluster: Callable[[Mapping[str, Any]], C],
    decode_model: Callable[[Mapping[str, Any]], M],
    decode_traffic: Callable[[Mapping[str, Any]], T],
    file: str = "plan.json",
) -> tuple[C, M, T, Mapping[str, Any]]:
    """Return cluster, model, traffic and options that a plan file carries.

    Raises
    ------
    InputError
        When the plan carries none, or a part is damaged; the key says which.
    """
    if plan.inputs is None:
        raise InputError("there are none; give cluster, model and traffic beside the plan", file=file, key="inputs")
    return (
        _decoded(plan.inputs["cluster"], decode_cluster, "cluster", file),
        _decoded(plan.inputs["model"], decode_model, "model", file),
        _decoded(plan.inputs["traffic"], decode_traffic, "traffic", file),
        plan.inputs["options"],
    )


def _decoded(data: Mapping[str, Any], decode: Callable[[Mapping[str, Any]], C], part: str, file: str) -> C:
    """Return one part, with errors located inside the plan file."""
    try:
        return decode(data)
    except InputError as error:
        key = f"inputs.{part}" + (f".{error.key}" if error.key else "")
        raise InputError(error.message, file=file, key=key) from error
