"""The measured window."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.summary import Extras, summarise
from slob_opt.metrics.window import Window, columns_in
from slob_opt.problem.workload import Workload

S = 1_000_000_000


def burst_then_steady() -> Outcomes:
    """64 requests at once, each served 0.5 s after the one before; then 100 a second apart that wait 0.2 s."""
    arrival = [0.0] * 64 + [60.0 + i for i in range(100)]
    first = [round((0.5 * (i + 1)) * S) for i in range(64)] + [round((60.2 + i) * S) for i in range(100)]
    w = Workload.of("burst", arrival, [10] * 164, [2] * 164)
    entries = [Outcome(i, Status.FINISHED, 0, t, np.array([t, t + S // 10])) for i, t in enumerate(first)]
    return Outcomes.of(w, entries, 200 * S)


def test_a_burst_at_the_start_does_not_bend_percentiles() -> None:
    """Case X11: warm-up and cool-down are cut and the bounds are told."""
    kept = burst_then_steady()
    whole = kept.accumulate()
    raw = summarise(whole.columns(), whole.itl, 200.0)
    assert raw["p99_ttft_ms"] > 30_000
    assert "window_first_s" not in raw
    window = Window.cut(kept.workload, warm_up_s=60.0, cool_down_s=10.0)
    part = kept.take(np.flatnonzero(window.holds(kept.workload))).accumulate()
    found = summarise(whole.columns(), part.itl, 200.0, Extras(window=window))
    assert found["p99_ttft_ms"] == pytest.approx(200.0)
    assert found["mean_itl_ms"] == pytest.approx(100.0)
    assert (found["window_first_s"], found["window_end_s"]) == (60.0, 149.0)
    assert found["completed"] == found["num_requests"] == 89
    assert found["request_throughput"] == pytest.approx(1.0)


def test_requests_are_in_or_out_by_arrival_not_by_what_became_of_them() -> None:
    kept = burst_then_steady()
    window = Window.cut(kept.workload, warm_up_s=1.0)
    found = columns_in(kept.accumulate().columns(), window)
    assert found.status.size == 100  # those of the burst that end within the window are out
    assert found.workload.arrival_ns[0] == 60 * S
    assert found.ttft_s.shape == found.satisfaction.shape == (100,)


def test_no_cut_keeps_all() -> None:
    w = burst_then_steady().workload
    assert Window.cut(w).holds(w).all()
    assert Window.cut(w, cool_down_s=1e-9).holds(w).sum() == 163


def test_nothing_left() -> None:
    w = burst_then_steady().workload
    with pytest.raises(InputError, match="no request is left"):
        Window.cut(w, warm_up_s=100.0, cool_down_s=100.0)
    with pytest.raises(InputError, match="no request is left"):
        Window.cut(w, warm_up_s=30.0, cool_down_s=105.0)
    with pytest.raises(InputError, match="expected at least zero"):
        Window.cut(w, warm_up_s=-1.0)
    with pytest.raises(InputError, match="is empty"):
        Window(5, 5)
    with pytest.raises(InputError, match="no request arrives in the window"):
        columns_in(burst_then_steady().accumulate().columns(), Window(10, 20))
