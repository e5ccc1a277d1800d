"""Lines of a trace file, as JSON text and as what they mean."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from slob_opt.errors import InputError
from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.outcomes import Outcome
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.trace_header import TraceHeader
from slob_opt.metrics.trace_values import Fields, number, optional, text, whole, wholes
from slob_opt.problem.workload import Workload

STATUS_NAMES = {status.name.lower(): status for status in Status if status is not Status.UNSEEN}
"""Words for how a request ended."""


class TraceRequest(NamedTuple):
    """A request that is over, with what the client asked for.

    Attributes
    ----------
    outcome
        What became of it.
    arrival_ns
        Nanoseconds.
    prompt_tokens, max_new_tokens
        Tokens.
    output_tokens
        True length of the answer, tokens; ``None`` where nobody knows it, as of a live answer that was cut off.
    priority
        Weight.
    ttft_s, tpot_s
        Targets, seconds; ``None`` where the metric's defaults hold.
    session
        Number of its conversation; ``None`` when nothing is known of it.
    """

    outcome: Outcome
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int | None
    max_new_tokens: int
    priority: float
    ttft_s: float | None
    tpot_s: float | None
    session: int | None

    @classmethod
    def of(cls, workload: Workload, outcome: Outcome) -> TraceRequest:
        """Return the line of a request whose true length is known."""
        index = outcome.request
        return cls(
            outcome,
            workload.arrival_ns.item(index),
            workload.prompt_tokens.item(index),
            workload.output_tokens.item(index),
            workload.max_new_tokens.item(index),
            workload.priority.item(index),
            None if workload.ttft_s is None else workload.ttft_s.item(index),
            None if workload.tpot_s is None else workload.tpot_s.item(index),
            None if workload.session is None else workload.session.item(index),
        )


class TraceEnd(NamedTuple):
    """The last line, without which a file is not whole.

    Attributes
    ----------
    end_ns
        End of the observation, nanoseconds.
    num_iterations, num_requests
        Lines before it.
    """

    end_ns: int
    num_iterations: int
    num_requests: int


TraceLine = TraceHeader | Iteration | TraceRequest | TraceEnd


def line_text(line: TraceLine) -> str:
    """Return a line with its newline."""
    if isinstance(line, TraceHeader):
        data = line.as_json()
    elif isinstance(line, Iteration):
        data = {"kind": "iteration", **line._asdict()}
    elif isinstance(line, TraceRequest):
        data = _request_json(line)
    else:
        data = {"kind": "end", **line._asdict()}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _request_json(line: TraceRequest) -> dict[str, object]:
    outcome = line.outcome
    return {
        "kind": "request",
        "request": outcome.request,
        "status": outcome.status.name.lower(),
        "pipeline": outcome.pipeline,
        "arrival_ns": line.arrival_ns,
        "prompt_tokens": line.prompt_tokens,
        "output_tokens": line.output_tokens,
        "max_new_tokens": line.max_new_tokens,
        "priority": line.priority,
        "ttft_s": line.ttft_s,
        "tpot_s": line.tpot_s,
        "session": line.session,
        "started_ns": outcome.started_ns,
        "token_ns": outcome.token_ns.tolist(),
    }


_REQUEST_KEYS = (
    "kind", "request", "status", "pipeline", "arrival_ns", "prompt_tokens", "output_tokens", "max_new_tokens",
    "priority", "ttft_s", "tpot_s", "session", "started_ns", "token_ns",
)  # fmt: skip
_ITERATION_KEYS = ("kind", *Iteration._fields)
_END_KEYS = ("kind", *TraceEnd._fields)


def parse_line(line: str, header: TraceHeader | None) -> TraceLine:
    """Return what a line means.

    Parameters
    ----------
    line
        JSON text.
    header
        Of the file, against which pipelines and stages are checked; ``None`` for the first line.

    Raises
    ------
    InputError
        When it is no JSON object, or a key is unknown, missing or wrong; the message names the key.
    """
    try:
        data = json.loads(line, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise InputError("the JSON is nested too deeply") from error
    if not isinstance(data, dict):
        raise InputError(f"found {type(data).__name__}, expected an object")
    if header is None:
        return TraceHeader.of_json(data)
    kind = data.get("kind")
    if kind == "iteration":
        return _iteration(Fields.of(data, _ITERATION_KEYS), header)
    if kind == "request":
        return _request(Fields.of(data, _REQUEST_KEYS), header)
    if kind == "end":
        fields = Fields.of(data, _END_KEYS)
        return TraceEnd(*[fields.get(name, whole) for name in TraceEnd._fields])
    raise InputError(f"found {kind!r}, expected iteration, request or end", key="kind")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InputError(f"key {key!r} stands twice in one object", key=key)
            seen.add(key)
    return made


def _iteration(fields: Fields, header: TraceHeader) -> Iteration:
    """Return an iteration whose columns fit together and fit the header."""
    found = Iteration(
        fields.get("pipeline", whole),
        fields.get("lane", whole),
        fields.get("requests", wholes),
        fields.get("tokens", wholes),
        fields.get("preempted", wholes),
        fields.get("start_ns", wholes),
        fields.get("end_ns", wholes),
        fields.get("back_ns", whole),
        fields.get("computed_tokens", whole),
        fields.get("padding_tokens", whole),
    )
    _check_pipeline(found.pipeline, header)
    pipeline = header.pipelines[found.pipeline]
    if found.lane >= pipeline.num_lanes:
        raise InputError(f"found {found.lane}, the pipeline has {pipeline.num_lanes} lanes", key="lane")
    if len(found.tokens) != len(found.requests):
        raise InputError(f"found {len(found.tokens)} numbers for {len(found.requests)} requests", key="tokens")
    size = len(pipeline.stages)
    for name, times in (("start_ns", found.start_ns), ("end_ns", found.end_ns)):
        if len(times) != size:
            raise InputError(f"found {len(times)} times, the pipeline has {size} stages", key=name)
    before = 0
    for stage, (start, end) in enumerate(zip(found.start_ns, found.end_ns, strict=True)):
        if start < before or end < start:
            raise InputError(f"stage {stage} works from {start} to {end}, expected from {before} on", key="start_ns")
        before = end
    if found.back_ns < before:
        raise InputError(f"found {found.back_ns}, before the last stage ends at {before}", key="back_ns")
    if found.padding_tokens > found.computed_tokens:
        raise InputError(
            f"found {found.padding_tokens} among {found.computed_tokens} computed ones", key="padding_tokens"
        )
    return found


def _request(fields: Fields, header: TraceHeader) -> TraceRequest:
    """Return a request; whether its times are in order is checked when all are there."""
    name = fields.get("status", text)
    if name not in STATUS_NAMES:
        raise InputError(f"found {name!r}, expected one of {', '.join(STATUS_NAMES)}", key="status")
    pipeline, length = fields.get("pipeline", optional(whole)), fields.get("output_tokens", optional(whole))
    if pipeline is not None:
        _check_pipeline(pipeline, header)
    if length is None and STATUS_NAMES[name] is Status.FINISHED:
        raise InputError("found null, a finished request has a length", key="output_tokens")
    outcome = Outcome(
        fields.get("request", whole),
        STATUS_NAMES[name],
        pipeline,
        fields.get("started_ns", optional(whole)),
        np.array(fields.get("token_ns", wholes), np.int64),
    )
    return TraceRequest(
        outcome,
        fields.get("arrival_ns", whole),
        fields.get("prompt_tokens", whole),
        length,
        fields.get("max_new_tokens", whole),
        fields.get("priority", number),
        fields.get("ttft_s", optional(number)),
        fields.get("tpot_s", optional(number)),
        fields.get("session", optional(whole)),
    )


def _check_pipeline(pipeline: int, header: TraceHeader) -> None:
    if pipeline >= len(header.pipelines):
        raise InputError(f"found {pipeline}, the header names {len(header.pipelines)} pipelines", key="pipeline")
