"""Time of a stage in one iteration as few array lookups: what the simulator and policies' estimates use.

The roofline is evaluated once for each number of computed tokens and of rows; attention is linear in the cached tokens
that decodes read and in the (query, key) pairs of prefills. A pipeline's clock therefore costs a few multiplications an
iteration, and a run of decode steps is an arithmetic series in whole picoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost import profiled, roofline
from slob_opt.cost.batch import BatchShape
from slob_opt.cost.roofline import CardGroup
from slob_opt.errors import InputError
from slob_opt.problem.measured import MeasuredProfile
from slob_opt.problem.model import ModelSpec

IntArray = NDArray[np.int64]

PS_PER_S = 1_000_000_000_000
PS_PER_NS = 1000

EXACT_TOKENS, GRID_TOKENS = 512, 64
"""Computed tokens up to which the roofline is evaluated for each number, and the grid above. Chosen: see the tests."""

_PROBE = 1 << 20
"""Cached tokens, or (query, key) pairs, over which attention's slopes are measured."""


class Work(NamedTuple):
    """What one iteration computes, as the clocks need it.

    Attributes
    ----------
    tokens
        Rows of the matrix products, pads included.
    rows
        Sequences, of which the head computes one row of logits each.
    kv_tokens
        Cached tokens that decode attention reads, one figure for each of the clock's windows.
    pairs
        (query, key) pairs of prefill attention, likewise.
    decodes, chunks
        Rows that decode, and rows that compute part of a prompt.
    """

    tokens: int
    rows: int
    kv_tokens: tuple[int, ...]
    pairs: tuple[int, ...]
    decodes: int
    chunks: int


class StageClock:
    """Time of layers ``[first, end)`` on one card or group.

    Attributes
    ----------
    windows
        Attention windows of the model's layers, tokens; ``None`` is full attention. The order of ``Work.kv_tokens``.

    Raises
    ------
    InputError
        When the range is not within the model.

    Examples
    --------
    >>> from slob_opt.problem.device import Device
    >>> from slob_opt.problem.model import LayerSpec
    >>> layer = LayerSpec(67108864, 135266304, 32, 32, 128)
    >>> model = ModelSpec("llama-2-7b", 4096, 32000, (layer,) * 32, 131072000, 131076096)
    >>> clock = StageClock(CardGroup(Device("a", "L4", 24 * 2**30, 121e12, 300e9)), model, 0, 32)
    >>> shape = BatchShape.ragged((700, 800), ((0, 100),))
    >>> exact = roofline.stage_s(clock.group, model, 0, 32, shape)
    >>> abs(clock.ps(clock.work_of(shape)) / PS_PER_S / exact - 1) < 1e-6
    True
    """

    def __init__(self, group: CardGroup, model: ModelSpec, first: int, end: int) -> None:
        if not 0 <= first < end <= model.num_layers:
            raise InputError(f"layers [{first}, {end}) of a model with {model.num_layers} layers")
        self.group, self.model, self.first, self.end = group, model, first, end
        self.windows: tuple[int | None, ...] = windows_of(model)
        distinct = dict.fromkeys(model.layers[first:end])
        self._layers = [
            (layer, model.layers[first:end].count(layer), roofline.correction(group.device, model, layer))
            for layer in distinct
        ]
        self._dense: dict[int, int] = {}
        self._heads: dict[int, int] = {}
        measured = group.device.measured
        num_layers = end - first
        if measured is None:
            start_s = sum(n * factor for _, n, factor in self._layers) * group.device.profile.attn_t0_s
            row_s = (0.0, 0.0)
        else:
            start_s, row_s = 0.0, profiled.row_s(measured)
        self.attention_ps = round(start_s * PS_PER_S)
        self.decode_row_ps, self.chunk_row_ps = (round(num_layers * seconds * PS_PER_S) for seconds in row_s)
        slopes = [self._slopes(window) for window in self.windows]
        self.kv_ps, self.pair_ps = tuple(kv for kv, _ in slopes), tuple(pair for _, pair in slopes)

    def _slopes(self, window: int | None) -> tuple[int, float]:
        """Picoseconds for each cached token and for each pair of the layers with one window."""
        kv = pair = 0.0
        for layer, n, factor in self._layers:
            if layer.window_tokens == window:
                kv += n * factor * roofline.decode_attention_s(self.group, self.model, layer, _PROBE)
                pair += n * factor * roofline.prefill_attention_s(self.group, layer, _PROBE)
        return round(kv * PS_PER_S / _PROBE), pair * PS_PER_S / _PROBE

    def dense_ps(self, tokens: int) -> int:
        """Return the time of everything but attention and head for a number of computed tokens, ps.

        Above :data:`EXACT_TOKENS` it is interpolated between multiples of :data:`GRID_TOKENS`, where it is all but
        linear, so that prompts of every length don't each evaluate the roofline.
        """
        if tokens > EXACT_TOKENS and self.group.device.measured is None:
            low, rest = divmod(tokens, GRID_TOKENS)
            below = self._dense_at(low * GRID_TOKENS)
            return (
                below if not rest else below + (self._dense_at((low + 1) * GRID_TOKENS) - below) * rest // GRID_TOKENS
            )
        return self._dense_at(tokens)

    def _dense_at(self, tokens: int) -> int:
        known = self._dense.get(tokens)
        if known is None and self.group.device.measured is not None:
            known = self._dense[tokens] = self._measured_ps(self.group.device.measured, tokens)
        if known is None:
            shape = BatchShape.ragged((), ((0, tokens),))
            pairs = [shape.prefill_pairs(window) for window in self.windows]
            attention = self.attention_ps + sum(c * n for c, n in zip(self.pair_ps, pairs, strict=True))
            seconds = sum(
                n * factor * roofline.modelled_layer_s(self.group, self.model, layer, shape)
                for layer, n, factor in self._layers
            )
            seconds += roofline.step_s(self.group)
            if self.first == 0:
                seconds += roofline.embedding_s(self.group, self.model, shape)
            known = self._dense[tokens] = round(seconds * PS_PER_S - attention)
        return known

    def _measured_ps(self, profile: MeasuredProfile, tokens: int) -> int:
        seconds = profiled.step_s(profile) + (self.end - self.first) * profiled.tokens_s(profile, self.model, tokens)
        if self.first == 0:
            seconds += profiled.embedding_s(profile, self.model, BatchShape.ragged((), ((0, tokens),)))
        return round(seconds * PS_PER_S)

    def head_ps(self, rows: int) -> int:
        """Return the time of the head for a number of rows, ps; zero on all stages but the last."""
        if self.end != self.model.num_layers:
            return 0
        known = self._heads.get(rows)
        if known is None:
            shape = BatchShape.ragged((1,) * rows)
            known = self._heads[rows] = round(roofline.head_s(self.group, self.model, shape) * PS_PER_S)
        return known

    def ps(self, work: Work) -> int:
        """Return the time of an iteration, whole picoseconds."""
        total = self.dense_ps(work.tokens) + self.head_ps(work.rows)
        if work.decodes:
            total += self.attention_ps + self.decode_row_ps * work.decodes
            for slope, tokens in zip(self.kv_ps, work.kv_tokens, strict=True):
                total += slope * tokens
        if work.chunks:
            total += self.attention_ps + self.chunk_row_ps * work.chunks
            for rate, pairs in zip(self.pair_ps, work.pairs, strict=True):
                total += int(rate * pairs)
        return total

    def work_of(self, shape: BatchShape) -> Work:
        """Return the work of a batch shape."""
        return Work(
            shape.computed_tokens,
            shape.num_sequences,
            tuple(shape.kv_tokens_read(window) for window in self.windows),
            tuple(shape.prefill_pairs(window) for window in self.windows),
            len(shape.decode_contexts),
            len(shape.prefill_chunks),
        )


def windows_of(model: ModelSpec) -> tuple[int | None, ...]:
    """Return the distinct attention windows of a model's layers, in order of appearance."""
    return tuple(dict.fromkeys(layer.window_tokens for layer in model.layers))


def work_of_rows(
    cached: IntArray, tokens: IntArray, is_decode: NDArray[np.bool_], windows: Sequence[int | None], *, is_padded: bool
) -> tuple[Work, int]:
    """Return the work of an iteration by rows, and how many of its computed tokens are pads.

    Parameters
    ----------
    cached, tokens
        (B,) int64: row r computes tokens ``[cached, cached + tokens)`` of its sequence.
    is_decode
        (B,) bool: rows that compute one token and attend to ``cached + 1``.
    windows
        Attention windows, see :attr:`StageClock.windows`.
    is_padded
        Whether prefills form a rectangle of rows x longest chunk, and decodes attend to the longest context.
    """
    decodes = int(np.count_nonzero(is_decode))
    rows = cached.size
    real = int(tokens.sum())
    contexts = cached[is_decode] + 1 if decodes < rows else cached + 1
    if is_padded and decodes:
        contexts = np.full(decodes, contexts.max())
    kv_tokens = tuple(
        int(contexts.sum()) if window is None else int(np.minimum(contexts, window).sum()) for window in windows
    )
    chunks = rows - decodes
    if not chunks:
        return Work(real, rows, kv_tokens, (0,) * len(windows), decodes, 0), 0
    before, size = cached[~is_decode], tokens[~is_decode]
    computed = real
    if is_padded:
        before, size = np.full(chunks, before.max()), np.full(chunks, size.max())
        computed = decodes + int(size.sum())
    pairs = tuple(_pairs(before, size, window) for window in windows)
    return Work(computed, rows, kv_tokens, pairs, decodes, chunks), computed - real


def _pairs(before: IntArray, size: IntArray, window: int | None) -> int:
    """Causal (query, key) pairs of chunks: query at position p sees ``min(p + 1, window)`` keys."""
    end = before + size
    if window is None:
        return int((size * before + size * (size + 1) // 2).sum())
    full = np.clip(window - before, 0, size)
    return int((full * before + full * (full + 1) // 2 + (size - full) * window).sum()) if end.size else 0
