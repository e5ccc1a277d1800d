"""Chunked prefill without stalls: decodes go first, and what is left of a token budget goes to chunks of prompts.

References
----------
Agrawal et al. 2024, Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve, OSDI, algorithm 3, and the
scheduler of vLLM v1. Deviation: the budget is that of the pipeline's limits where they set one, else the policy's.
With `by_priority`, as vLLM v1 with ``--scheduling-policy priority``: larger weights go first, and take rows and blocks
from smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.errors import InputError
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.fcfs import MANY, admissible
from slob_opt.scheduling.policies.ranked import Ranking, by_arrival, is_plain_decode
from slob_opt.scheduling.policies.victims import IntArray, make_room
from slob_opt.scheduling.policy import KvUse, LaneView

CHUNK_TOKENS = 512
"""Token budget of an iteration; Sarathi-Serve's for Mistral-7B on an A100 under a strict target (section 5.1)."""


@dataclass(frozen=True, slots=True)
class ChunkedPolicy:
    """Decodes, then chunks of begun prompts, then new ones, first come, first served.

    Attributes
    ----------
    chunk_tokens
        Tokens of an iteration, decodes included.
    by_priority
        Whether a request of strictly larger priority goes first, also before those that run; off by default, since the
        others' work is then done twice.

    Raises
    ------
    InputError
        When a chunk has no token.
    """

    chunk_tokens: int = CHUNK_TOKENS
    by_priority: bool = False
    name: str = "chunked"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise InputError(f"chunk_tokens is {self.chunk_tokens}, expected at least 1")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return decodes of all that can, and chunks within the budget."""
        if self.by_priority:
            return self._by_priority(view)
        columns, rows = view.columns, view.rows
        budget = min(self.chunk_tokens, view.limits.max_chunk_tokens or self.chunk_tokens)
        left = columns.left[rows]
        decodes = left == 1
        tokens = decodes.astype(np.int64)
        budget -= int(tokens.sum())
        for at in np.flatnonzero(~decodes).tolist():
            tokens[at] = max(0, min(int(left[at]), budget))
            budget -= int(tokens[at])
        kept, preempt, free = make_room(view, tokens)
        if preempt.size:
            stays = np.isin(rows, kept)
            rows, tokens, decodes = rows[stays], tokens[stays], decodes[stays]
        elif budget > 0:
            waiting = admissible(view, free)
            if waiting.size:
                known = columns.left[waiting]
                before = np.cumsum(known) - known
                waiting = waiting[before < budget]
                size = np.minimum(known[: waiting.size], budget - before[: waiting.size])
                return BatchPlan(*_computing(np.concatenate([rows, waiting]), np.concatenate([tokens, size])))
        rows, tokens = _computing(rows, tokens)
        if preempt.size:
            return BatchPlan(rows, tokens, preempt)
        if not rows.size:
            return None
        return BatchPlan(rows, tokens, max_repeats=MANY if decodes.all() else 1)

    def _by_priority(self, view: LaneView) -> BatchPlan | None:
        """Return decodes of all that can, and chunks of the most important, who may take others' KV."""
        if is_plain_decode(view):
            return BatchPlan.decode(view.rows, max_repeats=MANY)
        ranking = Ranking(view, 1 << 30)
        slots = ranking.candidates
        if not slots.size:
            return None
        columns = view.columns
        weights = columns.priority[slots].tolist()
        num_decodes = int(np.count_nonzero(columns.left[view.rows] == 1))
        budget = min(self.chunk_tokens, view.limits.max_chunk_tokens or self.chunk_tokens)
        plan = ranking.batch(
            by_arrival(view, slots, -columns.priority[slots], np.arange(slots.size) >= ranking.num_rows),
            max_batch=view.limits.lane_rows,
            prompt_tokens=max(1, budget - num_decodes),
            is_chunked=True,
            may_drop=lambda new, row: weights[new] > weights[row],
        )
        return plan._replace(max_repeats=MANY) if plan is not None and plan.slots is view.rows else plan


def _computing(slots: IntArray, tokens: IntArray) -> tuple[IntArray, IntArray]:
    """Return the slots that compute anything, and their tokens."""
    busy = tokens > 0
    return (slots, tokens) if busy.all() else (slots[busy], tokens[busy])
