"""The engine: drives the scheduler with a real executor, as the simulator drives it with a modelled one.

One thread owns the scheduler, the block tables and all live requests. Other threads hand requests in and get events
through their sinks. The scheduler's clock is ``time.monotonic_ns`` since the engine was made.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from runtime.engine_pipelines import BuiltPipeline, EnginePipeline, LostDevices, Recovery
from runtime.engine_report import EngineOptions, EngineReport, Recorder
from runtime.executor import Capacity, Executor, Progress
from runtime.generation import EngineStatus, GenerationRequest, Reason, RequestRefused, Sink, check_request
from runtime.live_request import Codec, LiveRequest
from runtime.steps import Event, StageFree, StepOutput, WorkerLost
from slob_opt.errors import EngineError, SlobError
from slob_opt.scheduling.columns import State
from slob_opt.scheduling.policy import Dispatcher
from slob_opt.scheduling.scheduler import Scheduler

_log = logging.getLogger(__name__)


class Engine:
    """Serves requests on the pipelines of an executor.

    Parameters
    ----------
    executor
        Computes; not started yet.
    build
        Makes the pipelines from what the executor found that they can hold.
    dispatcher
        Chooses pipelines; ``None`` for a single one.
    codec
        Text and tokens of the model.
    options
        How it serves.
    recover
        Makes pipelines of the devices that are left when one is lost; ``None`` leaves them idle.
    recorder
        Gets iterations and requests as they end, as for a trace; ``None`` without one.

    Attributes
    ----------
    codec
        As given.
    max_tokens
        Longest prompt with answer that fits the model and a pipeline's KV.
    origin_ns
        ``time.monotonic_ns`` at which the scheduler's clock begins.
    """

    def __init__(
        self,
        executor: Executor,
        build: Callable[[Sequence[Capacity]], Sequence[BuiltPipeline]],
        dispatcher: Dispatcher | None,
        codec: Codec,
        options: EngineOptions,
        *,
        recover: Recovery | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._executor, self._build, self._dispatcher = executor, build, dispatcher
        self.codec, self.options = codec, options
        self._eos_ids = codec.eos_ids
        self._recover = recover
        self.max_tokens = 0
        self.origin_ns = time.monotonic_ns()
        self._report = EngineReport(options.spec, self.origin_ns, recorder)
        self._pipelines: list[EnginePipeline] = []
        self._live: dict[int, LiveRequest] = {}
        self._inbox: deque[LiveRequest | int] = deque()
        self._next_number = 0
        self._num_preempted = 0
        self._lost: set[str] = set()
        self._lock = threading.RLock()
        self._is_idle = threading.Condition(self._lock)
        self._is_draining = self._is_closing = False
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ life

    def start(self, progress: Progress) -> None:
        """Load all stages and begin to serve; raises what the executor raises, with everything closed again."""
        try:
            built = self._build(self._executor.start(progress))
            if len(built) > 1 and self._dispatcher is None:
                raise EngineError(f"{len(built)} pipelines need a dispatcher")
            self.scheduler = Scheduler(
                [one.limits for one in built], [one.clock for one in built], [one.policy for one in built],
                self._dispatcher, is_padded=self.options.is_padded, keeps_log=self.options.keeps_log,
            )  # fmt: skip
            self._pipelines = [EnginePipeline(index, one) for index, one in enumerate(built)]
            self._count_tokens()
        except BaseException:
            self._executor.close()
            raise
        self._thread = threading.Thread(target=self._run, name="slob-engine", daemon=True)
        self._thread.start()

    def begin_drain(self) -> None:
        """Take no more requests; those that are live go on."""
        with self._lock:
            self._is_draining = True

    def wait_idle(self, timeout_s: float | None) -> bool:
        """Return whether no request is left, after waiting for that at most so long."""
        with self._is_idle:
            return self._is_idle.wait_for(lambda: not self._live, timeout_s)

    def close(self) -> None:
        """End everything; requests that are still live end with an error. May be called twice."""
        with self._lock:
            self._is_draining = self._is_closing = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._executor.wake()
            self._thread.join()
        self._executor.close()

    # ------------------------------------------------------------------ clients, in their threads

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Take a request and return its number; its events go to the sink from now on.

        Raises
        ------
        RequestRefused
            When it can never fit, a value is wrong, or nothing serves.
        """
        check_request(request)
        longest = len(request.prompt) + request.max_new
        with self._lock:
            self._refuse_when_down()
            if longest > self.max_tokens:
                raise RequestRefused(
                    "too_long",
                    f"{len(request.prompt)} prompt tokens and max_tokens {request.max_new} make {longest},"
                    f" at most {self.max_tokens} fit",
                )
            number = self._next_number
            self._next_number += 1
            how = request.sampling
            seed = how.seed if how.seed is not None else self.options.seed * 1_000_003 + number
            live = LiveRequest(number, request, sink, self.codec.answer(how.stop), seed, time.monotonic_ns())
            self._live[number] = live
            self._inbox.append(live)
        self._executor.wake()
        return number

    def _refuse_when_down(self) -> None:
        if self._fault is not None or self._is_closing or self._thread is None:
            raise RequestRefused("unavailable", "the engine isn't running")
        if self._is_draining:
            raise RequestRefused("unavailable", "the server is going down and takes no more requests")
        if not any(pipeline.is_up for pipeline in self._pipelines):
            raise RequestRefused("unavailable", "no pipeline is up")

    def abort(self, number: int) -> None:
        """Drop a request whose client is gone; does nothing when it's over."""
        with self._lock:
            if number not in self._live:
                return
            self._inbox.append(number)
        self._executor.wake()

    def status(self) -> EngineStatus:
        """Return what the engine does now."""
        with self._lock:
            is_up = self._fault is None and not self._is_closing and any(one.is_up for one in self._pipelines)
            scheduler = self.scheduler
            return EngineStatus(
                is_up, self._is_draining, self.origin_ns, time.monotonic_ns(), self.options.policy_label,
                self.options.dispatcher_label, tuple(one.status(scheduler) for one in self._pipelines),
                scheduler.num_preempted, dict(self._report.num_finished), tuple(self._report.latest),
                tuple(self._report.faults),
            )  # fmt: skip

    # ------------------------------------------------------------------ the engine's thread

    @property
    def _now_ns(self) -> int:
        return time.monotonic_ns() - self.origin_ns

    def _run(self) -> None:
        try:
            while not self._is_closing:
                events = self._executor.poll(None)
                with self._lock:
                    for event in events:
                        self._on_event(event)
                    self._take_inbox()
                    for pipeline in self._pipelines:
                        self._launch(pipeline)
                    if not self._live:
                        self._is_idle.notify_all()
        except BaseException as error:  # noqa: BLE001 - the thread's edge: every client is told, and the log
            self._fault = error
            _log.exception("the engine stopped")
            with self._lock:
                self._report.fault(f"the engine stopped: {error}")
        finally:
            with self._lock:
                why = "the server went down" if self._fault is None else f"the engine stopped: {self._fault}"
                for live in list(self._live.values()):
                    self._end(live, Reason.ERROR, why)
                self._inbox.clear()
                self._is_idle.notify_all()

    def _take_inbox(self) -> None:
        while self._inbox:
            entry = self._inbox.popleft()
            if isinstance(entry, int):
                self._give_up(entry)
                continue
            if entry.is_given_up:
                continue
            found = self.scheduler.submit(entry.arrival(), self._now_ns)
            if found.slot is None:
                self._end(entry, Reason.REJECTED, found.reason)
                continue
            entry.slot, entry.pipeline = found.slot, found.pipeline

    def _give_up(self, number: int) -> None:
        live = self._live.get(number)
        if live is None:
            return
        live.is_given_up = True
        if live.slot is None:
            self._end(live, Reason.ABORT)
        elif not any(live.slot in pipeline.slots_in_flight() for pipeline in self._pipelines):
            self.scheduler.abort(live.slot)
            self._end(live, Reason.ABORT)

    def _end(self, live: LiveRequest, reason: Reason, message: str = "") -> None:
        """Tell a request's client that it's over and forget it; the scheduler has dropped it, or never had it."""
        self._live.pop(live.number, None)
        for pipeline in self._pipelines:
            pipeline.tables.release(live.number)
        self._report.ended(live, live.end(reason, message))

    # ------------------------------------------------------------------ steps

    def _launch(self, pipeline: EnginePipeline) -> None:
        """Start the next batch of a pipeline while its first stage is free and a lane has one."""
        while pipeline.is_up and pipeline.is_stage_free:
            for lane in pipeline.lanes_in_turn():
                launch = self.scheduler.next_batch(pipeline.index, lane, self._now_ns)
                if self.scheduler.num_preempted != self._num_preempted:
                    self._num_preempted = self.scheduler.num_preempted
                    self._match_tables()
                if launch is not None:
                    break
            else:
                return
            step = pipeline.begin(lane, launch, self.scheduler, self._live, is_padded=self.options.is_padded)
            self._executor.submit(step)

    def _match_tables(self) -> None:
        """Give back the blocks of requests that the scheduler has preempted."""
        columns = self.scheduler.columns
        for pipeline in self._pipelines:
            pipeline.tables.keep_only(
                live.number
                for live in self._live.values()
                if live.slot is not None
                and columns.state[live.slot] == State.RUNNING
                and columns.pipeline[live.slot] == pipeline.index
            )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, WorkerLost):
            self._on_lost(event)
            return
        pipeline = self._pipelines[event.pipeline]
        if not pipeline.is_up:
            return  # it was on its way when the pipeline was lost
        if isinstance(event, StageFree):
            pipeline.is_stage_free = True
        else:
            self._on_output(pipeline, event)

    def _on_output(self, pipeline: EnginePipeline, output: StepOutput) -> None:
        """Deliver the tokens of a step."""
        flight = pipeline.finish(output)
        columns, now = self.scheduler.columns, self._now_ns
        reasons: dict[int, Reason] = {}
        tokens = zip(output.tokens.tolist(), output.logprobs, strict=True)
        for live, emits in zip(flight.requests, flight.emits, strict=True):
            assert live.slot is not None
            if emits:
                token, logprobs = next(tokens)
                if not live.is_given_up:
                    reason = live.add(token, logprobs, self._eos_ids)
                    if reason is not None:
                        reasons[live.slot] = reason
            if live.is_given_up:
                reasons[live.slot] = Reason.ABORT
            live.started_ns = columns.started_ns.item(live.slot)
        over = self.scheduler.complete(pipeline.index, output.lane, now, list(reasons))
        self._report.iteration(pipeline.iteration(flight, output, self.origin_ns, now))
        if over:
            by_slot = {live.slot: live for live in flight.requests}
            for slot in over:
                self._end(by_slot[slot], reasons.get(slot, Reason.LENGTH))

    # ------------------------------------------------------------------ faults

    def _on_lost(self, event: WorkerLost) -> None:
        """Move the requests of lost pipelines to others, plan anew with what is left, and fail what fits nowhere."""
        self._report.fault(f"{event.worker}: {event.reason}")
        _log.error("worker %s is lost: %s", event.worker, event.reason)
        self._lost.add(event.worker)
        now = self._now_ns
        for index in event.pipelines:
            pipeline = self._pipelines[index]
            if not pipeline.is_up:
                continue
            pipeline.lose()
            self._executor.drop(index)
            self.scheduler.lose(index, now)
        for live in [one for one in self._live.values() if one.is_given_up]:
            self._give_up(live.number)
        self._num_preempted = self.scheduler.num_preempted
        if self._recover is not None:
            self._rebuild()
        self.scheduler.rescue(now)
        self._count_tokens()
        columns = self.scheduler.columns
        for live in list(self._live.values()):
            if live.slot is None:
                continue
            live.pipeline = columns.pipeline.item(live.slot)
            if not self._pipelines[live.pipeline].is_up:
                self.scheduler.abort(live.slot)
                self._end(live, Reason.ERROR, f"{event.worker} was lost ({event.reason}) and no other pipeline fits")

    def _rebuild(self) -> None:
        """Load pipelines made of the devices that no live one has."""
        assert self._recover is not None
        busy = frozenset(name for one in self._pipelines if one.is_up for name in one.device_names)
        lost = LostDevices(frozenset(self._lost), busy, len(self._pipelines))
        try:
            plan = self._recover(lost)
            if plan is None:
                return
            capacities = self._executor.extend(plan.workers, _log.info)
            built = plan.build(capacities)
        except SlobError as error:
            self._report.fault(f"no new plan: {error}")
            return
        for one in built:
            index = self.scheduler.add_pipeline(one.limits, one.clock, one.policy)
            self._pipelines.append(EnginePipeline(index, one))
        self._report.fault(f"planned anew: {len(built)} pipeline(s) on {', '.join(plan.device_names)}")

    def _count_tokens(self) -> None:
        longest = 0
        for pipeline in self._pipelines:
            if pipeline.is_up:
                limits = pipeline.built.limits
                held = limits.kv_blocks * limits.block_tokens
                longest = max(longest, held if limits.max_tokens is None else min(held, limits.max_tokens))
        self.max_tokens = longest


@contextlib.contextmanager
def running(engine: Engine, progress: Progress = lambda _: None) -> Iterator[Engine]:
    """Start an engine and close it at the end of the block."""
    engine.start(progress)
    try:
        yield engine
    finally:
        engine.close()
