"""What a driver hands to the scheduler and gets from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.batch_plan import BatchPlan

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as a client sends it.

    Attributes
    ----------
    request
        The caller's number.
    prompt, max_new
        Tokens, from 1.
    priority
        Weight, above zero.
    ttft_s, tpot_s
        Targets, seconds; ``None`` where the metric's defaults hold.
    predicted
        Predicted output length, tokens; ``None`` without a predictor.
    """

    request: int
    prompt: int
    max_new: int
    priority: float = 1.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of an arrival.

    Attributes
    ----------
    slot
        Where it is held; ``None`` when it was rejected.
    pipeline
        Where it waits; ``None`` when it was rejected.
    reason
        Why it was rejected, empty otherwise.
    """

    slot: int | None
    pipeline: int | None
    reason: str = ""


class Launch(NamedTuple):
    """A batch to run.

    Attributes
    ----------
    plan
        Tokens of each request.
    cached
        (B,) int64, tokens that each had in KV before.
    is_decode
        (B,) bool: rows that compute one token after all others of theirs, and so read the cache.
    emits
        (B,) bool: rows that get a new token out of it.
    is_repeat
        Whether it is the same as the lane's batch before, one token later; `cached` is then that of the first of them.
    repeats_itself
        Whether each request computes its next token, so that the same plan may follow.
    """

    plan: BatchPlan
    cached: IntArray
    is_decode: NDArray[np.bool_]
    emits: NDArray[np.bool_]
    is_repeat: bool = False
    repeats_itself: bool = False
