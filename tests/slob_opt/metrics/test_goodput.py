"""Goodput by limits as vLLM counts it, and smooth goodput by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.goodput import Slo, goodput_figures, meets_slo, smooth_goodput
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.problem.workload import Workload

S = 1_000_000_000
NONE = np.zeros(0, np.int64)


def five(ttft_s: float | None = None) -> RequestColumns:
    """TTFT 1, 2 and 1 s, TPOT 0.5 s, 0.5 s and none (one token); one cut off after a token, one aborted."""
    w = Workload.of("five", [0.0] * 5, [1] * 5, [3, 3, 1, 3, 3], ttft_s=ttft_s)
    found = MetricsAccumulator(w)
    found.add(0, Status.FINISHED, 0, np.array([2 * S, 3 * S, 4 * S]) // 2)
    found.add(1, Status.FINISHED, 0, np.array([4 * S, 5 * S, 6 * S]) // 2)
    found.add(2, Status.FINISHED, 0, np.array([S]))
    found.add(3, Status.UNFINISHED, 0, np.array([S]))
    found.add(4, Status.ABORTED, 0, NONE)
    return found.columns()


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_s=1.0), [True, False, True, False, False]),
        (Slo(ttft_s=0.999), [False] * 5),
        (Slo(tpot_s=0.5), [True, True, True, False, False]),  # limits included; one token has TPOT 0
        (Slo(tpot_s=0.4), [False, False, True, False, False]),
        (Slo(e2e_s=2.0), [True, False, True, False, False]),
        (Slo(ttft_s=9.0, tpot_s=9.0, e2e_s=9.0), [True, True, True, False, False]),
    ],
)
def test_all_limits_must_be_met(slo: Slo, good: list[bool]) -> None:
    assert meets_slo(five(), slo).tolist() == good


def test_own_targets_go_before_the_limits() -> None:
    columns = five(ttft_s=2.0)
    assert meets_slo(columns, Slo(ttft_s=1.0)).tolist() == [True, False, True, False, False]
    assert meets_slo(columns, Slo(ttft_s=1.0, has_own_targets=True)).tolist() == [True, True, True, False, False]
    assert meets_slo(columns, Slo(e2e_s=2.0, has_own_targets=True)).tolist() == [True, False, True, False, False]


def test_figures_count_what_was_cut_off_and_not_what_was_aborted() -> None:
    assert goodput_figures(five(), Slo(ttft_s=1.0), 10.0) == {"request_goodput": 0.2, "slo_attainment": 0.5}


def test_turning_requests_away_does_not_raise_attainment() -> None:
    w = Workload.of("two", [0.0, 0.0], [1, 1], [1, 1])
    found = MetricsAccumulator(w)
    found.add(0, Status.FINISHED, 0, np.array([S]))
    found.add(1, Status.REJECTED, None, NONE)
    assert goodput_figures(found.columns(), Slo(ttft_s=1.0), 1.0)["slo_attainment"] == 0.5


def test_smooth_goodput() -> None:
    # 8 tokens came to the four that count, their readers sat idle for 1.5 s: (8 - 4 * 1.5) / 2 s.
    idle = np.array([0.5, 1.0, 0.0, 0.0, 99.0])
    spec = SatisfactionSpec(tokens_per_s=4.0)
    assert smooth_goodput(five(), idle, 2.0, spec) == pytest.approx(1.0)
    assert smooth_goodput(five(), idle, 2.0, spec, alpha_tokens_per_s=0.0) == pytest.approx(4.0)
    assert smooth_goodput(five(), 100 * idle, 2.0, spec) < 0
    assert smooth_goodput(five(), idle, 0.0, spec) == 0.0


def test_wrong_limits() -> None:
    with pytest.raises(InputError, match="no limit is given"):
        Slo()
    with pytest.raises(InputError, match="tpot_s is -1"):
        Slo(ttft_s=1.0, tpot_s=-1.0)
    assert Slo(has_own_targets=True).ttft_s is None
