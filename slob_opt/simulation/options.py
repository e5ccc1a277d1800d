"""How a simulated engine computes, and what a simulation leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.scheduling.batch_plan import DecisionLog


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the simulated engine computes.

    Attributes
    ----------
    is_padded
        Rectangles instead of packed tokens.
    is_leaping
        Whether lanes leap over iterations in which nothing changes; the result is the same without, only later.
    keeps_log
        Whether decisions are logged.
    noise
        Standard deviation of the logarithm of each stage time; 0 is none. A noisy simulation doesn't leap.
    seed
        Of the noise.
    """

    is_padded: bool = False
    is_leaping: bool = True
    keeps_log: bool = False
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 2:
            raise InputError(f"noise is {self.noise}, expected from 0 to below 2")


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage did.

    Attributes
    ----------
    busy_ns
        Time it computed.
    first_ns, last_ns
        When it first started and last ended; ``None`` when it never ran.
    tokens, padding_tokens
        Tokens it computed, and those of them that were pads.
    """

    busy_ns: int
    first_ns: int | None
    last_ns: int | None
    tokens: int
    padding_tokens: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation leaves behind; requests went to the sink as they ended.

    Attributes
    ----------
    end_ns
        Time of the last event.
    stages
        For each pipeline the use of its stages.
    log
        Decisions, empty unless kept.
    num_finished, num_rejected, num_unfinished
        Requests.
    num_preempted
        How often requests lost their KV and computed it again.
    """

    end_ns: int
    stages: tuple[tuple[StageUse, ...], ...]
    log: DecisionLog
    num_finished: int
    num_rejected: int
    num_unfinished: int
    num_preempted: int = 0
