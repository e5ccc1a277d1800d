"""What a placement is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.problem.device import require_positive
from slob_opt.problem.traffic import TrafficProfile


@dataclass(frozen=True, slots=True)
class IntervalObjective:
    """Shortest token interval of one pipeline with K sequences in flight, one token each.

    The interval is ``max(sum of stages + hops + return hop, K * max(stage time, link occupancy))``, seconds; K = 1
    is the latency of a token.

    Attributes
    ----------
    in_flight
        K.
    """

    in_flight: int = 1

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise InputError(f"in_flight is {self.in_flight}, expected at least 1")

    @property
    def name(self) -> str:
        """Name in reports and files."""
        return f"interval-k{self.in_flight}"


@dataclass(frozen=True, slots=True)
class ThroughputObjective:
    """Most output tokens per second of device-disjoint pipelines.

    A pipeline with K micro-batches of b sequences makes
    ``K * b / max(sum of stages + hops + return hop, K * max(stage time, link occupancy))`` output tokens/s.

    Attributes
    ----------
    max_micro_batches
        Largest K.
    max_interval_s
        Longest token interval of any pipeline, seconds; ``None`` sets no limit.
    max_in_flight
        Most sequences in flight in any one pipeline (K times b); ``None`` sets no limit.
    """

    max_micro_batches: int = 16
    max_interval_s: float | None = None
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        if self.max_micro_batches < 1:
            raise InputError(f"max_micro_batches is {self.max_micro_batches}, expected at least 1")
        if self.max_interval_s is not None:
            require_positive(self.max_interval_s, "max_interval_s")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise InputError(f"max_in_flight is {self.max_in_flight}, expected at least 1")

    @classmethod
    def for_traffic(cls, traffic: TrafficProfile, max_micro_batches: int = 16) -> ThroughputObjective:
        """Return the objective with the caps of a traffic profile."""
        return cls(max_micro_batches, traffic.tpot_s, traffic.max_in_flight)

    @property
    def name(self) -> str:
        """Name in reports and files."""
        return "throughput"


Objective = IntervalObjective | ThroughputObjective
