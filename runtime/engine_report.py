"""What the engine keeps for people: counts, the latest requests, faults; and a trace where one is written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from runtime.generation import EndEvent, Reason, RequestRecord
from runtime.live_request import LiveRequest
from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.metrics.trace_lines import TraceRequest

NUM_LATEST = 50
"""Requests that are shown."""

NUM_FAULTS = 20
"""Faults that are shown."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the engine serves.

    Attributes
    ----------
    policy_label, dispatcher_label
        Shown to people; ``None`` where there is nothing to choose.
    is_padded
        Whether steps are computed as rectangles.
    keeps_log
        Whether the scheduler's decisions are kept.
    seed
        From which requests without a seed get theirs.
    spec
        Of satisfaction.
    """

    policy_label: str
    dispatcher_label: str | None = None
    is_padded: bool = False
    keeps_log: bool = False
    seed: int = 0
    spec: SatisfactionSpec = field(default_factory=SatisfactionSpec)


class Recorder(Protocol):
    """Takes what happens, as :class:`~slob_opt.metrics.trace_writer.TraceWriter` does."""

    def iteration(self, iteration: Iteration) -> None:
        """Take a step that is back."""
        ...

    def request(self, request: TraceRequest) -> None:
        """Take a request that is over."""
        ...


class EngineReport:
    """Counts and latest events.

    Attributes
    ----------
    num_finished
        Requests that are over, by reason.
    latest, faults
        The last one first.
    """

    def __init__(self, spec: SatisfactionSpec, origin_ns: int, recorder: Recorder | None) -> None:
        self._meter, self._origin_ns, self._recorder = SatisfactionMeter(spec), origin_ns, recorder
        self.num_finished: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.latest: deque[RequestRecord] = deque(maxlen=NUM_LATEST)
        self.faults: deque[str] = deque(maxlen=NUM_FAULTS)

    def ended(self, live: LiveRequest, end: EndEvent) -> None:
        """Take a request that is over."""
        self.num_finished[end.reason] += 1
        self.latest.appendleft(live.record(self._meter, end))
        if self._recorder is not None:
            self._recorder.request(live.trace_line(end, self._origin_ns))

    def iteration(self, iteration: Iteration) -> None:
        """Take a step that is back."""
        if self._recorder is not None:
            self._recorder.iteration(iteration)

    def fault(self, sentence: str) -> None:
        """Note that something broke."""
        self.faults.appendleft(sentence)
