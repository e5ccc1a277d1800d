"""State of one pipeline: its lanes, its queue, its KV blocks, and the rules by which they change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import PolicyError
from slob_opt.scheduling.batch_plan import NO_SLOTS, BatchPlan
from slob_opt.scheduling.columns import RequestColumns, State, running_at, waiting_at
from slob_opt.scheduling.policy import LaneView, PipelineLimits, Policy
from slob_opt.scheduling.records import Launch
from slob_opt.scheduling.waiting import WaitingQueue

IntArray = NDArray[np.int64]

_RUNNING, _PREEMPTED = int(State.RUNNING), int(State.PREEMPTED)

NO_LIMIT = 1 << 40
"""Tokens that no lane ever reaches."""

FEW = 4
"""Requests up to which numbers one by one are quicker than arrays."""


@dataclass(slots=True)
class Lane:
    """One micro-batch in flight.

    Decode steps that changed nothing but counts are owed to the columns (`owed`, the last of them at `owed_ns`) until
    someone looks: a step of a repeated batch then costs a few additions, however many requests are in it.

    Attributes
    ----------
    rows, array
        Slots that hold KV, in order of admission, and the same as an array.
    kv_tokens
        Tokens in their KV.
    steps_to_limit
        No request reaches its limit of new tokens before so many batches have ended; a lower bound.
    steps_to_block
        Each request of the batch in flight can take so many tokens more in the blocks it has; a lower bound.
    all_decode
        Whether each row computes its next token, so that the batch of all rows is legal without a look.
    is_continuous
        Whether the batch before had all rows, and none has left since but those that ended.
    """

    rows: list[int] = field(default_factory=list)
    array: IntArray = field(default_factory=lambda: NO_SLOTS)
    launch: Launch | None = None
    in_flight: bool = False
    repeats_left: int = 0
    epoch: int = -1
    idle_rows: int = 0
    idle_blocks: int = 0
    kv_tokens: int = 0
    steps_to_block: int = 0
    steps_to_limit: int = NO_LIMIT
    owed: int = 0
    owed_ns: int = 0
    all_decode: bool = False
    is_continuous: bool = True


@dataclass(slots=True)
class Pipe:
    """State of one pipeline.

    A promise of repeats ends when the lane's requests change, and while someone waits with every arrival, end, abort
    and preemption on the pipeline, which the epoch counts: a lane sees of others no more than that.
    """

    index: int
    columns: RequestColumns
    is_padded: bool
    limits: PipelineLimits
    clock: PipelineClock
    policy: Policy
    lanes: list[Lane]
    waiting: WaitingQueue
    free_blocks: int
    is_paged: bool
    outstanding: int = 0
    epoch: int = 0
    num_preempted: int = 0
    members: set[int] = field(default_factory=set)

    def pay(self) -> None:
        """Enter the steps that lanes owe to the columns."""
        for lane in self.lanes:
            if lane.owed and lane.launch is not None:
                slots, columns = lane.launch.plan.slots, self.columns
                columns.arrays["cached"][slots] += lane.owed
                columns.arrays["generated"][slots] += lane.owed
                columns.arrays["last_token_ns"][slots] = lane.owed_ns
                lane.owed = 0

    def view(self, lane: int, now_ns: int) -> LaneView:
        """Return what the policy may see of a lane, its columns up to date."""
        self.pay()
        state, limits, waiting = self.lanes[lane], self.limits, self.waiting
        lane_rows = share = limits.lane_rows
        if limits.num_lanes > 1:
            held = len(waiting)
            for other in self.lanes:
                held += len(other.rows)
            share = min(share, -(-held // limits.num_lanes))
        own = len(state.rows) + state.idle_rows
        return LaneView(
            now_ns, self.index, lane, limits, self.columns, state.array, waiting.slots,
            max(0, min(share, lane_rows) - own), self.free_blocks, state.idle_rows, self.clock, self.is_padded,
        )  # fmt: skip

    def keeps_promise(self, state: Lane) -> bool:
        """Return whether nothing happened that a lane's policy could see, and repeats are left."""
        return state.repeats_left > 0 and (state.epoch == self.epoch or not len(self.waiting))

    # ------------------------------------------------------------------ blocks

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Take the blocks that hold `ends` tokens of each request."""
        blocks = self.columns.arrays["blocks"]
        held = blocks[slots]
        need = self.blocks_of(ends)
        more = int(np.add.reduce(np.maximum(need - held, 0)))
        if more > self.free_blocks:
            raise PolicyError(f"plan needs {more} more KV blocks, {self.free_blocks} are free")
        if more:
            blocks[slots] = np.maximum(need, held)
            self.free_blocks -= more

    def blocks_of(self, tokens: IntArray) -> IntArray:
        """Return the blocks that hold numbers of tokens."""
        size = self.limits.block_tokens
        return (tokens + (size - 1)) // size

    def is_short(self, slots: IntArray, ends: IntArray) -> bool:
        """Return whether blocks run short when requests hold `ends` tokens."""
        more = np.maximum(self.blocks_of(ends) - self.columns.blocks[slots], 0)
        return int(np.add.reduce(more)) > self.free_blocks

    def repeat(self, state: Lane) -> Launch | None:
        """Return the lane's batch one token later; ``None`` when blocks run short."""
        launch = state.launch
        assert launch is not None
        if self.is_paged:
            if state.steps_to_block <= 0:
                self.pay()
                slots = launch.plan.slots
                ends = self.columns.cached[slots] + 1
                if self.is_short(slots, ends):
                    return None
                self.grow(slots, ends)
                held = self.columns.blocks[slots] * self.limits.block_tokens
                state.steps_to_block = int(np.minimum.reduce(held - ends))
            else:
                state.steps_to_block -= 1
        state.repeats_left -= 1
        state.in_flight = True
        launch = launch if launch.is_repeat else launch._replace(is_repeat=True)
        state.launch = launch
        return launch

    # ------------------------------------------------------------------ who comes and goes

    def preempt(self, slot: int) -> None:
        """Take a running request's KV; it waits before those that never ran, first among equals by arrival."""
        columns = self.columns
        if columns.state[slot] != _RUNNING or columns.pipeline[slot] != self.index:
            raise PolicyError(f"plan preempts request {columns.request[slot]}, which doesn't run")
        lane = self.lanes[int(columns.lane[slot])]
        if lane.in_flight:
            raise PolicyError(f"plan preempts request {columns.request[slot]} of a lane in flight")
        self.leave_lane(lane, slot)
        lane.is_continuous = False
        lane.array = np.array(lane.rows, np.int64)
        columns.arrays["state"][slot] = _PREEMPTED
        columns.arrays["place"][slot] = waiting_at(self.index)
        columns.arrays["cached"][slot] = 0
        columns.arrays["left"][slot] = columns.prompt[slot] + columns.generated[slot]
        self.queue_in(slot)
        self.num_preempted += 1
        self.epoch += 1

    def queue_in(self, slot: int) -> None:
        """Let a request wait: those that were preempted before the others, first among equals by arrival."""
        columns, ahead = self.columns, self.waiting.slots
        rank = np.where(columns.state[ahead] == _PREEMPTED, 0, 1)
        own = 0 if columns.state[slot] == _PREEMPTED else 1
        key = columns.arrival_ns[slot]
        position = int(np.count_nonzero((rank < own) | ((rank == own) & (columns.arrival_ns[ahead] <= key))))
        self.waiting.insert(position, slot)

    def take(self, slot: int) -> None:
        """Take over a request that waited at another pipeline."""
        self.columns.arrays["pipeline"][slot] = self.index
        self.columns.arrays["place"][slot] = waiting_at(self.index)
        self.queue_in(slot)
        self.members.add(slot)
        self.outstanding += 1
        self.epoch += 1

    def give_up(self, slot: int) -> None:
        """Let a request that waited here go."""
        self.members.discard(slot)
        self.outstanding -= 1
        self.epoch += 1

    def leave_lane(self, lane: Lane, slot: int, *, is_over: bool = False) -> None:
        """Take a request out of its lane's rows and free its blocks, or hold both until the lane's batch is over.

        The caller makes the lane's array anew.
        """
        lane.rows.remove(slot)
        lane.repeats_left = 0
        columns = self.columns
        lane.kv_tokens -= columns.cached.item(slot)
        if not lane.rows:
            lane.steps_to_limit = NO_LIMIT
        blocks = columns.blocks.item(slot)
        columns.arrays["blocks"][slot] = 0
        if is_over and self.policy.holds_finished:
            lane.idle_rows += 1
            lane.idle_blocks += blocks
        else:
            self.free_blocks += blocks

    def end_batch(self, lane: Lane) -> None:
        """Give back what finished members of a batch held, once the last one has ended."""
        if not lane.rows:
            self.free_blocks += lane.idle_blocks
            lane.idle_rows = lane.idle_blocks = 0

    def forget(self, slot: int) -> None:
        """Drop a request that is over; it must have left its lane or the queue."""
        self.give_up(slot)
        self.columns.release(slot)

    def admit(self, lane: int, joining: IntArray, most: int, now_ns: int) -> None:
        """Give waiting requests a lane, and the blocks that their policy's use of KV asks for first."""
        state, columns, limits = self.lanes[lane], self.columns, self.limits
        size, pool = limits.block_tokens, limits.kv_blocks
        if joining.size > max(0, min(most, limits.lane_rows - len(state.rows) - state.idle_rows)):
            raise PolicyError(f"plan admits {joining.size} requests, lane {lane} may take {most}")
        slots = joining.tolist()
        if self.is_paged:
            known = [columns.left.item(slot) for slot in slots] if len(slots) <= FEW else columns.left[joining].tolist()
            taken = [-(-tokens // size) for tokens in known]
            # A sequence as long as the pool has no block beyond.
            need = sum(taken) + max(min(blocks + 1, pool) - blocks for blocks in taken)
        else:
            most_tokens = columns.prompt[joining] + columns.max_new[joining]
            taken = [-(-tokens // size) for tokens in most_tokens.tolist()]
            need = sum(taken)
        if need > self.free_blocks:
            raise PolicyError(f"plan admits requests that need {need} KV blocks, {self.free_blocks} are free")
        started, blocks_of = columns.arrays["started_ns"], columns.arrays["blocks"]
        if len(slots) <= FEW:
            states, lanes, place = columns.arrays["state"], columns.arrays["lane"], columns.arrays["place"]
            at = running_at(self.index, lane)
            for slot, blocks in zip(slots, taken, strict=True):
                blocks_of[slot] = blocks
                states[slot] = _RUNNING
                lanes[slot] = lane
                place[slot] = at
                if started[slot] < 0:
                    started[slot] = now_ns
        else:
            blocks_of[joining] = taken
            columns.arrays["state"][joining] = _RUNNING
            columns.arrays["lane"][joining] = lane
            columns.arrays["place"][joining] = running_at(self.index, lane)
            started[joining[started[joining] < 0]] = now_ns
        to_limit = columns.max_new[joining] - columns.generated[joining]
        state.steps_to_limit = min(state.steps_to_limit, int(np.minimum.reduce(to_limit)))
        self.free_blocks -= sum(taken)
        self.waiting.remove(joining)
        state.rows += slots
        state.array = np.array(state.rows, np.int64)
        state.all_decode = False

    def check(self, lane: int, plan: BatchPlan, left: IntArray) -> IntArray:
        """Return which of a plan's requests wait to join; raises PolicyError unless all may be in this lane."""
        slots, tokens, columns = plan.slots, plan.tokens, self.columns
        size = slots.size
        if slots.shape != tokens.shape or slots.ndim != 1:
            raise PolicyError(f"plan of {slots.shape} slots and {tokens.shape} token counts")
        if size == 0:
            raise PolicyError("plan without a request; a policy that has nothing to run returns None")
        place = columns.place[slots]
        is_here = place == running_at(self.index, lane)
        num_here = int(np.count_nonzero(is_here))
        joining = NO_SLOTS
        if num_here < size:
            waits = place == waiting_at(self.index)
            joining = slots[waits]
            if num_here + joining.size < size:
                slot = int(slots[np.argmin(waits | is_here)])
                raise PolicyError(f"plan has slot {slot}, which is neither in lane {lane} nor waits for its pipeline")
        if len(set(slots.tolist())) < size:
            raise PolicyError("plan has a request twice")
        if int(np.minimum.reduce(tokens)) < 1 or int(np.minimum.reduce(left - tokens)) < 0:
            bad = int(np.argmax((tokens < 1) | (tokens > left)))
            who = columns.request[slots[bad]]
            raise PolicyError(f"plan computes {tokens[bad]} tokens of request {who}, which has {left[bad]} left")
        return joining
