"""Keys of a profile file; see :mod:`slob_opt.problem.files.profile_file`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slob_opt.problem.files.checking import Latency, Size, StrictSchema, VersionedSchema

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TimeSchema(StrictSchema):
    """A measured time a unit of work, and its standard error."""

    time: Latency
    error: Latency


class SlopeSchema(TimeSchema):
    """Time a token or row, from the one after so many on."""

    after: int = Field(ge=0)


class TimesSchema(StrictSchema):
    """The parts of a stage's time, see :mod:`slob_opt.cost.profiled`."""

    step: TimeSchema
    layer: TimeSchema
    layer_tokens: list[SlopeSchema] = Field(min_length=1)
    decode_row: TimeSchema
    chunk_row: TimeSchema
    kv_token: TimeSchema
    pair: TimeSchema
    embedding: TimeSchema
    embedding_token: TimeSchema
    head: TimeSchema
    head_rows: list[SlopeSchema] = Field(min_length=1)


class MeasuredModelSchema(StrictSchema):
    """The model that was measured."""

    name: str
    dtype: Literal["float32", "bfloat16", "float16"]
    num_layers: Count
    hidden_size: Count
    vocab_size: Count
    attn_params: Count
    mlp_params: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count


class HardwareSchema(StrictSchema):
    """What it was measured on."""

    kind: Literal["cpu", "cuda"]
    name: str = Field(min_length=1)
    threads: Count
    torch: str


class FitSchema(StrictSchema):
    """Relative errors of the fit."""

    num_measurements: Count
    median_error: Share
    p95_error: Share
    held_out_median_error: Share
    held_out_p95_error: Share


class ProfileSchema(VersionedSchema):
    """A whole profile file."""

    kind: Literal["slob-profile"]
    model: MeasuredModelSchema
    hardware: HardwareSchema
    clock: Literal["cpu", "wall", "cuda"]
    wall_ratio: Ratio
    framework_memory: Size | None = None
    times: TimesSchema
    fit: FitSchema
