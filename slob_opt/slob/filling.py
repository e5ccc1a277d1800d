"""Which prompts go into a batch: within a budget of tokens, KV blocks and places, and with the least padding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.policy import LaneView

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def best_rectangle(left: IntArray, urgency: FloatArray, order: IntArray) -> IntArray:
    """Return the places of the prompts whose rectangle gains most per computed token, the most urgent first.

    For each longest prompt the most urgent of those no longer, as many as gain: exact for one batch, since a rectangle
    costs its rows times its longest.

    Parameters
    ----------
    left, urgency
        (P,) prompt tokens to compute, and what each gains.
    order
        Places that may be chosen, the best first among equals.
    """
    best: tuple[float, IntArray] | None = None
    for longest in np.unique(left[order]).tolist():
        fits = order[left[order] <= longest]
        fits = fits[np.argsort(-urgency[fits], kind="stable")]
        rate = np.cumsum(urgency[fits] + 1e-12) / (np.arange(1, fits.size + 1) * longest)
        count = fits.size - int(np.argmax(rate[::-1]))
        if best is None or rate[count - 1] > best[0]:
            best = (float(rate[count - 1]), fits[:count])
    return order if best is None else best[1]


class Filling:
    """Prompts of a batch and their tokens, taken one by one while blocks and places last.

    Parameters
    ----------
    view
        Of the lane.
    free
        Blocks that are free beside what the streams take.
    places
        Requests that may be admitted.

    Attributes
    ----------
    tokens
        Tokens of each slot taken.
    used
        Their sum.
    """

    def __init__(self, view: LaneView, free: int, places: int) -> None:
        self.view, self.free, self.places = view, free, places
        self.tokens: dict[int, int] = {}
        self.used = 0
        self._waits = -1 - view.pipeline

    def blocks_to_join(self, slot: int) -> int:
        """Return the blocks that must be free for a request to be admitted: its known tokens', and one beyond."""
        limits = self.view.limits
        return min(limits.blocks_of(self.view.columns.left.item(slot)) + 1, limits.kv_blocks)

    def give(self, slot: int, most: int) -> None:
        """Take up to so many more tokens of a request; nothing where it would have to join and can't."""
        columns = self.view.columns
        have = self.tokens.get(slot, 0)
        left = columns.left.item(slot)
        more = min(left - have, most)
        if more <= 0:
            return
        if not have and columns.place.item(slot) == self._waits:
            if self.places <= 0 or self.blocks_to_join(slot) > self.free:
                return
            self.places -= 1
            self.free -= self.view.limits.blocks_of(left)
        self.tokens[slot] = have + more
        self.used += more
