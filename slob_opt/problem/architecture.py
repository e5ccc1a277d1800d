"""From the widths of a transformer to its model: parameters, active parameters and KV elements of every layer."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.problem.model import LayerSpec, ModelSpec

MAX_LAYERS = 10_000
"""Most layers of a model. Chosen: forty times today's deepest, and far below what would fill the memory."""


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Mixture of experts in the feed-forward blocks.

    Attributes
    ----------
    num_experts, top_k
        Routed experts of a layer, and how many of them one token passes through.
    expert_ffn_size
        Inner width of one routed expert, elements.
    shared_ffn_size
        Inner width of all shared experts together, elements; 0 when there are none.
    has_shared_gate
        Whether the shared expert's output is gated by a ``(hidden, 1)`` projection.
    dense_layers
        Indices of the layers with a dense feed-forward block of `Architecture.ffn_size` instead.
    """

    num_experts: int
    top_k: int
    expert_ffn_size: int
    shared_ffn_size: int = 0
    has_shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise InputError(f"top_k is {self.top_k} of {self.num_experts} experts, expected 1 to {self.num_experts}")
        if self.expert_ffn_size < 1 or self.shared_ffn_size < 0:
            raise InputError("expert_ffn_size starts at 1 and shared_ffn_size at 0")


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values are cached compressed.

    Attributes
    ----------
    kv_lora_rank, qk_rope_head_dim
        Cached elements per token and layer: the compressed vector and the shared rotary key.
    qk_nope_head_dim, v_head_dim
        Width of a head's keys without the rotary part, and of its values.
    q_lora_rank
        Width of the compressed queries; ``None`` projects queries directly.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    def __post_init__(self) -> None:
        widths = (self.kv_lora_rank, self.qk_rope_head_dim, self.qk_nope_head_dim, self.v_head_dim)
        if min(widths) < 1 or (self.q_lora_rank is not None and self.q_lora_rank < 1):
            raise InputError("the widths of latent attention start at 1")


@dataclass(frozen=True, slots=True)
class Architecture:
    """Widths and switches that fix a decoder-only transformer's parameter count.

    Attributes
    ----------
    name
        Name of the model.
    hidden_size, ffn_size, vocab_size
        Width of the residual stream and of the (dense) feed-forward block, and rows of the embedding.
    num_layers, num_heads, num_kv_heads, head_dim
        Transformer layers; query heads, key/value heads and their size.
    is_gated
        Whether the feed-forward block has three matrices (SwiGLU) and not two.
    has_tied_embeddings
        Whether the head is the embedding.
    has_norm_bias
        LayerNorm with weight and bias (2 h) instead of RMSNorm (h).
    norms_per_layer
        Norms of one layer that are as wide as the hidden size.
    has_final_norm, has_embedding_norm
        A norm before the head (most), one after the embedding (BLOOM).
    has_qkv_bias, has_out_bias, has_mlp_bias
        Biases of the attention's inputs, of its output, and of the feed-forward block.
    qk_norm
        ``"head"``: norms of one head's width on queries and keys (Qwen3, Gemma-3); ``"width"``: over all heads
        (OLMo-2); ``None``: none.
    learned_positions
        Rows of a learned position table; 0 with rotary or ALiBi positions.
    window_pattern
        Attention window of each layer, tokens, repeated through the layers; ``None`` is full attention.
    experts, latent
        Mixture of experts and latent attention; ``None`` when the model has none.
    weight_bits, max_position, sources, uncertain
        As in :class:`~slob_opt.problem.model.ModelSpec`.
    """

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    is_gated: bool = True
    has_tied_embeddings: bool = False
    has_norm_bias: bool = False
    norms_per_layer: int = 2
    has_final_norm: bool = True
    has_embedding_norm: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    qk_norm: str | None = None
    learned_positions: int = 0
    window_pattern: tuple[int | None, ...] = (None,)
    experts: ExpertShape | None = None
    latent: LatentShape | None = None
    weight_bits: float = 16
    max_position: int | None = None
    sources: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of model {self.name} is {getattr(self, name)}, expected at least 1")
        if self.num_layers > MAX_LAYERS:
            raise InputError(f"num_layers of model {self.name} is {self.num_layers}, expected at most {MAX_LAYERS}")
        if self.qk_norm not in (None, "head", "width"):
            raise InputError(f"qk_norm of model {self.name} is {self.qk_norm!r}, expected head, width or nothing")
        pattern = self.window_pattern
        if not pattern or any(w is not None and w < 1 for w in pattern):
            raise InputError(f"attention windows of model {self.name} are {pattern}, expected full or at least 1 token")
        if len(pattern) > self.num_layers:
            raise InputError(f"{len(pattern)} attention windows for the {self.num_layers} layers of model {self.name}")


def build_model(shape: Architecture) -> ModelSpec:
    """Return the model with these widths.

    Norms count with the attention block, the router with the active feed-forward parameters, the learned positions and
    the embedding norm with the embedding, the final norm with the head. A tied head is counted in ``head_params`` as
    well, since a last stage that isn't also the first stores its own copy.
    """
    norm = shape.hidden_size * (2 if shape.has_norm_bias else 1)
    embedding = shape.vocab_size * shape.hidden_size
    dense = _mlp_params(shape, shape.ffn_size)
    kinds = {window: _layer(shape, norm, dense, dense, window) for window in shape.window_pattern}
    routed = dict(kinds)
    if shape.experts is not None:
        total, active = _expert_params(shape, shape.experts)
        routed = {window: _layer(shape, norm, total, active, window) for window in shape.window_pattern}
    dense_layers = frozenset(shape.experts.dense_layers) if shape.experts is not None else frozenset()
    pattern = shape.window_pattern
    return ModelSpec(
        name=shape.name,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        layers=tuple(
            (kinds if i in dense_layers else routed)[pattern[i % len(pattern)]] for i in range(shape.num_layers)
        ),
        embedding_params=embedding
        + shape.learned_positions * shape.hidden_size
        + (norm if shape.has_embedding_norm else 0),
        head_params=embedding + (norm if shape.has_final_norm else 0),
        has_tied_embeddings=shape.has_tied_embeddings,
        weight_bits=shape.weight_bits,
        max_position=shape.max_position,
        sources=shape.sources,
        uncertain=shape.uncertain,
    )


def _mlp_params(shape: Architecture, ffn_size: int) -> int:
    """Return the parameters of one feed-forward block: 3 h f gated, else 2 h f, with biases."""
    bias = (2 if shape.is_gated else 1) * ffn_size + shape.hidden_size if shape.has_mlp_bias else 0
    return (3 if shape.is_gated else 2) * shape.hidden_size * ffn_size + bias


def _expert_params(shape: Architecture, experts: ExpertShape) -> tuple[int, int]:
    """Return all and the active parameters of a mixture-of-experts block, router included."""
    one = _mlp_params(shape, experts.expert_ffn_size)
    always = shape.hidden_size * (experts.num_experts + (1 if experts.has_shared_gate else 0))
    if experts.shared_ffn_size:
        always += _mlp_params(shape, experts.shared_ffn_size)
    return always + experts.num_experts * one, always + experts.top_k * one


def _attention_params(shape: Architecture) -> int:
    hidden, heads, kv_heads, width = shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim
    latent = shape.latent
    if latent is not None:
        rank, key = latent.kv_lora_rank, latent.qk_nope_head_dim + latent.qk_rope_head_dim
        if latent.q_lora_rank is None:
            queries = hidden * heads * key
        else:
            queries = hidden * latent.q_lora_rank + latent.q_lora_rank * (1 + heads * key)
        compress = hidden * (rank + latent.qk_rope_head_dim) + rank
        expand = rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        return queries + compress + expand + heads * latent.v_head_dim * hidden
    params = 2 * hidden * heads * width + 2 * hidden * kv_heads * width
    if shape.has_qkv_bias:
        params += (heads + 2 * kv_heads) * width
    if shape.has_out_bias:
        params += hidden
    if shape.qk_norm is not None:
        params += 2 * width if shape.qk_norm == "head" else (heads + kv_heads) * width
    return params


def _layer(shape: Architecture, norm: int, total: int, active: int, window: int | None) -> LayerSpec:
    latent = shape.latent
    return LayerSpec(
        attn_params=_attention_params(shape) + shape.norms_per_layer * norm,
        mlp_params=total,
        active_mlp_params=None if active == total else active,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        window_tokens=window,
        kv_elems_per_token=None if latent is None else latent.kv_lora_rank + latent.qk_rope_head_dim,
    )
