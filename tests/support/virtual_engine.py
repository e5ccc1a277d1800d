"""A second driver of the Scheduler: an engine loop that runs one batch a time in virtual time, without leaps.

Written apart from the simulator, with a heap of its own and no shortcut, so that both must agree.
"""

from __future__ import annotations

import heapq

import numpy as np

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.cost.stage_clock import work_of_rows
from slob_opt.problem.workload import Workload
from slob_opt.scheduling.policy import PipelineLimits, Policy, is_clairvoyant
from slob_opt.scheduling.records import Arrival, Launch
from slob_opt.scheduling.scheduler import Scheduler


class VirtualEngine:
    """One pipeline; every iteration asks, waits and reports."""

    def __init__(
        self, workload: Workload, limits: PipelineLimits, clock: PipelineClock, policy: Policy, is_padded: bool = False
    ) -> None:
        self.workload, self.limits, self.clock, self.is_padded = workload, limits, clock, is_padded
        self.policy = policy
        self.scheduler = Scheduler([limits], [clock], [policy], is_padded=is_padded)
        self.stage_free = [0] * len(clock.stages)
        self.link_free = [0] * len(clock.links)
        self.token_ns: dict[int, list[int]] = {i: [] for i in range(workload.num_requests)}
        self.in_flight: dict[int, Launch] = {}
        self.next_lane = 0
        self.checks: list[str] = []

    def run(self) -> None:
        """Serve the whole workload."""
        arrivals = [(int(t), -1, i, -1) for i, t in enumerate(self.workload.arrival_ns)]
        events = sorted(arrivals)
        heapq.heapify(events)
        count = 0
        while events:
            now = events[0][0]
            kind = events[0][1]
            batch = []
            while events and events[0][0] == now and events[0][1] == kind and (kind == -1 or not batch):
                batch.append(heapq.heappop(events))
            for _, _, index, lane in batch:
                if kind == -1:
                    self.arrive(index, now)
                elif kind == 1:
                    self.deliver(lane, now)
            if self.stage_free[0] <= now:
                for offset in range(self.limits.num_lanes):
                    lane = (self.next_lane + offset) % self.limits.num_lanes
                    if lane in self.in_flight:
                        continue
                    launch = self.scheduler.next_batch(0, lane, now)
                    if launch is None:
                        continue
                    count += 1
                    self.in_flight[lane] = launch
                    heapq.heappush(events, (self.travel(launch, now), 1, count, lane))
                    self.next_lane = (lane + 1) % self.limits.num_lanes
                    break
            if self.stage_free[0] > now and len(self.in_flight) < self.limits.num_lanes:
                wake = (self.stage_free[0], 0, 0, -1)
                if wake not in events:
                    heapq.heappush(events, wake)

    def arrive(self, index: int, now: int) -> None:
        w = self.workload
        told = float(w.output_tokens[index]) if is_clairvoyant(self.policy) else None
        prompt, max_new, priority = w.prompt_tokens[index], w.max_new_tokens[index], w.priority[index]
        self.scheduler.submit(Arrival(index, int(prompt), int(max_new), float(priority), predicted=told), now)

    def travel(self, launch: Launch, now: int) -> int:
        """Return when the batch is back."""
        plan = launch.plan
        self.scheduler.settle()
        cached = self.scheduler.columns.cached[plan.slots]
        tokens, is_decode = plan.tokens, launch.is_decode
        if plan.idle_rows:
            cached = np.append(cached, np.full(plan.idle_rows, cached.max()))
            tokens = np.append(tokens, np.ones(plan.idle_rows, np.int64))
            is_decode = np.append(is_decode, np.ones(plan.idle_rows, bool))
        work, _ = work_of_rows(cached, tokens, is_decode, self.clock.windows, is_padded=self.is_padded)
        times = self.clock.times(work)
        at = now
        for stage, time in enumerate(times.stage_ns):
            at = max(at, self.stage_free[stage]) + time
            self.stage_free[stage] = at
            if stage < len(self.link_free):
                self.link_free[stage] = max(at, self.link_free[stage]) + times.busy_ns[stage]
                at = self.link_free[stage] + times.latency_ns[stage]
        return at + times.return_ns

    def deliver(self, lane: int, now: int) -> None:
        launch = self.in_flight.pop(lane)
        columns = self.scheduler.columns
        self.scheduler.settle()
        ended = []
        for slot in launch.plan.slots[launch.emits].tolist():
            request = int(columns.request[slot])
            self.token_ns[request].append(now)
            if len(self.token_ns[request]) == self.workload.output_tokens[request]:
                ended.append(slot)
        self.scheduler.complete(0, lane, now, ended)
