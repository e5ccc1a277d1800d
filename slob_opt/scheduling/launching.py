"""From a plan to a batch: checks it, admits whoever joins, takes blocks; quickly for the plans that are common."""

from __future__ import annotations

import numpy as np

from slob_opt.errors import PolicyError
from slob_opt.scheduling.batch_plan import NO_SLOTS, BatchPlan, is_ones, trues
from slob_opt.scheduling.columns import waiting_at
from slob_opt.scheduling.pipe import FEW, Pipe
from slob_opt.scheduling.policy import LaneView
from slob_opt.scheduling.records import Launch


def launch_of(pipe: Pipe, lane: int, plan: BatchPlan, view: LaneView) -> Launch:
    """Return the batch of a plan, whose preempted requests have left; raises PolicyError when it isn't allowed."""
    state, slots = pipe.lanes[lane], plan.slots
    size = slots.size
    if not (state.all_decode and slots is state.array and size and is_ones(plan.tokens)):
        return _joined(pipe, lane, plan, view) or _mixed(pipe, lane, plan, view)
    # All that the lane holds, each one token: what every other decision is, and nothing can be wrong with it.
    is_whole, state.is_continuous = state.is_continuous, True
    if pipe.is_paged:
        pipe.grow(slots, pipe.columns.cached[slots] + 1)
    return Launch(plan, trues(size), size, state.kv_tokens + size, is_whole=is_whole, repeats_itself=True)


def _joined(pipe: Pipe, lane: int, plan: BatchPlan, view: LaneView) -> Launch | None:
    """Check a plan that is one token of each row and then a few new prompts; ``None`` when it's something else."""
    state, columns = pipe.lanes[lane], pipe.columns
    size, num_rows = plan.slots.size, len(state.rows)
    if not 0 < size - num_rows <= FEW or (num_rows and not state.all_decode) or plan.tokens.shape != (size,):
        return None
    slots, tokens = plan.slots.tolist(), plan.tokens.tolist()
    if slots[:num_rows] != state.rows or tokens[:num_rows].count(1) < num_rows:
        return None
    joining, computed = slots[num_rows:], tokens[num_rows:]
    waits, place, left = waiting_at(pipe.index), columns.place, columns.left
    if len(set(joining)) < len(joining) or plan.max_repeats > 1:
        return None
    emits = True
    for slot, count in zip(joining, computed, strict=True):
        if place.item(slot) != waits or not 0 < count <= left.item(slot):
            return None
        emits = emits and count == left.item(slot)
    pipe.admit(lane, plan.slots[num_rows:], view.max_admissions + plan.preempt.size, view.now_ns)
    if pipe.is_paged and num_rows:
        pipe.grow(plan.slots[:num_rows], columns.cached[plan.slots[:num_rows]] + 1)
    is_whole, state.is_continuous = state.is_continuous, True
    return Launch(
        plan, trues(size) if emits else plan.tokens == left[plan.slots], num_rows, state.kv_tokens + num_rows,
        tuple(range(num_rows, size)), tuple([(0, count) for count in computed]), tuple(joining), is_whole,
    )  # fmt: skip


def _mixed(pipe: Pipe, lane: int, plan: BatchPlan, view: LaneView) -> Launch:
    """Check a plan that isn't one token of each row, and admit whoever joins."""
    state, columns, slots, tokens = pipe.lanes[lane], pipe.columns, plan.slots, plan.tokens
    left, cached = columns.left[slots], columns.cached[slots]
    joining = pipe.check(lane, plan, left)
    emits = tokens == left
    is_decode = (left == 1) & (cached > 0)
    num_decodes = int(np.count_nonzero(is_decode))
    size = slots.size
    if plan.max_repeats > 1 and num_decodes < size:
        raise PolicyError("only a plan in which each request computes its next token may repeat")
    if joining.size:
        pipe.admit(lane, joining, view.max_admissions + plan.preempt.size, view.now_ns)
    others = NO_SLOTS
    chunks: tuple[tuple[int, int], ...] = ()
    if num_decodes < size:
        others = np.flatnonzero(~is_decode)
        chunks = tuple(zip(cached[others].tolist(), tokens[others].tolist(), strict=True))
    has_all = size == len(state.rows)
    if has_all:
        kv_tokens = state.kv_tokens - sum(before for before, _ in chunks)
    else:
        kv_tokens = int(np.add.reduce(cached[is_decode]))
    if pipe.is_paged:
        pipe.grow(slots, cached + tokens)
    is_whole, state.is_continuous = has_all and state.is_continuous, has_all
    return Launch(
        plan, emits, num_decodes, kv_tokens + num_decodes, tuple(others.tolist()), chunks,
        tuple(joining.tolist()), is_whole, repeats_itself=num_decodes == size,
    )  # fmt: skip
