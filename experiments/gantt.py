"""Gantt chart of stages: which micro-batch each stage works on, and where it idles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.plots import blank_figure, styled
from slob_opt.errors import InputError
from slob_opt.metrics.trace_phases import Phase, placed_phases
from slob_opt.metrics.trace_reader import Trace
from slob_opt.problem.workload import NS_PER_S

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASE_COLOURS = {Phase.PREFILL: "#0072B2", Phase.DECODE: "#E69F00", Phase.MIXED: "#009E73"}
"""Colours of what a micro-batch computes, told apart by colour-blind readers too (Okabe & Ito 2008)."""

WINDOW_BATCHES = 60
"""Micro-batches of the busiest pipeline in a chart whose window is chosen: as many as are still told apart."""

_CANDIDATES = 400


@dataclass(frozen=True, slots=True)
class GanttBlock:
    """A micro-batch on a stage.

    Attributes
    ----------
    row
        Of the chart, from 0 at the top.
    start_s, end_s
        Seconds, cut at the edges of the window.
    phase
        What it computes.
    lane
        Of the pipeline.
    num_requests, num_tokens
        Requests in it, and tokens computed, pads included.
    """

    row: int
    start_s: float
    end_s: float
    phase: Phase
    lane: int
    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class GanttData:
    """A chart, before it is drawn.

    Attributes
    ----------
    labels
        Of the rows: pipeline, device and layers of each stage.
    pipelines
        Pipeline of each row.
    busy_shares
        Share of the window in which each stage works.
    blocks
        Sorted by row and time.
    first_s, end_s
        Bounds of the window, seconds.
    """

    labels: tuple[str, ...]
    pipelines: tuple[int, ...]
    busy_shares: tuple[float, ...]
    blocks: tuple[GanttBlock, ...]
    first_s: float
    end_s: float


def gantt_data(trace: Trace, first_s: float, end_s: float) -> GanttData:
    """Return the chart of a time window.

    Parameters
    ----------
    trace
        What is shown.
    first_s, end_s
        Bounds of the window, seconds.

    Raises
    ------
    InputError
        When the window is empty.
    """
    if not 0 <= first_s < end_s:
        raise InputError(f"the window is [{first_s}, {end_s}) s, expected a later end and a start from 0")
    rows = [(index, stage) for index, pipeline in enumerate(trace.header.pipelines) for stage in pipeline.stages]
    begin = [row for row, (index, _) in enumerate(rows) if row == 0 or rows[row - 1][0] != index]
    first_ns, end_ns = round(first_s * NS_PER_S), round(end_s * NS_PER_S)
    busy = [0] * len(rows)
    blocks = []
    for iteration, phase in placed_phases(trace):
        if iteration.end_ns[-1] <= first_ns or iteration.start_ns[0] >= end_ns:
            continue
        for stage, (start, end) in enumerate(zip(iteration.start_ns, iteration.end_ns, strict=True)):
            low, high = max(start, first_ns), min(end, end_ns)
            if low >= high:
                continue
            row = begin[iteration.pipeline] + stage
            busy[row] += high - low
            blocks.append(
                GanttBlock(
                    row, low / NS_PER_S, high / NS_PER_S, phase, iteration.lane, len(iteration.requests),
                    iteration.computed_tokens,
                )
            )  # fmt: skip
    return GanttData(
        tuple(f"p{index} {stage.name}\nlayers {stage.first}–{stage.end - 1}" for index, stage in rows),
        tuple(index for index, _ in rows),
        tuple(time / (end_ns - first_ns) for time in busy),
        tuple(sorted(blocks, key=lambda block: (block.row, block.start_s))),
        first_ns / NS_PER_S,
        end_ns / NS_PER_S,
    )


def busy_window(trace: Trace, num_batches: int = WINDOW_BATCHES) -> tuple[float, float]:
    """Return the window of so many successive micro-batches in which most requests are served, seconds.

    It's one of up to 400 windows of the pipeline that has most micro-batches; of equal ones the one with most prompt
    tokens, then the earliest. The whole run where there are fewer micro-batches.

    Raises
    ------
    InputError
        When the trace has no iteration.
    """
    if not trace.iterations:
        raise InputError("the trace has no iteration, so there is nothing to draw")
    count = np.bincount([iteration.pipeline for iteration in trace.iterations])
    mine = [iteration for iteration in trace.iterations if iteration.pipeline == int(count.argmax())]
    mine.sort(key=lambda iteration: iteration.start_ns[0])
    size = min(num_batches, len(mine))
    rows = np.concatenate([[0], np.cumsum([len(iteration.requests) for iteration in mine])])
    tokens = np.concatenate([[0], np.cumsum([iteration.computed_tokens for iteration in mine])])
    starts = np.unique(np.linspace(0, len(mine) - size, _CANDIDATES).round().astype(int))
    best = max(starts.tolist(), key=lambda at: (rows[at + size] - rows[at], tokens[at + size] - tokens[at], -at))
    window = mine[best : best + size]
    end_ns = max(max(iteration.end_ns) for iteration in window)
    return window[0].start_ns[0] / NS_PER_S, max(end_ns, window[0].start_ns[0] + 1) / NS_PER_S


def draw_gantt(data: GanttData, title: str) -> Figure:
    """Return a figure with a row per stage; what is blank is idle, a bubble. Needs no display."""
    size = len(data.labels)
    with styled():
        figure = blank_figure(10, 0.5 * size + 1.5)
        axes = figure.subplots()
        scale, unit = (1.0, "s") if data.end_s - data.first_s >= 1 else (1e3, "ms")
        for row in range(size):
            axes.axhspan(row - 0.4, row + 0.4, color="#888888", alpha=0.12, linewidth=0)
        for row, phase, lane in sorted({(block.row, block.phase, block.lane) for block in data.blocks}):
            bars = [
                ((block.start_s - data.first_s) * scale, (block.end_s - block.start_s) * scale)
                for block in data.blocks
                if (block.row, block.phase, block.lane) == (row, phase, lane)
            ]
            axes.broken_barh(
                bars, (row - 0.4, 0.8), facecolor=PHASE_COLOURS[phase], edgecolor="white", linewidth=0.4,
                alpha=lane_alpha(lane),
            )  # fmt: skip
        axes.set_yticks(range(size), data.labels, fontsize=7.5)
        right = axes.secondary_yaxis("right")
        right.set_yticks(range(size), [f"{share:.0%} busy" for share in data.busy_shares], fontsize=7.5)
        right.tick_params(length=0)
        right.spines["right"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(size - 0.5, -0.5)
        axes.set_xlim(0, (data.end_s - data.first_s) * scale)
        for row in _borders(data.pipelines):
            axes.axhline(row - 0.5, color="#888888", linewidth=0.8)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlabel(f"{unit} after {data.first_s:.6g} s; lanes in shades")
        axes.set_title(title, loc="left", fontsize=11)
        shown = {block.phase for block in data.blocks}
        for phase, shade in PHASE_COLOURS.items():
            if phase in shown:
                axes.fill_between([], [], facecolor=shade, label=str(phase))
        axes.fill_between([], [], facecolor="#888888", alpha=0.2, label="idle")
        figure.legend(loc="outside lower right", ncols=4, frameon=False)
    return figure


def lane_alpha(lane: int) -> float:
    """Return how opaque a lane's blocks are, so that neighbours differ."""
    return (1.0, 0.72, 0.5, 0.86, 0.6)[lane % 5]


def _borders(pipelines: Sequence[int]) -> list[int]:
    """Rows at which another pipeline begins."""
    return [row for row in range(1, len(pipelines)) if pipelines[row] != pipelines[row - 1]]
