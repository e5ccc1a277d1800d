"""A trace in the Trace Event Format, for chrome://tracing and ui.perfetto.dev.

A process is a pipeline, a thread one of its stages, a complete event (``X``) a micro-batch on it. Flow events follow a
micro-batch from stage to stage, a counter tells how many requests wait and run, and nested asynchronous events (``b``,
``e``) tell what each request went through. Requests that no pipeline got are instant events of process 0.

References
----------
.. [1] "Trace Event Format", Google, document 1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds;
   numbers may have fractions, so no nanosecond is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.trace_phases import placed_phases
from slob_opt.metrics.trace_reader import Trace

NOT_PLACED = 0
"""Process of requests that no pipeline got; pipelines count from 1."""

Event = dict[str, object]


def chrome_events(trace: Trace, *, first_ns: int = 0, end_ns: int | None = None) -> Iterator[Event]:
    """Yield the events of a trace: names, then micro-batches, then counters, then requests.

    Parameters
    ----------
    trace
        What is shown.
    first_ns, end_ns
        Only micro-batches and requests that are in the pipelines within ``[first_ns, end_ns)``, nanoseconds; ``None``
        is the end of the trace.
    """
    until = trace.end_ns + 1 if end_ns is None else end_ns
    yield from _names(trace)
    yield from _batches(trace, first_ns, until)
    yield from _counters(trace, first_ns, until)
    yield from _requests(trace, first_ns, until)


def chrome_text(trace: Trace, *, first_ns: int = 0, end_ns: int | None = None) -> Iterator[str]:
    """Yield the pieces of a JSON file with the events.

    Parameters
    ----------
    trace, first_ns, end_ns
        As for :func:`chrome_events`.
    """
    yield '{"displayTimeUnit":"ms","otherData":' + json.dumps(_about(trace), ensure_ascii=False) + ',"traceEvents":['
    for index, event in enumerate(chrome_events(trace, first_ns=first_ns, end_ns=end_ns)):
        yield (",\n" if index else "\n") + json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    yield "\n]}\n"


def _about(trace: Trace) -> dict[str, object]:
    header = trace.header
    return {
        "source": header.source,
        "workload": header.workload,
        "cluster": header.cluster,
        "model": header.model,
        "policy": header.policy,
        "engine": header.engine,
        "seed": header.seed,
    }


def _us(ns: int) -> float:
    return ns / 1000


def _names(trace: Trace) -> Iterator[Event]:
    """Metadata events: what processes and threads are called, and in which order they stand."""

    def name(kind: str, pid: int, tid: int, **args: object) -> Event:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

    if not trace.outcomes.is_placed.all():
        yield name("process_name", NOT_PLACED, 0, name="not placed")
    for index, pipeline in enumerate(trace.header.pipelines):
        pid = index + 1
        yield name("process_name", pid, 0, name=f"pipeline {index}")
        yield name("process_sort_index", pid, 0, sort_index=pid)
        for stage, layers in enumerate(pipeline.stages):
            text = f"stage {stage}: {layers.name}, layers {layers.first}–{layers.end - 1}"
            yield name("thread_name", pid, stage + 1, name=text)
            yield name("thread_sort_index", pid, stage + 1, sort_index=stage + 1)


def _batches(trace: Trace, first_ns: int, end_ns: int) -> Iterator[Event]:
    """Complete events of micro-batches, and the flow of each through its stages."""
    for number, (iteration, phase) in enumerate(placed_phases(trace)):
        if iteration.back_ns < first_ns or iteration.start_ns[0] >= end_ns:
            continue
        pid, last = iteration.pipeline + 1, len(iteration.start_ns) - 1
        args = {
            "iteration": number,
            "lane": iteration.lane,
            "requests": list(iteration.requests),
            "tokens": list(iteration.tokens),
            "preempted": list(iteration.preempted),
            "computed_tokens": iteration.computed_tokens,
            "padding_tokens": iteration.padding_tokens,
        }
        for stage, (start, end) in enumerate(zip(iteration.start_ns, iteration.end_ns, strict=True)):
            place: Event = {"pid": pid, "tid": stage + 1}
            yield {
                "ph": "X", "name": str(phase), "cat": "micro-batch", **place, "ts": _us(start), "dur": _us(end - start),
                "args": args,
            }  # fmt: skip
            if last:
                # Within the slice, not at its edge, where a neighbour's would be met.
                flow: Event = {"name": "micro-batch", "cat": "flow", "id": number, **place, "ts": _us(start + end) / 2}
                if stage == last:
                    yield {"ph": "f", "bp": "e", **flow}
                else:
                    yield {"ph": "t" if stage else "s", **flow}


def _ends(trace: Trace) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """(N,) when each request was over, nanoseconds: its last token; the end of the observation where it was cut off."""
    out = trace.outcomes
    found = np.where(out.is_started, out.started_ns, out.workload.arrival_ns)
    some = np.flatnonzero(out.num_tokens > 0)
    found[some] = out.token_ns[out.token_start[some + 1] - 1]
    return np.where(out.status == Status.UNFINISHED, np.maximum(found, out.end_ns), found)


def _counters(trace: Trace, first_ns: int, end_ns: int) -> Iterator[Event]:
    """How many requests wait for their first computation, and how many run, at each change."""
    out, ends = trace.outcomes, _ends(trace)
    for pipeline in range(len(trace.header.pipelines)):
        mine = np.flatnonzero(out.is_placed & (out.pipeline == pipeline))
        if not mine.size:
            continue
        left_queue = np.where(out.is_started[mine], out.started_ns[mine], ends[mine])
        started = out.is_started[mine]
        times = [out.workload.arrival_ns[mine], left_queue, out.started_ns[mine][started], ends[mine][started]]
        waiting = [1, -1, 0, 0]
        running = [0, 0, 1, -1]
        at = np.concatenate(times)
        sizes = [time.size for time in times]
        order = np.argsort(at, kind="stable")
        at = at[order]
        wait = np.cumsum(np.repeat(waiting, sizes)[order])
        run = np.cumsum(np.repeat(running, sizes)[order])
        is_last = np.append(at[1:] != at[:-1], True)  # of all changes at one time
        for time, num_waiting, num_running in zip(
            at[is_last].tolist(), wait[is_last].tolist(), run[is_last].tolist(), strict=True
        ):
            if first_ns <= time < end_ns:
                yield {
                    "ph": "C", "name": "requests", "pid": pipeline + 1, "tid": 0, "ts": _us(time),
                    "args": {"waiting": num_waiting, "running": num_running},
                }  # fmt: skip


def _requests(trace: Trace, first_ns: int, end_ns: int) -> Iterator[Event]:
    """Nested asynchronous events of each request: all of it, and within that queue, first token and stream."""
    out, ends = trace.outcomes, _ends(trace)
    w = out.workload
    for request in range(w.num_requests):
        arrival, end = w.arrival_ns.item(request), ends.item(request)
        if end < first_ns or arrival >= end_ns:
            continue
        pid = out.pipeline.item(request) + 1 if out.is_placed[request] else NOT_PLACED
        status = Status(out.status.item(request)).name.lower()
        args = {
            "status": status,
            "prompt_tokens": w.prompt_tokens.item(request),
            "output_tokens": w.output_tokens.item(request),
            "delivered_tokens": out.num_tokens.item(request),
            "priority": w.priority.item(request),
        }
        common: Event = {"cat": "request", "id": request, "pid": pid, "tid": 0}
        if pid == NOT_PLACED:
            yield {
                "ph": "i", "s": "p", "name": f"request {request} {status}", "cat": "request", "pid": pid, "tid": 0,
                "ts": _us(arrival), "args": args,
            }  # fmt: skip
            continue
        yield {"ph": "b", "name": f"request {request}", **common, "ts": _us(arrival), "args": args}
        tokens = out.tokens_of(request)
        edges = [("queued", arrival, out.started_ns.item(request) if out.is_started[request] else end)]
        if out.is_started[request]:
            first = tokens.item(0) if tokens.size else end
            edges.append(("first token", out.started_ns.item(request), first))
            if tokens.size:
                edges.append(("stream", first, end))
        for name, start, stop in edges:
            yield {"ph": "b", "name": name, **common, "ts": _us(start)}
            yield {"ph": "e", "name": name, **common, "ts": _us(stop)}
        yield {"ph": "e", "name": f"request {request}", **common, "ts": _us(end)}
