"""Time of a layer, the embedding and the head on one card or tensor-parallel group.

A layer is four matrix products (query-key-value, output, gate and up, down), attention over cached tokens (bytes) and
over prefill tokens (FLOP), two all-reduces when it is split, and the engine's own time. Each matrix product takes
``t0 + ((flops / (compute_eff * peak)) ** p + (bytes / (mem_eff * bandwidth)) ** p) ** (1 / p)``.

References
----------
Williams, Waterman & Patterson (2009), "Roofline: an insightful visual performance model for multicore architectures",
CACM 52(4). Deviation: a p-norm instead of the maximum, because measured kernels round off the ridge.

A device with a measured profile takes all of these times from it, see :mod:`slob_opt.cost.profiled`.
"""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.cost import profiled
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.memory import head_weight_bytes, kv_bytes, shard_params, weight_bytes
from slob_opt.errors import InputError
from slob_opt.problem.device import Device, Link
from slob_opt.problem.model import LayerSpec, ModelSpec

GATE_UP_SHARE = 2 / 3
"""Share of the feed-forward parameters in the first of its two products: gate and up of three equal matrices."""


@dataclass(frozen=True, slots=True)
class CardGroup:
    """One card, or equal cards of one node that work as one.

    Attributes
    ----------
    device
        The card, or any of the equal cards.
    degree
        Number of cards.
    link
        Slowest link between two of the cards; ``None`` for a single card.
    """

    device: Device
    degree: int = 1
    link: Link | None = None

    def __post_init__(self) -> None:
        if self.degree < 1 or (self.degree > 1 and self.link is None):
            raise InputError(f"a group of {self.degree} cards needs at least one card, and a link between several")
        if self.degree > 1 and self.device.measured is not None:
            raise InputError(
                f"a tensor-parallel group of {self.degree} cards with measured times: they are of one card, so expected"
                " tensor-parallel degree 1"
            )


def gemm_s(device: Device, flops: float, num_bytes: float) -> float:
    """Return the time of one matrix product on one card, seconds."""
    profile = device.profile
    compute = flops / (profile.gemm_compute_eff * device.peak_flops)
    memory = num_bytes / (profile.gemm_mem_eff * device.bytes_per_s)
    longer, shorter = max(compute, memory), min(compute, memory)
    if longer == 0:
        return profile.gemm_t0_s
    # The longer one is taken out of the norm, so that no power under- or overflows.
    blend = 1 + (shorter / longer) ** profile.p_norm
    return float(profile.gemm_t0_s + longer * blend ** (1 / profile.p_norm))


def all_reduce_s(group: CardGroup, num_bytes: float) -> float:
    """Return the time to sum `num_bytes` over a group, seconds; zero on a single card.

    ``t0 + 2 (g - 1) / g * bytes / bandwidth``, the bandwidth-optimal ring; t0 is the device's, or the link's latency
    when that's longer.
    """
    if group.degree == 1 or group.link is None:
        return 0.0
    fixed = max(group.device.profile.comm_t0_s, group.link.latency_s)
    return fixed + 2 * (group.degree - 1) / group.degree * num_bytes / group.link.bytes_per_s


def _touched_share(layer: LayerSpec, tokens: int) -> float:
    """Share of the feed-forward weights that a batch reads: the expected number of distinct experts over all.

    With each token choosing a share a of the experts at random, an expert is left alone with (1 - a) ** tokens.
    Experts that every token uses are counted among the chosen; real routers are less even, so this is an upper value.
    """
    if not layer.is_moe or layer.active_mlp_params is None:
        return 1.0
    return 1.0 - (1.0 - layer.active_mlp_params / layer.mlp_params) ** tokens


def _projections_s(group: CardGroup, model: ModelSpec, layer: LayerSpec, tokens: int) -> float:
    """Time of the four matrix products of a layer, seconds."""
    query_output, key_value, feed_forward = shard_params(model, layer, group.degree)
    stored = query_output + key_value + feed_forward
    if not stored:
        return 0.0
    bytes_per_param = weight_bytes(model, layer, group.degree) / stored
    # queries and output are equal matrices
    attention = ((query_output / 2 + key_value), query_output / 2)
    active = 1.0 if layer.active_mlp_params is None else layer.active_mlp_params / max(1, layer.mlp_params)
    read = _touched_share(layer, tokens)
    products = [(params, params, params) for params in attention]
    for share in (GATE_UP_SHARE, 1 - GATE_UP_SHARE):
        params = share * feed_forward
        products.append((active * params, read * params, active * params))
    activation_bytes = model.activation_bits / 8
    total = 0.0
    for used, moved, outer in products:
        if not moved:
            continue
        # every one of the four has the hidden size on one side and parameters / hidden size on the other
        values = tokens * (model.hidden_size + outer / model.hidden_size)
        total += gemm_s(group.device, 2.0 * tokens * used, moved * bytes_per_param + values * activation_bytes)
    return total


def decode_attention_s(group: CardGroup, model: ModelSpec, layer: LayerSpec, kv_tokens: int) -> float:
    """Return the time that decode attention reads `kv_tokens` cached tokens of a layer, seconds, without its start."""
    if group.device.measured is not None:
        return profiled.decode_attention_s(group.device.measured, model, kv_tokens)
    read = kv_bytes(model, layer, kv_tokens, group.degree)
    return read / (group.device.profile.attn_mem_eff * group.device.bytes_per_s)


def prefill_attention_s(group: CardGroup, layer: LayerSpec, pairs: int) -> float:
    """Return the time of a number of (query, key) pairs of prefill attention, seconds, without its start."""
    if group.device.measured is not None:
        return profiled.prefill_attention_s(group.device.measured, pairs)
    # scores and values: 2 FLOP each for every pair and element of a head
    flops = 4.0 * pairs * layer.num_heads * layer.head_dim / group.degree
    return flops / (group.device.profile.attn_compute_eff * group.device.peak_flops)


def _attention_s(group: CardGroup, model: ModelSpec, layer: LayerSpec, shape: BatchShape) -> float:
    """Time of attention in a layer, seconds: cached bytes for decode tokens, FLOP for prefill tokens."""
    profile, total = group.device.profile, 0.0
    if shape.decode_contexts:
        kv_tokens = shape.kv_tokens_read(layer.window_tokens)
        total += profile.attn_t0_s + decode_attention_s(group, model, layer, kv_tokens)
    if shape.prefill_chunks:
        total += profile.attn_t0_s + prefill_attention_s(group, layer, shape.prefill_pairs(layer.window_tokens))
    return total


def modelled_layer_s(group: CardGroup, model: ModelSpec, layer: LayerSpec, shape: BatchShape) -> float:
    """Return the time of one layer, seconds: the profile's, or that of the formulas whatever `layer_time_s` says."""
    if group.device.measured is not None:
        return profiled.layer_s(group.device.measured, model, layer, shape)
    tokens = shape.computed_tokens
    reduced = tokens * model.hidden_size * model.activation_bits / 8
    return (
        _projections_s(group, model, layer, tokens)
        + _attention_s(group, model, layer, shape)
        + 2 * all_reduce_s(group, reduced)
        + group.device.profile.layer_overhead_s
    )


def layer_s(
    group: CardGroup, model: ModelSpec, layer: LayerSpec, shape: BatchShape, *, measured_context_tokens: int = 1
) -> float:
    """Return the time of one layer in one iteration, seconds.

    A device with a measured `layer_time_s` takes that time for one decode token on one card. For any other shape or
    degree the measurement is multiplied by the modelled time of that shape over the modelled time of one decode token:
    the card is taken to miss its roofline by the same factor everywhere, so the bend from bandwidth to compute stays.

    Parameters
    ----------
    group
        Where the layer runs.
    model, layer
        What runs.
    shape
        The iteration.
    measured_context_tokens
        Context at which `layer_time_s` was measured, tokens; unused without such a measurement.
    """
    modelled = modelled_layer_s(group, model, layer, shape)
    return modelled * correction(group.device, model, layer, measured_context_tokens=measured_context_tokens)


def correction(device: Device, model: ModelSpec, layer: LayerSpec, *, measured_context_tokens: int = 1) -> float:
    """Return the measured time of a layer over the modelled one, for one decode token; 1.0 without a measurement."""
    if device.layer_time_s is None:
        return 1.0
    one = modelled_layer_s(CardGroup(device), model, layer, BatchShape.ragged((measured_context_tokens,)))
    return device.layer_time_s / one


def embedding_s(group: CardGroup, model: ModelSpec, shape: BatchShape) -> float:
    """Return the time to look up an iteration's tokens on the first stage, seconds: read, write, sum over the cards."""
    device, profile = group.device, group.device.profile
    if device.measured is not None:
        return profiled.embedding_s(device.measured, model, shape)
    row_bytes = shape.computed_tokens * model.hidden_size * model.activation_bits / 8
    moved = 2 * row_bytes / (profile.gemm_mem_eff * device.bytes_per_s)
    return profile.gemm_t0_s + moved + all_reduce_s(group, row_bytes)


def head_s(group: CardGroup, model: ModelSpec, shape: BatchShape) -> float:
    """Return the time of the output head on the last stage, seconds: one row of logits a sequence, then gathered."""
    rows, degree = shape.num_sequences, group.degree
    if group.device.measured is not None:
        return profiled.head_s(group.device.measured, model, shape)
    activation_bytes = model.activation_bits / 8
    logits = rows * model.vocab_size * activation_bytes
    moved = head_weight_bytes(model, degree) + rows * model.hidden_size * activation_bytes + logits / degree
    time = gemm_s(group.device, 2.0 * rows * model.head_params / degree, moved)
    if degree > 1 and group.link is not None:
        fixed = max(group.device.profile.comm_t0_s, group.link.latency_s)
        time += fixed + (degree - 1) / degree * logits / group.link.bytes_per_s
    return time


def step_s(group: CardGroup) -> float:
    """Return the time that each iteration of a stage takes beside its layers, embedding and head, seconds."""
    device = group.device
    return device.profile.step_overhead_s if device.measured is None else profiled.step_s(device.measured)


def stage_s(
    group: CardGroup,
    model: ModelSpec,
    first: int,
    end: int,
    shape: BatchShape,
    *,
    measured_context_tokens: int = 1,
) -> float:
    """Return the time of a stage that executes layers ``[first, end)``, seconds, engine time of the step included.

    Raises
    ------
    InputError
        When the range is not within the model.
    """
    if not 0 <= first < end <= model.num_layers:
        raise InputError(f"layers [{first}, {end}) of a model with {model.num_layers} layers")
    known: dict[LayerSpec, float] = {}
    total = step_s(group)
    for layer in model.layers[first:end]:
        if layer not in known:
            known[layer] = layer_s(group, model, layer, shape, measured_context_tokens=measured_context_tokens)
        total += known[layer]
    if first == 0:
        total += embedding_s(group, model, shape)
    if end == model.num_layers:
        total += head_s(group, model, shape)
    return total
