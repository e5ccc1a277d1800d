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
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import Dispatcher, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival
from slob_opt.scheduling.scheduler import Scheduler
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.lanes import NEVER, PipelineDriver, Timeline
from slob_opt.simulation.options import EngineOptions, SimulationResult
from slob_opt.simulation.servers import DONE, Line

IntArray = NDArray[np.int64]

NO_TOKENS: IntArray = np.zeros(0, np.int64)


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
        self._sink = sink
        self._timeline = Timeline(horizon=NEVER if horizon_ns is None else horizon_ns)
        self._true: list[int] = [0] * self.scheduler.columns.capacity
        self._tokens: dict[int, list[IntArray]] = {}
        self._ended = [0, 0, 0]
        rng = np.random.default_rng(self.options.seed) if self.options.noise > 0 else None
        self._drivers = [
            PipelineDriver(
                index, self.scheduler, policy, Line.of(clock, limit.num_lanes), self._timeline, self.options,
                true_tokens=self._true, token_ns=self._tokens, sink=self._finish, rng=rng,
                is_read=dispatcher is not None,
            )
            for index, (policy, clock, limit) in enumerate(zip(policies, clocks, limits, strict=True))
        ]  # fmt: skip

    # ------------------------------------------------------------------ the loop

    def run(self) -> SimulationResult:
        """Return the result; call once."""
        arrivals, timeline = self.workload.arrival_ns, self._timeline
        events, horizon, drivers = timeline.events, timeline.horizon, self._drivers
        size, position, now = arrivals.size, 0, 0
        timeline.next_outside = arrivals.item(0)
        while position < size or events:
            if position < size and (not events or timeline.next_outside <= events[0][0]):
                if timeline.next_outside > horizon:
                    break
                now = timeline.next_outside
                touched: list[int] = []
                while position < size and arrivals.item(position) == now:
                    pipeline = self._arrive(position, now)
                    position += 1
                    if pipeline is not None and pipeline not in touched:
                        touched.append(pipeline)
                timeline.next_outside = arrivals.item(position) if position < size else NEVER
                for pipeline in sorted(touched):
                    drivers[pipeline].start(now)
                continue
            if events[0][0] > horizon:
                break
            now, kind, ticket, pipeline, lane = heapq.heappop(events)
            driver = drivers[pipeline]
            line = driver.line
            if kind == DONE:
                if line.runs[lane].ticket != ticket:
                    continue  # the lane has gone on by itself, see PipelineDriver.go_on
                driver.complete(lane, now)
            elif line.wake_ns == now:
                line.wake_ns = -1
            else:
                continue
            driver.start(now)
            driver.go_on()
        end = min(now, horizon) if self.horizon_ns is None else horizon
        self._close(end, position)
        return self._result(now)

    def _arrive(self, index: int, now: int) -> int | None:
        """Submit a request; return its pipeline."""
        w = self.workload
        found = self.scheduler.submit(
            Arrival(
                index, w.prompt_tokens.item(index), w.max_new_tokens.item(index), w.priority.item(index),
                None if w.ttft_s is None else w.ttft_s.item(index),
                None if w.tpot_s is None else w.tpot_s.item(index),
            ),
            now,
        )  # fmt: skip
        slot = found.slot
        if slot is None:
            self._ended[1] += 1
            self._sink(Delivery(index, End.REJECTED, None, None, NO_TOKENS, reason=found.reason))
            return None
        if slot >= len(self._true):
            self._true += [0] * (self.scheduler.columns.capacity - len(self._true))
        self._true[slot] = w.output_tokens.item(index)
        self._tokens[slot] = []
        return found.pipeline

    def _finish(self, delivery: Delivery) -> None:
        self._ended[0] += 1
        self._sink(delivery)

    # ------------------------------------------------------------------ the end

    def _close(self, end: int, num_arrived: int) -> None:
        """Hand over what isn't finished."""
        columns = self.scheduler.columns
        for slot, stamps in sorted(self._tokens.items(), key=lambda item: int(columns.request[item[0]])):
            self._ended[2] += 1
            times = np.concatenate(stamps) if stamps else NO_TOKENS
            pipeline = int(columns.pipeline[slot])
            if not self._policies[pipeline].is_streamed:
                times = times[:0]
            started = int(columns.started_ns[slot])
            request = int(columns.request[slot])
            self._sink(Delivery(request, End.UNFINISHED, pipeline, None if started < 0 else started, times))
        for driver in self._drivers:
            for delivery in [one for deliveries in driver.unsent.values() for one in deliveries]:
                self._ended[2] += 1
                self._sink(delivery.cut())
        for index in range(num_arrived, self.workload.num_requests):
            self._ended[2] += 1
            self._sink(Delivery(index, End.UNFINISHED, None, None, NO_TOKENS))

    def _result(self, now: int) -> SimulationResult:
        stages = tuple(driver.line.use() for driver in self._drivers)
        return SimulationResult(now, stages, self.scheduler.log, *self._ended)
