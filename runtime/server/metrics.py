"""What Prometheus reads: vLLM's v1 names, so that dashboards made for it work, and ``slob_*`` beside them.

All lives in a registry of its own; two servers in one process don't meet.
"""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from runtime.generation import EndEvent, EngineStatus, Reason, TokenEvent
from runtime.server.replies import Part
from runtime.server.status_metrics import StatusCollector
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec

_NS = 1e9
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
_REQUEST_S = (
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    120.0,
    240.0,
    960.0,
)
_NUM_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_LABELS = ("model_name", "engine")
_REPORTED = (Reason.STOP, Reason.LENGTH, Reason.ABORT, Reason.ERROR)


class ServerMetrics:
    """Counts requests and tokens as the engine's events come in, and tells them with the engine's state.

    Parameters
    ----------
    model_name
        Label of vLLM's metrics.
    spec
        Of satisfaction.
    plan_gap
        Of the plan; ``None`` leaves the metric out.

    Attributes
    ----------
    registry
        Its own.
    num_generated, num_prompt
        Tokens since the start.
    """

    def __init__(self, model_name: str, spec: SatisfactionSpec, plan_gap: float | None) -> None:
        self.registry = CollectorRegistry()
        self._values = (model_name, "0")
        self._meter = SatisfactionMeter(spec)
        self.num_generated = self.num_prompt = 0
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN_S)
        self._gap = self._histogram("vllm:inter_token_latency_seconds", "Time between two tokens.", _TOKEN_S)
        self._per_token = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time per token after the first, one observation per request with two tokens or more.", _TOKEN_S,
        )  # fmt: skip
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to end.", _REQUEST_S)
        self._prompt_size = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of requests.", _NUM_TOKENS)
        self._answer_size = self._histogram("vllm:request_generation_tokens", "Tokens of answers.", _NUM_TOKENS)
        self._asked_size = self._histogram("vllm:request_params_max_tokens", "Answer tokens allowed.", _NUM_TOKENS)
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that got a first token.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        success = Counter(
            "vllm:request_success", "Requests that ended, by reason.", (*_LABELS, "finished_reason"),
            registry=self.registry,
        )  # fmt: skip
        self._ends = {reason: success.labels(*self._values, reason.value) for reason in _REPORTED}
        refused = Counter("slob_requests_refused", "Requests not taken, by why.", ("why",), registry=self.registry)
        self._refused = {why: refused.labels(why) for why in ("full", "dispatcher", "unavailable", "invalid")}
        self._slow = Counter(
            "slob_slow_clients", "Streams aborted since their client didn't read.", registry=self.registry
        )  # fmt: skip
        self._satisfaction = Histogram(
            "slob_request_satisfaction", "Satisfaction of requests that weren't aborted by their client.",
            buckets=_SHARES, registry=self.registry,
        )  # fmt: skip
        self._pending = Gauge(
            "slob_requests_pending", "Engine requests of clients that aren't over.", registry=self.registry
        )
        if plan_gap is not None:
            Gauge("slob_plan_gap", "Gap of the plan that is served.", registry=self.registry).set(plan_gap)
        self._engine = StatusCollector(_LABELS, self._values)
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, _LABELS, buckets=buckets, registry=self.registry).labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self.registry).labels(*self._values)

    def token(self, part: Part, event: TokenEvent) -> None:
        """Take a new token of a request, its time in `part` already."""
        self.num_generated += 1
        self._generated.inc()
        if len(part.token_ns) == 1:
            self.num_prompt += len(part.request.prompt)
            self._prompt.inc(len(part.request.prompt))
            self._first_token.observe((event.at_ns - part.arrival_ns) / _NS)
        else:
            self._gap.observe((event.at_ns - part.token_ns[-2]) / _NS)

    def ended(self, part: Part, event: EndEvent) -> None:
        """Take the end of a request."""
        if event.reason is Reason.REJECTED:
            self.refused("dispatcher")
        else:
            self._ends[event.reason].inc()
            self._asked_size.observe(part.request.max_new)
        if event.reason in (Reason.STOP, Reason.LENGTH):
            self._whole.observe((event.at_ns - part.arrival_ns) / _NS)
            self._prompt_size.observe(event.num_prompt)
            self._answer_size.observe(event.num_generated)
            if len(part.token_ns) > 1:
                self._per_token.observe((part.token_ns[-1] - part.token_ns[0]) / _NS / (len(part.token_ns) - 1))
        if event.reason is not Reason.ABORT:
            self._satisfaction.observe(self._satisfied(part, event))

    def _satisfied(self, part: Part, event: EndEvent) -> float:
        if event.reason not in (Reason.STOP, Reason.LENGTH):
            return 0.0
        times = np.array(part.token_ns, np.int64)
        request = part.request
        return self._meter.of(part.arrival_ns, times, len(part.token_ns), request.ttft_s, request.tpot_s)

    def refused(self, why: str) -> None:
        """Count a request that wasn't taken: ``full``, ``dispatcher``, ``unavailable`` or ``invalid``."""
        self._refused[why].inc()

    def slow_client(self) -> None:
        """Count a client that didn't read its stream."""
        self._slow.inc()

    def text(self, status: EngineStatus | None, num_pending: int) -> bytes:
        """Return everything in Prometheus' text format; the engine's part is missing before its first status."""
        self._pending.set(num_pending)
        self._engine.take(status)
        return generate_latest(self.registry)
