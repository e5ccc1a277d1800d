"""Orca: iteration-level scheduling, first come, first served, with KV reserved or in blocks on demand.

References
----------
Yu et al. 2022, Orca: a distributed serving system for transformer-based generative models, OSDI, sections 3.1-3.2 and
algorithm 1. Deviations: none in the rule; the lanes stand for the paper's "n_workers" batches in flight, and prompts
are computed whole in the iteration that admits them, ragged by selective batching.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.victims import IntArray, make_room
from slob_opt.scheduling.policy import KvUse, LaneView

MANY = 1 << 30
"""Repeats without an end: the promise is broken by events only."""


@dataclass(frozen=True, slots=True)
class OrcaPolicy:
    """First come, first served; prompt + `max_new_tokens` are reserved, so nothing is ever preempted."""

    name: str = "orca"
    kv_use: KvUse = KvUse.RESERVE
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return all running requests and the next waiting ones that fit."""
        return with_whole_prompts(view, view.rows, reservable(view))


@dataclass(frozen=True, slots=True)
class OrcaPagedPolicy:
    """Orca with KV blocks on demand (Kwon et al. 2023, vLLM, section 4.5: the last to come is preempted first)."""

    name: str = "orca-paged"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return all running requests that have room, and the next waiting ones that fit beside them."""
        rows, preempt, free = make_room(view)
        if preempt.size:
            return BatchPlan(rows, np.ones(rows.size, np.int64), preempt)
        return with_whole_prompts(view, rows, admissible(view, free))


def reservable(view: LaneView) -> IntArray:
    """Return the first waiting requests whose prompt and limit of new tokens fit."""
    waiting, columns = view.waiting, view.columns
    size, free, count = view.limits.block_tokens, view.free_blocks, 0
    for slot in waiting[: view.max_admissions].tolist():
        free -= -(-(columns.prompt.item(slot) + columns.max_new.item(slot)) // size)
        if free < 0:
            break
        count += 1
    return waiting[:count]


def admissible(view: LaneView, free_blocks: int) -> IntArray:
    """Return the first waiting requests whose known tokens and one block more fit."""
    waiting, left = view.waiting, view.columns.left
    size, pool, count = view.limits.block_tokens, view.limits.kv_blocks, 0
    for slot in waiting[: view.max_admissions].tolist():
        need = -(-left.item(slot) // size)
        if min(need + 1, pool) > free_blocks:
            break
        free_blocks -= need
        count += 1
    return waiting[:count]


def with_whole_prompts(
    view: LaneView,
    rows: IntArray,
    waiting: IntArray,
) -> BatchPlan | None:
    """Return the plan that computes all known tokens of each request; it repeats while nobody is admitted."""
    if not waiting.size:
        return BatchPlan.decode(rows, max_repeats=MANY) if rows.size else None
    columns = view.columns
    slots = np.concatenate([rows, waiting])
    return BatchPlan(slots, columns.left[slots])
