"""Figures of requests as they end, the histogram, and latency by vLLM's names."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.latency import latency_figures
from slob_opt.metrics.request_columns import Status
from slob_opt.problem.workload import Workload

S = 1_000_000_000


def three() -> MetricsAccumulator:
    """One finished, one cut short, one rejected, one aborted."""
    workload = Workload.of("four", [0.0, 1.0, 2.0, 3.0], [10, 20, 30, 40], [3, 5, 7, 2])
    found = MetricsAccumulator(workload)
    found.add(0, Status.FINISHED, S // 2, np.array([S, 2 * S, 4 * S]))
    found.add(1, Status.UNFINISHED, 2 * S, np.array([3 * S]))
    found.add(2, Status.REJECTED, None, np.zeros(0, np.int64))
    found.add(3, Status.ABORTED, 4 * S, np.zeros(0, np.int64))
    return found


def test_figures_by_hand() -> None:
    columns = three().columns()
    assert columns.ttft_s[:2].tolist() == [1.0, 2.0]
    assert columns.e2e_s[:2].tolist() == [4.0, 2.0]
    assert columns.tpot_s[0] == 1.5
    assert np.isnan(columns.tpot_s[1])
    assert columns.longest_stall_s[0] == 2.0
    assert columns.queueing_s[:2].tolist() == [0.5, 1.0]
    assert np.isnan(columns.queueing_s[2])
    assert columns.delivered.tolist() == [3, 1, 0, 0]
    assert columns.satisfaction[2] == 0.0
    assert columns.counts.tolist() == [True, True, True, False]
    # Request 1: first token a second late is worth 1 / (1 + 1/5); four of weight 0.98^k never came.
    weights = [10.0, 0.98, 0.98**2, 0.98**3, 0.98**4]
    assert columns.satisfaction[1] == pytest.approx(10 / 1.2 / sum(weights))


def test_latency_has_vllms_names_and_counts_completed_ones() -> None:
    found = three()
    figures = latency_figures(found.columns(), found.itl, 10.0)
    assert figures["completed"] == 1
    assert figures["failed"] == 2
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (10, 3)
    assert figures["request_throughput"] == 0.1
    assert figures["mean_ttft_ms"] == 1000.0
    assert figures["mean_tpot_ms"] == 1500.0
    assert figures["p99_e2el_ms"] == 4000.0
    assert figures["mean_itl_ms"] == pytest.approx(1500.0)


def test_a_request_is_entered_once_and_within_its_length() -> None:
    found = three()
    with pytest.raises(InputError, match="request 0 was entered before"):
        found.add(0, Status.FINISHED, 0, np.zeros(0, np.int64))
    fresh = MetricsAccumulator(Workload.of("one", [0.0], [1], [1]))
    with pytest.raises(InputError, match="2 tokens delivered, more than its 1"):
        fresh.add(0, Status.FINISHED, 0, np.array([1, 2]))


@pytest.mark.parametrize("seed", range(4))
def test_histogram_quantiles(seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(-4, 1.5, 120_000)
    found = LogHistogram()
    for part in np.array_split(times, 700):
        found.add(part)
    assert found.count == times.size
    assert found.mean == pytest.approx(times.mean())
    assert found.std == pytest.approx(times.std(), rel=1e-6)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999):
        assert found.quantile(share) == pytest.approx(float(np.quantile(times, share)), rel=0.008)
    assert found.quantile(1.0) <= times.max()


def test_histogram_of_nothing() -> None:
    found = LogHistogram()
    assert (found.count, found.mean, found.std, found.quantile(0.5)) == (0, 0.0, 0.0, 0.0)
