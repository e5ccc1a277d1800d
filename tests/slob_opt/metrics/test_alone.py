"""Requests in company against alone."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.alone import relative_satisfaction, weighted_latency_ratio
from slob_opt.metrics.request_columns import RequestColumns, Status
from slob_opt.problem.workload import Workload

S = 1_000_000_000
NONE = np.zeros(0, np.int64)


def four() -> RequestColumns:
    """Latencies 2 s and 6 s, one cut off that arrived at 1 s, one rejected; priorities 1, 2, 1, 5."""
    w = Workload.of("four", [0.0, 0.0, 1.0, 1.0], [1] * 4, [1] * 4, priority=[1.0, 2.0, 1.0, 5.0])
    found = MetricsAccumulator(w)
    found.add(0, Status.FINISHED, 0, np.array([2 * S]))
    found.add(1, Status.FINISHED, 0, np.array([6 * S]))
    found.add(2, Status.UNFINISHED, None, NONE)
    found.add(3, Status.REJECTED, None, NONE)
    return found.columns()


def test_relative_satisfaction() -> None:
    # One token at 2 s and at 6 s is worth 1 / 1.2 and 1 / 2.
    found = relative_satisfaction(four(), np.array([1 / 1.2, 1.0, 1.0, 1.0]))
    assert found["mean_relative_satisfaction"] == pytest.approx((1 + 0.5) / 4)
    assert found["p10_relative_satisfaction"] == pytest.approx(0.0)
    assert found["num_hopeless"] == 0


def test_what_is_hopeless_alone_is_counted_and_left_out() -> None:
    found = relative_satisfaction(four(), np.array([1.0, 1.0, 0.0, 1.0]))
    assert found["mean_relative_satisfaction"] == pytest.approx((1 / 1.2 + 0.5) / 3)
    assert found["num_hopeless"] == 1
    assert relative_satisfaction(four(), np.zeros(4))["mean_relative_satisfaction"] == 0.0


def test_weighted_latency() -> None:
    # (1 * 2 + 2 * 6 + 1 * 9) / (1 * 1 + 2 * 2 + 1 * 3): the third is cut off after 9 s, the rejected one is no part.
    assert weighted_latency_ratio(four(), np.array([1.0, 2.0, 3.0, 0.0]), 10 * S) == pytest.approx(23 / 8)


def test_alone_is_one() -> None:
    columns = four()
    alone = np.where(np.isfinite(columns.e2e_s), columns.e2e_s, 9.0)
    assert weighted_latency_ratio(columns, alone, 10 * S) == pytest.approx(1.0)


def test_columns_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"latency alone has shape \(3,\)"):
        weighted_latency_ratio(four(), np.ones(3), 10 * S)
    with pytest.raises(InputError, match="isn't above zero"):
        weighted_latency_ratio(four(), np.array([1.0, 0.0, 1.0, 1.0]), 10 * S)
    with pytest.raises(InputError, match="isn't finite everywhere"):
        relative_satisfaction(four(), np.array([1.0, np.nan, 1.0, 1.0]))
