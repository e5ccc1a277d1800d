"""What a client asks of the engine, and what it gets: requests, tokens, ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from runtime.steps import RowLogprobs


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn; see :class:`~runtime.steps.RowSampling`.

    Attributes
    ----------
    temperature, top_p, top_k
        0, 1.0 and 0 are greedy over all tokens.
    seed
        ``None`` lets the engine choose one.
    stop
        Texts that end the answer; they aren't part of it.
    num_logprobs
        ``None`` asks for none.
    ignores_eos
        Whether the answer goes on past the model's end-of-sequence token, for measurements.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    num_logprobs: int | None = None
    ignores_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to be generated.

    Attributes
    ----------
    prompt
        Token ids, at least one.
    max_new
        Most tokens of the answer, from 1.
    sampling
        How it is drawn.
    priority
        Weight, above zero.
    ttft_s, tpot_s
        Targets, seconds; ``None`` where the metric's defaults hold.
    label
        The client's name for it, shown on the status page and in traces; ``None`` without one.
    number
        Number in a trace; ``None`` takes the engine's own.
    """

    prompt: tuple[int, ...]
    max_new: int
    sampling: Sampling = Sampling()
    priority: float = 1.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    label: str | None = None
    number: int | None = None


class Reason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REJECTED = "rejected"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A new token of an answer.

    Attributes
    ----------
    token
        Its id.
    text
        Text that is certain now, empty while a character or a stop text may still be incomplete.
    index
        Tokens of the answer before it.
    at_ns
        ``time.monotonic_ns`` when the engine had it.
    logprobs
        Where asked for.
    """

    token: int
    text: str
    index: int
    at_ns: int
    logprobs: RowLogprobs | None = None


@dataclass(frozen=True, slots=True)
class EndEvent:
    """An answer is over; nothing follows.

    Attributes
    ----------
    reason
        Why.
    text
        What was held back until now.
    message
        For people, where something went wrong; else empty.
    num_prompt, num_generated
        Tokens.
    at_ns
        ``time.monotonic_ns``.
    stop
        The stop text that ended it; ``None`` when none did.
    """

    reason: Reason
    text: str
    message: str
    num_prompt: int
    num_generated: int
    at_ns: int
    stop: str | None = None


Sink = Callable[[TokenEvent | EndEvent], None]
"""Takes the events of one request, in the engine's thread: it must return at once and never raise."""


class RequestRefused(Exception):
    """A request that can't be taken.

    Attributes
    ----------
    kind
        ``"too_long"``: it can never fit, ``"invalid"``: a value is wrong, ``"busy"``: not now, ``"unavailable"``:
        nothing serves or the server is going down.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def check_request(request: GenerationRequest) -> None:
    """Raise RequestRefused when a value of a request is out of range, whatever serves."""
    how = request.sampling
    if not request.prompt or request.max_new < 1 or not 0 < request.priority < math.inf:
        raise RequestRefused(
            "invalid",
            f"{len(request.prompt)} prompt tokens, max_tokens {request.max_new} and priority {request.priority},"
            " expected at least 1, at least 1 and a finite number above 0",
        )
    if not (0 <= how.temperature < math.inf and 0 < how.top_p <= 1 and how.top_k >= 0):
        raise RequestRefused(
            "invalid",
            f"temperature {how.temperature}, top_p {how.top_p} and top_k {how.top_k}, expected at least 0,"
            " above 0 and at most 1, and at least 0",
        )


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """What one pipeline does now.

    Attributes
    ----------
    stages
        (device, first layer, end layer) of each stage.
    is_up
        Whether it serves.
    running, waiting
        Requests that hold KV, and that don't.
    kv_blocks, free_blocks
        Of its pool.
    busy_s
        For each stage, seconds it has computed since the start.
    emulated
        For each stage, what is emulated of its device in words; empty when nothing is.
    """

    stages: tuple[tuple[str, int, int], ...]
    is_up: bool
    running: int
    waiting: int
    kv_blocks: int
    free_blocks: int
    busy_s: tuple[float, ...]
    emulated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that is over, or still running.

    Attributes
    ----------
    number, label
        The engine's number, the client's name.
    pipeline
        Where it is or was; ``None`` when rejected.
    arrival_ns, first_ns, end_ns
        ``time.monotonic_ns``; ``None`` before.
    num_prompt, num_generated
        Tokens.
    reason
        ``None`` while it runs.
    satisfaction
        From 0 to 1; ``None`` while it runs and when the client aborted it.
    """

    number: int
    label: str | None
    pipeline: int | None
    arrival_ns: int
    first_ns: int | None
    end_ns: int | None
    num_prompt: int
    num_generated: int
    reason: Reason | None
    satisfaction: float | None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the engine does now.

    Attributes
    ----------
    is_up, is_draining
        Whether it serves; whether it takes no more requests.
    started_ns, now_ns
        ``time.monotonic_ns``.
    policy, dispatcher
        Labels; ``None`` where there is nothing to choose.
    pipelines
        Of the plan, in order; those that were lost stay in the list.
    num_preempted
        How often requests lost their KV.
    num_finished
        Requests that are over, by reason.
    latest
        Requests that ended last, the last one first.
    faults
        Sentences on workers that were lost, the last one first.
    """

    is_up: bool
    is_draining: bool
    started_ns: int
    now_ns: int
    policy: str
    dispatcher: str | None
    pipelines: tuple[PipelineStatus, ...]
    num_preempted: int
    num_finished: dict[Reason, int]
    latest: tuple[RequestRecord, ...]
    faults: tuple[str, ...]
