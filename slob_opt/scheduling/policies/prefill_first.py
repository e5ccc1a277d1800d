"""Prefill first: new prompts are computed before anyone decodes on (vLLM's first scheduler).

References
----------
Kwon et al. 2023, PagedAttention, SOSP, sections 4.4-4.5; vLLM 0.2-0.5 ``Scheduler._schedule``: while prompts wait and
fit, an iteration holds prompts only, up to a budget of tokens; otherwise all running requests decode. Preemption
recomputes. Deviation: swapping to the CPU is left out, as vLLM itself prefers recomputation for single sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.errors import InputError
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.fcfs import MANY, admissible
from slob_opt.scheduling.policies.victims import make_room
from slob_opt.scheduling.policy import KvUse, LaneView

MAX_PREFILL_TOKENS = 2560
"""Budget of prompt tokens in an iteration; vLLM 0.4's default of ``max_num_batched_tokens`` for short contexts."""


@dataclass(frozen=True, slots=True)
class PrefillFirstPolicy:
    """Prompts before decodes, first come, first served, KV blocks on demand.

    Attributes
    ----------
    max_prefill_tokens
        Budget of an iteration of prompts; a longer prompt runs alone.

    Raises
    ------
    InputError
        When the budget is below one token.
    """

    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    name: str = "prefill-first"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def __post_init__(self) -> None:
        if self.max_prefill_tokens < 1:
            raise InputError(f"max_prefill_tokens is {self.max_prefill_tokens}, expected at least 1")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return prompts that fit, or else one token of each running request."""
        waiting = admissible(view, view.free_blocks)
        if waiting.size:
            columns = view.columns
            known = columns.left[waiting]
            within = int(np.searchsorted(np.cumsum(known), self.max_prefill_tokens, side="right"))
            waiting = waiting[: max(1, within)]
            return BatchPlan(waiting, columns.left[waiting])
        rows, preempt, _ = make_room(view)
        if preempt.size:
            return BatchPlan(rows, np.ones(rows.size, np.int64), preempt)
        if not rows.size:
            return None
        return BatchPlan.decode(rows, max_repeats=MANY)
