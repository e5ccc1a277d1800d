"""A model as the planner sees it: parameters, KV bytes and FLOP per layer."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One transformer layer.

    Attributes
    ----------
    attn_params, mlp_params
        Parameters of the attention block (with norms) and of the feed-forward block (all experts).
    active_mlp_params
        Feed-forward parameters that one token passes through; ``None`` means all of `mlp_params` (dense).
    num_heads, num_kv_heads, head_dim
        Query heads, key/value heads and their size.
    window_tokens
        Sliding attention window, tokens; ``None`` is full attention.
    kv_elems_per_token
        Elements cached per token; ``None`` means ``2 * num_kv_heads * head_dim`` (latent attention caches fewer).
    weight_bytes
        Exact bytes of the layer's weights when known otherwise than from parameters and bits; ``None`` derives them.
    kv_bytes_per_token
        Exact bytes cached per token when known otherwise; ``None`` derives them.
    """

    attn_params: int
    mlp_params: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    active_mlp_params: int | None = None
    window_tokens: int | None = None
    kv_elems_per_token: int | None = None
    weight_bytes: int | None = None
    kv_bytes_per_token: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("attn_params", "mlp_params"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 0")
        for name in ("active_mlp_params", "window_tokens", "kv_elems_per_token", "weight_bytes", "kv_bytes_per_token"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name} is {value}, expected at least 0")
        if self.num_heads % self.num_kv_heads:
            raise InputError(f"{self.num_heads} heads do not divide into {self.num_kv_heads} KV heads")

    @property
    def num_params(self) -> int:
        """All parameters of the layer."""
        return self.attn_params + self.mlp_params

    @property
    def active_params(self) -> int:
        """Parameters that one token passes through."""
        active = self.mlp_params if self.active_mlp_params is None else self.active_mlp_params
        return self.attn_params + active

    @property
    def is_moe(self) -> bool:
        """Whether a token uses only part of the feed-forward parameters."""
        return self.active_mlp_params is not None and self.active_mlp_params < self.mlp_params


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model.

    Attributes
    ----------
    name
        Catalogue id or free name.
    hidden_size
        Width of the residual stream, elements.
    vocab_size
        Rows of embedding and head.
    layers
        In execution order; equal layers may be the same object.
    embedding_params, head_params
        Parameters of the input embedding (first stage) and of the output head with final norm (last stage).
    has_tied_embeddings
        Head and embedding are one tensor: a stage that holds both stores it once; apart, each stage stores it.
    weight_bits, kv_bits, activation_bits
        Bits per stored weight, per KV element, and per element sent between stages.
    max_position
        Longest context the model supports, tokens; ``None`` is unknown.
    sources, uncertain
        Where the facts come from, and which of them were not checked.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    embedding_params: int
    head_params: int
    has_tied_embeddings: bool = False
    weight_bits: float = 16
    kv_bits: float = 16
    activation_bits: int = 16
    max_position: int | None = None
    sources: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError(f"model {self.name} has no layers")
        for name in ("hidden_size", "vocab_size", "weight_bits", "kv_bits", "activation_bits"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} of model {self.name} is {getattr(self, name)}, expected above zero")
        for name in ("embedding_params", "head_params"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} of model {self.name} is {getattr(self, name)}, expected at least 0")

    @property
    def num_layers(self) -> int:
        """Number of transformer layers."""
        return len(self.layers)

    @property
    def tied_params(self) -> int:
        """Parameters that embedding and head share; without positions and final norm, which only one of them has."""
        if not self.has_tied_embeddings:
            return 0
        return min(self.embedding_params, self.head_params, self.vocab_size * self.hidden_size)

    @property
    def num_params(self) -> int:
        """All parameters, a tied tensor counted once."""
        ends = self.embedding_params + self.head_params - self.tied_params
        return ends + sum(layer.num_params for layer in self.layers)

    @property
    def has_identical_layers(self) -> bool:
        """Whether all layers are equal."""
        return all(layer == self.layers[0] for layer in self.layers)
