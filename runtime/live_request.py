"""A request while the engine serves it: its tokens, its text, and when they came."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np

from runtime.generation import EndEvent, GenerationRequest, Reason, RequestRecord, Sink, TokenEvent
from runtime.steps import RowLogprobs, RowSampling
from slob_opt.metrics.outcomes import Outcome
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionMeter
from slob_opt.metrics.trace_lines import TraceRequest
from slob_opt.scheduling.records import Arrival

_STATUS = {
    Reason.STOP: Status.FINISHED,
    Reason.LENGTH: Status.FINISHED,
    Reason.ABORT: Status.ABORTED,
    Reason.REJECTED: Status.REJECTED,
    Reason.ERROR: Status.FAILED,
}


class Answer(Protocol):
    """Turns the tokens of an answer into text; see :class:`runtime.text.AnswerText`."""

    stop: str | None

    def add(self, token: int) -> str:
        """Return the text that is certain now."""
        ...

    def flush(self) -> str:
        """Return the text that was held back."""
        ...


class Codec(Protocol):
    """Text and tokens of a model; see :class:`runtime.text.TextCodec`."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        ...

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the tokens of a conversation, up to where the model's answer begins."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens."""
        ...

    def token_text(self, token: int) -> str:
        """Return the text of one token."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        ...

    def answer(self, stop: tuple[str, ...]) -> Answer:
        """Return what makes the text of one answer, which the stop texts end."""
        ...


class LiveRequest:
    """What the engine knows of a request that isn't over.

    Parameters
    ----------
    number
        The engine's.
    request
        As the client sent it.
    sink
        Takes its events.
    answer
        Of the text codec.
    seed
        Of its draws.
    arrival_ns
        ``time.monotonic_ns``.

    Attributes
    ----------
    ids
        Prompt and answer so far, token ids.
    slot
        In the scheduler; ``None`` before it was taken.
    pipeline
        Where it is or was last.
    started_ns
        When a token of it was first computed, on the scheduler's clock; ``None`` before.
    is_given_up
        Whether its client is gone: it ends as soon as it isn't in a batch in flight.
    """

    def __init__(
        self, number: int, request: GenerationRequest, sink: Sink, answer: Answer, seed: int, arrival_ns: int
    ) -> None:
        self.number, self.request, self.arrival_ns = number, request, arrival_ns
        self.ids = list(request.prompt)
        self.slot: int | None = None
        self.pipeline: int | None = None
        self.started_ns: int | None = None
        self.token_ns: list[int] = []
        self.is_given_up = False
        self._sink, self._answer, self._seed = sink, answer, seed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ns)

    @property
    def trace_number(self) -> int:
        """Its number in a trace."""
        return self.number if self.request.number is None else self.request.number

    def arrival(self) -> Arrival:
        """Return what the scheduler is told."""
        request = self.request
        return Arrival(
            self.number, len(request.prompt), request.max_new, request.priority, request.ttft_s, request.tpot_s
        )

    def row_sampling(self) -> RowSampling:
        """Return how its next token is drawn."""
        how = self.request.sampling
        return RowSampling(
            how.temperature, how.top_p, how.top_k, self._seed, self.num_generated, how.num_logprobs
        )  # fmt: skip

    def add(self, token: int, logprobs: RowLogprobs | None, eos_ids: frozenset[int]) -> Reason | None:
        """Take the next token and tell the client; return why the answer is over, ``None`` when it goes on."""
        at = time.monotonic_ns()
        self.ids.append(token)
        self.token_ns.append(at)
        is_end = token in eos_ids and not self.request.sampling.ignores_eos
        text = "" if is_end else self._answer.add(token)
        self._sink(TokenEvent(token, text, len(self.token_ns) - 1, at, logprobs))
        return Reason.STOP if is_end or self._answer.stop is not None else None

    def end(self, reason: Reason, message: str = "") -> EndEvent:
        """Tell the client that the answer is over, and return what it was told."""
        text = "" if self._answer.stop is not None else self._answer.flush()
        event = EndEvent(
            reason, text, message, len(self.request.prompt), self.num_generated, time.monotonic_ns(), self._answer.stop
        )
        self._sink(event)
        return event

    def record(self, meter: SatisfactionMeter, end: EndEvent | None = None) -> RequestRecord:
        """Return what is known of it, for people."""
        satisfaction = None
        if end is not None and end.reason is not Reason.ABORT:
            satisfaction = 0.0
            if end.reason in (Reason.STOP, Reason.LENGTH):
                satisfaction = meter.of(
                    self.arrival_ns, np.array(self.token_ns, np.int64), self.num_generated, self.request.ttft_s,
                    self.request.tpot_s,
                )  # fmt: skip
        first_ns = self.token_ns[0] if self.token_ns else None
        return RequestRecord(
            self.number, self.request.label, self.pipeline, self.arrival_ns, first_ns,
            None if end is None else end.at_ns, len(self.request.prompt), self.num_generated,
            None if end is None else end.reason, satisfaction,
        )  # fmt: skip

    def trace_line(self, end: EndEvent, origin_ns: int) -> TraceRequest:
        """Return its line in a trace whose time begins at `origin_ns`."""
        request, status = self.request, _STATUS[end.reason]
        times = np.array(self.token_ns, np.int64) - origin_ns
        outcome = Outcome(self.trace_number, status, self.pipeline, self.started_ns, times)
        known = self.num_generated if status is Status.FINISHED else None
        return TraceRequest(
            outcome, self.arrival_ns - origin_ns, len(request.prompt), known, request.max_new, request.priority,
            request.ttft_s, request.tpot_s, None,
        )  # fmt: skip
