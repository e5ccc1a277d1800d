"""The engine's side of a pipeline: what is in flight, whose blocks are where, how busy its stages were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.block_tables import BlockTables
from runtime.executor import Capacity, WorkerSpec
from runtime.generation import PipelineStatus
from runtime.live_request import LiveRequest
from runtime.steps import StepInput, StepOutput
from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.metrics.iterations import Iteration
from slob_opt.problem.workload import NS_PER_S
from slob_opt.scheduling.policy import PipelineLimits, Policy
from slob_opt.scheduling.records import Launch
from slob_opt.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class StageLayout:
    """Where a stage is.

    Attributes
    ----------
    device
        Name in the plan.
    first, end
        Layers.
    emulated
        What is emulated of the device, in words; empty when nothing is.
    """

    device: str
    first: int
    end: int
    emulated: str = ""


@dataclass(frozen=True, slots=True)
class BuiltPipeline:
    """What the scheduler and people need to know of a pipeline that is loaded.

    Attributes
    ----------
    limits, clock, policy
        For the scheduler.
    stages
        In order.
    """

    limits: PipelineLimits
    clock: PipelineClock
    policy: Policy
    stages: tuple[StageLayout, ...]


@dataclass(frozen=True, slots=True)
class LostDevices:
    """What is known when pipelines are to be made anew.

    Attributes
    ----------
    lost
        Names of devices that are gone.
    busy
        Names of devices that live pipelines use.
    next_pipeline
        Number of the first new pipeline.
    """

    lost: frozenset[str]
    busy: frozenset[str]
    next_pipeline: int


@dataclass(frozen=True, slots=True)
class NewPipelines:
    """Pipelines to be loaded beside those that live.

    Attributes
    ----------
    workers
        With the slices to load.
    build
        Makes the pipelines from what they can hold.
    """

    workers: tuple[WorkerSpec, ...]
    build: Callable[[Sequence[Capacity]], Sequence[BuiltPipeline]]

    @property
    def device_names(self) -> tuple[str, ...]:
        """Of the workers."""
        return tuple(worker.name for worker in self.workers)


Recovery = Callable[[LostDevices], NewPipelines | None]
"""Makes a plan of the devices that are left; ``None`` when the model doesn't fit on them."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch in flight.

    Attributes
    ----------
    launch
        The scheduler's.
    requests, emits
        Of each row: who, and whether it gets a token.
    preempted
        Requests that gave their KV for it, by their numbers in the trace.
    padding
        Pads among the tokens that each stage computes.
    """

    launch: Launch
    requests: tuple[LiveRequest, ...]
    emits: tuple[bool, ...]
    preempted: tuple[int, ...]
    padding: int


class EnginePipeline:
    """State of one pipeline in the engine.

    Attributes
    ----------
    tables
        Which blocks each request has.
    is_stage_free
        Whether the first stage may take a step.
    is_up
        Whether it serves.
    """

    def __init__(self, index: int, built: BuiltPipeline) -> None:
        self.index, self.built = index, built
        self.tables = BlockTables(built.limits.kv_blocks)
        self.is_stage_free = self.is_up = True
        self._flights: dict[int, Flight] = {}
        self._next_lane = 0
        self._num_steps = 0
        self._busy_ns = [0] * len(built.stages)

    @property
    def device_names(self) -> tuple[str, ...]:
        """Of its stages."""
        return tuple(stage.device for stage in self.built.stages)

    def lanes_in_turn(self) -> Iterator[int]:
        """Return free lanes, beginning after the one that launched last."""
        size = self.built.limits.num_lanes
        order = [(self._next_lane + offset) % size for offset in range(size)]
        return iter([lane for lane in order if lane not in self._flights])

    def slots_in_flight(self) -> set[int]:
        """Return the slots of all batches in flight."""
        return {live.slot for flight in self._flights.values() for live in flight.requests if live.slot is not None}

    def begin(
        self, lane: int, launch: Launch, scheduler: Scheduler, live: Mapping[int, LiveRequest], *, is_padded: bool
    ) -> StepInput:
        """Return the step of a batch that starts now."""
        columns, plan = scheduler.columns, launch.plan
        cached = scheduler.cached(self.index, lane)
        requests = [live[number] for number in columns.request[plan.slots].tolist()]
        blocks = columns.blocks[plan.slots].tolist()
        tokens: list[int] = []
        table: list[int] = []
        for request, first, count, held in zip(
            requests, cached.tolist(), plan.tokens.tolist(), blocks, strict=True
        ):  # fmt: skip
            tokens += request.ids[first : first + count]
            table += self.tables.resize(request.number, held)
        emits = np.asarray(launch.emits, dtype=bool)
        preempted = columns.request[plan.preempt].tolist() if not launch.is_repeat else []
        names = tuple(live[number].trace_number for number in preempted)
        longest = max((plan.tokens.item(place) for place in launch.others), default=0)
        padding = sum(longest - plan.tokens.item(place) for place in launch.others) if is_padded else 0
        self._flights[lane] = Flight(launch, tuple(requests), tuple(emits.tolist()), names, padding)
        self._next_lane = (lane + 1) % self.built.limits.num_lanes
        self.is_stage_free = False
        self._num_steps += 1
        return StepInput(
            self.index, lane, self._num_steps, np.array(tokens, np.int64), plan.tokens.astype(np.int64),
            cached.astype(np.int64), np.array(blocks, np.int64), np.array(table, np.int64), emits,
            tuple(one.row_sampling() for one, gets in zip(requests, emits.tolist(), strict=True) if gets), is_padded,
        )  # fmt: skip

    def finish(self, output: StepOutput) -> Flight:
        """Return the batch that came back."""
        for stage, (start, end) in enumerate(zip(output.start_ns, output.end_ns, strict=True)):
            self._busy_ns[stage] += end - start
        return self._flights.pop(output.lane)

    def iteration(self, flight: Flight, output: StepOutput, origin_ns: int, at_ns: int) -> Iteration:
        """Return the step as a trace tells it."""
        plan = flight.launch.plan
        computed = int(plan.tokens.sum()) + flight.padding
        return Iteration(
            self.index, output.lane, tuple(one.trace_number for one in flight.requests), tuple(plan.tokens.tolist()),
            flight.preempted, tuple(start - origin_ns for start in output.start_ns),
            tuple(end - origin_ns for end in output.end_ns), at_ns, computed,
            flight.padding,
        )  # fmt: skip

    def lose(self) -> None:
        """Forget what was in flight; nothing runs here any more."""
        self._flights.clear()
        self.tables = BlockTables(self.built.limits.kv_blocks)
        self.is_up = self.is_stage_free = False

    def status(self, scheduler: Scheduler) -> PipelineStatus:
        """Return what it does now."""
        limits, index = self.built.limits, self.index
        running = sum(scheduler.num_rows(index, lane) for lane in range(limits.num_lanes))
        return PipelineStatus(
            tuple((stage.device, stage.first, stage.end) for stage in self.built.stages), self.is_up, running,
            scheduler.num_waiting(index), limits.kv_blocks, scheduler.free_blocks(index),
            tuple(busy / NS_PER_S for busy in self._busy_ns), tuple(stage.emulated for stage in self.built.stages),
        )  # fmt: skip
