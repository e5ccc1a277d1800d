"""Shortest remaining time first, with true output lengths: what knowing the future is worth, not a policy to run.

References
----------
Schrage 1968, A proof of the optimality of the shortest remaining processing time discipline, Operations Research 16(3).
Shahout et al. 2024, Don't stop me now: embedding based scheduling for LLMs (TRAIL), arXiv 2410.01035: preemption by
remaining length, limited because lost KV is computed again. Deviations: lengths are true ones, which the driver tells;
without them `max_new_tokens` stands in. Remaining time is prompt work plus output at the pace of the present batch.
All that hold KV compute; the order decides whose prompt is computed, who is admitted, and who loses KV. A request takes
the KV of a longer one only where that shortens the sum of both completion times, recomputing included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.chunked import CHUNK_TOKENS
from slob_opt.scheduling.policies.fcfs import MANY
from slob_opt.scheduling.policies.ranked import Ranking, by_arrival, is_plain_decode
from slob_opt.scheduling.policy import KvUse, LaneView

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_CANDIDATES = 1 << 30
"""All that wait are compared."""


@dataclass(frozen=True, slots=True)
class SrptPolicy:
    """Shortest remaining time first; clairvoyant.

    Attributes
    ----------
    chunk_tokens
        Tokens of an iteration, decodes included, as for chunked prefill.

    Raises
    ------
    InputError
        When a chunk has no token.
    """

    chunk_tokens: int = CHUNK_TOKENS
    name: str = "srpt-clairvoyant"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True
    is_clairvoyant: bool = True

    def __post_init__(self) -> None:
        if self.chunk_tokens < 1:
            raise InputError(f"chunk_tokens is {self.chunk_tokens}, expected at least 1")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return decodes of all that can, and prompts of the shortest within the budget."""
        if is_plain_decode(view):
            return BatchPlan.decode(view.rows, max_repeats=MANY)
        ranking = Ranking(view, MAX_CANDIDATES)
        slots = ranking.candidates
        if not slots.size:
            return None
        columns = view.columns
        remaining = self.remaining_s(view, slots)
        again = (columns.cached[view.rows] * view.clock.prompt_token_s).tolist()
        times = remaining.tolist()
        limit = min(self.chunk_tokens, view.limits.max_chunk_tokens or self.chunk_tokens)
        num_decodes = int(np.count_nonzero(columns.left[view.rows] == 1))
        plan = ranking.batch(
            by_arrival(view, slots, remaining),
            max_batch=view.limits.lane_rows,
            prompt_tokens=max(0, limit - num_decodes) or int(num_decodes == 0),
            is_chunked=True,
            may_drop=lambda new, row: times[new] + again[row] < times[row],
        )
        # Whoever waits does so since nobody longer runs, or nobody who'd be worth it; running on makes none longer.
        if plan is not None and plan.slots is view.rows:
            return plan._replace(max_repeats=MANY)
        return plan

    @staticmethod
    def remaining_s(view: LaneView, slots: IntArray) -> FloatArray:
        """Return (N,) seconds that requests still take: prompt work, and output at the pace of the present batch."""
        columns, rows = view.columns, view.rows
        length = columns.predicted[slots]
        length = np.where(np.isnan(length), columns.max_new[slots], length)
        to_go = np.maximum(length - columns.generated[slots], 1.0)
        cached = int(columns.cached[rows].sum())
        pace = view.clock.pace_s(max(1, int(rows.size)), cached, view.limits.num_lanes)
        return np.asarray((columns.left[slots] - 1) * view.clock.prompt_token_s + to_go * pace)
