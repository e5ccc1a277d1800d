"""Reads trace files, line by line or whole, strictly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.load import StageLoad
from slob_opt.metrics.outcomes import Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.metrics.trace_header import TraceHeader
from slob_opt.metrics.trace_lines import TraceEnd, TraceLine, TraceRequest, parse_line
from slob_opt.problem.workload import Workload


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace.

    Attributes
    ----------
    header
        What it is about.
    iterations
        In the order in which their tokens were back.
    outcomes
        What became of the requests, with the requests themselves.
    order
        Numbers of the requests in the order in which they were written, which is that in which they ended.
    """

    header: TraceHeader
    iterations: tuple[Iteration, ...]
    outcomes: Outcomes
    order: tuple[int, ...]

    @property
    def end_ns(self) -> int:
        """End of the observation, nanoseconds."""
        return self.outcomes.end_ns

    def accumulate(self, spec: SatisfactionSpec | None = None, *, has_qoe: bool = True) -> MetricsAccumulator:
        """Return an accumulator that took the requests in the order of the file: to the bit what the run's own says.

        Parameters
        ----------
        spec
            Of satisfaction; ``None`` takes the defaults.
        has_qoe
            Whether QoE is computed.
        """
        out = self.outcomes
        found = MetricsAccumulator(out.workload, spec, has_qoe=has_qoe, end_ns=out.end_ns)
        for request in self.order:
            started = out.started_ns.item(request) if out.is_started[request] else None
            found.add(request, Status(out.status.item(request)), started, out.tokens_of(request))
        return found

    def loads(self) -> tuple[tuple[StageLoad, ...], ...]:
        """Return what each stage of each pipeline did, from the iterations alone."""
        return stage_loads(self.header, self.iterations)


def iter_trace(path: Path) -> Iterator[TraceLine]:
    """Yield the lines of a trace file as what they mean: the header, iterations and requests, the end.

    Raises
    ------
    InputError
        While iterating, when the file can't be read, a line is wrong, the end is missing or tells other numbers, or
        something follows it. The message names file, line and key.
    """
    header: TraceHeader | None = None
    end: TraceEnd | None = None
    counts = {Iteration: 0, TraceRequest: 0}
    number = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                try:
                    if end is not None:
                        raise InputError("found a line after the end")
                    found = parse_line(line, header)
                except InputError as error:
                    raise error.located(file=f"{path}:{number}") from error
                if isinstance(found, TraceHeader):
                    header = found
                elif isinstance(found, TraceEnd):
                    end = found
                    for name, told, seen in (
                        ("num_iterations", end.num_iterations, counts[Iteration]),
                        ("num_requests", end.num_requests, counts[TraceRequest]),
                    ):
                        if told != seen:
                            raise InputError(
                                f"found {told}, the file has {seen}; lines are missing or were added",
                                file=f"{path}:{number}", key=name,
                            )  # fmt: skip
                else:
                    counts[type(found)] += 1
                yield found
    except FileNotFoundError as error:
        raise InputError("no such file", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the file is not UTF-8 text", file=str(path)) from error
    except OSError as error:
        raise InputError(f"the file can't be read: {error.strerror or error}", file=str(path)) from error
    if header is None:
        raise InputError("the file is empty, expected a header line", file=str(path))
    if end is None:
        raise InputError("the end line is missing, the trace was cut off", file=f"{path}:{number}")


def read_trace(path: Path) -> Trace:
    """Return a whole trace.

    Where the true length of an answer that was cut off is unknown, it's taken to be the client's limit, which no answer
    exceeds.

    Raises
    ------
    InputError
        As :func:`iter_trace`; also when requests don't have the numbers 0, 1, ... once each, or their columns
        contradict each other.
    """
    header: TraceHeader | None = None
    iterations: list[Iteration] = []
    requests: list[TraceRequest] = []
    end_ns = 0
    for line in iter_trace(path):
        if isinstance(line, TraceHeader):
            header = line
        elif isinstance(line, Iteration):
            iterations.append(line)
        elif isinstance(line, TraceRequest):
            requests.append(line)
        else:
            end_ns = line.end_ns
    assert header is not None
    try:
        outcomes = outcomes_of(header.workload, requests, end_ns)
        _check_iterations(iterations, len(requests))
    except InputError as error:
        raise error.located(file=str(path)) from error
    return Trace(header, tuple(iterations), outcomes, tuple(request.outcome.request for request in requests))


def outcomes_of(name: str, requests: Sequence[TraceRequest], end_ns: int) -> Outcomes:
    """Return the record of requests in any order; raises InputError unless each number from 0 is there once.

    Parameters
    ----------
    name
        Of the workload.
    requests
        All of it.
    end_ns
        End of the observation, nanoseconds.
    """
    order = sorted(requests, key=lambda request: request.outcome.request)
    for index, request in enumerate(order):
        if request.outcome.request != index:
            what = "missing" if request.outcome.request > index else "there twice"
            raise InputError(f"request {min(index, request.outcome.request)} is {what}")
    workload = Workload(
        name,
        np.array([request.arrival_ns for request in order], np.int64),
        np.array([request.prompt_tokens for request in order], np.int64),
        np.array([_length(request) for request in order], np.int64),
        np.array([request.max_new_tokens for request in order], np.int64),
        np.array([request.priority for request in order], np.float64),
        _seconds([request.ttft_s for request in order], "ttft_s"),
        _seconds([request.tpot_s for request in order], "tpot_s"),
        _sessions([request.session for request in order]),
    )
    return Outcomes.of(workload, [request.outcome for request in order], end_ns)


def _length(request: TraceRequest) -> int:
    return request.max_new_tokens if request.output_tokens is None else request.output_tokens


def _is_told(values: Sequence[float | None], key: str) -> bool:
    """Return whether all requests have a value; raises InputError where only some do."""
    known = [value is not None for value in values]
    if any(known) and not all(known):
        raise InputError(f"request {known.index(False)} has null and others a value, expected all or none", key=key)
    return all(known) and bool(known)


def _seconds(values: Sequence[float | None], key: str) -> NDArray[np.float64] | None:
    return np.array(values, np.float64) if _is_told(values, key) else None


def _sessions(values: Sequence[int | None]) -> NDArray[np.int64] | None:
    return np.array(values, np.int64) if _is_told(values, "session") else None


def _check_iterations(iterations: Sequence[Iteration], num_requests: int) -> None:
    """Raise InputError where iterations name requests that there aren't."""
    for index, iteration in enumerate(iterations):
        most = max((*iteration.requests, *iteration.preempted), default=0)
        if most >= num_requests:
            raise InputError(f"iteration {index} names request {most}, the trace has {num_requests}", key="requests")


def stage_loads(header: TraceHeader, iterations: Sequence[Iteration]) -> tuple[tuple[StageLoad, ...], ...]:
    """Return what each stage of each pipeline did, as metrics of load take it."""
    sizes = [len(pipeline.stages) for pipeline in header.pipelines]
    busy = [[0] * size for size in sizes]
    first: list[list[int | None]] = [[None] * size for size in sizes]
    last: list[list[int | None]] = [[None] * size for size in sizes]
    computed, padding = [0] * len(sizes), [0] * len(sizes)
    for iteration in iterations:
        pipeline = iteration.pipeline
        computed[pipeline] += iteration.computed_tokens
        padding[pipeline] += iteration.padding_tokens
        for stage, (start, end) in enumerate(zip(iteration.start_ns, iteration.end_ns, strict=True)):
            busy[pipeline][stage] += end - start
            known, until = first[pipeline][stage], last[pipeline][stage]
            first[pipeline][stage] = start if known is None else min(known, start)
            last[pipeline][stage] = end if until is None else max(until, end)
    return tuple(
        tuple(
            StageLoad(
                busy[index][stage], first[index][stage], last[index][stage], computed[index], padding[index]
            )
            for stage in range(size)
        )
        for index, size in enumerate(sizes)
    )  # fmt: skip
