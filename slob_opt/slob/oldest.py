"""What the oldest requests are owed: as much as a server of a share of this one, first come, first served, gives them.

The reference server takes the requests of a pipeline in order of arrival. It holds its share of the rows, and of the KV
blocks for their prompts and limits of new tokens; one request always fits. In each batch it computes a token of each
whose prompt is computed, and of the oldest others its share of as many prompt tokens as the batch before had, or of the
least chunk.

Of the reference its *reach* is kept: all prompts one after the other, in order of arrival, make a line of tokens, and
the reference has computed what lies before its reach. Requests that are over here still take its time. So where value
comes first, requests that were passed by are owed something only when the reference comes to them, and what they are
owed is little as long as most were served sooner than it would have.

The reach is never too short. Where something isn't known it's taken as the reference would like it: a request that is
over had the tokens that were last seen, a batch without prompts could have computed the least chunk, promised batches
count as run unless it's seen how many were, and while nobody waits and all decode it catches up with all that came.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.columns import RequestColumns, State
from slob_opt.scheduling.policy import LaneView

IntArray = NDArray[np.int64]

_FREE = int(State.FREE)


@dataclass(slots=True)
class Place:
    """A request's place in the line of prompts.

    Attributes
    ----------
    slot, request
        Of the request.
    first, end
        Prompt tokens of all that came before, and with its own.
    blocks
        KV blocks that it may ever need, one beyond included.
    done_at
        Batches the reference had run when it had computed the prompt; ``None`` before.
    tokens
        Output tokens it had when it was last seen here; ``None`` while it isn't over.
    """

    slot: int
    request: int
    first: int
    end: int
    blocks: int
    done_at: float | None = None
    tokens: int | None = None


@dataclass(slots=True)
class _Batch:
    """A lane's last plan: prompt tokens, batches promised, and a request that decodes in it, by which to count them."""

    prompt: int
    most: int
    slot: int = -1
    request: int = -1
    generated: int = 0


class Reference:
    """How far the server of a share may have come on one pipeline.

    Parameters
    ----------
    share
        Of rows, blocks and prompt tokens, above 0.
    least_chunk
        Prompt tokens that a batch is taken to have at least.

    Attributes
    ----------
    reach
        Tokens of the line of prompts that it has computed, at most.
    reached
        Requests it holds, the oldest first; some may be over here.
    is_idle
        Set while nobody waits and all decode: it catches up.
    """

    def __init__(self, share: float, least_chunk: int) -> None:
        self.share, self.least_chunk = share, least_chunk
        self.reach = 0
        self.reached: list[Place] = []
        self.is_idle = False
        self._is_full = False
        self._ahead: deque[Place] = deque()
        self._known: dict[int, Place] = {}
        self._last: dict[int, _Batch] = {}
        self._batches = 0.0
        self._total = 0

    # ------------------------------------------------------------------ what happened

    def update(self, view: LaneView) -> None:
        """Take in the lane's batches since its last decision and who came, and go on by the batch to be decided."""
        columns = view.columns
        if self.is_idle:
            self.is_idle = False
            self.reached = [place for place in self.reached if not is_over(columns, place)]
            self._ahead = deque(place for place in self._ahead if not is_over(columns, place))
            self._go_on(view, self._total)
            for place in self.reached:  # the reference has delivered no more of them than we
                place.tokens = columns.generated.item(place.slot)
                if place.done_at is not None:
                    place.done_at = self._batches + 1 - place.tokens
            self._last.clear()
        else:
            self._see(view)
        last = self._last.pop(view.lane, None)
        if last is not None:
            steps = self._steps(columns, last) - 1
            if steps:
                self._batches += steps / view.limits.num_lanes
                self._go_on(view, steps * self._budget(0))
        self._enter(view)
        self._batches += 1 / view.limits.num_lanes
        self._go_on(view, self._budget(0 if last is None else last.prompt))

    def _see(self, view: LaneView) -> None:
        """Note how many tokens the lane's requests have."""
        known, rows = self._known, view.rows
        for slot, tokens in zip(rows.tolist(), view.columns.generated[rows].tolist(), strict=True):
            if slot in known:
                known[slot].tokens = tokens

    def _budget(self, prompt: int) -> int:
        """Return the reference's prompt tokens after a batch with a number of them."""
        return math.ceil(self.share * max(prompt, self.least_chunk))

    def note(self, view: LaneView, plan: BatchPlan) -> None:
        """Take in what the lane runs next."""
        columns, streams = view.columns, 0
        found = _Batch(0, plan.max_repeats)
        if plan.slots.size:
            slot = plan.slots.item(0)
            if columns.left.item(slot) == 1 and columns.cached.item(slot) > 0:
                found = _Batch(0, plan.max_repeats, slot, columns.request.item(slot), columns.generated.item(slot))
            if plan.max_repeats == 1:
                streams = int(np.count_nonzero((columns.left[plan.slots] == 1) & (columns.cached[plan.slots] > 0)))
                found.prompt = int(plan.tokens.sum()) - streams
            self._last[view.lane] = found

    @staticmethod
    def _steps(columns: RequestColumns, last: _Batch) -> int:
        """Return how many batches a plan stood for; all it promised where that can't be seen."""
        if last.most > 1 and last.slot >= 0 and columns.request.item(last.slot) == last.request:
            return min(max(columns.generated.item(last.slot) - last.generated, 1), last.most)
        return last.most

    def _enter(self, view: LaneView) -> None:
        """Put those that came since the last decision at the end of the line."""
        columns, limits, known = view.columns, view.limits, self._known
        new = []
        for slot in view.waiting[::-1].tolist():
            place = known.get(slot)
            if place is not None and place.request == columns.request.item(slot):
                break
            new.append(slot)
        for slot in reversed(new):
            prompt = columns.prompt.item(slot)
            blocks = min(limits.blocks_of(prompt + columns.max_new.item(slot)) + 1, limits.kv_blocks)
            place = Place(slot, columns.request.item(slot), self._total, self._total + prompt, blocks, tokens=0)
            known[slot] = place
            self._ahead.append(place)
            self._total += prompt

    def _go_on(self, view: LaneView, tokens: int) -> None:
        """Let the reference compute up to a number of prompt tokens more, and give up those that have ended there."""
        columns, limits, now = view.columns, view.limits, self._batches
        self.reached = [place for place in self.reached if not self._has_left(columns, place)]
        most_rows = max(1, math.ceil(self.share * limits.max_rows - 1e-9))
        spare = self.share * limits.kv_blocks - sum(place.blocks for place in self.reached)
        reach, ahead, reached = min(self.reach + tokens, self._total), self._ahead, self.reached
        self._is_full = False
        while ahead and ahead[0].first < reach:
            place = ahead[0]
            if reached and (len(reached) >= most_rows or place.blocks > spare):
                reach, self._is_full = place.first, True
                break
            reached.append(place)
            spare -= place.blocks
            ahead.popleft()
        self.reach = reach
        for place in reached:
            if place.done_at is None and place.end <= reach:
                place.done_at = now

    def _has_left(self, columns: RequestColumns, place: Place) -> bool:
        """Return whether a request is over here and may have ended at the reference."""
        if place.done_at is None or not is_over(columns, place):
            return False
        return self._batches >= place.done_at + (place.tokens or 0)

    # ------------------------------------------------------------------ what follows

    def owed(self, view: LaneView) -> list[tuple[int, int]]:
        """Return slots that the lane may compute and whose prompts are behind the reach, and tokens that each lacks."""
        columns, found = view.columns, []
        waits = -1 - view.pipeline
        for place in self.reached:
            slot = place.slot
            if is_over(columns, place):
                continue
            left = columns.left.item(slot)
            if columns.place.item(slot) != waits and (left == 1 or columns.lane.item(slot) != view.lane):
                continue
            lacks = min(left, self.reach - place.first - columns.cached.item(slot))
            if lacks > 0:
                found.append((slot, lacks))
        return found

    def quiet(self, columns: RequestColumns) -> int:
        """Return for how many batches, the next included, nobody is owed more unless a request ends or comes."""
        for place in self.reached:
            if place.end > self.reach and not is_over(columns, place):
                return 1
        if not self._ahead:
            return 1 << 30
        if not self._is_full:
            return 1
        ends = [
            place.done_at + (place.tokens or 0) - self._batches
            for place in self.reached
            if place.done_at is not None and is_over(columns, place)
        ]
        return max(1, math.floor(min(ends, default=1 << 30)))

    def kept(self, columns: RequestColumns) -> set[int]:
        """Return the slots that it holds and that aren't over here: they keep their KV."""
        return {place.slot for place in self.reached if not is_over(columns, place)}


def is_over(columns: RequestColumns, place: Place) -> bool:
    """Return whether a request has left."""
    return columns.request.item(place.slot) != place.request or columns.state.item(place.slot) == _FREE


class References:
    """The references of a policy, one for each pipeline of each scheduler that it serves.

    They go with the scheduler's columns, so that a policy that serves two schedulers decides alike for both. A copy
    starts without any.
    """

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[RequestColumns, dict[int, Reference]] = WeakKeyDictionary()

    def of(self, view: LaneView, share: float, least_chunk: int) -> Reference:
        """Return the reference of a view's pipeline."""
        pipelines = self._found.get(view.columns)
        if pipelines is None:
            pipelines = self._found[view.columns] = {}
        found = pipelines.get(view.pipeline)
        if found is None:
            found = pipelines[view.pipeline] = Reference(share, least_chunk)
        return found

    def __reduce__(self) -> tuple[type[References], tuple[()]]:
        """Pickle and copy as one without any."""
        return References, ()
