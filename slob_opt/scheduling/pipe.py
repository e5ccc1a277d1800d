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

_RUNNING = int(State.RUNNING)


@dataclass(slots=True)
class Lane:
    """One micro-batch in flight.

    Decode steps that changed nothing but counts are owed to the columns (`owed`, the last of them at `owed_ns`) until
    someone looks: a step of a repeated batch then costs a few additions, however many requests are in it.
    `steps_to_limit` counts down for the slots in `counted`.
    """

    rows: list[int] = field(default_factory=list)
    array: IntArray = field(default_factory=lambda: NO_SLOTS)
    launch: Launch | None = None
    in_flight: bool = False
    repeats_left: int = 0
    epoch: int = -1
    idle_rows: int = 0
    idle_blocks: int = 0
    steps_to_block: int = 0
    steps_to_limit: int = 0
    owed: int = 0
    owed_ns: int = 0
    all_decode: bool = False
    counted: IntArray | None = None


@dataclass(slots=True)
class Pipe:
    """State of one pipeline; the epoch counts arrivals, ends, aborts and preemptions, which end every promise."""

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
    members: set[int] = field(default_factory=set)
    marks: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def pay(self) -> None:
        """Enter the steps that lanes owe to the columns."""
        for lane in self.lanes:
            if lane.owed and lane.launch is not None:
                slots = lane.launch.plan.slots
                self.columns.writable("cached")[slots] += lane.owed
                self.columns.writable("generated")[slots] += lane.owed
                self.columns.writable("last_token_ns")[slots] = lane.owed_ns
                lane.owed = 0

    def view(self, lane: int, now_ns: int) -> LaneView:
        """Return what the policy may see of a lane, its columns up to date."""
        self.pay()
        state = self.lanes[lane]
        limits = self.limits
        own = len(state.rows) + state.idle_rows
        waiting = len(self.waiting)
        share = limits.lane_rows
        if limits.num_lanes > 1:
            held = sum(len(other.rows) for other in self.lanes)
            share = min(share, -(-(held + waiting) // limits.num_lanes))
        return LaneView(
            now_ns, self.index, lane, limits, self.columns, state.array, self.waiting.slots,
            max(0, min(share, limits.lane_rows) - own), self.free_blocks, state.idle_rows, self.clock, self.is_padded,
        )  # fmt: skip

    def _admit(self, lane: int, joining: IntArray, view: LaneView) -> None:
        """Give waiting requests a lane, and the blocks that their policy's use of KV asks for first."""
        columns, limits = self.columns, self.limits
        known = columns.left[joining]
        if not self.is_paged:
            need = -(-(columns.prompt[joining] + columns.max_new[joining]) // limits.block_tokens)
            taken = need
        else:
            taken = -(-known // limits.block_tokens)
            need = taken + 1
            need = np.minimum(need, limits.kv_blocks)  # a sequence as long as the pool has no block beyond
        if int(taken.sum()) + int((need - taken).max()) > self.free_blocks:
            raise PolicyError(
                f"plan admits requests that need {int(taken.sum()) + int((need - taken).max())} KV blocks,"
                f" {self.free_blocks} are free"
            )
        columns.writable("blocks")[joining] = taken
        columns.writable("state")[joining] = _RUNNING
        columns.writable("lane")[joining] = lane
        columns.writable("place")[joining] = running_at(view.pipeline, lane)
        started = columns.writable("started_ns")
        started[joining[started[joining] < 0]] = view.now_ns
        self.free_blocks -= int(taken.sum())
        self.waiting.remove(joining)
        state = self.lanes[lane]
        state.rows += joining.tolist()
        state.array = np.array(state.rows, np.int64)
        state.all_decode = False

    def grow(self, slots: IntArray, ends: IntArray) -> None:
        """Take the blocks that hold `ends` tokens of each request."""
        blocks = self.columns.writable("blocks")
        need = -(-ends // self.limits.block_tokens)
        more = int(np.maximum(need - blocks[slots], 0).sum())
        if more > self.free_blocks:
            raise PolicyError(f"plan needs {more} more KV blocks, {self.free_blocks} are free")
        if more:
            blocks[slots] = np.maximum(need, blocks[slots])
            self.free_blocks -= more

    def steps_to_block(self, slots: IntArray, ends: IntArray) -> int:
        """Return how many more tokens each request of a batch can hold in the blocks it has."""
        return int((self.columns.blocks[slots] * self.limits.block_tokens - ends).min())

    def repeat(self, state: Lane) -> Launch | None:
        """Return the lane's batch one token later; ``None`` when blocks run short."""
        launch = state.launch
        assert launch is not None
        slots = launch.plan.slots
        if self.is_paged:
            if state.steps_to_block <= 0:
                self.pay()
                ends = self.columns.cached[slots] + 1
                need = -(-ends // self.limits.block_tokens)
                if int(np.maximum(need - self.columns.blocks[slots], 0).sum()) > self.free_blocks:
                    return None
                self.grow(slots, ends)
                state.steps_to_block = self.steps_to_block(slots, ends)
            else:
                state.steps_to_block -= 1
        state.repeats_left -= 1
        state.in_flight = True
        launch = launch if launch.is_repeat else launch._replace(is_repeat=True)
        state.launch = launch
        return launch

    def preempt(self, slot: int) -> None:
        """Take a running request's KV; it waits before those that never ran, first among equals by arrival."""
        columns = self.columns
        if columns.state[slot] != State.RUNNING:
            raise PolicyError(f"plan preempts request {columns.request[slot]}, which doesn't run")
        lane = self.lanes[int(columns.lane[slot])]
        if lane.in_flight:
            raise PolicyError(f"plan preempts request {columns.request[slot]} of a lane in flight")
        self.leave_lane(lane, slot)
        columns.writable("state")[slot] = State.PREEMPTED
        columns.writable("place")[slot] = waiting_at(int(columns.pipeline[slot]))
        columns.writable("cached")[slot] = 0
        columns.writable("left")[slot] = columns.prompt[slot] + columns.generated[slot]
        ahead = self.waiting.slots
        key = columns.arrival_ns[slot]
        position = int(np.count_nonzero((columns.state[ahead] == State.PREEMPTED) & (columns.arrival_ns[ahead] <= key)))
        self.waiting.insert(position, slot)
        self.epoch += 1

    def leave_lane(self, lane: Lane, slot: int, *, is_over: bool = False) -> None:
        """Take a request out of its lane and free its blocks, or hold both until the lane's batch is over."""
        lane.rows.remove(slot)
        lane.array = np.array(lane.rows, np.int64)
        blocks = int(self.columns.blocks[slot])
        self.columns.writable("blocks")[slot] = 0
        if is_over and self.policy.holds_finished:
            lane.idle_rows += 1
            lane.idle_blocks += blocks
        else:
            self.free_blocks += blocks

    def forget(self, slot: int) -> None:
        """Drop a request that is over; it must have left its lane or the queue."""
        self.members.discard(slot)
        self.outstanding -= 1
        self.epoch += 1
        self.columns.release(slot)

    def check(self, lane: int, plan: BatchPlan, view: LaneView, left: IntArray) -> None:
        """Raise PolicyError unless a plan's requests may be in this lane; admit those that wait."""
        slots, tokens, columns = plan.slots, plan.tokens, self.columns
        size = slots.size
        if slots.shape != tokens.shape or slots.ndim != 1:
            raise PolicyError(f"plan of {slots.shape} slots and {tokens.shape} token counts")
        if size == 0:
            raise PolicyError("plan without a request; a policy that has nothing to run returns None")
        place = columns.place[slots]
        waits = place == waiting_at(view.pipeline)
        foreign = ~(waits | (place == running_at(view.pipeline, lane)))
        if foreign.any():
            slot = int(slots[np.argmax(foreign)])
            raise PolicyError(f"plan has slot {slot}, which is neither in lane {lane} nor waits for its pipeline")
        order = np.arange(size)
        self._mark(slots, order)
        if (self.marks[slots] != order).any():
            raise PolicyError("plan has a request twice")
        wrong = (tokens < 1) | (tokens > left)
        if wrong.any():
            bad = int(np.argmax(wrong))
            who = columns.request[slots[bad]]
            raise PolicyError(f"plan computes {tokens[bad]} tokens of request {who}, which has {left[bad]} left")
        joining = slots[waits]
        if joining.size:
            state = self.lanes[lane]
            room = self.limits.lane_rows - len(state.rows) - state.idle_rows
            if joining.size > max(0, min(view.max_admissions + plan.preempt.size, room)):
                raise PolicyError(f"plan admits {joining.size} requests, lane {lane} may take {view.max_admissions}")
            self._admit(lane, joining, view)

    def _mark(self, slots: IntArray, values: IntArray) -> None:
        if self.marks.size < self.columns.capacity:
            self.marks = np.zeros(self.columns.capacity, np.int64)
        self.marks[slots] = values
