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
    runs: list[Run]
    tokens: int = 0
    padding: int = 0
    in_flight: int = 0
    next_lane: int = 0
    wake_ns: int = -1

    @classmethod
    def of(cls, clock: PipelineClock, num_lanes: int) -> Line:
        """Return an idle pipeline."""
        size = len(clock.stages)
        slopes = tuple(slope[0] for slope in clock.kv_ps)
        runs = [Run() for _ in range(num_lanes)]
        is_linear = clock.windows == (None,)
        return cls(clock, slopes, is_linear, [0] * size, [0] * (size - 1), [0] * size, [None] * size, runs)

    def send(self, run: Run, now: int, rng: np.random.Generator | None = None, noise: float = 0.0) -> int:
        """Send a batch through stages and links; return when its tokens are back."""
        work = run.work
        assert work is not None
        at, last = now, len(self.stage_free) - 1
        busy, latency, back = run.hops
        free, link_free, used, slopes = self.stage_free, self.link_free, self.busy, self.slopes
        kv_tokens = run.kv_tokens if work.decodes else 0
        is_first = self.first[last] is None
        for stage, base in enumerate(run.base_ps):
            time = (base + slopes[stage] * kv_tokens) // PS_PER_NS
            if rng is not None:
                time = max(1, round(time * float(np.exp(rng.normal(0.0, noise)))))
            at = max(at, free[stage])
            if is_first and self.first[stage] is None:
                self.first[stage] = at
            at += time
            free[stage] = at
            used[stage] += time
            if stage < last:
                at = max(at, link_free[stage])
                at += busy[stage]
                link_free[stage] = at
                at += latency[stage]
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
        # The first lane that runs out ends it, and all take about as long.
        most = 2 * min(count for count, run in zip(left, runs, strict=True) if run.is_busy) + 2
        for lane, run in enumerate(runs):
            # No more than fit before `stop`: a batch takes at least its stages' times, which only grow.
            least = max(1, sum(run.base_ps) // PS_PER_NS)
            left[lane] = min(left[lane], most, max(0, stop - run.done_ns) // least + 2)
        tables = [self._stage_times(run, count) for run, count in zip(runs, left, strict=True)]
        idle: list[int] = []
        times: list[list[int]] = [[] for _ in runs]
        launched = [0] * size
        free, wakes = self.stage_free, False
        while queue:
            now, kind, _, lane = queue[0]
            if now >= stop:
                break
            if kind == DONE:
                if launched[lane] >= left[lane]:
                    break
                times[lane].append(now)
                idle.append(lane)
            else:
                wakes = False
            event = None
            if idle and free[0] <= now:
                lane = idle[0] if len(idle) == 1 else min(idle, key=lambda one: (one - self.next_lane) % size)
                idle.remove(lane)
                at = self._through(tables[lane][launched[lane]], runs[lane].hops, now)
                ticket += 1
                launched[lane] += 1
                self.next_lane = (lane + 1) % size
                event = (at, DONE, ticket, lane)
            if event is None:
                heapq.heappop(queue)
            else:
                heapq.heapreplace(queue, event)
            if idle and not wakes and free[0] > now:
                heapq.heappush(queue, (free[0], WAKE, 0, 0))
                wakes = True
        for run, table, count in zip(runs, tables, launched, strict=True):
            if count:
                self._account(run, table[:count])
        return queue, times, launched

    def _through(self, stage_ns: tuple[int, ...], hops: Hops, now: int) -> int:
        """Send a batch of known stage times through; return when its tokens are back. The innermost loop of all."""
        busy, latency, back = hops
        free, link_free, last = self.stage_free, self.link_free, len(stage_ns) - 1
        at = now
        for stage, time in enumerate(stage_ns):
            if free[stage] > at:  # noqa: PLR1730 - max() would be a third of the time
                at = free[stage]
            at += time
            free[stage] = at
            if stage < last:
                if link_free[stage] > at:  # noqa: PLR1730
                    at = link_free[stage]
                at += busy[stage]
                link_free[stage] = at
                at += latency[stage]
        return at + back

    def _stage_times(self, run: Run, count: int) -> list[tuple[int, ...]]:
        """Return the stage times of a lane's next `count` batches, ns, each one token longer than the one before."""
        if not count or run.work is None:
            return []
        kv_tokens = run.kv_tokens + run.work.rows * np.arange(1, count + 1, dtype=np.int64)
        columns = [
            ((base + slope * kv_tokens) // PS_PER_NS).tolist()
            for base, slope in zip(run.base_ps, self.slopes, strict=True)
        ]
        return list(zip(*columns, strict=True))

    def _account(self, run: Run, table: list[tuple[int, ...]]) -> None:
        """Enter the batches that a lane has started by itself."""
        assert run.work is not None
        count = len(table)
        run.kv_tokens += run.work.rows * count
        for stage, total in enumerate(map(sum, zip(*table, strict=True))):
            self.busy[stage] += total
        self.tokens += run.work.tokens * count
        self.padding += run.padding * count

    def use(self) -> tuple[StageUse, ...]:
        """Return what each stage did."""
        return tuple(
            StageUse(busy, first, None if first is None else free, self.tokens, self.padding)
            for busy, first, free in zip(self.busy, self.first, self.stage_free, strict=True)
        )
