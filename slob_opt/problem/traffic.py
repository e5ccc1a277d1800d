"""What the requests look like on average: the planner's view of a workload."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.problem.device import require_positive


@dataclass(frozen=True, slots=True)
class TrafficProfile:
    """Mean lengths and service targets that placement is planned for.

    Attributes
    ----------
    prompt_tokens, output_tokens
        Mean prompt and output length of a request, tokens.
    context_tokens
        Tokens of KV memory to hold for one sequence in flight; ``None`` means prompt + output.
    tpot_s
        Longest acceptable time per output token, seconds; the default `max_interval_s` of the throughput
        objective. ``None`` sets no limit.
    max_in_flight
        Most sequences in flight per pipeline; the default cap of the throughput objective. ``None`` sets no limit.
    """

    prompt_tokens: int = 750
    output_tokens: int = 240
    context_tokens: int | None = None
    tpot_s: float | None = 0.4
    max_in_flight: int | None = 64

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "context_tokens", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and (int(value) != value or value < 1):
                raise InputError(f"{name} is {value!r}, expected a whole number from 1")
        if self.tpot_s is not None:
            require_positive(self.tpot_s, "tpot_s")

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV memory per sequence in flight."""
        return self.context_tokens if self.context_tokens is not None else self.prompt_tokens + self.output_tokens
