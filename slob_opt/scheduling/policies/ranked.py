"""Batches from a ranking: the best requests compute, those in between keep their KV and wait, the worst may lose it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.batch_plan import NO_SLOTS, BatchPlan
from slob_opt.scheduling.policy import LaneView

IntArray = NDArray[np.int64]

MayDrop = Callable[[int, int], bool]
"""Whether a waiting request (its place among the candidates) may take the KV of a running one (its place)."""


class Ranking:
    """A lane's rows and the waiting requests, to be taken in some order.

    Parameters
    ----------
    view
        Of the lane.
    max_candidates
        Waiting requests that are looked at, from the head of the queue.

    Attributes
    ----------
    candidates
        (N,) slots: the lane's rows, then the waiting ones.
    num_rows
        How many of them are rows.
    taken
        Places of those in the last batch.
    """

    def __init__(self, view: LaneView, max_candidates: int) -> None:
        self.view = view
        self.num_rows = int(view.rows.size)
        self.taken: list[int] = []
        self.candidates: IntArray = np.concatenate([view.rows, view.waiting[:max_candidates]])

    def batch(
        self,
        order: IntArray,
        *,
        max_batch: int,
        prompt_tokens: int,
        is_chunked: bool,
        may_drop: MayDrop,
        max_drops: int = 1 << 30,
    ) -> BatchPlan | None:
        """Return the batch of the best that fit; ``None`` when nobody can run.

        A row that can't grow takes the blocks of the worst row; a waiting request does so only where it may. Who runs
        but isn't in the batch is paused: it keeps its KV. No waiting request overtakes one of better rank that doesn't
        fit.

        Parameters
        ----------
        order
            (N,) places among the candidates, the best first.
        max_batch
            Most requests of the batch.
        prompt_tokens
            Budget of prompt tokens of the batch.
        is_chunked
            Whether prompts are cut to the budget; else they are computed whole, and one longer than it alone.
        may_drop
            Whose KV a waiting request may take.
        max_drops
            How many rows may lose their KV to waiting requests.
        """
        view, columns = self.view, self.view.columns
        size = view.limits.block_tokens
        known = columns.left[self.candidates]
        held = columns.blocks[self.candidates].tolist()  # waiting ones hold none
        growth = np.maximum(-(-(columns.cached[self.candidates] + known) // size) - held, 0).tolist()
        left, ranks = known.tolist(), order.tolist()
        losers = [at for at in reversed(ranks) if at < self.num_rows]
        free, admissions = view.free_blocks, view.max_admissions
        budget, can_admit, has_prompt = prompt_tokens, True, False
        tokens: dict[int, int] = {}
        dropped: list[int] = []
        for at in ranks:
            if len(tokens) >= max_batch:
                break
            if at in dropped:
                continue
            is_row = at < self.num_rows
            count = left[at]
            if count > 1 or not is_row:
                if is_chunked:
                    count = min(count, budget)
                elif has_prompt and count > budget:
                    count = 0
                if count <= 0 or not (is_row or can_admit):
                    can_admit = False
                    continue
            need = growth[at] if is_row else min(growth[at] + 1, view.limits.kv_blocks)
            if need > free or (not is_row and admissions <= 0):
                rows = [row for row in losers if row != at and row not in tokens and row not in dropped]
                if is_row:
                    taken = _enough(rows, held, need - free, 0)
                elif can_admit and max_drops > 0:
                    rows = [row for row in rows if may_drop(at, row)][:max_drops]
                    taken = _enough(rows, held, need - free, 1 - admissions)
                else:
                    taken = None
                if taken is None:
                    can_admit = can_admit and is_row
                    continue
                max_drops -= 0 if is_row else len(taken)
                dropped += taken
                admissions += len(taken)
                free += sum(held[row] for row in taken)
            free -= growth[at]
            admissions -= 0 if is_row else 1
            if left[at] > 1 or not is_row:
                budget -= count
                has_prompt = True
            tokens[at] = count
        return self._plan(tokens, dropped, known)

    def _plan(self, tokens: dict[int, int], dropped: Sequence[int], known: IntArray) -> BatchPlan | None:
        """Return the plan; when other lanes hold all blocks, the rows give theirs up."""
        self.taken = list(tokens)
        if not tokens:
            return BatchPlan(NO_SLOTS, NO_SLOTS, self.view.rows) if self.num_rows else None
        preempt = self.candidates[list(dropped)] if dropped else NO_SLOTS
        places, counts = np.array(self.taken, np.int64), np.array(list(tokens.values()), np.int64)
        if not (counts == 1).all():
            return BatchPlan(self.candidates[places], counts, preempt)
        places.sort()
        if not dropped and places.size == self.num_rows > places[-1] and (known[places] == 1).all():
            return BatchPlan.decode(self.view.rows)
        return BatchPlan(self.candidates[places], counts, preempt)


def _enough(rows: Sequence[int], held: Sequence[int], blocks: int, places: int) -> list[int] | None:
    """Return the first rows that together hold so many blocks and places; ``None`` when all don't."""
    taken: list[int] = []
    for row in rows:
        if blocks <= 0 and len(taken) >= places:
            break
        taken.append(row)
        blocks -= held[row]
    return taken if blocks <= 0 and len(taken) >= places else None


def is_plain_decode(view: LaneView) -> bool:
    """Return whether nobody waits, all rows decode and there is a block for each: a batch with nothing to decide."""
    rows = view.rows
    return (
        not view.waiting.size and view.free_blocks >= rows.size > 0 and int(view.columns.left[rows].max()) == 1
    )  # fmt: skip


def by_arrival(view: LaneView, slots: IntArray, *keys: NDArray[np.generic]) -> IntArray:
    """Return places of slots sorted by keys, the first key first, then by arrival, then by the caller's number."""
    columns = view.columns
    return np.lexsort((columns.request[slots], columns.arrival_ns[slots], *reversed(keys)))
