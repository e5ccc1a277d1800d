"""Andes: those whose quality of experience gains most per KV token are served, the others are paused or preempted.

Where memory or compute doesn't suffice for all, serving is a knapsack: an item is a request, its value what serving it
for some time adds to its quality over letting it wait, its weight the tokens of its context. For each of a few batch
sizes, since a larger batch is slower, it is packed greedily by value over weight, and the best packing is taken.

References
----------
Liu et al. 2024, Andes: defining and enhancing quality-of-experience in LLM-based text streaming services, arXiv
2404.16283, section 4: problem, greedy packing, selective triggering, pruning of batch sizes, cap on preemptions.

Deviations. Where a reader is follows from what columns tell: a request that is behind is taken to have been so since
its first token. The expected curve goes on, as the length isn't known. The paper caps preemptions per request, which
takes a memory; here the share of requests that are preempted at a time is capped. Preemption recomputes. Between
events the knapsack is solved at least every 8 iterations, not every one. Prompts are computed whole with the others'
decodes, within a budget. Batch sizes between the pruned bounds are tried on a geometric grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.columns import State
from slob_opt.scheduling.policies.fcfs import admissible
from slob_opt.scheduling.policies.prefill_first import MAX_PREFILL_TOKENS
from slob_opt.scheduling.policies.ranked import Ranking, by_arrival, is_plain_decode
from slob_opt.scheduling.policy import KvUse, LaneView

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_REPEATS = 8
"""Iterations after which the knapsack is solved again."""

MAX_CANDIDATES = 512
"""Waiting requests that are compared, from the head of the queue."""

NUM_SIZES = 5
"""Batch sizes that are tried."""

NUM_SAMPLES = 8
"""Tokens at which the worth of a stream is sampled, for satisfaction."""


class Metric(StrEnum):
    """What is gained: Andes' QoE, or satisfaction with phi = 1 / (1 + x)."""

    QOE = "qoe"
    SATISFACTION = "satisfaction"


class _Streams(NamedTuple):
    """Where the readers of N requests are; times in seconds from now.

    Attributes
    ----------
    due_s
        (N,) when the first token is due.
    step_s
        (N,) 1 / v.
    generated
        (N,) tokens delivered.
    read_s
        (N,) when all of those are read; minus infinity without one.
    work_s
        (N,) time until the next token if served, without the pace of the batch.
    max_new
        (N,) most tokens of the answer.
    """

    due_s: FloatArray
    step_s: FloatArray
    generated: IntArray
    read_s: FloatArray
    work_s: FloatArray
    max_new: IntArray


@dataclass(frozen=True, slots=True)
class AndesPolicy:
    """Greedy knapsack by gain in quality per KV token.

    Attributes
    ----------
    metric
        What is gained.
    ttft_s, tokens_per_s
        tau and v where a request has no targets of its own; the metrics' defaults.
    scale_s, first_weight, weight_decay, weight_floor
        sigma and the weights of tokens, for satisfaction only.
    expected_output
        Output tokens a request is taken to have, for satisfaction only; its `max_new_tokens` caps it.
    horizon_s
        How far ahead serving is compared with waiting. Chosen: of 3 to 120 s, from 30 s on it mattered little; below,
        requests were preempted for small gains.
    watermark
        Share of the KV pool in use from which memory is short; the paper's 0.9.
    max_preempted_share
        Share of a pipeline's requests that may be preempted at a time by better ones. Chosen: of 0, 0.2, 0.5 and 1 the
        best mean QoE; recomputing grows with it.
    max_prefill_tokens
        Budget of prompt tokens of an iteration, as for prefill-first; a longer prompt goes alone.

    Raises
    ------
    InputError
        When a parameter is out of range.
    """

    metric: Metric = Metric.QOE
    ttft_s: float = 1.0
    tokens_per_s: float = 5.3
    scale_s: float = 5.0
    first_weight: float = 10.0
    weight_decay: float = 0.98
    weight_floor: float = 0.5
    expected_output: int = 256
    horizon_s: float = 60.0
    watermark: float = 0.9
    max_preempted_share: float = 0.2
    max_prefill_tokens: int = MAX_PREFILL_TOKENS
    name: str = "andes"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def __post_init__(self) -> None:
        above_zero = (
            "ttft_s",
            "tokens_per_s",
            "scale_s",
            "first_weight",
            "weight_floor",
            "expected_output",
            "horizon_s",
        )
        for name in (*above_zero, "max_prefill_tokens"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{name} is {value}, expected a finite number above 0")
        for name, has_one in (("weight_decay", False), ("watermark", True), ("max_preempted_share", True)):
            value = getattr(self, name)
            if not (0 <= value < 1 or (has_one and value == 1)):
                raise InputError(f"{name} is {value}, expected from 0 to {'1' if has_one else 'below 1'}")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return all requests where resources suffice, else those that the knapsack takes."""
        rows, columns = view.rows, view.columns
        if is_plain_decode(view):
            repeats = self._untroubled(view)
            if repeats:
                return BatchPlan.decode(rows, max_repeats=repeats)
        ranking = Ranking(view, MAX_CANDIDATES)
        slots = ranking.candidates
        if not slots.size:
            return None
        if self._suffices(view):
            order, size, wanted = by_arrival(view, slots), view.limits.lane_rows, np.ones(slots.size, dtype=bool)
        else:
            order, size, wanted = self._packed(view, slots)
        preempted = int(np.count_nonzero(columns.state[view.waiting] == State.PREEMPTED))
        spared = wanted.tolist()
        plan = ranking.batch(
            order,
            max_batch=size,
            prompt_tokens=self.max_prefill_tokens,
            is_chunked=False,
            may_drop=lambda new, row: spared[new] and not spared[row],
            max_drops=max(0, int(self.max_preempted_share * (preempted + rows.size)) - preempted),
        )
        if plan is None or plan.preempt.size or not plan.slots.size or max(ranking.taken) >= ranking.num_rows:
            return plan
        return plan._replace(max_repeats=MAX_REPEATS)

    # ------------------------------------------------------------------ selective triggering

    def _strictest_s(self, view: LaneView, slots: IntArray) -> float:
        """Return the shortest time per token that a reader asks for, seconds."""
        own = view.columns.tpot_s[slots]
        own = own[~np.isnan(own)]
        default = 1 / self.tokens_per_s
        return default if not own.size else min(float(own.min()), default if own.size < slots.size else math.inf)

    def _untroubled(self, view: LaneView) -> int:
        """Return iterations for which decoding all rows keeps up with their readers; 0 when it doesn't."""
        rows = view.rows
        strictest = self._strictest_s(view, rows)
        cached = int(view.columns.cached[rows].sum())
        for repeats in (1024, 64, MAX_REPEATS):
            grown = cached + repeats * int(rows.size)
            if view.clock.pace_s(int(rows.size), grown, view.limits.num_lanes) <= strictest:
                return repeats
        return 0

    def _suffices(self, view: LaneView) -> bool:
        """Return whether all can be served: memory below the watermark, rows for all, and a pace that readers bear."""
        free = view.free_blocks - math.ceil((1 - self.watermark) * view.limits.kv_blocks)
        rows, waiting = view.rows, view.waiting
        if free < rows.size or admissible(view, free - int(rows.size)).size < waiting.size:
            return False
        every = np.concatenate([rows, waiting])
        tokens = int((view.columns.cached[every] + view.columns.left[every]).sum())
        pace = view.clock.pace_s(max(1, int(every.size)), tokens, view.limits.num_lanes)
        return pace <= self._strictest_s(view, every)

    # ------------------------------------------------------------------ knapsack

    def _packed(self, view: LaneView, slots: IntArray) -> tuple[IntArray, int, BoolArray]:
        """Return the order of requests, how many of them are served, and (N,) which."""
        columns, limits = view.columns, view.limits
        context = columns.prompt[slots] + columns.generated[slots]
        blocks = np.maximum(-(-(context + 1) // limits.block_tokens), columns.blocks[slots])
        capacity = view.free_blocks + int(columns.blocks[view.rows].sum())
        streams = self._streams(view, slots)
        largest = int(np.searchsorted(np.cumsum(np.sort(blocks)), capacity, side="right"))
        largest = max(1, min(largest, limits.lane_rows))
        best: tuple[float, IntArray, int] | None = None
        for size in self._sizes(view, slots, largest, float(context.mean())):
            pace = view.clock.pace_s(size, int(size * context.mean()), limits.num_lanes)
            gain = self.gains(streams, pace)
            order = by_arrival(view, slots, -gain / context, streams.due_s + streams.generated * streams.step_s)
            fits = int(np.searchsorted(np.cumsum(blocks[order[:size]]), capacity, side="right"))
            value = float(gain[order[:fits]].sum())
            if best is None or value >= best[0]:
                best = (value, order, max(1, fits))
        assert best is not None
        _, order, size = best
        wanted = np.zeros(slots.size, dtype=bool)
        wanted[order[:size]] = True
        return order, size, wanted

    def _sizes(self, view: LaneView, slots: IntArray, largest: int, context: float) -> list[int]:
        """Return batch sizes to try, ascending: from the largest that keeps up with all readers to what fits."""
        strictest = self._strictest_s(view, slots)
        low, high = 1, largest
        while low < high:  # the largest size whose pace is within the strictest
            middle = (low + high + 1) // 2
            if view.clock.pace_s(middle, int(middle * context), view.limits.num_lanes) <= strictest:
                low = middle
            else:
                high = middle - 1
        if low >= largest:
            return [largest]
        return sorted({round(size) for size in np.geomspace(low, largest, NUM_SIZES).tolist()})

    def _streams(self, view: LaneView, slots: IntArray) -> _Streams:
        """Return where readers are."""
        columns = view.columns
        ttft, tpot = columns.ttft_s[slots], columns.tpot_s[slots]
        ttft = np.where(np.isnan(ttft), self.ttft_s, ttft)
        step = np.where(np.isnan(tpot), 1 / self.tokens_per_s, tpot)
        generated = columns.generated[slots]
        due = (columns.arrival_ns[slots] - view.now_ns) / NS_PER_S + ttft
        last = (columns.last_token_ns[slots] - view.now_ns) / NS_PER_S
        read = np.where(generated > 0, np.maximum(last, due + (generated - 1) * step) + step, -np.inf)
        work = np.asarray((columns.left[slots] - 1) * view.clock.prompt_token_s, np.float64)
        return _Streams(due, step, generated, read, work, columns.max_new[slots])

    def gains(self, streams: _Streams, pace_s: float) -> FloatArray:
        """Return (N,) what each gains by being served up to the horizon rather than waiting, from 0 to 1."""
        return (
            self._qoe_gain(streams, pace_s) if self.metric is Metric.QOE else self._satisfaction_gain(streams, pace_s)
        )

    def _qoe_gain(self, streams: _Streams, pace_s: float) -> FloatArray:
        """Gain in QoE: areas under what is read up to the horizon, over the area under the ideal."""
        end, step, count = self.horizon_s, streams.step_s, streams.generated
        begun = np.where(count > 0, streams.read_s - count * step, end)  # when reading began, if it never paused
        until = np.minimum(end - begun, count * step)
        waits = np.where(count > 0, np.maximum(until, 0.0) ** 2 / (2 * step) + count * (end - begun - until), 0.0)
        resumes = np.maximum(streams.read_s, streams.work_s + pace_s)
        more = np.maximum(end - resumes, 0.0) ** 2 / (2 * np.maximum(step, pace_s))
        ideal = np.maximum(end - streams.due_s, 0.0) ** 2 / (2 * step)
        safe = np.maximum(ideal, 1e-12)
        gain = np.minimum(1.0, (waits + more) / safe) - np.minimum(1.0, waits / safe)
        return np.asarray(np.where(ideal > 0, gain, 0.0))

    def _satisfaction_gain(self, streams: _Streams, pace_s: float) -> FloatArray:
        """Gain in satisfaction: what the tokens up to the horizon are worth now, less what they are worth later."""
        first = streams.work_s + pace_s
        num = np.clip(np.floor((self.horizon_s - first) / pace_s) + 1, 0.0, streams.max_new - streams.generated)
        share = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES
        is_new = streams.generated == 0
        rest = num - (is_new & (num > 0))
        place = (num - rest)[:, None] + share[None, :] * rest[:, None]  # tokens after those delivered, from 0
        late = (first - streams.due_s - streams.generated * streams.step_s)[:, None]
        late = late + place * (pace_s - streams.step_s)[:, None]
        weight = np.maximum(self.weight_floor, self.weight_decay ** (streams.generated[:, None] + place))
        lost = (self._lost(late + self.horizon_s) - self._lost(late)) * weight
        gain = rest * lost.mean(axis=1)
        opening = first - streams.due_s
        once = self.first_weight * (self._lost(opening + self.horizon_s) - self._lost(opening))
        gain = gain + np.where(is_new & (num > 0), once, 0.0)
        length = np.minimum(self.expected_output, streams.max_new)
        return np.asarray(gain / self._total_weight(np.maximum(length, streams.generated + 1)))

    def _lost(self, late_s: FloatArray) -> FloatArray:
        """Return ``1 - phi`` at some lateness."""
        late = np.maximum(late_s, 0.0)
        return np.asarray(late / (late + self.scale_s))

    def _total_weight(self, tokens: IntArray) -> FloatArray:
        """Return (N,) sums of weights of answers of so many tokens."""
        weights = np.maximum(self.weight_floor, self.weight_decay ** np.arange(int(tokens.max())))
        weights[0] = self.first_weight
        return np.asarray(np.cumsum(weights)[tokens - 1])
