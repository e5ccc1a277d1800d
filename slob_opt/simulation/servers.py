"""Stages and links of a pipeline as servers, and the batches on their way through them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import Hops, PipelineClock
from slob_opt.cost.stage_clock import PS_PER_NS
from slob_opt.scheduling.records import Launch
from slob_opt.simulation.options import StageUse

IntArray = NDArray[np.int64]

WAKE, LEFT, DONE, CAME = 0, 1, 2, 3
"""Kinds of events in their order at one time: stage 0 is free or loaded, a batch leaves a shared device, a batch has
returned, a batch comes to a shared device. Arrivals come before all."""

MOST_STEPS = 4096
"""Iterations of one leap, at most."""

_COUNTING: IntArray = np.arange(MOST_STEPS + 1, dtype=np.int64)
_COUNTING.setflags(write=False)


@dataclass(slots=True)
class Run:
    """A lane's batch in flight, or the last one while the lane is idle.

    Attributes
    ----------
    launch
        As the scheduler gave it; ``None`` before the first.
    base_ps
        Time of each stage beside decode attention, picoseconds.
    kv_tokens
        Cached tokens that decodes read, one figure for each window of the model.
    growth
        For each window and decode, how many more of the next tokens still add to what it reads; ``None`` where all
        do for ever (full attention).
    is_full
        Whether the model has full attention only.
    decodes, computed, padding
        Decodes, tokens computed, and pads among them.
    steps, times
        Iterations that it stands for, and when each ended if there are several.
    stage
        Where it is on its way over shared devices.
    spans
        When it began and ended each stage so far; ``None`` where nobody wants to know.
    preempted
        Requests that lost their KV for it, kept with the spans.
    ends, step, first_end
        For each request of the batch the lane's step count when its last token comes, the count now, and the smallest
        of the former.
    """

    launch: Launch | None = None
    is_busy: bool = False
    base_ps: tuple[int, ...] = ()
    kv_tokens: list[int] = field(default_factory=list)
    growth: tuple[IntArray | None, ...] = (None,)
    is_full: bool = False
    decodes: int = 0
    computed: int = 0
    padding: int = 0
    hops: Hops = ((), (), 0)
    steps: int = 1
    times: IntArray | None = None
    ends: dict[int, int] = field(default_factory=dict)
    step: int = 0
    first_end: int = 0
    ticket: int = 0
    done_ns: int = 0
    stage: int = 0
    spans: list[tuple[int, int]] | None = None
    preempted: tuple[int, ...] = ()

    def advance(self, steps: int) -> None:
        """Let the decodes read what they read so many iterations later."""
        kv_tokens, growth = self.kv_tokens, self.growth
        if self.is_full:
            kv_tokens[0] += self.decodes * steps
            return
        for window, more in enumerate(growth):
            kv_tokens[window] += self.decodes * steps if more is None else int(np.minimum(more, steps).sum())
        if any(more is not None for more in growth):
            self.growth = tuple(more if more is None else np.maximum(more - steps, 0) for more in growth)

    def kv_series(self, first: int, count: int) -> list[IntArray]:
        """Return for each window (count,) int64, cached tokens read `first`, `first` + 1, ... iterations later."""
        steps = _COUNTING[first : first + count]
        return [
            now + (self.decodes * steps if more is None else np.minimum(more, steps[:, None]).sum(axis=1))
            for now, more in zip(self.kv_tokens, self.growth, strict=True)
        ]


@dataclass(slots=True)
class Line:
    """A pipeline's servers, no device of which serves another pipeline or stage."""

    clock: PipelineClock
    slopes: tuple[tuple[int, ...], ...]
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
        runs = [Run() for _ in range(num_lanes)]
        return cls(clock, clock.kv_ps, [0] * size, [0] * (size - 1), [0] * size, [None] * size, runs)

    def stage_ns(self, run: Run, stage: int) -> int:
        """Return the time of a batch on a stage, nanoseconds."""
        time = run.base_ps[stage]
        if run.is_full:
            return (time + self.slopes[stage][0] * run.kv_tokens[0]) // PS_PER_NS
        for slope, tokens in zip(self.slopes[stage], run.kv_tokens, strict=True):
            time += slope * tokens
        return time // PS_PER_NS

    def noisy_ns(self, run: Run, stage: int, rng: np.random.Generator, noise: float) -> int:
        """Return the same with noise: the logarithm of the time has this standard deviation."""
        return max(1, round(self.stage_ns(run, stage) * float(np.exp(rng.normal(0.0, noise)))))

    def send(self, run: Run, now: int, rng: np.random.Generator | None = None, noise: float = 0.0) -> int:
        """Send a batch through stages and links; return when its tokens are back."""
        at, last = now, len(self.stage_free) - 1
        busy, latency, back = run.hops
        free, link_free, used = self.stage_free, self.link_free, self.busy
        for stage in range(last + 1):
            time = self.stage_ns(run, stage) if rng is None else self.noisy_ns(run, stage, rng, noise)
            at = max(at, free[stage])
            if self.first[stage] is None:
                self.first[stage] = at
            at += time
            free[stage] = at
            used[stage] += time
            if run.spans is not None:
                run.spans.append((at - time, at))
            if stage < last:
                at = max(at, link_free[stage])
                at += busy[stage]
                link_free[stage] = at
                at += latency[stage]
        self.tokens += run.computed
        self.padding += run.padding
        return at + back

    def stage_series(self, run: Run, first: int, count: int) -> list[IntArray]:
        """Return for each stage (count,) int64 ns, times of the lane's batch `first`, `first` + 1, ... steps later."""
        found = []
        if run.is_full:
            steps = _COUNTING[first : first + count]
            kv_tokens, decodes = run.kv_tokens[0], run.decodes
            for base, slopes in zip(run.base_ps, self.slopes, strict=True):
                total = steps * (slopes[0] * decodes)
                total += base + slopes[0] * kv_tokens
                np.floor_divide(total, PS_PER_NS, out=total)
                found.append(total)
            return found
        series = run.kv_series(first, count)
        for base, slopes in zip(run.base_ps, self.slopes, strict=True):
            total = slopes[0] * series[0]
            total += base
            for slope, tokens in zip(slopes[1:], series[1:], strict=True):
                total += slope * tokens
            np.floor_divide(total, PS_PER_NS, out=total)
            found.append(total)
        return found

    def leap(self, run: Run, now: int, most: int, stop: int, *, takes_last: bool) -> IntArray:
        """Return when the iterations of the only lane in flight end, if its batch repeats, as far as before `stop`.

        Parameters
        ----------
        most
            How many at most.
        takes_last
            Whether the iteration that is under way at `stop` is one of them.
        """
        busy, latency, back = run.hops
        apart = sum(busy) + sum(latency) + back
        # Iterations only get longer, so no more than these fit.
        least = sum([self.stage_ns(run, stage) for stage in range(len(self.stage_free))]) + apart
        count = min(most, MOST_STEPS, (stop - now) // max(least, 1) + 2)
        times = self.stage_series(run, 0, count)
        ends = times[0]
        for time in times[1:]:
            ends += time
        ends += apart
        np.add.accumulate(ends, out=ends)
        ends += now
        if ends.item(count - 1) >= stop:
            ends = ends[: int(ends.searchsorted(stop)) + takes_last]
        return ends

    def commit_leap(self, run: Run, now: int, ends: IntArray) -> None:
        """Enter the iterations of :meth:`leap` that are made."""
        size, last = ends.size, len(self.stage_free) - 1
        busy, latency, back = run.hops
        apart = sum(busy) + sum(latency) + back
        before = ends.item(size - 2) if size > 1 else now
        for stage, first in enumerate(self.first):
            if first is None:
                at = now
                for earlier in range(stage):
                    at += self.stage_ns(run, earlier) + busy[earlier] + latency[earlier]
                self.first[stage] = at
        if last == 0:
            self.busy[0] += ends.item(size - 1) - now - size * apart
            self.stage_free[0] = ends.item(size - 1) - back
        else:
            at = before
            for stage, time in enumerate(self.stage_series(run, 0, size)):
                self.busy[stage] += int(np.add.reduce(time))
                at += time.item(size - 1)
                self.stage_free[stage] = at
                if stage < last:
                    at += busy[stage]
                    self.link_free[stage] = at
                    at += latency[stage]
        run.advance(size - 1)
        run.steps, run.times = size, ends
        self.tokens += run.computed * size
        self.padding += run.padding * size

    def go_on(
        self, left: list[int], stop: int, ticket: int
    ) -> tuple[list[tuple[int, int, int, int]], list[list[int]], list[int]]:
        """Play lanes that only repeat their batches forward together, up to a time or to a lane that has to ask.

        Every lane that has requests must be busy, or wait for nothing but stage 0.

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
                run = runs[lane]
                run.advance(1)
                at = self._through(run, now) if run.is_full else self.send(run, now)
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
        return queue, times, launched

    def _through(self, run: Run, now: int) -> int:
        """Do what :meth:`send` does, for a model of full attention that has been served before: the innermost loop."""
        busy, latency, back = run.hops
        free, link_free, used, slopes = self.stage_free, self.link_free, self.busy, self.slopes
        last = len(free) - 1
        kv_tokens = run.kv_tokens[0]
        at, stage = now, 0
        for base in run.base_ps:
            time = (base + slopes[stage][0] * kv_tokens) // PS_PER_NS
            if free[stage] > at:  # noqa: PLR1730 - max() would be a third of the time
                at = free[stage]
            at += time
            free[stage] = at
            used[stage] += time
            if stage < last:
                if link_free[stage] > at:  # noqa: PLR1730
                    at = link_free[stage]
                at += busy[stage]
                link_free[stage] = at
                at += latency[stage]
            stage += 1  # noqa: SIM113 - enumerate is slower
        self.tokens += run.computed
        self.padding += run.padding
        return at + back

    def use(self) -> tuple[StageUse, ...]:
        """Return what each stage did."""
        return tuple(
            StageUse(busy, first, None if first is None else free, self.tokens, self.padding)
            for busy, first, free in zip(self.busy, self.first, self.stage_free, strict=True)
        )
