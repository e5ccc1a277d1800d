"""What a controller of pipelines sees and says: the adapter's side of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slob_opt.errors import PolicyError
from slob_opt.scheduling.scheduler import Scheduler
from slob_opt.simulation.lanes import PipelineDriver


class Observation(NamedTuple):
    """What a server knows of its load; sums are since the decision before.

    Attributes
    ----------
    now_ns
        Nanoseconds.
    arrivals, prompt_tokens
        Requests that arrived, and tokens of their prompts.
    finished, output_tokens
        Requests that finished, and the tokens they put out.
    waiting, running
        Requests of each pipeline that hold no KV, and that do.
    """

    now_ns: int
    arrivals: int
    prompt_tokens: int
    finished: int
    output_tokens: int
    waiting: tuple[int, ...]
    running: tuple[int, ...]


class PipelineChange(NamedTuple):
    """A pipeline that opens or closes.

    Attributes
    ----------
    pipeline
        Which.
    is_open
        Whether it takes requests from now on. Those that wait at a pipeline that closes go to open ones; those that
        hold KV there run on to their end.
    from_ns
        It starts no batch before this time: its devices are still loading. :data:`~.lanes.NEVER` until it opens again.
    """

    pipeline: int
    is_open: bool
    from_ns: int = 0


class Controller(Protocol):
    """Decides which pipelines are open.

    Attributes
    ----------
    period_ns
        Time between decisions, nanoseconds. It is asked at each multiple, and when the last request leaves a pipeline
        that is closed.
    first_open
        Pipelines that are open at the start.
    wake_ns
        When it wants to be asked before the period is over; ``None`` when it doesn't.
    """

    period_ns: int
    first_open: frozenset[int]
    wake_ns: int | None

    def decide(self, observation: Observation) -> Sequence[PipelineChange]:
        """Return what changes now, at least one pipeline staying open; an empty sequence changes nothing."""
        ...


class Switchboard:
    """Asks a controller when it's due, and does what it says.

    Attributes
    ----------
    next_ns
        When the controller is due.
    """

    def __init__(self, controller: Controller, scheduler: Scheduler, drivers: Sequence[PipelineDriver]) -> None:
        if controller.period_ns < 1:
            raise PolicyError(f"the controller's period is {controller.period_ns} ns, expected at least 1")
        self._controller, self._scheduler, self._drivers = controller, scheduler, drivers
        self._sums = [0, 0, 0, 0]
        self._draining: set[int] = set()
        self.next_ns = controller.period_ns

    def begin(self) -> None:
        """Close the pipelines that aren't open at first."""
        for index in range(len(self._drivers)):
            if index not in self._controller.first_open:
                self._scheduler.set_open(index, is_open=False, now_ns=0)

    def note_arrival(self, prompt_tokens: int) -> None:
        """Count a request."""
        self._sums[0] += 1
        self._sums[1] += prompt_tokens

    def note_end(self, output_tokens: int) -> None:
        """Count a request that finished."""
        self._sums[2] += 1
        self._sums[3] += output_tokens

    def is_drained(self, pipeline: int) -> bool:
        """Return whether the last request has just left a pipeline that is closed."""
        return pipeline in self._draining and self._scheduler.outstanding(pipeline) == 0

    def decide(self, now_ns: int) -> set[int]:
        """Ask the controller and do what it says; return the pipelines that may have something to start.

        Where a pipeline closes and has nothing left at once, the controller is asked again.
        """
        touched, is_empty = self._ask(now_ns)
        if is_empty:
            touched |= self._ask(now_ns)[0]
        self.next_ns = (now_ns // self._controller.period_ns + 1) * self._controller.period_ns
        wake_ns = self._controller.wake_ns
        if wake_ns is not None and now_ns < wake_ns:
            self.next_ns = min(self.next_ns, wake_ns)
        return touched

    def _ask(self, now_ns: int) -> tuple[set[int], bool]:
        """Return what may have something to start, and whether a pipeline that closed has nothing left."""
        scheduler, size = self._scheduler, len(self._drivers)
        waiting = tuple(scheduler.num_waiting(index) for index in range(size))
        running = tuple(scheduler.outstanding(index) - waiting[index] for index in range(size))
        observation = Observation(now_ns, self._sums[0], self._sums[1], self._sums[2], self._sums[3], waiting, running)
        self._sums = [0, 0, 0, 0]
        self._draining = {index for index in self._draining if scheduler.outstanding(index)}
        touched: set[int] = set()
        is_empty = False
        # What opens comes first, so that something is open for what closes.
        for change in sorted(self._controller.decide(observation), key=lambda one: not one.is_open):
            if not 0 <= change.pipeline < size:
                raise PolicyError(f"the controller changes pipeline {change.pipeline} of {size}")
            touched.update(scheduler.set_open(change.pipeline, is_open=change.is_open, now_ns=now_ns))
            if change.is_open:
                self._drivers[change.pipeline].not_before = change.from_ns
                self._draining.discard(change.pipeline)
            elif scheduler.outstanding(change.pipeline):
                self._draining.add(change.pipeline)
            else:
                is_empty = True
            touched.add(change.pipeline)
        return touched, is_empty

    @property
    def has_work(self) -> bool:
        """Whether a request is still with some pipeline."""
        return any(self._scheduler.outstanding(index) for index in range(len(self._drivers)))
