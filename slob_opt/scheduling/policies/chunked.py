"""Chunked prefill without stalls: decodes go first, and what is left of a token budget goes to chunks of prompts.

References
----------
Agrawal et al. 2024, Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve, OSDI, algorithm 3, and the
scheduler of vLLM v1. Deviation: the budget is that of the pipeline's limits where they set one, else the policy's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.fcfs import MANY, admissible
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
    """

    chunk_tokens: int = CHUNK_TOKENS
    name: str = "chunked"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return decodes of all that can, and chunks within the budget."""
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


def _computing(slots: IntArray, tokens: IntArray) -> tuple[IntArray, IntArray]:
    """Return the slots that compute anything, and their tokens."""
    busy = tokens > 0
    return (slots, tokens) if busy.all() else (slots[busy], tokens[busy])
