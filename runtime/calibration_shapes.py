"""What a calibration measures: which layers, which iterations, and the iterations as steps of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.steps import RowSampling, StepInput
from slob_opt.cost.batch import BatchShape
from slob_opt.errors import InputError

Slice = tuple[int, int]
"""Layers ``[first, end)``."""


@dataclass(frozen=True, slots=True)
class ShapeLimits:
    """How far a calibration goes. Chosen, so that a small model takes a minute on one core, and seconds when quick.

    Attributes
    ----------
    max_batch
        Most rows that decode.
    max_context_tokens
        Longest context of a row.
    max_chunk_tokens
        Longest prompt, or part of one.
    max_kv_tokens
        Most tokens in KV at once.
    """

    max_batch: int = 32
    max_context_tokens: int = 1024
    max_chunk_tokens: int = 512
    max_kv_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_context_tokens", "max_chunk_tokens", "max_kv_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")

    def within(self, max_position: int | None) -> ShapeLimits:
        """Return the limits for a model with so many positions."""
        if max_position is None:
            return self
        return ShapeLimits(
            self.max_batch,
            min(self.max_context_tokens, max_position),
            min(self.max_chunk_tokens, max_position),
            self.max_kv_tokens,
        )


FULL = ShapeLimits()
"""For plans that are to hold."""

QUICK = ShapeLimits(max_batch=8, max_context_tokens=512, max_chunk_tokens=256, max_kv_tokens=2048)
"""For a first look, or a demonstration."""


def calibration_slices(num_layers: int, max_layers: int | None = None) -> tuple[Slice, ...]:
    """Return the stages to measure: the first, the last, and two of different size without embedding and head.

    A long model is cut into four pieces, so that its weights are held once and, on a CPU, don't stay in its caches.
    Of a short one pieces overlap.

    Parameters
    ----------
    num_layers
        Of the model.
    max_layers
        Most layers to hold; ``None`` holds all.

    Raises
    ------
    InputError
        When so few layers may be held that nothing can be told apart.

    Examples
    --------
    >>> calibration_slices(30)
    ((0, 6), (6, 10), (10, 24), (24, 30))
    >>> calibration_slices(80, max_layers=10)
    ((0, 2), (2, 3), (3, 8), (78, 80))
    >>> calibration_slices(4)
    ((0, 4), (0, 1), (3, 4), (1, 2), (1, 3))
    """
    held = num_layers if max_layers is None else min(max_layers, num_layers)
    if held >= 8:
        end = max(1, held // 5)
        inner = held - 2 * end
        small = max(1, (inner + 1) // 4)
        return (
            (0, end), (end, end + small), (end + small, end + inner), (num_layers - end, num_layers),
        )  # fmt: skip
    if held < num_layers:
        raise InputError(f"at most {held} layers may be held, expected at least 8 or all {num_layers}")
    found = [(0, num_layers), (0, 1), (num_layers - 1, num_layers)]
    if num_layers > 2:
        found.append((1, 2))
    if num_layers > 3:
        found.append((1, num_layers - 1))
    return tuple(dict.fromkeys(found))


def calibration_shapes(limits: ShapeLimits) -> tuple[BatchShape, ...]:
    """Return the iterations to measure: decode by batch and context, prefill by length and cached part, both mixed."""
    contexts = [c for c in (16, 128, 512, 1024, 2048) if c <= limits.max_context_tokens] or [limits.max_context_tokens]
    if contexts[-1] * 1.4 < limits.max_context_tokens:
        contexts.append(limits.max_context_tokens)
    chunks = [n for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048) if n <= limits.max_chunk_tokens] or [1]
    batches = [b for b in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256) if b <= limits.max_batch]
    found: list[BatchShape] = []
    for at, batch in enumerate(batches):
        for context in contexts if batch in (1, 4, 16, 64) else [contexts[at % len(contexts)]]:
            found.append(BatchShape.ragged(_spread(context, batch, limits.max_context_tokens)))
    for batch in (4, limits.max_batch):
        if batch <= limits.max_batch:
            found.append(BatchShape.ragged((contexts[len(contexts) // 2],) * batch))
    if len(contexts) > 1:
        uneven = tuple(contexts[i % len(contexts)] for i in range(min(8, limits.max_batch)))
        found.append(BatchShape.ragged(uneven))
    for size in chunks:
        found.append(BatchShape.ragged((), ((0, size),)))
        for cached in contexts[1:]:
            if cached + size <= limits.max_context_tokens and size in chunks[2::2]:
                found.append(BatchShape.ragged((), ((cached, size),)))
    for rows in (2, 4):
        size = max(1, limits.max_chunk_tokens // (2 * rows))
        found.append(BatchShape.ragged((), ((0, size),) * rows))
    for batch in (2, limits.max_batch // 2):
        for size in (chunks[len(chunks) // 2], chunks[-1] // 2):
            decodes = _spread(contexts[len(contexts) // 2], max(1, batch), limits.max_context_tokens)
            found.append(BatchShape.ragged(decodes, ((0, max(1, size)),)))
    return tuple(dict.fromkeys(shape for shape in found if _kv_tokens(shape) <= limits.max_kv_tokens))


def _spread(context: int, batch: int, most: int) -> tuple[int, ...]:
    """Return contexts around one, from half of it to one and a half: rows of a server are hardly ever equal."""
    if batch == 1:
        return (context,)
    return tuple(max(1, min(most, context // 2 + context * row // (batch - 1))) for row in range(batch))


def _kv_tokens(shape: BatchShape) -> int:
    return sum(shape.decode_contexts) + sum(cached + size for cached, size in shape.prefill_chunks)


def blocks_of(shape: BatchShape, block_tokens: int) -> int:
    """Return the KV blocks that an iteration's rows hold after it."""
    ends = [*shape.decode_contexts, *(cached + size for cached, size in shape.prefill_chunks)]
    return sum(-(-end // block_tokens) for end in ends)


def step_of(shape: BatchShape, block_tokens: int, vocab_size: int, *, step: int = 0, seed: int = 0) -> StepInput:
    """Return an iteration of a shape, its tokens drawn at random, its rows in blocks of their own from 0 on.

    Every row gets a new token, by the greedy choice.
    """
    cached = np.array([c - 1 for c in shape.decode_contexts] + [c for c, _ in shape.prefill_chunks], np.int64)
    lengths = np.array([1] * len(shape.decode_contexts) + [n for _, n in shape.prefill_chunks], np.int64)
    num_blocks = -(-(cached + lengths) // block_tokens)
    rng = np.random.default_rng(seed)
    return StepInput(
        pipeline=0,
        lane=0,
        step=step,
        tokens=rng.integers(0, vocab_size, int(lengths.sum())),
        lengths=lengths,
        cached=cached,
        num_blocks=num_blocks,
        table=np.arange(int(num_blocks.sum()), dtype=np.int64),
        emits=np.ones(lengths.size, dtype=bool),
        sampling=(RowSampling(),) * lengths.size,
    )
