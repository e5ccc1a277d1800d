"""The event-driven simulator: it drives the same Scheduler as the runtime, in whole nanoseconds.

Stages and links serve first in, first out, and no batch overtakes another, so the way of a batch through its pipeline
is known when it starts. A lane that meets no other leaps over all iterations up to the next event at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.cost.stage_clock import PS_PER_NS, Work, work_of_rows
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import Dispatcher, KvUse, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival, Launch
from slob_opt.scheduling.scheduler import Scheduler
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.options import EngineOptions, SimulationResult
from slob_opt.simulation.servers import DONE, WAKE, Line, Run

IntArray = NDArray[np.int64]

NEVER = 1 << 62
"""A time after all others."""

SHORT_LEAP = 3
"""Iterations from which a leap is worth its array operations."""


class Simulator:
    """One workload on one placement under one policy a pipeline.

    Parameters
    ----------
    workload
        Requests.
    limits, clocks, policies, dispatcher
        As for :class:`Scheduler`.
    sink
        Takes each request when it's over (or at the end of the simulation).
    options
        Of the engine; ``None`` takes the defaults.
    horizon_ns
        When the simulation stops, whatever is left; ``None`` runs until all is delivered.
    """

    def __init__(
        self,
        workload: Workload,
        limits: Sequence[PipelineLimits],
        clocks: Sequence[PipelineClock],
        policies: Sequence[Policy],
        dispatcher: Dispatcher | None = None,
        *,
        sink: Callable[[Delivery], None],
        options: EngineOptions | None = None,
        horizon_ns: int | None = None,
    ) -> None:
        self.workload, self.options, self.horizon_ns = workload, options or EngineOptions(), horizon_ns
        self.scheduler = Scheduler(
            limits, clocks, policies, dispatcher, is_padded=self.options.is_padded, keeps_log=self.options.keeps_log
        )
        self._policies = tuple(policies)
        self._takes_blocks = [policy.kv_use is KvUse.PAGED for policy in policies]
        self._sink = sink
        self._lines = [Line.of(clock, limit.num_lanes) for clock, limit in zip(clocks, limits, strict=True)]
        self._events: list[tuple[int, int, int, int, int]] = []
        self._count = 0
        self._true = np.zeros(self.scheduler.columns.capacity, np.int64)
        self._tokens: dict[int, list[IntArray]] = {}
        self._unsent: dict[tuple[int, int], list[Delivery]] = {}
        self._next_arrival = NEVER
        self._ended = [0, 0, 0]
        self._rng = np.random.default_rng(self.options.seed) if self.options.noise > 0 else None
        # State that a dispatcher reads when a request arrives must be that of the moment.
        self._is_read = dispatcher is not None

    # ------------------------------------------------------------------ the loop

    def run(self) -> SimulationResult:
        """Return the result; call once."""
        arrivals = self.workload.arrival_ns.tolist()
        size, position, now = len(arrivals), 0, 0
        events = self._events
        horizon = self.horizon_ns if self.horizon_ns is not None else NEVER
        while position < size or events:
            if position < size and (not events or arrivals[position] <= events[0][0]):
                if arrivals[position] > horizon:
                    break
                now = arrivals[position]
                touched: set[int] = set()
                while position < size and arrivals[position] == now:
                    pipeline = self._arrive(position, now)
                    position += 1
                    if pipeline is not None:
                        touched.add(pipeline)
                self._next_arrival = arrivals[position] if position < size else NEVER
                for pipeline in sorted(touched):
                    self._start(pipeline, now)
                continue
            if events[0][0] > horizon:
                break
            now, kind, ticket, pipeline, lane = heapq.heappop(events)
            line = self._lines[pipeline]
            if kind == DONE:
                if line.runs[lane].ticket != ticket:
                    continue  # the lane has gone on by itself, see _go_on
                self._complete(pipeline, lane, now)
            elif line.wake_ns == now:
                line.wake_ns = -1
            else:
                continue
            self._start(pipeline, now)
            if line.in_flight > 1 and line.is_linear and self.options.is_leaping and self._rng is None:
                self._go_on(pipeline)
        end = min(now, horizon) if self.horizon_ns is None else horizon
        self._close(end, position)
        return self._result(now)

    def _push(self, at: int, kind: int, pipeline: int, lane: int) -> None:
        self._count += 1
        if kind == DONE:
            run = self._lines[pipeline].runs[lane]
            run.ticket, run.done_ns = self._count, at
        heapq.heappush(self._events, (at, kind, self._count, pipeline, lane))

    def _arrive(self, index: int, now: int) -> int | None:
        """Submit a request; return its pipeline."""
        w = self.workload
        found = self.scheduler.submit(
            Arrival(
                index, int(w.prompt_tokens[index]), int(w.max_new_tokens[index]), float(w.priority[index]),
                None if w.ttft_s is None else float(w.ttft_s[index]),
                None if w.tpot_s is None else float(w.tpot_s[index]),
            ),
            now,
        )  # fmt: skip
        if found.slot is None:
            self._ended[1] += 1
            self._sink(Delivery(index, End.REJECTED, None, None, np.zeros(0, np.int64), reason=found.reason))
            return None
        if found.slot >= self._true.size:
            more = np.zeros(self.scheduler.columns.capacity - self._true.size, np.int64)
            self._true = np.concatenate([self._true, more])
        self._true[found.slot] = w.output_tokens[index]
        self._tokens[found.slot] = []
        return found.pipeline

    def _start(self, pipeline: int, now: int) -> None:
        """Launch every lane that may, one after the other as stage 0 gets free."""
        line = self._lines[pipeline]
        size = len(line.runs)
        if line.stage_free[0] <= now:
            for _ in range(size):
                lane = line.next_lane
                for offset in range(size):
                    lane = (line.next_lane + offset) % size
                    if not line.runs[lane].is_busy and self._launch(pipeline, lane, now):
                        break
                else:
                    return
                line.next_lane = (lane + 1) % size
                if line.stage_free[0] > now:
                    break
        if size > 1 and line.in_flight < size and line.wake_ns != line.stage_free[0] and line.stage_free[0] > now:
            free = [lane for lane, run in enumerate(line.runs) if not run.is_busy]
            if any(self.scheduler.has_work(pipeline, lane) for lane in free):
                line.wake_ns = line.stage_free[0]
                self._push(line.wake_ns, WAKE, pipeline, 0)

    # ------------------------------------------------------------------ batches

    def _launch(self, pipeline: int, lane: int, now: int) -> bool:
        """Start the next batch of a free lane, if it has one."""
        launch = self.scheduler.next_batch(pipeline, lane, now)
        if launch is None:
            return False
        line = self._lines[pipeline]
        run = line.runs[lane]
        run.is_busy = True
        line.in_flight += 1
        if launch.is_repeat and line.is_linear:
            run.kv_tokens += run.work.rows if run.work is not None else 0
        else:
            self._measure(line, run, launch)
        run.launch = launch
        run.steps, run.times = 1, None
        if launch.repeats_itself and self._leap(pipeline, lane, now):
            return True
        self._push(line.send(run, now, self._rng, self.options.noise), DONE, pipeline, lane)
        return True

    def _measure(self, line: Line, run: Run, launch: Launch) -> None:
        """Enter the work of a new batch."""
        plan = launch.plan
        if launch.repeats_itself and line.is_linear and not self.options.is_padded and not plan.idle_rows:
            size = plan.slots.size
            before = run.launch
            if before is not None and before.repeats_itself and before.plan.slots is plan.slots:
                run.kv_tokens += size  # the same requests, each one token later
                return
            run.kv_tokens = int(np.add.reduce(launch.cached)) + size
            run.base_ps, run.hops = line.clock.decode_base(size)
            run.work, run.padding = Work(size, size, (0,), (0,), size, 0), 0
            left = self._true[plan.slots] - self.scheduler.columns.generated[plan.slots]
            run.to_end = int(np.minimum.reduce(left))
            return
        cached = launch.cached
        if launch.is_repeat:
            self.scheduler.settle()
            cached = self.scheduler.columns.cached[plan.slots]
        if plan.idle_rows:
            # Finished members compute one token each, over the longest context there is.
            cached = np.concatenate([cached, np.full(plan.idle_rows, cached.max())])
            tokens = np.concatenate([plan.tokens, np.ones(plan.idle_rows, np.int64)])
            is_decode = np.concatenate([launch.is_decode, np.ones(plan.idle_rows, dtype=bool)])
        else:
            tokens, is_decode = plan.tokens, launch.is_decode
        work, padding = work_of_rows(cached, tokens, is_decode, line.clock.windows, is_padded=self.options.is_padded)
        run.work, run.padding = work, padding + plan.idle_rows
        run.hops = line.clock.hops(work.tokens, work.rows)
        run.kv_tokens = work.kv_tokens[0] if line.is_linear else 0
        run.base_ps = tuple(
            stage.ps(work) - (slope * run.kv_tokens if work.decodes else 0)
            for stage, slope in zip(line.clock.stages, line.slopes, strict=True)
        )
        emitting = plan.slots[launch.emits] if not launch.repeats_itself else plan.slots
        left = self._true[emitting] - self.scheduler.columns.generated[emitting]
        run.to_end = int(left.min()) if emitting.size else 1 << 30

    def _leap(self, pipeline: int, lane: int, now: int) -> bool:
        """Let the batch that starts now stand for all iterations up to the next event; return whether it does."""
        line = self._lines[pipeline]
        run = line.runs[lane]
        work = run.work
        if not self.options.is_leaping or self._rng is not None or not line.is_linear or line.in_flight > 1:
            return False
        if run.to_end < SHORT_LEAP or work is None:
            return False
        scheduler = self.scheduler
        for other in range(len(line.runs)):
            if other != lane and (scheduler.num_rows(pipeline, other) or scheduler.num_waiting(pipeline)):
                return False
        more = scheduler.repeatable(pipeline, lane, run.to_end - 1)
        if more + 1 < SHORT_LEAP:
            return False
        kv_tokens = run.kv_tokens + np.arange(more + 1, dtype=np.int64) * work.rows
        times = [(base + slope * kv_tokens) // PS_PER_NS for base, slope in zip(run.base_ps, line.slopes, strict=True)]
        busy, latency, back = run.hops
        ends = np.cumsum(sum(times) + (sum(busy) + sum(latency) + back)) + now
        size = int(np.searchsorted(ends, self._next_arrival, side="left"))
        if not self._is_read and len(line.runs) == 1:
            size += 1  # the iteration in which the request arrives: nothing else can start before it ends
        size = min(size, more + 1)
        if self.horizon_ns is not None:
            size = min(size, int(np.searchsorted(ends, self.horizon_ns, side="right")))
        if size < SHORT_LEAP:
            return False
        scheduler.extend(pipeline, lane, size - 1)
        run.steps, run.times = size, ends[:size]
        at = int(ends[size - 2])
        for stage, time in enumerate(times):
            line.busy[stage] += int(time[:size].sum())
            at += int(time[size - 1])
            line.stage_free[stage] = at
            if stage + 1 < len(times):
                at += busy[stage] + latency[stage]
        run.kv_tokens += (size - 1) * work.rows
        line.tokens += work.tokens * size
        line.padding += run.padding * size
        self._push(int(ends[size - 1]), DONE, pipeline, lane)
        return True

    def _go_on(self, pipeline: int) -> None:
        """Play several lanes forward together while each only repeats its batch, up to the next event.

        The same as popping their events one by one, without asking the scheduler each time.
        """
        line, scheduler = self._lines[pipeline], self.scheduler
        runs, size = line.runs, len(line.runs)
        left, needed = [0] * size, 0
        for lane, run in enumerate(runs):
            if not run.is_busy:
                if scheduler.has_work(pipeline, lane):
                    return
                continue
            if run.launch is None or not run.launch.repeats_itself or run.work is None or run.steps != 1:
                return
            left[lane] = scheduler.repeatable(pipeline, lane, run.to_end - 1)
            needed += run.work.rows * (left[lane] // scheduler.limits[pipeline].block_tokens + 1)
        if max(left) < SHORT_LEAP or (self._takes_blocks[pipeline] and needed > scheduler.free_blocks(pipeline)):
            return
        stop = self._next_arrival if self.horizon_ns is None else min(self._next_arrival, self.horizon_ns + 1)
        queue, times, launched = line.go_on(left, stop, self._count)
        self._settle_lanes(pipeline, queue, times, launched)

    def _settle_lanes(
        self, pipeline: int, queue: list[tuple[int, int, int, int]], times: list[list[int]], launched: list[int]
    ) -> None:
        """Tell the scheduler what lanes did by themselves, and put their next events back."""
        line, scheduler = self._lines[pipeline], self.scheduler
        for lane, ends in enumerate(times):
            run = line.runs[lane]
            if not ends:
                continue
            assert run.launch is not None
            stamp = np.array(ends)
            for slot in run.launch.plan.slots.tolist():
                self._tokens[slot].append(stamp)
            run.to_end -= len(ends)
            run.ticket = 0  # its event of before is void; a lane still under way gets a new one below
            scheduler.extend(pipeline, lane, len(ends) - 1)
            scheduler.complete(pipeline, lane, ends[-1], steps=len(ends))
            run.is_busy = launched[lane] == len(ends)  # else it waits for stage 0
            if run.is_busy:
                launch = scheduler.next_batch(pipeline, lane, ends[-1])
                assert launch is not None
                assert launch.is_repeat
                run.launch = launch
        line.in_flight = sum(run.is_busy for run in line.runs)
        line.wake_ns = -1
        for at, kind, _, lane in sorted(queue):
            if kind == WAKE:
                line.wake_ns = at
                self._push(at, WAKE, pipeline, 0)
            else:
                self._push(at, DONE, pipeline, lane)

    def _complete(self, pipeline: int, lane: int, now: int) -> None:
        """Deliver a batch."""
        line = self._lines[pipeline]
        run = line.runs[lane]
        launch = run.launch
        assert launch is not None
        run.is_busy = False
        line.in_flight -= 1
        plan = launch.plan
        emitting = plan.slots if launch.repeats_itself else plan.slots[launch.emits]
        stamp = np.array([now]) if run.times is None else run.times
        known = emitting.tolist()
        for slot in known:
            self._tokens[slot].append(stamp)
        run.to_end -= run.steps
        ended: list[int] = []
        if run.to_end <= 0:
            self.scheduler.settle()
            left = self._true[emitting] - self.scheduler.columns.generated[emitting] - run.steps
            ended = emitting[left <= 0].tolist()
        columns = self.scheduler.columns
        facts = [(slot, int(columns.request[slot]), int(columns.started_ns[slot])) for slot in ended]
        over = self.scheduler.complete(pipeline, lane, now, ended, steps=run.steps)
        assert len(over) == len(ended), "a request met its limit before its true length"
        for slot, request, started in facts:
            self._ended[0] += 1
            times = np.concatenate(self._tokens.pop(slot))
            delivery = Delivery(request, End.FINISHED, pipeline, started, times)
            if self._policies[pipeline].is_streamed:
                self._sink(delivery)
            else:  # it waits for the end of its batch
                self._unsent.setdefault((pipeline, lane), []).append(delivery)
        if ended and not self._policies[pipeline].is_streamed and not self.scheduler.num_rows(pipeline, lane):
            for delivery in self._unsent.pop((pipeline, lane), []):
                self._sink(delivery.all_at(now))

    # ------------------------------------------------------------------ the end

    def _close(self, end: int, num_arrived: int) -> None:
        """Hand over what isn't finished."""
        columns = self.scheduler.columns
        for slot, stamps in sorted(self._tokens.items(), key=lambda item: int(columns.request[item[0]])):
            self._ended[2] += 1
            times = np.concatenate(stamps) if stamps else np.zeros(0, np.int64)
            pipeline = int(columns.pipeline[slot])
            if not self._policies[pipeline].is_streamed:
                times = times[:0]
            started = int(columns.started_ns[slot])
            request = int(columns.request[slot])
            self._sink(Delivery(request, End.UNFINISHED, pipeline, None if started < 0 else started, times))
        for deliveries in self._unsent.values():
            for delivery in deliveries:
                self._ended[0] -= 1
                self._ended[2] += 1
                self._sink(delivery.cut())
        for index in range(num_arrived, self.workload.num_requests):
            self._ended[2] += 1
            self._sink(Delivery(index, End.UNFINISHED, None, None, np.zeros(0, np.int64)))

    def _result(self, now: int) -> SimulationResult:
        stages = tuple(line.use() for line in self._lines)
        return SimulationResult(now, stages, self.scheduler.log, *self._ended)
