"""SLoB's pipeline policy: mixed priorities, least padding.

Abstract of the paper: a "mixed-priority pipeline scheduler" with the "least-padding principle", judged by a
satisfaction that weighs the tokens of a streamed response. Here every choice is by gain in satisfaction per unit of
marginal time:

* Streams that are being read decode in every batch: their marginal time is small and a pause is never repaid.
* Prompts are ordered by the satisfaction that is lost while they wait, over the time they take, pads included.
* How much prompt goes into a batch is what the streams can bear: up to their slack nothing is lost by it; beyond, until
  the streams would lose more than the prompts gain.
* A share of the prompt tokens goes to the oldest, whatever they are worth, so that nobody starves.

Only the abstract is public; the rules are a reconstruction, and its constants are parameters.

References
----------
Jiang et al. 2024, SLoB, IEEE TCSS 11(6), abstract. Smith 1956, Various optimizers for single-stage production, section
on weighted completion time (order by weight over processing time).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import COMPUTE_BOUND_TOKENS
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.policies.victims import make_room
from slob_opt.scheduling.policy import KvUse, LaneView
from slob_opt.slob.urgency import Reading, stream_loss, waiting_loss

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_REPEATS = 8
"""Iterations after which the policy decides again, whatever happens."""

FULL_TOKENS = COMPUTE_BOUND_TOKENS
"""Computed tokens from which a batch is bound by compute, so more prompts in it only wait for each other. Chosen."""

LEAST_CHUNK = 512
"""Prompt tokens that a batch may take whatever the streams lose: deferred, the same work would stall others later, and
smaller batches compute less in the same time (Sarathi-Serve takes the same size)."""

STEPS = np.geomspace(1 / 64, 4.0, 24)
"""Seconds of prompt work that are tried, beside all of it."""

NEAR_S = 0.25
"""Look-ahead: a request that would be late this soon is worth something already. Chosen."""

MOST_CANDIDATES = 256
"""Waiting requests that are compared; the oldest."""


@dataclass(frozen=True, slots=True)
class SlobPolicy:
    """Mixed-priority, least-padding batches.

    Attributes
    ----------
    oldest_share
        Share of prompt tokens and admissions that goes to the oldest requests.
    expected_output
        Output tokens a request is taken to have where nothing is predicted; its `max_new_tokens` caps it.
    kv_foresight
        Share of the output still expected of the running requests for which blocks are kept free; 0 admits whatever
        fits now, and preempts later.
    reading
        How satisfaction is measured.
    uses_padding, uses_priority, uses_chunks
        Switches of parts, for ablation.
    """

    oldest_share: float = 0.25
    expected_output: int = 256
    kv_foresight: float = 0.0
    reading: Reading = field(default_factory=Reading)
    uses_padding: bool = True
    uses_priority: bool = True
    uses_chunks: bool = True
    name: str = "slob"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return the streams' next tokens and the prompts worth computing with them."""
        rows, columns = view.rows, view.columns
        if not view.waiting.size and view.free_blocks >= rows.size > 0 and columns.left[rows].max() == 1:
            return BatchPlan.decode(rows, max_repeats=MAX_REPEATS)  # streams alone, and room for a block each
        kept, preempt, free = make_room(view, np.where(columns.left[rows] == 1, 1, 0))
        if preempt.size:
            streams = kept[columns.left[kept] == 1]
            return BatchPlan(streams, np.ones(streams.size, np.int64), preempt)
        left = columns.left[rows]
        streams, begun = rows[left == 1], rows[left > 1]
        waiting = self._admissible(view, free)
        if not begun.size and not waiting.size:
            return BatchPlan.decode(rows, max_repeats=MAX_REPEATS) if rows.size else None
        prompts, tokens = self._chosen(view, streams, np.concatenate([begun, waiting]), begun.size, free)
        slots = np.concatenate([streams, prompts])
        if not prompts.size:
            return BatchPlan.decode(streams) if streams.size else None
        return BatchPlan(slots, np.concatenate([np.ones(streams.size, np.int64), tokens]))

    def _admissible(self, view: LaneView, free: int) -> IntArray:
        """Return waiting requests each of which fits by itself, beside what the running ones are about to need."""
        if not view.max_admissions or not view.waiting.size:
            return view.waiting[:0]
        waiting, size = view.waiting[:MOST_CANDIDATES], view.limits.block_tokens
        need = -(-view.columns.left[waiting] // size)
        least = np.minimum(need + 1, view.limits.kv_blocks)
        if view.rows.size:
            growth = self.kv_foresight / size
            spare = free - growth * float(self._to_go(view, view.rows).sum())
            return waiting[(least <= free) & (need + growth * self._to_go(view, waiting) <= spare)]
        return waiting[least <= free]

    def _to_go(self, view: LaneView, slots: IntArray) -> FloatArray:
        """Return (N,) output tokens that requests are expected to have still to come, at least a few."""
        columns = view.columns
        predicted = columns.predicted[slots]
        length = np.where(np.isnan(predicted), float(self.expected_output), predicted)
        length = np.minimum(length, columns.max_new[slots])
        return np.asarray(np.maximum(length - columns.generated[slots], 8.0))

    # ------------------------------------------------------------------ worth

    def _targets(self, view: LaneView, slots: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return when each request's next token is due (s from now), its 1/v, and its weight over its total weight."""
        columns, reading = view.columns, self.reading
        ttft, tpot = columns.ttft_s[slots], columns.tpot_s[slots]
        ttft = np.where(np.isnan(ttft), reading.ttft_s, ttft)
        tpot = np.where(np.isnan(tpot), reading.tpot_s, tpot)
        generated = columns.generated[slots]
        due = (columns.arrival_ns[slots] - view.now_ns) / 1e9 + ttft + generated * tpot
        length = generated + self._to_go(view, slots)
        weight = (columns.priority[slots] if self.uses_priority else 1.0) / reading.total_weight(length)
        return due, tpot, weight

    def _chosen(
        self, view: LaneView, streams: IntArray, prompts: IntArray, num_begun: int, free: int
    ) -> tuple[IntArray, IntArray]:
        """Return the prompts of the next batch and the tokens of each."""
        columns, reading = view.columns, self.reading
        token_s = view.clock.prompt_token_s
        decode_s = self._decode_s(view, streams)
        left = columns.left[prompts]
        work_s = left * token_s
        due, tpot, weight = self._targets(view, prompts)
        gain = np.maximum(tpot - decode_s, 0.1 * tpot)
        late = decode_s + work_s - due
        urgency = weight * (waiting_loss(late + NEAR_S, reading, gain) - waiting_loss(late, reading, gain)) / NEAR_S
        # Where nobody is about to be late, the one that is due first.
        density = urgency / work_s + 1e-9 / np.maximum(1.0, due - late.min() + 1.0)
        oldest = np.lexsort((columns.request[prompts], columns.arrival_ns[prompts]))
        # What is begun holds its blocks until it ends, so it comes first.
        order = np.lexsort((-density, np.arange(prompts.size) >= num_begun))
        budget = self._budget(view, streams, prompts, order, urgency, token_s, decode_s)
        first = oldest[:1] if self.oldest_share > 0 else oldest[:0]
        if view.is_padded and self.uses_padding:
            order = self._rectangle(left, urgency, order, first)
        return self._filled(view, prompts, order, first, budget, num_begun, free)

    def _decode_s(self, view: LaneView, streams: IntArray) -> float:
        """Return the time of a batch of the streams alone, seconds; zero without one."""
        if not streams.size:
            return 0.0
        size = int(streams.size)
        cached = int(view.columns.cached[streams].sum()) + size
        return view.clock.pace_s(size, cached, view.limits.num_lanes)

    def _budget(
        self, view: LaneView, streams: IntArray, prompts: IntArray, order: IntArray, urgency: FloatArray,
        token_s: float, decode_s: float,
    ) -> int:  # fmt: skip
        """Return how many prompt tokens the streams can bear in the next batch."""
        if not streams.size or not self.uses_chunks:
            return 1 << 40
        due, tpot, weight = self._targets(view, streams)
        gain = np.maximum(tpot - decode_s, 0.1 * tpot)
        late = decode_s - due
        weight = weight * self.reading.weight_floor
        scale = self.reading.scale_s
        before = stream_loss(late, scale, gain)
        after = stream_loss(late[None, :] + STEPS[:, None], scale, gain[None, :])
        cost = ((after - before[None, :]) * weight[None, :]).sum(axis=1)
        # What the prompts gain by not waiting for another batch of the streams, in proportion to how much is computed.
        work_s = view.columns.left[prompts] * token_s
        ends = np.cumsum(work_s[order])
        share = np.clip((STEPS[:, None] - (ends - work_s[order])[None, :]) / work_s[order][None, :], 0.0, 1.0)
        benefit = decode_s * (share * urgency[order][None, :]).sum(axis=1)
        allowed = np.flatnonzero(cost <= benefit + 1e-12)
        best_s = float(STEPS[allowed[-1]]) if allowed.size else 0.0
        return max(LEAST_CHUNK, int(best_s / token_s))

    # ------------------------------------------------------------------ filling

    def _rectangle(self, left: IntArray, urgency: FloatArray, order: IntArray, first: IntArray) -> IntArray:
        """Return the prompts whose rectangle gains most per computed token, the best first.

        For each longest prompt the most urgent of those no longer, as many as gain: exact for one batch, since a
        rectangle costs its rows times its longest.
        """
        best: tuple[float, IntArray] | None = None
        for longest in np.unique(left[order]):
            fits = order[left[order] <= longest]
            fits = fits[np.argsort(-urgency[fits], kind="stable")]
            rate = np.cumsum(urgency[fits] + 1e-12) / (np.arange(1, fits.size + 1) * longest)
            size = int(np.argmax(rate[::-1]))
            count = fits.size - size
            if best is None or rate[count - 1] > best[0]:
                best = (float(rate[count - 1]), fits[:count])
        assert best is not None
        return best[1] if not first.size else np.concatenate([best[1], first[~np.isin(first, best[1])]])

    def _filled(
        self, view: LaneView, prompts: IntArray, order: IntArray, first: IntArray, budget: int, num_begun: int,
        free: int,
    ) -> tuple[IntArray, IntArray]:  # fmt: skip
        """Return prompts and tokens within a budget, KV and admissions: the oldest get their share first."""
        left = view.columns.left
        size = view.limits.block_tokens
        tokens: dict[int, int] = {}
        admissions = view.max_admissions
        used = 0

        def give(at: int, most: int) -> None:
            nonlocal admissions, free, used
            slot = int(prompts[at])
            have = tokens.get(slot, 0)
            more = min(int(left[slot]) - have, most)
            if more <= 0:
                return
            if at >= num_begun and not have:
                need = -(-int(left[slot]) // size)
                if admissions <= 0 or min(need + 1, view.limits.kv_blocks) > free:
                    return
                admissions -= 1
                free -= need
            tokens[slot] = have + more
            used += more

        share = math.ceil(self.oldest_share * min(budget, int(left[prompts].sum())))
        for at in first.tolist():
            give(at, share)
        for at in order.tolist():
            if used >= budget or (used >= FULL_TOKENS and self.uses_chunks and not view.is_padded):
                break
            give(at, budget - used)
        slots = np.array(list(tokens), np.int64)
        return slots, np.array(list(tokens.values()), np.int64)
