"""One pipeline in virtual time: its lanes ask the scheduler for batches, send them through, and hand over tokens."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.stage_clock import Work, work_of_rows
from slob_opt.metrics.iterations import Iteration
from slob_opt.scheduling.policy import KvUse, Policy
from slob_opt.scheduling.records import Launch
from slob_opt.scheduling.scheduler import Scheduler
from slob_opt.simulation.delivery import Delivery, End
from slob_opt.simulation.options import EngineOptions
from slob_opt.simulation.servers import DONE, WAKE, Line, Run

IntArray = NDArray[np.int64]

NEVER = 1 << 62
"""A time after all others."""

SHORT_LEAP = 3
"""Iterations from which a leap is worth its array operations."""

NO_END = 1 << 40
"""More steps than any request has."""


@dataclass(slots=True)
class Timeline:
    """Events to come, in order of time, kind and running number, and when requests arrive next.

    Attributes
    ----------
    next_outside
        The next time at which something other than a batch changes what is decided.
    horizon
        Time after which nothing counts.
    """

    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    count: int = 0
    next_outside: int = NEVER
    horizon: int = NEVER

    def push(self, at: int, kind: int, pipeline: int, lane: int) -> int:
        """Enter an event; return its running number."""
        self.count += 1
        heapq.heappush(self.events, (at, kind, self.count, pipeline, lane))
        return self.count


class PipelineDriver:
    """Drives one pipeline of a scheduler.

    Parameters
    ----------
    index
        Of the pipeline.
    scheduler, policy, line, timeline, options
        What it drives, how, on what, when.
    true_tokens
        True output length by slot; shared by all pipelines, and may grow.
    token_ns
        For each slot the times of its tokens, in pieces; shared by all pipelines.
    sink
        Takes requests that are over.
    rng
        Of noise; ``None`` is none.
    is_read
        Whether someone reads the scheduler's state whenever a request arrives, so that it must be that of the moment.
    """

    def __init__(
        self, index: int, scheduler: Scheduler, policy: Policy, line: Line, timeline: Timeline,
        options: EngineOptions, *, true_tokens: list[int], token_ns: dict[int, list[IntArray]],
        sink: Callable[[Delivery], None], rng: np.random.Generator | None, is_read: bool,
    ) -> None:  # fmt: skip
        self.index, self.scheduler, self.line, self.timeline, self.options = index, scheduler, line, timeline, options
        self._is_streamed, self._takes_blocks = policy.is_streamed, policy.kv_use is KvUse.PAGED
        self._true, self._token_ns, self._sink, self._rng = true_tokens, token_ns, sink, rng
        self._leaps = options.is_leaping and rng is None
        self._is_read = is_read or len(line.runs) > 1
        self._is_packed = not options.is_padded
        self.observer: Callable[[Iteration], None] | None = None
        self.not_before = 0
        self.unsent: dict[int, list[Delivery]] = {}

    def watch(self, observer: Callable[[Iteration], None]) -> None:
        """Hand each iteration over as its tokens are back; leaps are over then."""
        self.observer, self._leaps = observer, False

    def is_loading(self, now: int) -> bool:
        """Return whether the pipeline may start nothing yet; it's asked again when it may."""
        if now >= self.not_before:
            return False
        if self.line.wake_ns != self.not_before and self.not_before < NEVER:
            self.line.wake_ns = self.not_before
            self.timeline.push(self.not_before, WAKE, self.index, 0)
        return True

    def on_event(self, kind: int, ticket: int, lane: int, now: int) -> bool:
        """Do what an event says; return whether it was a batch that returned."""
        line = self.line
        if kind == DONE:
            if line.runs[lane].ticket != ticket:
                return False  # the lane has gone on by itself, see go_on
            self.complete(lane, now)
        elif line.wake_ns == now:
            line.wake_ns = -1
        else:
            return False
        self.start(now)
        if line.in_flight > 1 and self._leaps:
            self.go_on()
        return kind == DONE

    def start(self, now: int) -> None:
        """Launch every lane that may, one after the other as stage 0 gets free."""
        if self.not_before and self.is_loading(now):
            return
        line = self.line
        runs, size = line.runs, len(line.runs)
        if line.stage_free[0] <= now:
            for _ in range(size):
                lane = line.next_lane
                for offset in range(size):
                    lane = (line.next_lane + offset) % size
                    if not runs[lane].is_busy and self._launch(lane, now):
                        break
                else:
                    return
                line.next_lane = (lane + 1) % size
                if line.stage_free[0] > now:
                    break
        if size > 1 and line.in_flight < size and line.wake_ns != line.stage_free[0] and line.stage_free[0] > now:
            free = [lane for lane, run in enumerate(runs) if not run.is_busy]
            if any(self.scheduler.has_work(self.index, lane) for lane in free):
                line.wake_ns = line.stage_free[0]
                self.timeline.push(line.wake_ns, WAKE, self.index, 0)

    def _push_done(self, at: int, lane: int) -> None:
        run = self.line.runs[lane]
        run.ticket, run.done_ns = self.timeline.push(at, DONE, self.index, lane), at

    # ------------------------------------------------------------------ batches

    def _launch(self, lane: int, now: int) -> bool:
        """Start the next batch of a free lane, if it has one."""
        launch = self.scheduler.next_batch(self.index, lane, now)
        if launch is None:
            return False
        line = self.line
        run = line.runs[lane]
        run.is_busy = True
        line.in_flight += 1
        if launch.is_repeat:
            run.advance(1)
        else:
            self._measure(run, launch, lane)
        run.launch = launch
        run.steps, run.times = 1, None
        if self.observer is not None:
            columns = self.scheduler.columns
            run.spans, run.preempted = [], tuple(columns.request[launch.plan.preempt].tolist())
        elif launch.repeats_itself and self._leaps and line.in_flight == 1 and self._leap(run, lane, now):
            return True
        self._send(run, lane, now)
        return True

    def _send(self, run: Run, lane: int, now: int) -> None:
        self._push_done(self.line.send(run, now, self._rng, self.options.noise), lane)

    def _measure(self, run: Run, launch: Launch, lane: int) -> None:
        """Enter the work of a new batch, and when the requests in it end."""
        line, plan, decodes = self.line, launch.plan, launch.num_decodes
        clock = line.clock
        run.is_full = clock.windows == (None,)
        if self._is_packed and not plan.idle_rows and run.is_full:
            run.kv_tokens, run.growth, run.padding = [launch.kv_tokens], (None,), 0
            if not launch.chunks:
                run.base_ps, run.hops = clock.decode_base(decodes)
                run.computed = decodes
            else:
                tokens, pairs = decodes, 0
                for before, size in launch.chunks:
                    tokens += size
                    pairs += size * before + size * (size + 1) // 2
                rows = decodes + len(launch.chunks)
                self._base(run, Work(tokens, rows, (0,), (pairs,), decodes, len(launch.chunks)))
        else:
            self._measure_rows(run, launch, lane)
        run.decodes = decodes + (plan.idle_rows if decodes else 0)
        self._note_ends(run, launch)

    def _measure_rows(self, run: Run, launch: Launch, lane: int) -> None:
        """The same by rows: rectangles, windows, members that finished."""
        plan, clock = launch.plan, self.line.clock
        cached, tokens, is_decode = self.scheduler.cached(self.index, lane), plan.tokens, launch.is_decode
        if plan.idle_rows:
            # Finished members compute one token each, over the longest context there is.
            cached = np.concatenate([cached, np.full(plan.idle_rows, cached.max())])
            tokens = np.concatenate([tokens, np.ones(plan.idle_rows, np.int64)])
            is_decode = np.concatenate([is_decode, np.ones(plan.idle_rows, dtype=bool)])
        work, padding = work_of_rows(cached, tokens, is_decode, clock.windows, is_padded=self.options.is_padded)
        run.padding = padding + plan.idle_rows
        run.kv_tokens = list(work.kv_tokens)
        contexts = cached[is_decode] + 1
        if self.options.is_padded and contexts.size:
            contexts = np.full(contexts.size, contexts.max())
        run.growth = tuple(None if w is None else np.maximum(w - contexts, 0) for w in clock.windows)
        self._base(run, work._replace(kv_tokens=(0,) * len(clock.windows)))

    def _base(self, run: Run, work: Work) -> None:
        clock = self.line.clock
        run.base_ps = tuple([stage.ps(work) for stage in clock.stages])
        run.hops = clock.hops(work.tokens, work.rows)
        run.computed = work.tokens

    def _note_ends(self, run: Run, launch: Launch) -> None:
        ends, step = run.ends, run.step
        if launch.is_whole:
            joined = launch.joined
            if not joined and (ends or not launch.plan.slots.size):
                return
        else:
            ends.clear()
            joined = tuple(launch.plan.slots.tolist())
        true, generated = self._true, self.scheduler.columns.generated
        for slot in joined:
            ends[slot] = step + true[slot] - generated.item(slot)
        run.first_end = min(ends.values()) if ends else step + NO_END

    def _leap(self, run: Run, lane: int, now: int) -> bool:
        """Let the batch that starts now stand for all iterations up to the next event; return whether it does."""
        to_end = run.first_end - run.step
        if to_end < SHORT_LEAP:
            return False
        scheduler, line, timeline = self.scheduler, self.line, self.timeline
        for other in range(len(line.runs)):
            if other != lane and (scheduler.num_rows(self.index, other) or scheduler.num_waiting(self.index)):
                return False
        most = scheduler.repeatable(self.index, lane, to_end - 1) + 1
        if most < SHORT_LEAP:
            return False
        # The iteration in which a request arrives is one of them where nothing else can start before it ends.
        stop, takes_last = timeline.next_outside, not self._is_read
        if stop > timeline.horizon:
            stop, takes_last = timeline.horizon + 1, False
        ends = line.leap(run, now, most, stop, takes_last=takes_last)
        if ends.size and ends.item(ends.size - 1) > timeline.horizon:
            ends = ends[:-1]
        if ends.size < SHORT_LEAP:
            return False
        scheduler.extend(self.index, lane, ends.size - 1)
        line.commit_leap(run, now, ends)
        self._push_done(ends.item(ends.size - 1), lane)
        return True

    def go_on(self) -> None:
        """Play several lanes forward together while each only repeats its batch, up to the next event.

        The same as popping their events one by one, without asking the scheduler each time.
        """
        line, scheduler = self.line, self.scheduler
        runs, size = line.runs, len(line.runs)
        left, needed = [0] * size, 0
        for lane, run in enumerate(runs):
            if not run.is_busy:
                if scheduler.has_work(self.index, lane):
                    return
                continue
            if run.launch is None or not run.launch.repeats_itself or run.steps != 1:
                continue  # its end is where this ends at the latest
            left[lane] = scheduler.repeatable(self.index, lane, run.first_end - run.step - 1)
            needed += run.decodes * (left[lane] // scheduler.limits[self.index].block_tokens + 1)
        if max(left) < SHORT_LEAP or (self._takes_blocks and needed > scheduler.free_blocks(self.index)):
            return
        stop = min(self.timeline.next_outside, self.timeline.horizon + 1)
        self._settle_lanes(*line.go_on(left, stop, self.timeline.count))

    def _settle_lanes(
        self, queue: list[tuple[int, int, int, int]], times: list[list[int]], launched: list[int]
    ) -> None:
        """Tell the scheduler what lanes did by themselves, and put their next events back."""
        line, scheduler = self.line, self.scheduler
        for lane, ends in enumerate(times):
            run = line.runs[lane]
            if not ends:
                continue
            assert run.launch is not None
            stamp = np.array(ends)
            for slot in run.launch.plan.slots.tolist():
                self._token_ns[slot].append(stamp)
            run.step += len(ends)
            run.ticket = 0  # its event of before is void; a lane still under way gets a new one below
            scheduler.extend(self.index, lane, len(ends) - 1)
            scheduler.complete(self.index, lane, ends[-1], steps=len(ends))
            run.is_busy = launched[lane] == len(ends)  # else it waits for stage 0
            if run.is_busy:
                launch = scheduler.next_batch(self.index, lane, ends[-1])
                assert launch is not None
                assert launch.is_repeat
                run.launch = launch
        line.in_flight = sum(run.is_busy for run in line.runs)
        line.wake_ns = -1
        for at, kind, _, lane in sorted(queue):
            if kind == WAKE:
                line.wake_ns = at
                self.timeline.push(at, WAKE, self.index, 0)
            else:
                self._push_done(at, lane)

    def complete(self, lane: int, now: int) -> None:
        """Deliver a batch that is back."""
        line = self.line
        run = line.runs[lane]
        launch = run.launch
        assert launch is not None
        run.is_busy = False
        line.in_flight -= 1
        slots, steps = launch.plan.slots, run.steps
        run.step += steps
        known = slots.tolist() if launch.repeats_itself else self._emitting(run, launch)
        if self.observer is not None:
            self.observer(self._iteration(run, launch, lane, now))
        stamp = np.array([now]) if run.times is None else run.times
        token_ns = self._token_ns
        for slot in known:
            token_ns[slot].append(stamp)
        if run.first_end > run.step:
            over = self.scheduler.complete(self.index, lane, now, (), steps=steps)
            assert not over, "a request met its limit before its true length"
            return
        ends, step = run.ends, run.step
        ended = [slot for slot in known if ends[slot] == step]
        columns = self.scheduler.columns
        facts = [(columns.request.item(slot), columns.started_ns.item(slot)) for slot in ended]
        over = self.scheduler.complete(self.index, lane, now, ended, steps=steps)
        assert len(over) == len(ended), "a request met its limit before its true length"
        for slot in ended:
            del ends[slot]
        run.first_end = min(ends.values()) if ends else step + NO_END
        for slot, (request, started) in zip(ended, facts, strict=True):
            pieces = token_ns.pop(slot)
            times = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
            delivery = Delivery(request, End.FINISHED, self.index, started, times)
            if self._is_streamed:
                self._sink(delivery)
            else:  # it waits for the end of its batch
                self.unsent.setdefault(lane, []).append(delivery)
        if not self._is_streamed and not self.scheduler.num_rows(self.index, lane):
            for delivery in self.unsent.pop(lane, []):
                self._sink(delivery.all_at(now))

    def _emitting(self, run: Run, launch: Launch) -> list[int]:
        """Return the slots that got a token; the last tokens of the others come a step later."""
        slots = launch.plan.slots
        known: list[int] = slots[launch.emits].tolist()
        if len(known) < slots.size:
            for slot in slots[~launch.emits].tolist():
                run.ends[slot] += 1
            run.first_end = min(run.ends.values())
        return known

    def _iteration(self, run: Run, launch: Launch, lane: int, now: int) -> Iteration:
        spans, plan = run.spans or [], launch.plan
        requests = tuple(self.scheduler.columns.request[plan.slots].tolist())
        return Iteration(
            self.index, lane, requests, tuple(plan.tokens.tolist()), run.preempted, tuple(start for start, _ in spans),
            tuple(end for _, end in spans), now, run.computed, run.padding,
        )  # fmt: skip
