"""What may stand in a model file of our own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from slob_opt.errors import InputError
from slob_opt.problem.architecture import MAX_LAYERS
from slob_opt.problem.files.checking import Size, StrictSchema, VersionedSchema

Positive = Annotated[int, Field(ge=1, le=10**15)]
NonNegative = Annotated[int, Field(ge=0, le=10**15)]
Layers = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


def _window(value: object) -> int | None:
    """Return the tokens of an attention window; ``full`` is None, no window."""
    if value == "full":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"found {value!r}, expected a window of at least 1 token, or full")
    return value


Window = Annotated[int | None, BeforeValidator(_window)]
"""Attention window of a layer, tokens, or ``full``."""
Bits = Annotated[float, Field(gt=0, le=64, allow_inf_nan=False)]


class ExpertSchema(StrictSchema):
    """Mixture of experts, as in slob_opt.problem.architecture.ExpertShape."""

    num_experts: Positive
    top_k: Positive
    expert_ffn_size: Positive
    shared_ffn_size: NonNegative = 0
    has_shared_gate: bool = False
    dense_layers: list[NonNegative] = Field(default_factory=list)


class LatentSchema(StrictSchema):
    """Multi-head latent attention, as in slob_opt.problem.architecture.LatentShape."""

    kv_lora_rank: Positive
    qk_rope_head_dim: Positive
    qk_nope_head_dim: Positive
    v_head_dim: Positive
    q_lora_rank: Positive | None = None


class LayerSchema(StrictSchema):
    """`count` equal layers, by their parameters or by their bytes."""

    count: Layers = 1
    attn_params: NonNegative | None = None
    mlp_params: NonNegative | None = None
    active_mlp_params: NonNegative | None = None
    weights: Size | None = None
    kv_per_token: Size | None = None
    num_heads: Positive | None = None
    num_kv_heads: Positive | None = None
    head_dim: Positive | None = None
    window: Window = None


class ModelSchema(VersionedSchema):
    """A whole model file: widths, or `layers` one by one."""

    name: str | None = None
    hidden_size: Positive
    vocab_size: Positive
    num_layers: Layers | None = None
    num_heads: Positive | None = None
    num_kv_heads: Positive | None = None
    head_dim: Positive | None = None
    ffn_size: Positive | None = None
    is_gated: bool = True
    has_tied_embeddings: bool = False
    norm: Literal["rms", "layernorm"] = "rms"
    norms_per_layer: NonNegative = 2
    has_embedding_norm: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    qk_norm: Literal["head", "width"] | None = None
    learned_positions: NonNegative = 0
    attention: Annotated[list[Window], Field(min_length=1)] | None = None
    experts: ExpertSchema | None = None
    latent: LatentSchema | None = None
    layers: Annotated[list[LayerSchema], Field(min_length=1, max_length=MAX_LAYERS)] | None = None
    embedding: Size | None = None
    head: Size | None = None
    weight_bits: Bits = 16.0
    kv_bits: Bits = 16.0
    activation_bits: Annotated[int, Field(ge=1, le=64)] = 16
    max_position: Positive | None = None
    sources: list[str] = Field(default_factory=list)
    uncertain: list[str] = Field(default_factory=list)
