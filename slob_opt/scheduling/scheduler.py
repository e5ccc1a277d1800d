"""The state of serving: queues, lanes, KV blocks, what is in flight; it decides nothing and owns no clock.

A driver (simulator or engine) submits requests, asks for the next batch of a lane that is free, runs it, and reports
what came out. The same calls with the same times give the same decisions, whoever drives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import PolicyError
from slob_opt.scheduling.batch_plan import NO_SLOTS, TRUES, BatchPlan, DecisionLog
from slob_opt.scheduling.columns import RequestColumns, State
from slob_opt.scheduling.launching import launch_of
from slob_opt.scheduling.pipe import FEW, NO_LIMIT, Lane, Pipe
from slob_opt.scheduling.policy import Dispatcher, KvUse, LaneView, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival, Launch, Submitted
from slob_opt.scheduling.routing import Routing, misfit
from slob_opt.scheduling.waiting import WaitingQueue

IntArray = NDArray[np.int64]


class Scheduler:
    """Queues, lanes and KV of all pipelines of a placement.

    Parameters
    ----------
    limits, clocks
        Of each pipeline.
    policies
        Of each pipeline; one policy object may serve several when it remembers nothing.
    dispatcher
        Chooses pipelines; may be ``None`` for a single pipeline.
    is_padded
        Whether the engine computes rectangles.
    keeps_log
        Whether decisions are logged.

    Attributes
    ----------
    columns
        Of all requests held.
    log
        Decisions.
    """

    def __init__(
        self,
        limits: Sequence[PipelineLimits],
        clocks: Sequence[PipelineClock],
        policies: Sequence[Policy],
        dispatcher: Dispatcher | None = None,
        *,
        is_padded: bool = False,
        keeps_log: bool = True,
    ) -> None:
        if not limits or len(limits) != len(clocks) or len(limits) != len(policies):
            raise PolicyError(f"{len(limits)} limits, {len(clocks)} clocks and {len(policies)} policies")
        if len(limits) > 1 and dispatcher is None:
            raise PolicyError(f"{len(limits)} pipelines need a dispatcher")
        self.columns = RequestColumns()
        self.log = DecisionLog(is_kept=keeps_log)
        self.is_padded = is_padded
        self.limits, self.clocks = tuple(limits), tuple(clocks)
        self._pipes = [
            self._pipe(index, limit, clock, policy)
            for index, (limit, clock, policy) in enumerate(zip(limits, clocks, policies, strict=True))
        ]
        self._routing = Routing(self._pipes, dispatcher, self.columns)

    def _pipe(self, index: int, limits: PipelineLimits, clock: PipelineClock, policy: Policy) -> Pipe:
        return Pipe(
            index, self.columns, self.is_padded, limits, clock, policy, [Lane() for _ in range(limits.num_lanes)],
            WaitingQueue(), limits.kv_blocks, is_paged=policy.kv_use is KvUse.PAGED,
        )  # fmt: skip

    # ------------------------------------------------------------------ arrivals and departures

    def submit(self, arrival: Arrival, now_ns: int) -> Submitted:
        """Take or reject a request: it must fit the model and the KV pool, and the dispatcher must want it."""
        if arrival.prompt < 1 or arrival.max_new < 1 or not arrival.priority > 0:
            raise PolicyError(
                f"request {arrival.request} has {arrival.prompt} prompt tokens, max_new_tokens {arrival.max_new} and"
                f" priority {arrival.priority}, expected at least 1, 1 and above 0"
            )
        index = self._routing.choose(arrival, now_ns)
        if index is None:
            is_open = bool(self._routing.open)
            why = "the dispatcher rejected it: no pipeline would serve it in time" if is_open else "no pipeline is open"
            return Submitted(None, None, why)
        pipe = self._pipes[index]
        reason = misfit(arrival, pipe)
        if reason:
            return Submitted(None, None, reason)
        slot = self.columns.enter(arrival, now_ns, index)
        pipe.waiting.append(slot)
        pipe.members.add(slot)
        pipe.outstanding += 1
        pipe.epoch += 1
        return Submitted(slot, index)

    def set_open(self, pipeline: int, *, is_open: bool, now_ns: int) -> list[int]:
        """Let a pipeline take new requests or not; return the pipelines that others' waiting requests went to.

        What waits at a pipeline that closes goes to the open ones as if it arrived now, where it fits; what holds KV
        there runs on to its end, and so does what fits nowhere else.

        Raises
        ------
        PolicyError
            When no pipeline stays open.
        """
        self._routing.set_open(pipeline, is_open=is_open)
        return [] if is_open else self._routing.move_waiting(pipeline, now_ns)

    def lose(self, pipeline: int, now_ns: int) -> list[int]:
        """Close a pipeline whose stages are gone; return the pipelines that its requests went to.

        Batches in flight there count as never started. Requests go on elsewhere by computing prompt and delivered
        tokens again; those that fit no open pipeline keep waiting here, for :meth:`rescue`.
        """
        self._routing.lose(pipeline)
        return self._routing.move_waiting(pipeline, now_ns)

    def add_pipeline(self, limits: PipelineLimits, clock: PipelineClock, policy: Policy) -> int:
        """Return the number of one more pipeline, which is open at once."""
        index = len(self._pipes)
        self.limits, self.clocks = (*self.limits, limits), (*self.clocks, clock)
        self._pipes.append(self._pipe(index, limits, clock, policy))
        self._routing.set_open(index, is_open=True)
        return index

    def rescue(self, now_ns: int) -> list[int]:
        """Send requests that wait at pipelines that aren't open to open ones, where they fit; return which got some."""
        touched: set[int] = set()
        for pipe in self._pipes:
            if pipe.index not in self._routing.open and len(pipe.waiting):
                touched.update(self._routing.move_waiting(pipe.index, now_ns))
        return sorted(touched)

    @property
    def open_pipelines(self) -> tuple[int, ...]:
        """Pipelines that take requests."""
        return tuple(self._routing.open)

    def waiting_at(self, pipeline: int) -> list[int]:
        """Return the slots that wait for a pipeline, in order."""
        found: list[int] = self._pipes[pipeline].waiting.slots.tolist()
        return found

    def abort(self, slot: int) -> None:
        """Drop a request that its client gave up, and free its blocks at once; not while it's in a batch in flight."""
        pipe = self._pipes[int(self.columns.pipeline[slot])]
        pipe.pay()
        if self.columns.state[slot] == State.RUNNING:
            lane = pipe.lanes[int(self.columns.lane[slot])]
            if lane.in_flight and lane.launch is not None and slot in lane.launch.plan.slots:
                raise PolicyError(f"request {self.columns.request[slot]} is in a batch in flight")
            pipe.leave_lane(lane, slot)
            lane.is_continuous = False
            lane.array = np.array(lane.rows, np.int64)
            pipe.end_batch(lane)
        else:
            pipe.waiting.remove(np.array([slot]))
        pipe.forget(slot)

    # ------------------------------------------------------------------ batches

    def next_batch(self, pipeline: int, lane: int, now_ns: int) -> Launch | None:
        """Return the batch that a free lane runs now; ``None`` when its policy has nothing to run.

        Raises
        ------
        PolicyError
            When the lane's batch is still in flight, or the policy's plan is not allowed.
        """
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        if state.in_flight:
            raise PolicyError(f"lane {lane} of pipeline {pipeline} still has a batch in flight")
        if pipe.keeps_promise(state):
            launch = pipe.repeat(state)
            if launch is not None:
                self.log.repeat(pipeline, lane, 1)
                return launch
        state.repeats_left = 0
        if not state.rows and not len(pipe.waiting):
            return None
        while True:
            view = pipe.view(lane, now_ns)
            plan = pipe.policy.decide(view) if state.rows or view.max_admissions else None
            if plan is None:
                return None
            if plan.slots.size or not plan.preempt.size:
                return self._commit(pipeline, lane, plan, view)
            # Other lanes hold the blocks: these requests give theirs up and wait.
            self.log.enter(pipeline, lane, NO_SLOTS, NO_SLOTS, self.columns.request[plan.preempt])
            for slot in plan.preempt.tolist():
                pipe.preempt(slot)

    def repeatable(self, pipeline: int, lane: int, most: int) -> int:
        """Return how many more iterations of the batch in flight are promised and have blocks, up to `most`."""
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        launch = state.launch
        if launch is None or not pipe.keeps_promise(state):
            return 0
        steps = min(state.repeats_left, most, state.steps_to_limit - 1)
        size = launch.plan.slots.size
        if steps <= 0 or not pipe.is_paged or size * (steps // pipe.limits.block_tokens + 1) <= pipe.free_blocks:
            return max(steps, 0)
        slots = launch.plan.slots
        # `cached` is still without the steps owed and the batch in flight.
        filled = self.columns.cached[slots] + (state.owed + 1)
        if not pipe.is_short(slots, filled + steps):
            return steps
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if pipe.is_short(slots, filled + middle) else (middle, high)
        return low

    def extend(self, pipeline: int, lane: int, steps: int) -> None:
        """Make the batch in flight stand for `steps` more iterations, no more than :meth:`repeatable` allows."""
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        assert state.launch is not None
        state.repeats_left -= steps
        if pipe.is_paged:
            slots = state.launch.plan.slots
            pipe.grow(slots, self.columns.cached[slots] + (state.owed + 1 + steps))
            state.steps_to_block = 0
        self.log.repeat(pipeline, lane, steps)

    def complete(
        self, pipeline: int, lane: int, now_ns: int, ended: Sequence[int] = (), *, steps: int = 1
    ) -> list[int]:
        """Deliver what a lane's batch computed, and return the slots of requests that are now over.

        Parameters
        ----------
        ended
            Slots whose last token came out of this batch (end of sequence); those at their limit end by themselves.
        steps
            Iterations that the batch stood for, see :meth:`extend`.
        """
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        launch = state.launch
        if not state.in_flight or launch is None:
            raise PolicyError(f"lane {lane} of pipeline {pipeline} has no batch in flight")
        state.in_flight = False
        state.steps_to_limit -= steps
        slots = launch.plan.slots
        if launch.repeats_itself:
            state.owed += steps
            state.owed_ns = now_ns
            state.kv_tokens += steps * slots.size
            if not ended and state.steps_to_limit > 0:
                return []
            pipe.pay()
        else:
            pipe.pay()
            self._deliver(state, launch, now_ns)
        over = list(ended)
        columns = self.columns
        if state.steps_to_limit <= 0:
            at_limit = state.array[columns.generated[state.array] >= columns.max_new[state.array]].tolist()
            over += [slot for slot in at_limit if slot not in over]
        if over:
            for slot in over:
                pipe.leave_lane(state, slot, is_over=True)
                pipe.forget(slot)
            state.array = np.array(state.rows, np.int64)
            pipe.end_batch(state)
        if state.steps_to_limit <= 0:
            to_limit = columns.max_new[state.array] - columns.generated[state.array]
            state.steps_to_limit = int(np.minimum.reduce(to_limit, initial=NO_LIMIT))
        return over

    def _deliver(self, state: Lane, launch: Launch, now_ns: int) -> None:
        """Enter what a batch computed that was not decodes alone."""
        columns, slots, tokens = self.columns, launch.plan.slots, launch.plan.tokens
        size, left = slots.size, columns.arrays["left"]
        columns.arrays["cached"][slots] += tokens
        emitting = slots if launch.emits.base is TRUES else slots[launch.emits]
        if emitting.size == size:
            if len(launch.others) <= FEW:
                for place in launch.others:
                    left[slots.item(place)] = 1
            else:
                left[slots] = 1
        else:
            left[slots] -= tokens
            left[emitting] += 1
        columns.arrays["generated"][emitting] += 1
        columns.arrays["last_token_ns"][emitting] = now_ns
        state.kv_tokens += launch.num_decodes + sum([size for _, size in launch.chunks])
        state.all_decode = emitting.size == len(state.rows)

    # ------------------------------------------------------------------ what a driver may look at

    def cached(self, pipeline: int, lane: int) -> IntArray:
        """Return (B,) int64, tokens that each request of the lane's batch had in KV before it."""
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        if state.launch is None:
            return NO_SLOTS
        return self.columns.cached[state.launch.plan.slots] + state.owed

    def has_work(self, pipeline: int, lane: int) -> bool:
        """Return whether a lane holds a request, or one waits for its pipeline."""
        pipe = self._pipes[pipeline]
        return bool(pipe.lanes[lane].rows) or len(pipe.waiting) > 0

    def outstanding(self, pipeline: int) -> int:
        """Return how many requests a pipeline has taken and not finished."""
        return self._pipes[pipeline].outstanding

    @property
    def num_preempted(self) -> int:
        """How often requests have lost their KV."""
        return sum(pipe.num_preempted for pipe in self._pipes)

    def num_waiting(self, pipeline: int) -> int:
        """Return how many requests wait for a pipeline."""
        return len(self._pipes[pipeline].waiting)

    def num_rows(self, pipeline: int, lane: int) -> int:
        """Return how many requests hold KV in a lane."""
        return len(self._pipes[pipeline].lanes[lane].rows)

    def free_blocks(self, pipeline: int) -> int:
        """Return the blocks that nobody holds."""
        return self._pipes[pipeline].free_blocks

    # ------------------------------------------------------------------ inside

    def settle(self) -> None:
        """Bring the columns up to date with all completed steps."""
        for pipe in self._pipes:
            pipe.pay()

    def _commit(self, pipeline: int, lane: int, plan: BatchPlan, view: LaneView) -> Launch:
        """Check a plan, take blocks and lanes for it, and return it as a batch."""
        pipe = self._pipes[pipeline]
        state = pipe.lanes[lane]
        if plan.slots.base is not None:
            # A slice of the queue, say, which changes while the batch is in flight.
            plan = plan._replace(slots=plan.slots.copy())
        columns, slots, tokens = self.columns, plan.slots, plan.tokens
        preempted = NO_SLOTS
        if plan.preempt.size:
            preempted = columns.request[plan.preempt]
            for slot in plan.preempt.tolist():
                pipe.preempt(slot)
        if plan.idle_rows != state.idle_rows and pipe.policy.holds_finished:
            raise PolicyError(f"plan computes {plan.idle_rows} idle rows, the lane has {state.idle_rows}")
        if plan.max_repeats < 1 or plan.idle_rows < 0:
            raise PolicyError(f"plan with max_repeats {plan.max_repeats} and {plan.idle_rows} idle rows")
        launch = launch_of(pipe, lane, plan, view)
        state.steps_to_block = 0
        state.launch, state.in_flight = launch, True
        state.repeats_left, state.epoch = plan.max_repeats - 1, pipe.epoch
        if self.log.is_kept:
            self.log.enter(pipeline, lane, columns.request[slots], tokens, preempted)
        return launch
