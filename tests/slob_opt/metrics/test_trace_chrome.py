from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from serving_setups import chat, four_cards
from trace_setups import hand_trace, header

from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.trace_chrome import chrome_events, chrome_text
from slob_opt.metrics.trace_reader import Trace
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.simulator import Simulator


def simulated() -> Trace:
    workload = chat(40, 1.5)
    iterations: list[Iteration] = []
    outcomes: list[Outcome] = []
    result = Simulator(
        workload, [PipelineLimits(3, 24, 900, 16, 512)], [four_cards()], [ChunkedPolicy()],
        sink=lambda d: outcomes.append(Outcome(d.request, Status(int(d.end)), d.pipeline, d.started_ns, d.token_ns)),
        observer=iterations.append,
    ).run()  # fmt: skip
    record = Outcomes.of(workload, outcomes, result.end_ns)
    return Trace(header(3, num_stages=4), tuple(iterations), record, tuple(o.request for o in outcomes))


@pytest.fixture(params=[hand_trace, simulated], ids=["hand", "simulated"], scope="module")
def trace(request: pytest.FixtureRequest) -> Trace:
    return request.param()


def test_events_have_what_the_format_asks_for(trace: Trace) -> None:
    """Times are numbers of microseconds, process and thread are whole numbers, names come as metadata."""
    document = json.loads("".join(chrome_text(trace)))
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    for event in events:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert event["name"]
        assert event["pid"] in processes
        if event["ph"] == "M":
            continue
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in named
            assert event["dur"] >= 0
            assert len(event["args"]["requests"]) == len(event["args"]["tokens"])
    assert {e["ph"] for e in events} <= set("MXstfCbei")
    assert document["displayTimeUnit"] == "ms"


def test_nothing_overlaps_on_a_stage_and_its_time_is_the_busy_time(trace: Trace) -> None:
    by_stage = defaultdict(list)
    for event in chrome_events(trace):
        if event["ph"] == "X":
            by_stage[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    loads = trace.loads()
    assert len(by_stage) == sum(map(len, loads))
    for (pid, tid), spans in by_stage.items():
        spans.sort()
        for (start, duration), (after, _) in pairwise(spans):
            assert start + duration <= after + 1e-3  # half a nanosecond is 5e-4
        busy = sum(duration for _, duration in spans)
        assert busy == pytest.approx(loads[pid - 1][tid - 1].busy_ns / 1e3, abs=1e-3)


def test_flows_lie_in_the_slices_that_they_join(trace: Trace) -> None:
    slices = {}
    flows = defaultdict(list)
    for event in chrome_events(trace):
        if event["ph"] == "X":
            slices[event["args"]["iteration"], event["tid"]] = (event["ts"], event["ts"] + event["dur"])
        elif event["ph"] in "stf":
            flows[event["id"]].append(event)
    size = len(trace.header.pipelines[0].stages)
    assert len(flows) == len(trace.iterations)
    for number, steps in flows.items():
        assert [e["ph"] for e in steps] == ["s", *["t"] * (size - 2), "f"]
        assert [e["tid"] for e in steps] == list(range(1, size + 1))
        assert steps[-1]["bp"] == "e"
        for step in steps:
            start, end = slices[number, step["tid"]]
            assert start <= step["ts"] <= end


def test_spans_of_requests_open_and_close(trace: Trace) -> None:
    stacks: dict[int, list[str]] = defaultdict(list)
    last: dict[int, float] = defaultdict(float)
    for event in chrome_events(trace):
        if event["ph"] in "be":
            number = event["id"]
            assert event["ts"] >= last[number]
            last[number] = event["ts"]
            if event["ph"] == "b":
                stacks[number].append(event["name"])
            else:
                assert stacks[number].pop() == event["name"]
    assert not any(stacks.values())
    assert len(stacks) == int(trace.outcomes.is_placed.sum())


def test_counters_end_at_nothing(trace: Trace) -> None:
    counts = [e["args"] for e in chrome_events(trace) if e["ph"] == "C"]
    assert counts[-1] == {"waiting": 0, "running": 0}
    assert min(min(c.values()) for c in counts) == 0


def test_counters_by_hand() -> None:
    """Both arrive at 0 and request 0 starts at once, request 1 at 10; they end at 47 and 42."""
    counts = [(e["ts"], *e["args"].values()) for e in chrome_events(hand_trace()) if e["ph"] == "C"]
    assert counts == [(0.0, 1, 1), (0.01, 0, 2), (0.042, 0, 1), (0.047, 0, 0)]


def test_a_rejected_request_is_an_instant_outside_the_pipelines() -> None:
    found = [e for e in chrome_events(hand_trace()) if e["ph"] == "i"]
    assert [(e["pid"], e["name"], e["ts"]) for e in found] == [(0, "request 2 rejected", 0.005)]


def test_a_window_shows_what_is_in_it() -> None:
    events = list(chrome_events(hand_trace(), first_ns=43, end_ns=50))
    assert {e["args"]["iteration"] for e in events if e["ph"] == "X"} == {4}
    assert {e["id"] for e in events if e["ph"] == "b"} == {0}
