"""Time of a stage from what was measured of its device with its model.

A stage of n layers takes the sum of a coefficient times its part of the work:

==================  ====================================================================================
coefficient         part of the work
==================  ====================================================================================
step                1
layer               n
layer_tokens        n x computed tokens, by slopes: each for the tokens from its first to the next one's
decode_row          n x rows that decode
kv_token            cached tokens that decode attention reads, over the layers and their windows
chunk_row           n x rows that compute part of a prompt
pair                (query, key) pairs of prefill attention, over the layers and their windows
embedding           1 on the first stage
embedding_token     computed tokens on the first stage
head                1 on the last stage
head_rows           rows of logits on the last stage, by slopes
==================  ====================================================================================

No coefficient is below zero, so no more work ever takes less time. An emulated device takes all of it times its
slowdown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.batch import BatchShape
from slob_opt.errors import InputError
from slob_opt.problem.measured import MeasuredProfile, Slope
from slob_opt.problem.model import LayerSpec, ModelSpec

FloatArray = NDArray[np.float64]

PART_NAMES = (
    "step", "layer", "decode_row", "chunk_row", "kv_token", "pair", "embedding", "embedding_token", "head",
)  # fmt: skip
"""Coefficients that are one number, in the order of :func:`parts`; slopes of `layer_tokens` and `head_rows` follow."""


def check_model(profile: MeasuredProfile, model: ModelSpec) -> None:
    """Raise InputError, naming both models and what differs, unless the profile was measured with such a model."""
    difference = profile.model.difference(model)
    if difference is not None:
        raise InputError(
            f"the profile of {profile.hardware.name} was measured with {profile.model.name}, model {model.name} has"
            f" {difference}; take that model in {profile.model.dtype}, or calibrate with this one"
        )


def step_s(profile: MeasuredProfile) -> float:
    """Return the time of each iteration of a stage, seconds."""
    return profile.slowdown * profile.step.value_s


def tokens_s(profile: MeasuredProfile, model: ModelSpec, tokens: int) -> float:
    """Return the time of one layer but for its attention, seconds.

    Raises
    ------
    InputError
        When the profile is another model's.
    """
    check_model(profile, model)
    return profile.slowdown * (profile.layer.value_s + _sloped_s(profile.layer_tokens, tokens))


def _sloped_s(slopes: Sequence[Slope], count: int) -> float:
    """Time of so many tokens or rows, seconds."""
    inside = by_slope([slope.after for slope in slopes], count)
    return sum(slope.value_s * many for slope, many in zip(slopes, inside, strict=True))


def by_slope(knots: Sequence[int], count: int) -> list[int]:
    """Return how many of so many tokens or rows each slope is for.

    Examples
    --------
    >>> by_slope((0, 1, 32), 40)
    [1, 31, 8]
    """
    ends = [*knots[1:], max(count, knots[-1])]
    return [max(0, min(count, end) - start) for start, end in zip(knots, ends, strict=True)]


def row_s(profile: MeasuredProfile) -> tuple[float, float]:
    """Return the time of a row that decodes and of one that computes part of a prompt, in one layer, seconds."""
    return profile.slowdown * profile.decode_row.value_s, profile.slowdown * profile.chunk_row.value_s


def decode_attention_s(profile: MeasuredProfile, model: ModelSpec, kv_tokens: int) -> float:
    """Return the time that decode attention of one layer reads so many cached tokens, seconds, without its rows.

    Raises
    ------
    InputError
        When the profile is another model's.
    """
    check_model(profile, model)
    return profile.slowdown * profile.kv_token.value_s * kv_tokens


def prefill_attention_s(profile: MeasuredProfile, pairs: int) -> float:
    """Return the time of so many (query, key) pairs of one layer, seconds, without its rows."""
    return profile.slowdown * profile.pair.value_s * pairs


def layer_s(profile: MeasuredProfile, model: ModelSpec, layer: LayerSpec, shape: BatchShape) -> float:
    """Return the time of one layer in one iteration, seconds.

    Raises
    ------
    InputError
        When the profile is another model's.
    """
    decode_s, chunk_s = row_s(profile)
    return (
        tokens_s(profile, model, shape.computed_tokens)
        + decode_s * len(shape.decode_contexts)
        + chunk_s * len(shape.prefill_chunks)
        + decode_attention_s(profile, model, shape.kv_tokens_read(layer.window_tokens))
        + prefill_attention_s(profile, shape.prefill_pairs(layer.window_tokens))
    )


def embedding_s(profile: MeasuredProfile, model: ModelSpec, shape: BatchShape) -> float:
    """Return the time of the embedding on the first stage, seconds; raises as :func:`layer_s`."""
    check_model(profile, model)
    return profile.slowdown * (
        profile.embedding.value_s + profile.embedding_token.value_s * shape.computed_tokens
    )  # fmt: skip


def head_s(profile: MeasuredProfile, model: ModelSpec, shape: BatchShape) -> float:
    """Return the time of the head on the last stage, choice of tokens included, seconds; raises as :func:`layer_s`."""
    check_model(profile, model)
    return profile.slowdown * (profile.head.value_s + _sloped_s(profile.head_rows, shape.num_sequences))


def parts(
    model: ModelSpec, first: int, end: int, shape: BatchShape, knots: Sequence[int], head_knots: Sequence[int]
) -> FloatArray:
    """Return what a stage that executes layers ``[first, end)`` computes of each part: the row of a fit.

    Parameters
    ----------
    model, first, end, shape
        Stage and iteration.
    knots, head_knots
        Where the slopes of `layer_tokens` and of `head_rows` begin.

    Returns
    -------
    numpy.ndarray
        (9 + knots + head knots,) float64, in the order of :data:`PART_NAMES`, then the slopes.
    """
    layers = model.layers[first:end]
    is_first, is_last = float(first == 0), float(end == model.num_layers)
    tokens, num_layers = shape.computed_tokens, len(layers)
    fixed = [
        1.0,
        num_layers,
        num_layers * len(shape.decode_contexts),
        num_layers * len(shape.prefill_chunks),
        sum(shape.kv_tokens_read(layer.window_tokens) for layer in layers),
        sum(shape.prefill_pairs(layer.window_tokens) for layer in layers),
        is_first,
        is_first * tokens,
        is_last,
    ]
    slopes = [num_layers * inside for inside in by_slope(knots, tokens)]
    rows = [is_last * inside for inside in by_slope(head_knots, shape.num_sequences)]
    return np.array(fixed + slopes + rows, np.float64)


def coefficients(profile: MeasuredProfile) -> FloatArray:
    """Return the profile's times in the order of :func:`parts`, seconds, slowdown included."""
    single = [getattr(profile, name).value_s for name in PART_NAMES]
    slopes = [slope.value_s for slope in (*profile.layer_tokens, *profile.head_rows)]
    return profile.slowdown * np.array(single + slopes, np.float64)
