"""A step as tensors: which tokens are computed, where their keys and values go, and who attends to what.

Rows that attend alike form a group: R rows of m queries over up to C cached tokens. Packed, decodes of similar context
form groups with m = 1 and each chunk of a prompt is a group of one row. Padded, all chunks form one group and all
decodes another, and the pads are really computed. What pads write goes to the cache's first block, which no request
has: block b of a table is block b + 1 of the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.steps import IntArray, StepInput
from slob_opt.errors import EngineError

WASTE = 1.5
"""Contexts of a group of decodes differ by this factor at most. Chosen: each group costs a few kernels a layer."""

SHORT_CONTEXT = 64
"""Below so many tokens contexts are alike."""


@dataclass(slots=True)
class RowGroup:
    """Rows that attend together.

    Attributes
    ----------
    queries
        (R * m,) int64, places of the queries among the computed tokens.
    num_rows, num_queries
        R and m.
    gather
        (R * C,) int64, places of cached tokens; behind a row's context those of any.
    num_keys
        C.
    positions
        (R, m) int64, position of each query in its sequence; of a pad that of the last real one.
    is_plain
        Whether no key has to be masked out but those that come after a query, and no query but the last of a row has
        any: decodes of equal context.
    is_causal
        Whether it's a whole prompt of one row without pads.
    """

    queries: torch.Tensor
    num_rows: int
    num_queries: int
    gather: torch.Tensor
    num_keys: int
    positions: torch.Tensor
    is_plain: bool
    is_causal: bool
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return (R, 1, m, C) bool, which keys each query sees with an attention window; made once a step."""
        known = self._masks.get(window)
        if known is None:
            keys = torch.arange(self.num_keys, device=self.positions.device)
            places = self.positions[:, None, :, None]  # (R, 1, m, 1)
            known = keys <= places
            if window is not None:
                known &= keys > places - window
            self._masks[window] = known
        return known


@dataclass(slots=True)
class PackedBatch:
    """What a stage computes in one step.

    Attributes
    ----------
    tokens, positions
        (T,) int64, token ids and positions of all computed tokens, pads included.
    write
        (T,) int64, places in the cache where their keys and values go.
    groups
        Who attends to what; together they hold each computed token once.
    emitting
        (E,) int64, places of the last token of each row that gets a new one.
    num_tokens
        T.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    groups: tuple[RowGroup, ...]
    emitting: torch.Tensor
    num_tokens: int

    @classmethod
    def of(cls, step: StepInput, block_tokens: int, device: torch.device) -> PackedBatch:
        """Return a step as tensors.

        Parameters
        ----------
        step
            The step.
        block_tokens
            Tokens of a KV block.
        device
            Where the tensors are to be.

        Raises
        ------
        EngineError
            When the step's arrays contradict each other.
        """
        rows = _Rows(step, block_tokens)
        shape = _Shape.padded(rows) if step.is_padded else _Shape.packed(rows)
        return shape.batch(rows, device)


class _Rows:
    """The rows of a step, in numpy."""

    def __init__(self, step: StepInput, block_tokens: int) -> None:
        lengths, cached, held = step.lengths, step.cached, step.num_blocks
        if int(lengths.sum()) != step.tokens.size or int(held.sum()) != step.table.size or lengths.min(initial=1) < 1:
            raise EngineError(
                f"step {step.step} has {step.tokens.size} tokens for lengths of {int(lengths.sum())} and"
                f" {step.table.size} blocks for {int(held.sum())}"
            )
        if np.any(cached + lengths > held * block_tokens):
            raise EngineError(f"step {step.step} has a row with fewer KV blocks than its tokens need")
        self.step, self.lengths, self.cached = step, lengths, cached
        self.contexts = cached + lengths
        starts = np.concatenate([[0], np.cumsum(held)[:-1]]) if held.size else held
        inside = np.arange(block_tokens)
        self._places = [
            ((step.table[first : first + count, None] + 1) * block_tokens + inside).ravel()
            for first, count in zip(starts.tolist(), held.tolist(), strict=True)
        ]
        self.first = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if lengths.size else lengths

    def places(self, row: int, first: int, end: int) -> IntArray:
        """Return where tokens ``[first, end)`` of a row's sequence are in the cache."""
        return self._places[row][first:end]


@dataclass(slots=True)
class _Shape:
    """How many tokens each row computes, pads included, and which rows attend together.

    Attributes
    ----------
    computed
        (B,) int64.
    groups
        Rows of each group.
    """

    computed: IntArray
    groups: list[list[int]]

    @classmethod
    def packed(cls, rows: _Rows) -> _Shape:
        decodes = np.flatnonzero(rows.lengths == 1)
        order = decodes[np.argsort(rows.contexts[decodes], kind="stable")].tolist()
        groups: list[list[int]] = []
        least = 0
        for row in order:
            context = max(int(rows.contexts[row]), SHORT_CONTEXT)
            if not groups or context > WASTE * least:
                groups.append([])
                least = context
            groups[-1].append(row)
        groups += [[row] for row in np.flatnonzero(rows.lengths > 1).tolist()]
        return cls(rows.lengths, groups)

    @classmethod
    def padded(cls, rows: _Rows) -> _Shape:
        is_chunk = rows.lengths > 1
        computed = np.where(is_chunk, rows.lengths.max(initial=1), 1)
        groups = [np.flatnonzero(~is_chunk).tolist(), np.flatnonzero(is_chunk).tolist()]
        return cls(computed, [group for group in groups if group])

    def batch(self, rows: _Rows, device: torch.device) -> PackedBatch:
        """Return the tensors."""
        first = np.concatenate([[0], np.cumsum(self.computed)[:-1]]) if self.computed.size else self.computed
        total = int(self.computed.sum())
        has_pads = bool(np.any(self.computed != rows.lengths))
        if has_pads:
            tokens = np.zeros(total, np.int64)
            positions, write = np.zeros(total, np.int64), np.zeros(total, np.int64)
        else:
            tokens, positions, write = rows.step.tokens, np.empty(total, np.int64), np.empty(total, np.int64)
        for row, (start, count, before) in enumerate(
            zip(first.tolist(), rows.lengths.tolist(), rows.cached.tolist(), strict=True)
        ):
            end = start + self.computed.item(row)
            if has_pads:
                source = rows.first.item(row)
                tokens[start : start + count] = rows.step.tokens[source : source + count]
            positions[start : start + count] = np.arange(before, before + count)
            positions[start + count : end] = before + count - 1
            write[start : start + count] = rows.places(row, before, before + count)
        emitting = (first + rows.lengths - 1)[rows.step.emits]

        def on_device(array: NDArray[np.int64]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

        groups = tuple(self._group(rows, group, first, positions, on_device) for group in self.groups)
        return PackedBatch(
            on_device(tokens), on_device(positions), on_device(write), groups, on_device(emitting), total
        )  # fmt: skip

    def _group(self, rows: _Rows, group: list[int], first: IntArray, positions: IntArray, on_device) -> RowGroup:  # type: ignore[no-untyped-def]
        contexts = rows.contexts[group]
        longest, width = int(contexts.max()), int(self.computed[group[0]])
        queries = (first[group][:, None] + np.arange(width)).ravel()
        gather = np.zeros((len(group), longest), np.int64)
        for place, (row, context) in enumerate(zip(group, contexts.tolist(), strict=True)):
            gather[place, :context] = rows.places(row, 0, context)
        is_equal = bool(np.all(contexts == longest))
        is_whole = len(group) == 1 and not rows.cached[group[0]] and width == rows.lengths[group[0]]
        return RowGroup(
            on_device(queries), len(group), width, on_device(gather.ravel()), longest,
            on_device(positions[queries].reshape(len(group), width)), width == 1 and is_equal, is_whole,
        )  # fmt: skip
