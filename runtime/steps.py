"""What travels between the engine and its stages: one iteration of one micro-batch, and what came of it.

Messages are data. The engine makes a :class:`StepInput`, every stage of the pipeline computes its layers of it, the
last one samples, and a :class:`StepOutput` goes back. Times are those of ``time.monotonic_ns`` on the stage's machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How the next token of one row is drawn.

    A draw depends on `seed` and `position` alone: not on the batch, on the device's random state, or on whether the
    request was preempted or moved to another pipeline before.

    Attributes
    ----------
    temperature
        0 is greedy.
    top_p, top_k
        Smallest set of tokens with so much probability, and so many tokens at most; 1.0 and 0 keep all.
    seed
        Of the request.
    position
        Tokens that the request has generated before.
    num_logprobs
        So many best tokens are told with their log-probabilities, the drawn one besides; ``None`` tells none.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    position: int = 0
    num_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities at one place of an answer, of the model's distribution at temperature 1.

    Attributes
    ----------
    chosen
        Of the token that was drawn.
    top_ids, top
        The best tokens, and theirs, in falling order.
    """

    chosen: float
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepInput:
    """One iteration of a micro-batch, its tokens packed row after row without pads.

    Row r computes tokens ``[cached[r], cached[r] + lengths[r])`` of its sequence; token p of the sequence has its keys
    and values in block ``table[p // block_tokens]`` of the row, at place ``p % block_tokens``.

    Attributes
    ----------
    pipeline, lane
        Where it runs.
    step
        Running number of the step in the engine.
    tokens
        (T,) int64 token ids.
    lengths, cached
        (B,) int64, tokens that each row computes, and those it has in KV before.
    num_blocks
        (B,) int64, entries of `table` that belong to each row.
    table
        (sum of num_blocks,) int64, numbers of KV blocks, row after row; the same on every stage of the pipeline.
    emits
        (B,) bool, rows that get a new token.
    sampling
        For each row that emits, in order.
    is_padded
        Whether the engine computes rectangles: rows with ``lengths > 1`` are computed as long as the longest of them,
        and decodes attend over the longest context. The results are those of packed rows.
    """

    pipeline: int
    lane: int
    step: int
    tokens: IntArray
    lengths: IntArray
    cached: IntArray
    num_blocks: IntArray
    table: IntArray
    emits: NDArray[np.bool_]
    sampling: tuple[RowSampling, ...]
    is_padded: bool = False


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What came of a step.

    Attributes
    ----------
    pipeline, lane, step
        As in its input.
    tokens
        (E,) int64, the new token of each row that emits, in order.
    logprobs
        For each of them, where asked for.
    start_ns, end_ns
        When each stage began and ended it, waiting for input not included, an emulated slowdown included.
    """

    pipeline: int
    lane: int
    step: int
    tokens: IntArray
    logprobs: tuple[RowLogprobs | None, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageFree:
    """The first stage of a pipeline has computed a step and may take the next one."""

    pipeline: int
    step: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died, hangs, or failed in a step.

    Attributes
    ----------
    worker
        Name of its device.
    pipelines
        Pipelines that had a stage on it; none of their steps in flight comes back.
    reason
        One sentence.
    """

    worker: str
    pipelines: tuple[int, ...]
    reason: str


Event = StepOutput | StageFree | WorkerLost
"""What an executor tells the engine."""
