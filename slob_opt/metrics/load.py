"""What the stages did with their time: utilisation, bubbles, idling beside waiting requests, padding, imbalance.

Stages are given pipeline by pipeline. A bubble is a stage idle between the first and the last work of its *pipeline*:
M equal micro-batches through S equal stages take ``(S - 1 + M) x``, of which each stage works ``M x``, which gives the
known share ``(S - 1) / (S - 1 + M)``. Where pipelines share a device, its time for another pipeline counts as idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What one stage did.

    Attributes
    ----------
    busy_ns
        Time it computed.
    first_ns, last_ns
        When it first started and last ended; ``None`` when it never ran.
    starved_ns
        Time it was idle while a request waited that it could have worked on; ``None`` where nobody measured it.
    computed_tokens, padding_tokens
        Tokens it computed, and those of them that were pads.

    Raises
    ------
    InputError
        When the numbers contradict each other.
    """

    busy_ns: int
    first_ns: int | None
    last_ns: int | None
    computed_tokens: int
    padding_tokens: int
    starved_ns: int | None = None

    def __post_init__(self) -> None:
        if (self.first_ns is None) != (self.last_ns is None):
            raise InputError(f"first_ns is {self.first_ns} and last_ns {self.last_ns}, expected both or none")
        span = 0 if self.first_ns is None or self.last_ns is None else self.last_ns - self.first_ns
        if not 0 <= self.busy_ns <= span:
            raise InputError(f"a stage is busy {self.busy_ns} ns of the {span} ns from its first work to its last")
        if not 0 <= self.padding_tokens <= self.computed_tokens:
            raise InputError(f"{self.padding_tokens} pads among {self.computed_tokens} computed tokens")
        if self.starved_ns is not None and self.starved_ns < 0:
            raise InputError(f"starved_ns is {self.starved_ns}, expected at least 0")


PipelineLoads = Sequence[Sequence[StageLoad]]
"""For each pipeline its stages."""


def padding_waste(pipelines: PipelineLoads) -> float:
    """Return the share of computed tokens that were pads; 0 of nothing.

    Examples
    --------
    >>> padding_waste([[StageLoad(5, 0, 10, 200, 50)]])
    0.25
    """
    computed = sum(stage.computed_tokens for stages in pipelines for stage in stages)
    return sum(stage.padding_tokens for stages in pipelines for stage in stages) / computed if computed else 0.0


def span_ns(stages: Sequence[StageLoad]) -> int:
    """Return the time from the first to the last work of a pipeline, nanoseconds; 0 when it never ran."""
    first = [stage.first_ns for stage in stages if stage.first_ns is not None]
    last = [stage.last_ns for stage in stages if stage.last_ns is not None]
    return max(last) - min(first) if first else 0


def bubble_share(pipelines: PipelineLoads) -> float:
    """Return the share of stage time, between first and last work of each pipeline, in which stages idled."""
    held = sum(len(stages) * span_ns(stages) for stages in pipelines)
    return 1 - sum(stage.busy_ns for stages in pipelines for stage in stages) / held if held else 0.0


def starved_share(pipelines: PipelineLoads) -> float | None:
    """Return the share of the same time in which stages idled while a request waited; ``None`` if not measured."""
    starved = [stage.starved_ns for stages in pipelines for stage in stages]
    known = [time for time in starved if time is not None]
    if len(known) < len(starved):
        return None
    held = sum(len(stages) * span_ns(stages) for stages in pipelines)
    return sum(known) / held if held else 0.0


def utilisation(pipelines: PipelineLoads, duration_ns: int) -> float:
    """Return the share of the observation that stages computed, on average over all stages."""
    size = sum(len(stages) for stages in pipelines)
    busy = sum(stage.busy_ns for stages in pipelines for stage in stages)
    return busy / (size * duration_ns) if size and duration_ns > 0 else 0.0


def imbalance(busy_ns: Sequence[int]) -> float:
    """Return the longest busy time over the mean: 1 is balance, n means that one of n does it all; 1 of nothing.

    Examples
    --------
    >>> imbalance([10, 10]), imbalance([30, 10])
    (1.0, 1.5)
    """
    total = sum(busy_ns)
    return max(busy_ns) * len(busy_ns) / total if total else 1.0


def stage_imbalance(pipelines: PipelineLoads) -> float:
    """Return the imbalance between stages of the pipeline where it's largest."""
    return max((imbalance([stage.busy_ns for stage in stages]) for stages in pipelines), default=1.0)


def pipeline_imbalance(pipelines: PipelineLoads) -> float:
    """Return the imbalance between pipelines, each by the busy time of its bottleneck stage."""
    return imbalance([max((stage.busy_ns for stage in stages), default=0) for stages in pipelines])


def load_figures(pipelines: PipelineLoads, duration_ns: int) -> dict[str, float]:
    """Return all figures by name; ``starved_share`` is left out where it wasn't measured.

    Parameters
    ----------
    pipelines
        For each pipeline its stages.
    duration_ns
        Length of the observation, nanoseconds.
    """
    found = {
        "padding_waste": padding_waste(pipelines),
        "bubble_share": bubble_share(pipelines),
        "utilisation": utilisation(pipelines, duration_ns),
        "stage_imbalance": stage_imbalance(pipelines),
        "pipeline_imbalance": pipeline_imbalance(pipelines),
    }
    starved = starved_share(pipelines)
    return found if starved is None else found | {"starved_share": starved}
