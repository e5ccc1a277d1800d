"""SLoB's pipeline policy: mixed priorities, least padding.

Abstract of the paper: a "mixed-priority pipeline scheduler" with the "least-padding principle", judged by a
satisfaction that weighs the tokens of a streamed response. Here every choice is by gain in satisfaction per unit of
marginal time:

* Streams that are being read decode in every batch: their marginal time is small and a pause is never repaid.
* Prompts are ordered by the satisfaction that is lost while they wait, over the time they take, pads included. One that
  is so late that little is left to lose waits until there is time.
* How much prompt goes into a batch is what the streams can bear: up to their slack nothing is lost by it; beyond, until
  the streams would lose more than the prompts gain.
* Where blocks run short, those lose their KV who lose least by it.
* What the oldest are owed comes first, whatever it's worth, so that nobody starves.

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
from slob_opt.errors import InputError
from slob_opt.scheduling.batch_plan import NO_SLOTS, BatchPlan, ones
from slob_opt.scheduling.columns import State
from slob_opt.scheduling.policy import KvUse, LaneView
from slob_opt.slob.filling import Filling, best_rectangle
from slob_opt.slob.oldest import Reference, References
from slob_opt.slob.urgency import Reading
from slob_opt.slob.worth import Worth

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_REPEATS = 8
"""Iterations after which the policy decides again, whatever happens."""

FULL_TOKENS = COMPUTE_BOUND_TOKENS
"""Computed tokens from which a batch is bound by compute, so more prompts in it only wait for each other. Chosen."""

LEAST_CHUNK = 512
"""Prompt tokens that a batch may take whatever the streams lose: deferred, the same work would stall others later, and
smaller batches compute less in the same time (Sarathi-Serve takes the same size)."""

NEAR_S = 3.0
"""Look-ahead, seconds: what a prompt is worth is what it would lose by coming so much later. Chosen: with 0.25 those
who aren't late yet were worth nothing, so that in overload all were served just when they had become late."""

FIRST_CANDIDATES, LAST_CANDIDATES = 128, 384
"""Waiting requests that are compared: so many of the oldest, and of the youngest."""

MOST_CHUNK = 1024
"""Prompt tokens that a batch computes at most, so that who comes meanwhile needn't wait for the whole of a long prompt.
Chosen: without, documents at light load on three unequal stages had a mean satisfaction of 0.961, with 512 0.985, with
1,024 0.980, with 2,048 0.978; but at heavy load on one card 512 lost 3 %, since half as many tokens share each step."""

LEAST_SHARE = 128
"""Prompt tokens of a lane's batch at least, where several lanes share the least chunk. Chosen."""

NO_BUDGET = 1 << 40
"""Tokens that no batch reaches."""

FIRST_PLACE: IntArray = np.zeros(1, np.int64)
FIRST_PLACE.setflags(write=False)

AMPLE = 8
"""Share of the pool, as one over it, from which free blocks needn't be counted exactly."""


@dataclass(frozen=True, slots=True)
class SlobPolicy:
    """Mixed-priority, least-padding batches.

    Fairness: with one lane, after every batch each request has at least as many prompt tokens computed (or its first
    token delivered) and output tokens delivered as under a reference server that runs batches at the same times. That
    one is first come, first served. It has a share `oldest_share` of the rows and of the KV blocks, which it reserves
    for prompts and limits of new tokens; one request always fits. In each batch every request that it holds and whose
    prompt is computed gets a token, and prompts get that share of as many prompt tokens as the batch before had, or of
    `least_chunk` if that's more. With several lanes the shares are those of all together, and a request waits besides
    until a lane may admit it.

    Attributes
    ----------
    oldest_share
        Share of prompt tokens, rows and blocks that is owed to the oldest requests; 0 owes them nothing.
    expected_output
        Output tokens a request is taken to have where nothing is predicted; its `max_new_tokens` caps it.
    kv_foresight
        Share of the output still expected of the running requests for which blocks are kept free; 0 admits whatever
        fits now, and preempts later.
    least_chunk
        Prompt tokens that a batch may take whatever the streams lose.
    most_chunk
        Prompt tokens that a batch of a ragged engine takes at most, beside those that are owed.
    full_tokens
        Prompt tokens from which a batch of a ragged engine takes no further prompt.
    max_repeats
        Batches after which it decides again, whatever happens; at most 8.
    reading
        How satisfaction is measured.
    uses_padding, uses_priority, uses_chunks
        Switches of parts, for ablation: pads count, priorities weigh, prompts are cut to what streams can bear.
    references
        How far the servers of a share have come; made by the policy, one for each pipeline it serves.

    Raises
    ------
    InputError
        When a parameter is out of range.
    """

    oldest_share: float = 0.25
    expected_output: int = 256
    kv_foresight: float = 0.0
    least_chunk: int = LEAST_CHUNK
    most_chunk: int = MOST_CHUNK
    full_tokens: int = FULL_TOKENS
    max_repeats: int = MAX_REPEATS
    reading: Reading = field(default_factory=Reading)
    uses_padding: bool = True
    uses_priority: bool = True
    uses_chunks: bool = True
    name: str = "slob"
    kv_use: KvUse = KvUse.PAGED
    holds_finished: bool = False
    is_streamed: bool = True
    references: References = field(default_factory=References, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.oldest_share <= 1:
            raise InputError(f"oldest_share is {self.oldest_share}, expected from 0 to 1")
        if not 0 <= self.kv_foresight < math.inf:
            raise InputError(f"kv_foresight is {self.kv_foresight}, expected a finite number, at least 0")
        for name in ("expected_output", "least_chunk", "most_chunk", "full_tokens", "max_repeats"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.max_repeats > MAX_REPEATS:
            raise InputError(f"max_repeats is {self.max_repeats}, expected at most {MAX_REPEATS}")

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return the streams' next tokens and the prompts worth computing with them."""
        rows, columns = view.rows, view.columns
        has_share = self.oldest_share > 0
        reference = self.references.of(view, self.oldest_share, self.least_chunk) if has_share else None
        if not view.waiting.size and view.free_blocks >= rows.size > 0 and columns.left[rows].max() == 1:
            if reference is not None:
                reference.is_idle = True
            return BatchPlan.decode(rows, max_repeats=self.max_repeats)  # streams alone, and room for a block each
        if reference is None:
            return self._planned(view, None, [])
        reference.update(view)
        plan = self._planned(view, reference, reference.owed(view))
        if plan is not None:
            reference.note(view, plan)
        return plan

    def _planned(self, view: LaneView, reference: Reference | None, owed: list[tuple[int, int]]) -> BatchPlan | None:
        rows, columns = view.rows, view.columns
        left = columns.left[rows]
        is_plain = not rows.size or int(left.max()) == 1
        streams = rows if is_plain else rows[left == 1]
        readers = readers_of(view, streams)
        worth = Worth(view, self.reading, self.expected_output, decode_s(view, readers), self.uses_priority)
        rows, preempt, free = self._with_room(view, worth, reference, owed)
        if preempt.size:
            left = columns.left[rows]
            streams = rows[left == 1]
        begun = NO_SLOTS if is_plain else rows[left > 1]
        filling = Filling(view, free, view.max_admissions + preempt.size)
        waiting = NO_SLOTS if preempt.size else self._admissible(view, worth, free)
        if not begun.size and not waiting.size and not owed:
            if preempt.size:
                return BatchPlan(streams, ones(streams.size), preempt)
            quiet = reference.quiet(columns) if reference is not None and view.waiting.size else self.max_repeats
            return BatchPlan.decode(rows, max_repeats=min(self.max_repeats, quiet)) if rows.size else None
        prompts = np.concatenate([begun, waiting]) if begun.size else waiting
        order, budget = self._ordered(view, worth, filling, readers, prompts, begun.size)
        longest = 0
        if view.is_padded and order.size:
            longest = min(budget, int(columns.left[prompts[order]].max()))  # who is in the rectangle computes as much
        for slot, tokens in owed:
            filling.give(slot, max(tokens, longest) if self.uses_chunks else NO_BUDGET)
        for slot in prompts[order].tolist():
            if filling.used >= budget or (filling.used >= self.full_tokens and self.uses_chunks and not view.is_padded):
                break
            filling.give(slot, budget - filling.used)
        if not filling.tokens:
            if not streams.size:
                return BatchPlan(streams, streams, preempt) if preempt.size else None
            return BatchPlan(streams, ones(streams.size), preempt)
        taken = np.array(list(filling.tokens), np.int64)
        tokens_of = np.array(list(filling.tokens.values()), np.int64)
        if not streams.size:
            return BatchPlan(taken, tokens_of, preempt)
        slots = np.concatenate([streams, taken])
        return BatchPlan(slots, np.concatenate([ones(streams.size), tokens_of]), preempt)

    # ------------------------------------------------------------------ blocks

    def _with_room(
        self, view: LaneView, worth: Worth, reference: Reference | None, owed: list[tuple[int, int]]
    ) -> tuple[IntArray, IntArray, int]:
        """Return the rows that keep their KV, those that lose it, and the blocks free after the streams have grown.

        Those lose it who lose least by it, until the streams can grow and the oldest that are owed something can join;
        the oldest that are owed to lose theirs last, and only when other lanes hold the blocks.
        """
        rows, columns, limits = view.rows, view.columns, view.limits
        if not owed and view.free_blocks - rows.size >= limits.kv_blocks // AMPLE:
            return rows, NO_SLOTS, view.free_blocks - int(rows.size)
        need = np.maximum(-(-(columns.cached[rows] + 1) // limits.block_tokens) - columns.blocks[rows], 0)
        free = view.free_blocks - int(need.sum())
        places = view.max_admissions
        waits = -1 - view.pipeline
        joining = [slot for slot, _ in owed if columns.place.item(slot) == waits]
        if free >= 0 and not joining:
            return rows, NO_SLOTS, free
        # Blocks that must be free for the oldest to join, and places.
        wanted, most = 0, 0
        for slot in joining:
            blocks = limits.blocks_of(columns.left.item(slot))
            wanted += blocks
            most = max(most, min(blocks + 1, limits.kv_blocks) - blocks)
        wanted += most
        if free >= wanted and places >= len(joining):
            return rows, NO_SLOTS, free
        kept = reference.kept(columns) if reference is not None else set()
        order = self._losers(view, worth, kept)
        gains = (columns.blocks[rows] + need).tolist()
        lost: list[int] = []
        losable = [at for at in order if int(rows[at]) not in kept]
        for at in losable:
            if free >= wanted and places + len(lost) >= len(joining):
                break
            lost.append(at)
            free += gains[at]
        if joining and not (free >= wanted and places + len(lost) >= len(joining)):
            # The oldest can't join whatever this lane gives up.
            for at in reversed(lost):
                if free - gains[at] < 0:
                    break
                lost.remove(at)
                free -= gains[at]
        for at in order:
            if free >= 0:
                break
            if at not in lost:
                lost.append(at)
                free += gains[at]
        if not lost:
            return rows, NO_SLOTS, free
        keep = np.ones(rows.size, dtype=bool)
        keep[lost] = False
        return rows[keep], rows[~keep], free

    def _losers(self, view: LaneView, worth: Worth, kept: set[int]) -> list[int]:
        """Return places of rows, those first that lose least by computing their KV again per block it frees."""
        rows, columns = view.rows, view.columns
        again_s = np.asarray(columns.cached[rows] * view.clock.prompt_token_s, np.float64)
        loss = worth.of_delay(rows, worth.decode_s, worth.decode_s + 1.0 + again_s)
        rate = loss / np.maximum(columns.blocks[rows], 1)
        is_kept = np.array([slot in kept for slot in rows.tolist()], dtype=bool)
        order: list[int] = np.lexsort((-columns.request[rows], -columns.arrival_ns[rows], rate, is_kept)).tolist()
        return order

    def _admissible(self, view: LaneView, worth: Worth, free: int) -> IntArray:
        """Return waiting requests each of which fits by itself, beside what the running ones are about to need."""
        waiting = view.waiting
        if not view.max_admissions or not waiting.size:
            return NO_SLOTS
        if waiting.size > FIRST_CANDIDATES + LAST_CANDIDATES:
            waiting = np.concatenate([waiting[:FIRST_CANDIDATES], waiting[-LAST_CANDIDATES:]])
        limits = view.limits
        need = -(-view.columns.left[waiting] // limits.block_tokens)
        least = np.minimum(need + 1, limits.kv_blocks)
        if view.rows.size and self.kv_foresight > 0:
            growth = self.kv_foresight / limits.block_tokens
            spare = free - growth * float(worth.to_go(view.rows).sum())
            return waiting[(least <= free) & (need + growth * worth.to_go(waiting) <= spare)]
        return waiting[least <= free]

    # ------------------------------------------------------------------ prompts

    def _ordered(
        self, view: LaneView, worth: Worth, filling: Filling, readers: IntArray, prompts: IntArray, num_begun: int
    ) -> tuple[IntArray, int]:
        """Return places of the prompts by worth, the best first, and how many tokens of them the streams can bear."""
        if not prompts.size:
            return NO_SLOTS, NO_BUDGET
        token_s = view.clock.prompt_token_s
        left = view.columns.left[prompts]
        most = self.most_chunk if self.uses_chunks and not view.is_padded else NO_BUDGET
        has_limit = readers.size > 0 and self.uses_chunks
        if has_limit:
            has_limit = worth.slack_s(readers) < float(left.sum()) * token_s
        if prompts.size == 1 and not has_limit:
            return FIRST_PLACE, most
        work_s = np.asarray(left * token_s, np.float64)
        soon = worth.decode_s + work_s
        urgency = worth.of_delay(prompts, soon, soon + NEAR_S) / NEAR_S
        due, _ = worth.due_s(prompts)
        slack = due - soon
        # Where nobody is about to be late, the one that is due first.
        density = urgency / work_s + 1e-9 / (1.0 + slack - slack.min())
        # What is begun holds its blocks until it ends, so it goes first where they are scarce.
        is_scarce = filling.free * AMPLE < view.limits.kv_blocks
        order = np.lexsort((-density, (np.arange(prompts.size) >= num_begun) & is_scarce))
        budget = most
        if has_limit:
            bearable = worth.bearable_s(readers, work_s[order], urgency[order])
            # Streams of the batch itself wait for it on every stage.
            least = max(LEAST_SHARE, self.least_chunk // view.limits.num_lanes)
            budget = min(most, max(least, int(bearable / view.clock.whole_prompt_token_s)))
        if view.is_padded and self.uses_padding:
            order = best_rectangle(left, urgency, order)
        return order, budget


def readers_of(view: LaneView, streams: IntArray) -> IntArray:
    """Return the slots that a batch of this lane holds up: its streams, and with several lanes those of all."""
    if view.limits.num_lanes == 1:
        return streams
    columns = view.columns
    is_reader = (columns.state == State.RUNNING) & (columns.pipeline == view.pipeline) & (columns.left == 1)
    return np.flatnonzero(is_reader)


def decode_s(view: LaneView, readers: IntArray) -> float:
    """Return the time between the tokens of all that decode, shared by the lanes, seconds; zero of nobody."""
    if not readers.size:
        return 0.0
    lanes = view.limits.num_lanes
    size = -(-int(readers.size) // lanes)
    cached = -(-int(view.columns.cached[readers].sum()) // lanes) + size
    return view.clock.pace_s(size, cached, lanes)
