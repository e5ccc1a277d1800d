from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from serving_setups import chat, four_cards
from trace_setups import HAND_END_NS, hand_iterations, hand_outcomes, hand_workload, header, write_hand

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.load import PipelineLoads, StageLoad
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.summary import Extras, summarise
from slob_opt.metrics.trace_lines import TraceEnd, TraceRequest, line_text
from slob_opt.metrics.trace_reader import Trace, iter_trace, outcomes_of, read_trace
from slob_opt.metrics.trace_writer import TraceWriter
from slob_opt.problem.workload import NS_PER_S
from slob_opt.scheduling.policies.chunked import ChunkedPolicy
from slob_opt.scheduling.policy import PipelineLimits
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.options import EngineOptions
from slob_opt.simulation.simulator import Simulator


def assert_same_outcomes(found: Outcomes, expected: Outcomes) -> None:
    for item in dataclasses.fields(Outcomes):
        one, other = getattr(found, item.name), getattr(expected, item.name)
        if item.name == "workload":
            assert (one.name, one.fingerprint) == (other.name, other.fingerprint)
        else:
            np.testing.assert_array_equal(one, other)


def edited(path: Path, number: int, **changes: object) -> Path:
    """Change keys of a line of a trace file, counted from 1; ``...`` takes a key away."""
    lines = path.read_text(encoding="utf-8").splitlines()
    data = json.loads(lines[number - 1]) | changes
    lines[number - 1] = json.dumps({key: value for key, value in data.items() if value is not ...})
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = read_trace(write_hand(tmp_path / "t.jsonl"))
    assert trace.header == header()
    assert list(trace.iterations) == hand_iterations()
    assert trace.order == (2, 1, 0)
    assert_same_outcomes(trace.outcomes, Outcomes.of(hand_workload(), hand_outcomes(), HAND_END_NS))


def test_lines_come_one_by_one(tmp_path: Path) -> None:
    lines = iter_trace(write_hand(tmp_path / "t.jsonl"))
    assert next(lines) == header()
    rest = list(lines)
    assert rest[:5] == hand_iterations()
    assert [line.outcome.request for line in rest if isinstance(line, TraceRequest)] == [2, 1, 0]
    assert rest[-1] == TraceEnd(HAND_END_NS, 5, 3)


def test_loads_follow_from_iterations(tmp_path: Path) -> None:
    trace = read_trace(write_hand(tmp_path / "t.jsonl"))
    assert trace.loads() == ((StageLoad(35, 0, 41, 10, 1), StageLoad(35, 10, 46, 10, 1)),)


@pytest.mark.parametrize(
    ("number", "changes", "told"),
    [
        (1, {"schema_version": 9}, r"t\.jsonl:1: schema_version: found 9, expected 1"),
        (1, {"kind": "iteration"}, r":1: kind: found 'iteration', expected the header"),
        (1, {"engine": "rectangular"}, r":1: engine is 'rectangular', expected one of ragged, padded"),
        (1, {"sed": 3}, r":1: sed: unknown key; did you mean seed\?"),
        (1, {"pipelines": []}, r":1: the header names no pipeline"),
        (1, {"pipelines": [{"num_lanes": 1, "stages": [{"devices": [], "first": 0, "end": 1}]}]},
         r":1: pipelines\[0\]\.stages\[0\]: a stage has no device"),
        (1, {"pipelines": [{"num_lanes": 1, "stages": [{"devices": ["a"], "first": 0}]}]},
         r":1: pipelines\[0\]\.stages\[0\]\.end: the key is missing"),
        (1, {"fingerprints": {"workload": 3}}, r":1: fingerprints: found 3, expected a text"),
        (3, {"lane": 2}, r":3: lane: found 2, the pipeline has 2 lanes"),
        (3, {"pipeline": 1}, r":3: pipeline: found 1, the header names 1 pipelines"),
        (3, {"tokens": [1, 1]}, r":3: tokens: found 2 numbers for 1 requests"),
        (3, {"tokens": [1.5]}, r":3: tokens: found 1\.5, expected whole numbers from 0"),
        (3, {"start_ns": [0]}, r":3: start_ns: found 1 times, the pipeline has 2 stages"),
        (3, {"start_ns": [10, 15]}, r":3: start_ns: stage 1 works from 15 to 30, expected from 20 on"),
        (3, {"back_ns": 29}, r":3: back_ns: found 29, before the last stage ends at 30"),
        (3, {"padding_tokens": 3}, r":3: padding_tokens: found 3 among 2 computed ones"),
        (3, {"back_ns": ...}, r":3: back_ns: the key is missing"),
        (3, {"kind": "iterations"}, r":3: kind: found 'iterations', expected iteration, request or end"),
        (3, {"requests": [7]}, r"t\.jsonl: requests: iteration 1 names request 7, the trace has 3"),
        (7, {"status": "done"}, r":7: status: found 'done', expected one of finished, unfinished"),
        (7, {"pipeline": True}, r":7: pipeline: found True, expected a whole number from 0"),
        (8, {"output_tokens": None}, r":8: output_tokens: found null, a finished request has a length"),
        (8, {"priority": float("nan")}, r":8: priority: found nan, expected a finite number"),
        (8, {"request": 0}, r"t\.jsonl: request 0 is there twice"),
        (8, {"ttft_s": None}, r"t\.jsonl: ttft_s: request 1 has null and others a value"),
        (8, {"token_ns": [42, 31]}, r"t\.jsonl: request 1 has a token from before"),
        (10, {"num_iterations": 6}, r":10: num_iterations: found 6, the file has 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_file_line_and_key(
    number: int, changes: dict[str, object], told: str, tmp_path: Path
) -> None:
    path = edited(write_hand(tmp_path / "t.jsonl"), number, **changes)
    with pytest.raises(InputError, match=told):
        read_trace(path)


def test_a_file_that_is_no_whole_trace_is_refused(tmp_path: Path) -> None:
    path = write_hand(tmp_path / "t.jsonl")
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for content, told in (
        ("", "t.jsonl: the file is empty, expected a header line"),
        ("".join(lines[:-1]), "t.jsonl:9: the end line is missing, the trace was cut off"),
        ("".join([*lines[:3], *lines[4:]]), r"t.jsonl:9: num_iterations: found 5, the file has 4"),
        (text + lines[2], "t.jsonl:11: found a line after the end"),
        (lines[0] + lines[1][:40], r"t.jsonl:2: not valid JSON"),
        (lines[0] + '{"kind":"end","kind":"end"}', r"t.jsonl:2: kind: key 'kind' stands twice"),
        (lines[0] + "[]\n", r"t.jsonl:2: found list, expected an object"),
        ("".join([*lines[:6], *lines[7:9]]) + '{"kind":"end","end_ns":60,"num_iterations":5,"num_requests":2}\n',
         None),
    ):  # fmt: skip
        path.write_text(content, encoding="utf-8")
        if told is None:  # a trace of fewer requests is whole as long as none is missing in between
            assert read_trace(path).outcomes.workload.num_requests == 2
        else:
            with pytest.raises(InputError, match=told):
                read_trace(path)
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        read_trace(tmp_path / "none.jsonl")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_trace(path)


def test_an_unknown_length_counts_as_the_clients_limit() -> None:
    """A server doesn't know how long an answer would have become that was cut off."""
    cut = Outcome(0, Status.UNFINISHED, 0, 5, np.array([10, 20]))
    found = outcomes_of("live", [TraceRequest(cut, 0, 10, None, 50, 1.0, None, None, None)], 100)
    assert found.workload.output_tokens.tolist() == [50]
    assert found.workload.ttft_s is None
    with pytest.raises(InputError, match="request 0 is missing"):
        outcomes_of(
            "live", [TraceRequest(dataclasses.replace(cut, request=1), 0, 10, None, 50, 1.0, None, None, None)], 100
        )


def test_sessions_and_odd_names_survive(tmp_path: Path) -> None:
    workload = dataclasses.replace(hand_workload(), session=np.array([4, 4, 9]), ttft_s=None, name="Büro\n2")
    path = tmp_path / "t.jsonl"
    with TraceWriter(path, header(workload=workload.name)) as trace:
        for outcome in hand_outcomes():
            trace.outcome(workload, outcome)
        trace.finish(HAND_END_NS)
    found = read_trace(path).outcomes
    assert_same_outcomes(found, Outcomes.of(workload, hand_outcomes(), HAND_END_NS))


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("cut_s", [None, 20.0])
def test_figures_from_the_file_are_those_of_the_run(is_padded: bool, cut_s: float | None, tmp_path: Path) -> None:
    """To the bit: latencies, satisfaction, QoE, utilisation, bubbles, padding.

    Of a run that is cut off, micro-batches on their way at the end aren't in the file, so stages seem less busy.
    """
    workload, clock = chat(60, 1.5), four_cards()
    horizon = None if cut_s is None else round(cut_s * NS_PER_S)
    path = tmp_path / "t.jsonl"
    end_ns = horizon if horizon is not None else 10**12
    metrics = MetricsAccumulator(workload, end_ns=end_ns)
    with TraceWriter(path, header(3, num_stages=4)) as trace:

        def enter(d: Delivery) -> None:
            metrics.add(d.request, Status(int(d.end)), d.started_ns, d.token_ns)
            trace.outcome(workload, Outcome(d.request, Status(int(d.end)), d.pipeline, d.started_ns, d.token_ns))

        limits = PipelineLimits(3, 24, 900, 16, 512)
        options = EngineOptions(is_padded=is_padded)
        result = Simulator(
            workload, [limits], [clock], [ChunkedPolicy()], sink=enter, options=options, horizon_ns=horizon,
            observer=trace.iteration,
        ).run()  # fmt: skip
        trace.finish(end_ns)
    found = read_trace(path)
    loads = [
        [StageLoad(use.busy_ns, use.first_ns, use.last_ns, use.tokens, use.padding_tokens) for use in stages]
        for stages in result.stages
    ]
    if cut_s is None:
        assert [list(stages) for stages in found.loads()] == loads
    else:
        for mine, its in zip(found.loads()[0], loads[0], strict=True):
            assert 0 <= its.busy_ns - mine.busy_ns < limits.num_lanes * NS_PER_S
    assert figures(found, loads) == summarise(
        metrics.columns(), metrics.itl, end_ns / NS_PER_S, Extras(pipelines=loads)
    )


def figures(trace: Trace, loads: PipelineLoads) -> dict[str, float]:
    again = trace.accumulate()
    return summarise(again.columns(), again.itl, trace.end_ns / NS_PER_S, Extras(pipelines=loads))


def test_figures_follow_from_the_file_alone(tmp_path: Path) -> None:
    """The same as those that an accumulator took as requests ended, in another order than that of their numbers."""
    workload = hand_workload()
    metrics = MetricsAccumulator(workload, end_ns=HAND_END_NS)
    for o in hand_outcomes():
        metrics.add(o.request, o.status, o.started_ns, o.token_ns)
    trace = read_trace(write_hand(tmp_path / "t.jsonl"))
    extras = Extras(pipelines=[[StageLoad(35, 0, 41, 10, 1), StageLoad(35, 10, 46, 10, 1)]])
    assert figures(trace, trace.loads()) == summarise(metrics.columns(), metrics.itl, HAND_END_NS / NS_PER_S, extras)


def test_lines_hold_no_blanks() -> None:
    assert line_text(TraceEnd(5, 1, 2)) == '{"kind":"end","end_ns":5,"num_iterations":1,"num_requests":2}\n'
