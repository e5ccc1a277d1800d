"""Device memory in exact whole bytes: weights, KV, activations, embedding, head with logits.

Everything is per card. A tensor-parallel group of `degree` cards splits matrices and attention heads; what can't be
split (norms, KV heads beyond their number) is held by every card. Shares that don't divide are rounded up, so the sum
over the cards is never below the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from slob_opt.errors import InputError
from slob_opt.problem.device import Device
from slob_opt.problem.model import LayerSpec, ModelSpec

KV_MODES = ("safe", "tight")
"""``safe`` reserves the full context for sliding-window layers, as engines with one block pool for all layers do;
``tight`` reserves the window only, as engines with a pool for each kind of layer do."""

LOGIT_BYTES = 4
"""Bytes of a logit; engines sample in 32-bit floats."""

REPLICATED_WIDTHS = 12
"""Most parameters of a layer outside its matrices, in units of the hidden size: four norms with bias (8), biases of
the three input projections (3) and of the output projection (1)."""


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _to_bytes(elements: int, bits: float) -> int:
    """Return the bytes of packed elements, rounded up; exact for any bits a float can hold."""
    size = elements * Fraction(bits) / 8
    return _ceil_div(size.numerator, size.denominator)


def framework_bytes(device: Device, usual_bytes: int) -> int:
    """Return the bytes that the framework takes on a card: as measured with its profile, else the usual ones."""
    return usual_bytes if device.measured is None else device.measured.framework_bytes


def shard_params(model: ModelSpec, layer: LayerSpec, degree: int = 1) -> tuple[int, int, int]:
    """Return the parameters a card holds of the query/output part, the key/value part and the feed-forward part.

    Norms and biases (what `attn_params` has beyond its four matrices) are counted with the query/output part and kept
    whole on every card. A model whose attention isn't four plain matrices (multi-head latent attention) is split by
    the same shares.
    """
    heads, kv_heads = layer.num_heads, layer.num_kv_heads
    matrices = 2 * model.hidden_size * layer.head_dim * (heads + kv_heads)
    whole = min(max(0, layer.attn_params - matrices), REPLICATED_WIDTHS * model.hidden_size)
    split = layer.attn_params - whole
    key_value = split * kv_heads // (heads + kv_heads)
    query_output = split - key_value
    return (
        _ceil_div(query_output, degree) + whole,
        _ceil_div(key_value, min(degree, kv_heads)),
        _ceil_div(layer.mlp_params, degree),
    )


def weight_bytes(model: ModelSpec, layer: LayerSpec, degree: int = 1) -> int:
    """Return the bytes of a layer's weights on one card of a group."""
    share = sum(shard_params(model, layer, degree))
    if layer.weight_bytes is None:
        return _to_bytes(share, model.weight_bits)
    return _ceil_div(layer.weight_bytes * share, layer.num_params) if layer.num_params else layer.weight_bytes


def kv_bytes(model: ModelSpec, layer: LayerSpec, tokens: int, degree: int = 1) -> int:
    """Return the bytes that `tokens` cached tokens take in a layer on one card, without rounding to blocks.

    KV heads are split among the cards; beyond their number they are replicated. A latent cache
    (`kv_elems_per_token` other than ``2 * num_kv_heads * head_dim``) is held whole by every card.
    """
    plain = 2 * layer.num_kv_heads * layer.head_dim
    elements = plain if layer.kv_elems_per_token is None else layer.kv_elems_per_token
    cards = min(degree, layer.num_kv_heads) if elements == plain else 1
    if layer.kv_bytes_per_token is not None:
        return _ceil_div(tokens * layer.kv_bytes_per_token, cards)
    heads = _ceil_div(layer.num_kv_heads, cards)
    return _to_bytes(tokens * (2 * heads * layer.head_dim if elements == plain else elements), model.kv_bits)


def reserved_tokens(layer: LayerSpec, context_tokens: int, kv_mode: str = "safe", block_tokens: int = 16) -> int:
    """Return the tokens that a layer's KV cache reserves for one sequence, in whole blocks.

    Raises
    ------
    InputError
        When `kv_mode` is unknown or a count is below one.
    """
    if kv_mode not in KV_MODES:
        raise InputError(f"kv_mode is {kv_mode!r}, expected one of {', '.join(KV_MODES)}")
    if context_tokens < 1 or block_tokens < 1:
        raise InputError(f"context of {context_tokens} tokens in blocks of {block_tokens}, expected at least 1 each")
    tokens = context_tokens
    if kv_mode == "tight" and layer.window_tokens is not None:
        tokens = min(tokens, max(1, layer.window_tokens))
    return _ceil_div(tokens, block_tokens) * block_tokens


def kv_sequence_bytes(
    model: ModelSpec,
    layer: LayerSpec,
    context_tokens: int,
    degree: int = 1,
    *,
    kv_mode: str = "safe",
    block_tokens: int = 16,
) -> int:
    """Return the bytes that one sequence reserves in a layer on one card; raises as :func:`reserved_tokens`."""
    return kv_bytes(model, layer, reserved_tokens(layer, context_tokens, kv_mode, block_tokens), degree)


def embedding_bytes(model: ModelSpec, degree: int = 1) -> int:
    """Return the bytes of the input embedding on one card of the first stage."""
    return _to_bytes(_ceil_div(model.embedding_params, degree), model.weight_bits)


def head_weight_bytes(model: ModelSpec, degree: int = 1) -> int:
    """Return the bytes of the output head's weights on one card of the last stage."""
    return _to_bytes(_ceil_div(model.head_params, degree), model.weight_bits)


def logits_bytes(model: ModelSpec, rows: int) -> int:
    """Return the bytes of the logits of `rows` sequences; gathered for sampling, so whole on every card."""
    return LOGIT_BYTES * model.vocab_size * rows


def tied_saving_bytes(model: ModelSpec, degree: int = 1) -> int:
    """Return the bytes a card saves when it holds embedding and head and they are one tensor."""
    return _to_bytes(model.tied_params // degree, model.weight_bits)


def activation_bytes(model: ModelSpec, tokens: int, degree: int = 1) -> int:
    """Return the bytes of activations that are alive at the worst moment of an iteration of `tokens` tokens.

    That's the residual stream and its normalised copy, whole on every card, and the inner values of the wider of
    attention (queries, keys, values, output) and feed-forward (gate, up and their product), split among the cards.
    The widths follow from the parameters of the matrices divided by the hidden size.
    """
    inner = max(
        _ceil_div(max(layer.attn_params, layer.active_params - layer.attn_params), model.hidden_size)
        for layer in set(model.layers)
    )
    return _to_bytes(tokens * (2 * model.hidden_size + _ceil_div(inner, degree)), model.activation_bits)


@dataclass(frozen=True, slots=True)
class TokenCapacity:
    """How much of a growing need fits, stage by stage; a full stage stops the whole pipeline.

    Attributes
    ----------
    per_stage
        Units (tokens or sequences) that fit on each stage.
    """

    per_stage: tuple[int, ...]

    @property
    def total(self) -> int:
        """Units that fit on every stage at once: the minimum, since room elsewhere can't help."""
        return min(self.per_stage)

    @property
    def limiting_stage(self) -> int:
        """Index of the stage that sets the limit."""
        return self.per_stage.index(self.total)

    @property
    def spread(self) -> float:
        """Largest over smallest room: 1 is balanced; ``inf`` when a stage has no room at all."""
        return max(self.per_stage) / self.total if self.total else float("inf")


def token_capacity(free_bytes: Sequence[int], unit_bytes: Sequence[int]) -> TokenCapacity:
    """Return how many units each stage of a pipeline can hold.

    Parameters
    ----------
    free_bytes
        (stages,) bytes left on a card of each stage for the growing part; negative when it does not fit at all.
    unit_bytes
        (stages,) bytes of one unit on a card of each stage: layers times KV bytes of one token for tokens, of one
        sequence for sequences.

    Raises
    ------
    InputError
        When the lengths differ, there is no stage, or a unit has no size.

    Examples
    --------
    >>> token_capacity([3 * 2**30, 14 * 2**30], [16 * 2048, 32 * 2048]).total
    98304
    """
    if len(free_bytes) != len(unit_bytes) or not free_bytes:
        raise InputError(f"{len(free_bytes)} free and {len(unit_bytes)} unit sizes, expected one of each a stage")
    if min(unit_bytes) < 1:
        raise InputError(f"a unit of {min(unit_bytes)} bytes, expected at least 1")
    return TokenCapacity(tuple(max(0, free) // unit for free, unit in zip(free_bytes, unit_bytes, strict=True)))
