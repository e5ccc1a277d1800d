"""Keys of a plan file; see :mod:`slob_opt.problem.files.plan_file`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from slob_opt.problem.files.checking import StrictSchema, VersionedSchema

Unit = Literal["s", "tokens/s"]


class StageSchema(StrictSchema):
    """A stage: a device, and its layers as a range or as a number."""

    device: str
    layers: list[int] | None = Field(default=None, min_length=2, max_length=2)
    num_layers: int | None = Field(default=None, ge=1)
    cards: list[int] | None = None


class PipelineSchema(StrictSchema):
    """A pipeline."""

    stages: list[StageSchema] = Field(min_length=1)
    num_micro_batches: int = Field(default=1, ge=1)
    batch_size: int = Field(default=1, ge=1)


class ObjectiveSchema(StrictSchema):
    """What the plan is judged by; the keys depend on the kind."""

    kind: Literal["interval", "throughput"]
    in_flight: int | None = Field(default=None, ge=1)
    max_micro_batches: int | None = Field(default=None, ge=1)
    max_interval_s: float | None = Field(default=None, gt=0)
    max_in_flight: int | None = Field(default=None, ge=1)


class CertificateSchema(StrictSchema):
    """What was re-checked."""

    bound_status: Literal["verified", "claimed", "none", "refuted"]
    witness: dict[str, Any] | None = None
    numerator: str | None = Field(default=None, pattern=r"^-?[0-9]+$")
    denominator: str | None = Field(default=None, pattern=r"^[1-9][0-9]*$")
    reasons: list[str] = Field(default_factory=list)
    violations: list[str] = Field(default_factory=list)


class FingerprintSchema(StrictSchema):
    """SHA-256 of inputs, hex."""

    cluster: str | None = None
    model: str | None = None
    traffic: str | None = None
    cost_table: str | None = None
    instance: str | None = None


class InputsSchema(StrictSchema):
    """What is needed to check the plan alone."""

    cluster: dict[str, Any]
    model: dict[str, Any]
    traffic: dict[str, Any]
    options: dict[str, Any] = Field(default_factory=dict)


class PlanSchema(VersionedSchema):
    """A whole plan file."""

    pipelines: list[PipelineSchema]
    name: str | None = None
    num_layers: int | None = Field(default=None, ge=1)
    objective: ObjectiveSchema | None = None
    unit: Unit | None = None
    value: float | None = None
    bound: float | None = None
    gap: float | None = Field(default=None, ge=0)
    status: Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"] | None = None
    fingerprints: FingerprintSchema = FingerprintSchema()
    inputs: InputsSchema | None = None
    certificate: CertificateSchema | None = None
    planner: str | None = None
    seed: int | None = None
    limits: dict[str, int | float | str | bool | None] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    commit: str | None = None
    created: str | None = None
