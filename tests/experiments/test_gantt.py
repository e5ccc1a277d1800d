from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trace_setups import hand_trace

from experiments.gantt import GanttBlock, busy_window, draw_gantt, gantt_data
from experiments.plots import save
from slob_opt.errors import InputError
from slob_opt.metrics.trace_phases import Phase

NS = 1e-9


def test_blocks_are_the_iterations_on_each_stage() -> None:
    data = gantt_data(hand_trace(), 0.0, 60 * NS)
    assert data.labels == ("p0 box-0/0\nlayers 0–1", "p0 box-1/0\nlayers 2–3")
    assert data.pipelines == (0, 0)
    assert [(b.row, round(b.start_s / NS), round(b.end_s / NS), b.phase, b.lane) for b in data.blocks] == [
        (0, 0, 10, Phase.PREFILL, 0),
        (0, 10, 20, Phase.PREFILL, 1),
        (0, 21, 26, Phase.DECODE, 0),
        (0, 31, 36, Phase.DECODE, 1),
        (0, 36, 41, Phase.DECODE, 0),
        (1, 10, 20, Phase.PREFILL, 0),
        (1, 20, 30, Phase.PREFILL, 1),
        (1, 30, 35, Phase.DECODE, 0),
        (1, 36, 41, Phase.DECODE, 1),
        (1, 41, 46, Phase.DECODE, 0),
    ]
    assert data.busy_shares == pytest.approx((35 / 60, 35 / 60))


def test_blocks_are_cut_at_the_window() -> None:
    """[15, 32): stage 0 works 5 + 5 + 1 of 17 ns, stage 1 5 + 10 + 2."""
    data = gantt_data(hand_trace(), 15 * NS, 32 * NS)
    assert data.busy_shares == pytest.approx((11 / 17, 1.0))
    assert data.blocks[0] == GanttBlock(0, 15 / 1e9, 20 / 1e9, Phase.PREFILL, 1, 1, 2)
    with pytest.raises(InputError, match="expected a later end"):
        gantt_data(hand_trace(), 1.0, 1.0)


def test_the_window_holds_the_most_requests() -> None:
    """With the second batch's request beside a third one, the two batches from the second on hold most."""
    trace = hand_trace()
    first, second, *rest = trace.iterations
    trace = replace(trace, iterations=(first, second, rest[0]._replace(requests=(0, 1), tokens=(1, 1)), *rest[1:]))
    assert busy_window(trace, 2) == pytest.approx((10 * NS, 35 * NS))
    assert busy_window(trace) == pytest.approx((0.0, 46 * NS))
    with pytest.raises(InputError, match="no iteration"):
        busy_window(replace(trace, iterations=()))


def test_it_draws(tmp_path: Path) -> None:
    png, svg = save(draw_gantt(gantt_data(hand_trace(), 0.0, 60 * NS), "by hand"), tmp_path, "gantt")
    assert png.stat().st_size > 5_000
    text = svg.read_text(encoding="utf-8")
    for word in ("box-0/0", "layers 2–3", "prefill", "decode", "idle", "58% busy", "by hand"):
        assert word in text
