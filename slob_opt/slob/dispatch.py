"""SLoB's dispatcher: a request goes where its expected satisfaction, less what it takes from others, is largest.

On each pipeline the new request is taken to wait for the prompt work before it and then to stream at the pace of a
batch with one stream more. Its satisfaction follows from that; those who are there are slowed by its prompt and stream.

Abstract of the paper: the scheduler balances load over unequal GPUs; how it is not public, the rule is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.scheduling.columns import RequestColumns, State
from slob_opt.scheduling.policy import ArrivalView, PipelineLimits
from slob_opt.slob.urgency import Reading, stream_loss, waiting_loss

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlobDispatcher:
    """Expected satisfaction on each pipeline, speed- and length-aware.

    Attributes
    ----------
    reading
        How satisfaction is measured.
    expected_output
        Output tokens a request is taken to have.
    """

    reading: Reading = field(default_factory=Reading)
    expected_output: int = 256
    name: str = "slob"

    def choose(self, view: ArrivalView) -> int | None:
        """Return the pipeline with the least expected loss; the less loaded, then the first, of equals."""
        losses = [self._loss(view, index) for index in range(len(view.limits))]
        order = sorted(range(len(losses)), key=lambda i: (losses[i], int(view.outstanding[i]), i))
        return order[0]

    def _loss(self, view: ArrivalView, index: int) -> float:
        """Return the satisfaction lost by the new request and by those already there."""
        limits, clock, members = view.limits[index], view.clocks[index], view.members[index]
        if limits.blocks_of(view.prompt + view.max_new) > limits.kv_blocks:
            return float("inf")
        columns, reading = view.columns, self.reading
        left = columns.left[members] if members.size else np.zeros(0, np.int64)
        token_s = clock.prompt_token_s
        queued_s = float(np.maximum(left - 1, 0).sum()) * token_s
        own_s = view.prompt * token_s
        waits_for_kv_s = self._kv_wait(view, members, limits, clock)
        rows = int(members.size)
        cached = int(columns.cached[members].sum()) if rows else 0
        pace_s = batch_s(clock, limits, rows + 1, cached + view.prompt)
        gain = max(reading.tpot_s - pace_s, 0.1 * reading.tpot_s)
        late = waits_for_kv_s + queued_s + own_s + pace_s - reading.ttft_s
        length = float(min(self.expected_output, view.max_new))
        total = float(reading.total_weight(np.array(length)))
        own = float(waiting_loss(np.array(late), reading, gain)) / total
        # A pipeline slower than the reader falls behind with every token.
        slip = max(0.0, pace_s - reading.tpot_s) * length
        own += reading.weight_floor * float(stream_loss(np.array(slip), reading.scale_s, reading.tpot_s)) / total
        return view.priority * own + self._slowed(view, columns, members, own_s, pace_s, clock, limits)

    def _slowed(
        self, view: ArrivalView, columns: RequestColumns, members: IntArray, prompt_s: float, pace_s: float,
        clock: PipelineClock, limits: PipelineLimits,
    ) -> float:  # fmt: skip
        """Return the satisfaction that those already there lose by the new one's prompt and stream."""
        if not members.size:
            return 0.0
        reading = self.reading
        rows = int(members.size)
        before_s = batch_s(clock, limits, rows, int(columns.cached[members].sum()))
        generated = columns.generated[members]
        due = (columns.arrival_ns[members] - view.now_ns) / 1e9 + reading.ttft_s + generated * reading.tpot_s
        length = np.maximum(np.minimum(float(self.expected_output), columns.max_new[members]), generated + 1)
        weight = columns.priority[members] / reading.total_weight(length)
        late = before_s - due
        gain = np.maximum(reading.tpot_s - before_s, 0.1 * reading.tpot_s)
        more = prompt_s + (pace_s - before_s) * np.maximum(length - generated, 1)
        loss = stream_loss(late + more, reading.scale_s, gain) - stream_loss(late, reading.scale_s, gain)
        return float((weight * reading.weight_floor * loss).sum())

    def _kv_wait(self, view: ArrivalView, members: IntArray, limits: PipelineLimits, clock: PipelineClock) -> float:
        """Return how long the new request waits for blocks: until enough of the others have ended, seconds."""
        columns = view.columns
        need = limits.blocks_of(view.prompt) + 1
        if not members.size:
            return 0.0
        waiting = members[columns.state[members] != State.RUNNING]
        free = limits.kv_blocks - int(columns.blocks[members].sum())
        need += int((-(-columns.left[waiting] // limits.block_tokens)).sum())
        rows_free = limits.max_rows - int(members.size)
        if need <= free and rows_free > 0:
            return 0.0
        running = members[columns.state[members] == State.RUNNING]
        to_go = np.maximum(
            np.minimum(float(self.expected_output), columns.max_new[running]) - columns.generated[running], 8
        )
        order = np.argsort(to_go, kind="stable")
        freed = free + np.cumsum(columns.blocks[running][order])
        enough = np.flatnonzero((freed >= need) & (np.arange(1, order.size + 1) + rows_free > 0))
        steps = float(to_go[order][enough[0]]) if enough.size else float(to_go.sum())
        return steps * batch_s(clock, limits, int(running.size), int(columns.cached[running].sum()))


def batch_s(clock: PipelineClock, limits: PipelineLimits, rows: int, cached: int) -> float:
    """Return the time between a request's tokens when a number of them share the lanes, seconds."""
    lanes = min(limits.num_lanes, max(rows, 1))
    return clock.pace_s(max(1, -(-rows // lanes)), -(-cached // lanes), lanes)
