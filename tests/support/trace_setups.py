"""A trace small enough to check by hand, and the header of larger ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.trace_header import TraceHeader, TracePipeline, TraceStage
from slob_opt.metrics.trace_reader import Trace
from slob_opt.metrics.trace_writer import TraceWriter
from slob_opt.problem.workload import Workload

HAND_END_NS = 60
"""End of the observation of the trace by hand, nanoseconds."""


def header(num_lanes: int = 2, *, num_stages: int = 2, workload: str = "hand", policy: str = "orca") -> TraceHeader:
    """Return a header with one pipeline whose stages hold two layers each."""
    stages = tuple(TraceStage((f"box-{i}/0",), 2 * i, 2 * i + 2) for i in range(num_stages))
    return TraceHeader(
        "simulator", workload, "boxes", "tiny", policy, None, "ragged", 7, (TracePipeline(num_lanes, stages),),
        (("workload", "ab" * 32),),
    )  # fmt: skip


def hand_workload() -> Workload:
    """Two requests that are served and one that is rejected."""
    ns = 1e-9
    return Workload.of("hand", [0.0, 0.0, 5 * ns], [4, 2, 900], [3, 2, 1], ttft_s=0.5, tpot_s=0.1)


def hand_iterations() -> list[Iteration]:
    """Two lanes on two stages; prefills take 10 ns a stage, decodes 5, tokens are back 1 ns after the last stage.

    Stage 0 works 10 + 10 + 5 + 5 + 5 = 35 ns from 0 to 41, stage 1 as long from 10 to 46.
    """
    return [
        Iteration(0, 0, (0,), (4,), (), (0, 10), (10, 20), 21, 5, 1),
        Iteration(0, 1, (1,), (2,), (), (10, 20), (20, 30), 31, 2, 0),
        Iteration(0, 0, (0,), (1,), (), (21, 30), (26, 35), 36, 1, 0),
        Iteration(0, 1, (1,), (1,), (), (31, 36), (36, 41), 42, 1, 0),
        Iteration(0, 0, (0,), (1,), (), (36, 41), (41, 46), 47, 1, 0),
    ]


def hand_outcomes() -> list[Outcome]:
    """What becomes of them, in the order in which they end."""
    return [
        Outcome(2, Status.REJECTED, None, None, np.zeros(0, np.int64)),
        Outcome(1, Status.FINISHED, 0, 10, np.array([31, 42])),
        Outcome(0, Status.FINISHED, 0, 0, np.array([21, 36, 47])),
    ]


def hand_trace() -> Trace:
    """All of it."""
    outcomes = Outcomes.of(hand_workload(), hand_outcomes(), HAND_END_NS)
    return Trace(header(), tuple(hand_iterations()), outcomes, (2, 1, 0))


def write_hand(path: Path) -> Path:
    """Write the trace; return its path."""
    with TraceWriter(path, header()) as trace:
        for iteration in hand_iterations():
            trace.iteration(iteration)
        for outcome in hand_outcomes():
            trace.outcome(hand_workload(), outcome)
        trace.finish(HAND_END_NS)
    return path
