"""Stages and links of a pipeline as servers, and the batches on their way through them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import Hops, PipelineClock
from slob_opt.cost.stage_clock import PS_PER_NS, Work
from slob_opt.scheduling.records import Launch
from slob_opt.simulation.options import StageUse

IntArray = NDArray[np.int64]

WAKE, DONE = 0, 1
"""Kinds of events in their order at one time: stage 0 is free, a batch has returned. Arrivals come before both."""


@dataclass(slots=True)
class Run:
    """A lane's batch in flight, or the lane idle (``launch`` is ``None``)."""

    launch: Launch | None = None
    is_busy: bool = False
    work: Work | None = None
    base_ps: tuple[int, ...] = ()
    kv_tokens: int = 0
    padding: int = 0
    hops: Hops = ((), (), 0)
    steps: int = 1
    times: IntArray | None = None
    to_end: int = 0
    ticket: int = 0
    done_ns: int = 0


@dataclass(slots=True)
class Line:
    """A pipeline's servers."""

    clock: PipelineClock
    slopes: tuple[int, ...]
    is_linear: bool
    stage_free: list[int]
    link_free: list[int]
    busy: list[int]
    first: list[int | None]
    last: list[int | None]
    runs: list[Run]
    tokens: int = 0
    padding: int = 0
    in_flight: int = 0
    next_lane: int = 0
    wake_ns: int = -1

    def send(self, run: Run, now: int, rng: np.random.Generator | None = None, noise: float = 0.0) -> int:
        """Send a batch through stages and links; return when its tokens are back."""
        work = run.work
        assert work is not None
        at = now
        has_decodes = work.decodes > 0
        busy, latency, back = run.hops
        stage_free, link_free = self.stage_free, self.link_free
        last = len(stage_free) - 1
        for stage, base in enumerate(run.base_ps):
            time = (base + self.slopes[stage] * run.kv_tokens if has_decodes else base) // PS_PER_NS
            if rng is not None:
                time = max(1, round(time * float(np.exp(rng.normal(0.0, noise)))))
            start = max(at, stage_free[stage])
            at = stage_free[stage] = start + time
            self.busy[stage] += time
            if self.first[stage] is None:
                self.first[stage] = start
            self.last[stage] = at
            if stage < last:
                start = max(at, link_free[stage])
                link_free[stage] = start + busy[stage]
                at = link_free[stage] + latency[stage]
        self.tokens += work.tokens
        self.padding += run.padding
        return at + back

    def go_on(
        self, left: list[int], stop: int, ticket: int
    ) -> tuple[list[tuple[int, int, int, int]], list[list[int]], list[int]]:
        """Play lanes that only repeat their batches forward together, up to a time or to a lane that has to ask.

        Every lane that has requests must be busy, and none may wait for stage 0.

        Parameters
        ----------
        left
            How many times more each lane may start its batch.
        stop
            Nanoseconds; batches that end at or after it are left on their way.
        ticket
            Running number of the last event, which orders those at the same time.

        Returns
        -------
        queue
            Events (time, kind, ticket, lane) that are still to come.
        times
            When each lane's batches ended.
        launched
            How many batches each lane started.
        """
        runs, size = self.runs, len(self.runs)
        queue = [(run.done_ns, DONE, run.ticket, lane) for lane, run in enumerate(runs) if run.is_busy]
        heapq.heapify(queue)
        is_idle = [False] * size
        times: list[list[int]] = [[] for _ in runs]
        launched = [0] * size
        while queue and queue[0][0] < stop:
            now, kind, _, lane = queue[0]
            if kind == DONE:
                if left[lane] <= 0:
                    break
                times[lane].append(now)
                is_idle[lane] = True
            heapq.heappop(queue)
            if self.stage_free[0] <= now:
                for offset in range(size):
                    lane = (self.next_lane + offset) % size
                    if is_idle[lane]:
                        run = runs[lane]
                        assert run.work is not None
                        run.kv_tokens += run.work.rows
                        ticket += 1
                        heapq.heappush(queue, (self.send(run, now), DONE, ticket, lane))
                        is_idle[lane] = False
                        left[lane] -= 1
                        launched[lane] += 1
                        self.next_lane = (lane + 1) % size
                        break
            if any(is_idle) and self.stage_free[0] > now and all(event[1] != WAKE for event in queue):
                heapq.heappush(queue, (self.stage_free[0], WAKE, 0, 0))
        return queue, times, launched

    def use(self) -> tuple[StageUse, ...]:
        """Return what each stage did."""
        return tuple(
            StageUse(busy, first, last, self.tokens, self.padding)
            for busy, first, last in zip(self.busy, self.first, self.last, strict=True)
        )
