"""The event-driven simulator: it drives the same Scheduler as the runtime, in whole nanoseconds.

Stages and links serve first in, first out, and no batch overtakes another, so the way of a batch through its pipeline
is known when it starts. A lane that meets no other leaps over all iterations up to the next event at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.errors import InputError
from slob_opt.metrics.iterations import Iteration
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import Dispatcher, PipelineLimits, Policy
from slob_opt.scheduling.records import Arrival
from slob_opt.scheduling.scheduler import Scheduler
from slob_opt.simulation.control import Controller, Switchboard
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.lanes import NEVER, PipelineDriver, Timeline
from slob_opt.simulation.options import EngineOptions, SimulationResult
from slob_opt.simulation.servers import Line
from slob_opt.simulation.sharing import PipelineCards, SharingDriver, introduce, servers_of

FloatArray = NDArray[np.float64]
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
    cards
        For each pipeline and stage the cards that compute it: a card that several have serves one batch at a time.
        ``None`` where no two have one in common.
    controller
        Opens and closes pipelines; ``None`` leaves all open.
    observer
        Takes each iteration when its tokens are back, which takes several times longer; ``None`` where no trace is
        wanted.
    predicted
        (N,) float64, predicted output tokens, which policies may read; ``None`` without a predictor. A clairvoyant
        policy reads the true lengths, whatever is predicted.

    Raises
    ------
    InputError
        When predictions don't fit the workload, or a clairvoyant policy serves beside one that isn't.
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
        cards: PipelineCards | None = None,
        controller: Controller | None = None,
        observer: Callable[[Iteration], None] | None = None,
        predicted: FloatArray | None = None,
    ) -> None:
        self._predicted = _predictions(workload, policies, predicted)
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
        servers = [None] * len(limits) if cards is None else servers_of(cards)
        self._drivers: list[PipelineDriver] = []
        for index, (policy, clock, limit) in enumerate(zip(policies, clocks, limits, strict=True)):
            shared = servers[index]
            make = PipelineDriver if shared is None else partial(SharingDriver, servers=shared)
            self._drivers.append(
                make(
                    index, self.scheduler, policy, Line.of(clock, limit.num_lanes), self._timeline, self.options,
                    true_tokens=self._true, token_ns=self._tokens, sink=self._finish, rng=rng,
                    is_read=dispatcher is not None or shared is not None,
                )
            )  # fmt: skip
        introduce(self._drivers)
        if observer is not None:
            for driver in self._drivers:
                driver.watch(observer)
        self._switch = None if controller is None else Switchboard(controller, self.scheduler, self._drivers)

    # ------------------------------------------------------------------ the loop

    def run(self) -> SimulationResult:
        """Return the result; call once."""
        arrivals, timeline, switch = self.workload.arrival_ns, self._timeline, self._switch
        events, horizon, drivers = timeline.events, timeline.horizon, self._drivers
        size, position, now = arrivals.size, 0, 0
        if switch is not None:
            switch.begin()
        self._look_ahead(position)
        while position < size or events or (switch is not None and switch.has_work):
            if timeline.next_outside < NEVER and (not events or timeline.next_outside <= events[0][0]):
                if timeline.next_outside > horizon:
                    break
                now = timeline.next_outside
                touched: set[int] = set()
                while position < size and arrivals.item(position) == now:
                    pipeline = self._arrive(position, now)
                    position += 1
                    if pipeline is not None:
                        touched.add(pipeline)
                if switch is not None and switch.next_ns == now:
                    touched |= switch.decide(now)
                self._look_ahead(position)
                for pipeline in sorted(touched):
                    drivers[pipeline].start(now)
                continue
            if events[0][0] > horizon:
                break
            now, kind, ticket, pipeline, lane = heapq.heappop(events)
            has_returned = drivers[pipeline].on_event(kind, ticket, lane, now)
            if has_returned and switch is not None and switch.is_drained(pipeline):
                changed = switch.decide(now)
                self._look_ahead(position)
                for one in sorted(changed):
                    drivers[one].start(now)
        end = min(now, horizon) if self.horizon_ns is None else horizon
        self._close(end, position)
        return self._result(now)

    def _look_ahead(self, position: int) -> None:
        """Note when something from outside comes next: a request, or the controller's turn."""
        arrivals = self.workload.arrival_ns
        self._timeline.next_outside = arrivals.item(position) if position < arrivals.size else NEVER
        if self._switch is not None:
            self._timeline.next_outside = min(self._timeline.next_outside, self._switch.next_ns)

    def _arrive(self, index: int, now: int) -> int | None:
        """Submit a request; return its pipeline."""
        w = self.workload
        found = self.scheduler.submit(
            Arrival(
                index, w.prompt_tokens.item(index), w.max_new_tokens.item(index), w.priority.item(index),
                None if w.ttft_s is None else w.ttft_s.item(index),
                None if w.tpot_s is None else w.tpot_s.item(index),
                None if self._predicted is None else self._predicted.item(index),
            ),
            now,
        )  # fmt: skip
        if self._switch is not None:
            self._switch.note_arrival(w.prompt_tokens.item(index))
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
        if self._switch is not None:
            self._switch.note_end(delivery.token_ns.size)
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
        finished, rejected, unfinished = self._ended
        preempted = self.scheduler.num_preempted
        return SimulationResult(now, stages, self.scheduler.log, finished, rejected, unfinished, preempted)


def _predictions(
    workload: Workload, policies: Sequence[Policy], predicted: FloatArray | None
) -> FloatArray | None:  # fmt: skip
    """Return what policies read as predicted output lengths."""
    sees_all = {bool(getattr(policy, "is_clairvoyant", False)) for policy in policies}
    if sees_all == {True, False}:
        raise InputError("clairvoyant policies and others serve one workload, expected all of one kind")
    if sees_all == {True}:
        return workload.output_tokens.astype(np.float64)
    if predicted is not None and predicted.shape != (workload.num_requests,):
        raise InputError(f"predicted has shape {predicted.shape}, expected {(workload.num_requests,)}")
    return predicted
