"""What a driver hands to the scheduler and gets from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.batch_plan import BatchPlan

IntArray = NDArray[np.int64]


class Arrival(NamedTuple):
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


class Submitted(NamedTuple):
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
    emits
        (B,) bool: rows that get a new token out of it.
    num_decodes, kv_tokens
        How many rows decode, that is compute one token after all others of theirs, and the tokens that they attend to,
        their own included.
    others, chunks
        Of each row that doesn't decode: its place in the plan, and the tokens it had in KV before and computes now.
    joined
        Slots that hold KV since this batch.
    is_whole
        Whether all requests that hold KV in the lane are in it, and all of them but those that joined were in the
        lane's batch before.
    is_repeat
        Whether it is the same as the lane's batch before, one token later; `kv_tokens` is then that of the first of
        them.
    repeats_itself
        Whether each request computes its next token, so that the same plan may follow.
    """

    plan: BatchPlan
    emits: NDArray[np.bool_]
    num_decodes: int
    kv_tokens: int
    others: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    joined: tuple[int, ...] = ()
    is_whole: bool = False
    is_repeat: bool = False
    repeats_itself: bool = False

    @property
    def is_decode(self) -> NDArray[np.bool_]:
        """(B,) bool: rows that compute one token after all others of theirs, and so read the cache."""
        found = np.ones(self.plan.slots.size, dtype=bool)
        found[list(self.others)] = False
        return found
