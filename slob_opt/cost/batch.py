"""What one iteration computes: decode tokens, prefill chunks, and the pads between them.

A ragged engine packs the tokens of all members into one row. A padded engine computes rectangles: the prefills of a
micro-batch form ``rows x longest chunk``, the decodes ``rows x 1`` with attention over the longest context. Either way
the cost model, the policies' estimates and the runtime see the same :class:`BatchShape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slob_opt.errors import InputError


def _capped_sum(first: int, end: int, cap: int | None) -> int:
    """Return the sum of ``min(position, cap)`` over positions ``[first, end)``; ``None`` caps nothing."""
    full_end = end if cap is None else max(first, min(end, cap))
    ramp = (full_end - first) * (first + full_end - 1) // 2
    return ramp if cap is None else ramp + (end - full_end) * cap


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The work of one iteration, pads included.

    Attributes
    ----------
    decode_contexts
        Tokens that each decode token attends to, itself included; one entry a decode row.
    prefill_chunks
        (cached tokens, chunk tokens) of each prefill row: tokens ``[cached, cached + chunk)`` of its prompt.
    computed_tokens
        Rows of the matrix products: all decode and prefill tokens with their pads, after rounding to a bucket.
    padding_tokens
        The part of `computed_tokens` that no request asked for.

    Examples
    --------
    >>> ragged = BatchShape.of([100, 20], [(0, 8), (0, 4)])
    >>> ragged.computed_tokens, ragged.kv_tokens_read(), ragged.prefill_pairs()
    (14, 120, 46)
    >>> padded = BatchShape.of([100, 20], [(0, 8), (0, 4)], is_padded=True)
    >>> padded.computed_tokens, padded.kv_tokens_read(), padded.prefill_pairs(), padded.padding_tokens
    (18, 200, 72, 4)
    """

    decode_contexts: tuple[int, ...]
    prefill_chunks: tuple[tuple[int, int], ...]
    computed_tokens: int
    padding_tokens: int = 0

    def __post_init__(self) -> None:
        if self.decode_contexts and min(self.decode_contexts) < 1:
            raise InputError(f"a decode token attends to {min(self.decode_contexts)} tokens, expected at least itself")
        for cached, tokens in self.prefill_chunks:
            if cached < 0 or tokens < 1:
                raise InputError(
                    f"prefill chunk of {tokens} tokens after {cached}, expected at least 1 after at least 0"
                )
        if not 0 <= self.padding_tokens <= self.computed_tokens:
            raise InputError(f"{self.padding_tokens} pads among {self.computed_tokens} computed tokens")
        if self.computed_tokens < self.decode_sequences + self.prefill_tokens or self.computed_tokens < 1:
            raise InputError(f"{self.computed_tokens} computed tokens, fewer than the batch has (or none)")

    @classmethod
    def ragged(cls, decode_contexts: Sequence[int] = (), prefill_chunks: Sequence[tuple[int, int]] = ()) -> BatchShape:
        """Return the shape of an engine that packs tokens without pads; raises InputError when it has no token."""
        decodes, chunks = tuple(decode_contexts), tuple((c, n) for c, n in prefill_chunks)
        return cls(decodes, chunks, len(decodes) + sum(n for _, n in chunks))

    @classmethod
    def padded(cls, decode_contexts: Sequence[int] = (), prefill_chunks: Sequence[tuple[int, int]] = ()) -> BatchShape:
        """Return the shape of an engine that computes rectangles; raises InputError when it has no token.

        Every prefill row gets the longest chunk after the longest cached part, every decode row the longest context.
        Members that have finished but stay in the batch (run to completion) are passed as decodes.
        """
        real = cls.ragged(decode_contexts, prefill_chunks)
        decodes = (max(decode_contexts, default=0),) * len(decode_contexts)
        longest = (max((c for c, _ in prefill_chunks), default=0), max((n for _, n in prefill_chunks), default=0))
        whole = cls.ragged(decodes, (longest,) * len(prefill_chunks))
        return replace(whole, padding_tokens=whole.computed_tokens - real.computed_tokens)

    @classmethod
    def of(
        cls,
        decode_contexts: Sequence[int] = (),
        prefill_chunks: Sequence[tuple[int, int]] = (),
        *,
        is_padded: bool = False,
    ) -> BatchShape:
        """Return the shape of the given members: the one switch between a ragged and a padded engine."""
        return (cls.padded if is_padded else cls.ragged)(decode_contexts, prefill_chunks)

    @classmethod
    def average(cls, decodes: int, context_tokens: int, prefill_tokens: int, prompt_tokens: int) -> BatchShape:
        """Return an average iteration: equal decodes, and prefill work as it falls on average.

        The prefill share is as many whole prompts as fit and one chunk from the middle of a prompt. A chunk of r
        tokens from the middle attends to r * (prompt + 1) / 2 tokens, the mean over all places it may come from.

        Parameters
        ----------
        decodes, context_tokens
            Decode tokens and the context of each.
        prefill_tokens, prompt_tokens
            Prefill tokens in the iteration, and the length of a prompt.

        Raises
        ------
        InputError
            When there is no token, or prefill tokens but no prompt.
        """
        if prefill_tokens and prompt_tokens < 1:
            raise InputError(f"{prefill_tokens} prefill tokens of prompts of {prompt_tokens} tokens")
        whole, rest = divmod(prefill_tokens, prompt_tokens) if prefill_tokens else (0, 0)
        chunks = [(0, prompt_tokens)] * whole + ([((prompt_tokens - rest) // 2, rest)] if rest else [])
        return cls.ragged((context_tokens,) * decodes, chunks)

    def rounded_up(self, buckets: Sequence[int]) -> BatchShape:
        """Return the shape computed in the smallest bucket that holds it (CUDA graph sizes, GEMM tiles).

        `buckets` are token counts in ascending order; a batch above the last one runs as it is. Attention is not
        padded: graph engines give the extra rows a context of nothing.
        """
        tokens = next((size for size in buckets if size >= self.computed_tokens), self.computed_tokens)
        extra = tokens - self.computed_tokens
        return replace(self, computed_tokens=tokens, padding_tokens=self.padding_tokens + extra)

    @property
    def decode_sequences(self) -> int:
        """Decode rows."""
        return len(self.decode_contexts)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of all prefill rows, pads to the longest chunk included."""
        return sum(n for _, n in self.prefill_chunks)

    @property
    def num_sequences(self) -> int:
        """Rows of any kind; the head computes one row of logits for each."""
        return len(self.decode_contexts) + len(self.prefill_chunks)

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that are pads."""
        return self.padding_tokens / self.computed_tokens

    def kv_tokens_read(self, window_tokens: int | None = None) -> int:
        """Return the cached tokens that decode attention reads in one layer; `None` is full attention."""
        if window_tokens is None:
            return sum(self.decode_contexts)
        return sum(min(context, window_tokens) for context in self.decode_contexts)

    def prefill_pairs(self, window_tokens: int | None = None) -> int:
        """Return the (query, key) pairs of causal prefill attention in one layer; `None` is full attention."""
        return sum(_capped_sum(c + 1, c + n + 1, window_tokens) for c, n in self.prefill_chunks)


def round_half_up(value: float) -> int:
    """Return the nearest whole number, halves upwards, so that a share never shrinks by banker's rounding."""
    return math.floor(value + 0.5)
