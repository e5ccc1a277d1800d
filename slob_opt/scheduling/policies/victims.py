"""Who loses KV when blocks run short."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.batch_plan import NO_SLOTS
from slob_opt.scheduling.policy import LaneView

IntArray = NDArray[np.int64]


def make_room(view: LaneView, tokens: IntArray | None = None) -> tuple[IntArray, IntArray, int]:
    """Return the rows that keep their KV, those that lose it, and the blocks free after the others have grown.

    Requests of the lane are taken out from the last to come until the others can compute their next tokens. None may be
    left, when other lanes hold the blocks.

    Parameters
    ----------
    tokens
        (R,) tokens that each row computes next; ``None`` is one each.

    References
    ----------
    Kwon et al. 2023, Efficient memory management for large language model serving with PagedAttention, SOSP, section
    4.5: the latest arrivals are preempted first; recomputation, all blocks of a sequence at once.
    """
    rows, columns = view.rows, view.columns
    if not rows.size:
        return rows, NO_SLOTS, view.free_blocks
    held = columns.blocks[rows]
    ends = columns.cached[rows] + (1 if tokens is None else tokens)
    need = np.maximum(-(-ends // view.limits.block_tokens) - held, 0)
    free = view.free_blocks - int(need.sum())
    if free >= 0:
        return rows, NO_SLOTS, free
    order = np.lexsort((columns.request[rows], columns.arrival_ns[rows]))
    keep = np.ones(rows.size, dtype=bool)
    for at in order[::-1].tolist():
        if free >= 0:
            break
        keep[at] = False
        free += int(need[at] + held[at])
    return rows[keep], rows[~keep], free
