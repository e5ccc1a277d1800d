"""The flat dictionary, and cases of metrics that other tools got wrong."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.goodput import Slo
from slob_opt.metrics.load import StageLoad
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.summary import Extras, summarise
from slob_opt.problem.workload import Workload

S = 1_000_000_000
NONE = np.zeros(0, np.int64)

VLLM = {
    f"{what}_{time}_ms"
    for what in ("mean", "median", "std", "p50", "p90", "p95", "p99")
    for time in ("ttft", "tpot", "itl", "e2el", "queueing")
} | {
    "completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "total_token_throughput",
}  # fmt: skip
OURS = {
    "num_requests", "num_finished", "num_unfinished", "num_rejected", "num_failed", "num_aborted", "num_unseen",
    "num_without_tpot",
    "mean_satisfaction", "p10_satisfaction", "p1_satisfaction", "weighted_mean_satisfaction", "mean_longest_stall_s",
    "p99_longest_stall_s", "max_longest_stall_s",
}  # fmt: skip
EXTRA = {
    "mean_qoe", "p10_qoe", "request_goodput", "slo_attainment", "smooth_goodput", "mean_idle_s",
    "mean_relative_satisfaction", "p10_relative_satisfaction", "p1_relative_satisfaction", "num_hopeless",
    "service_difference", "jain_index", "padding_waste", "bubble_share", "utilisation", "stage_imbalance",
    "pipeline_imbalance",
}  # fmt: skip


def streamed(token_s: list[list[float]]) -> MetricsAccumulator:
    """Requests that arrive at 0 and finish with tokens at these times, seconds."""
    found = MetricsAccumulator(Workload.of("w", [0.0] * len(token_s), [8] * len(token_s), [len(t) for t in token_s]))
    for request, times in enumerate(token_s):
        found.add(request, Status.FINISHED, 0, np.array([round(t * S) for t in times], np.int64))
    return found


def mixed() -> MetricsAccumulator:
    w = Workload.of("five", [0.0, 0.0, 1.0, 2.0, 3.0], [8] * 5, [3, 1, 5, 7, 2], priority=[1.0, 3.0, 1.0, 1.0, 1.0])
    found = MetricsAccumulator(w)
    found.add(0, Status.FINISHED, 0, np.array([S, 2 * S, 4 * S]))
    found.add(1, Status.FINISHED, 0, np.array([S]))
    found.add(2, Status.UNFINISHED, 2 * S, np.array([3 * S]))
    found.add(3, Status.REJECTED, None, NONE)
    found.add(4, Status.ABORTED, None, NONE)
    return found


def test_keys_follow_from_what_is_asked_for() -> None:
    """The same keys for a run where much happened and for one where next to nothing did."""
    full = Extras(
        slo=Slo(ttft_s=1.0),
        idle_s=np.zeros(5),
        alone=np.ones(5),
        client=np.array([0, 0, 1, 1, 2]),
        pipelines=[[StageLoad(5, 0, 10, 8, 1)]],
    )
    nothing = MetricsAccumulator(mixed().workload)
    for request in range(5):
        nothing.add(request, Status.REJECTED, None, NONE)
    for found in (mixed(), nothing):
        figures = summarise(found.columns(), found.itl, 10.0, full)
        assert set(figures) == VLLM | OURS | EXTRA
        assert all(type(value) is float and np.isfinite(value) for value in figures.values())
        assert set(summarise(found.columns(), found.itl, 10.0, Extras(has_qoe=False))) == VLLM | OURS


def test_figures_by_hand() -> None:
    found = mixed()
    figures = summarise(found.columns(), found.itl, 10.0, Extras(slo=Slo(ttft_s=1.0)))
    assert figures["num_requests"] == 5
    assert figures["completed"] == figures["num_finished"] == 2
    assert (figures["num_unfinished"], figures["num_rejected"], figures["num_aborted"]) == (1, 1, 1)
    assert figures["failed"] == 2
    assert figures["max_longest_stall_s"] == 2.0
    assert figures["request_goodput"] == 0.2
    satisfaction = found.columns().satisfaction[:4]
    assert figures["mean_satisfaction"] == pytest.approx(satisfaction.mean())
    assert figures["weighted_mean_satisfaction"] == pytest.approx((satisfaction @ [1, 3, 1, 1]) / 6)


def test_the_first_token_is_no_gap() -> None:
    """Case X08: TTFT 2.0 s, and a mean ITL of 0.1 s over 3 gaps."""
    found = streamed([[2.0, 2.1, 2.2, 2.3]])
    figures = summarise(found.columns(), found.itl, 3.0)
    assert figures["mean_ttft_ms"] == pytest.approx(2000.0)
    assert figures["mean_itl_ms"] == pytest.approx(100.0)
    assert figures["p99_itl_ms"] == pytest.approx(100.0, rel=0.01)
    assert found.itl.count == 3


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 40])
def test_gaps_are_one_fewer_than_tokens(num_tokens: int) -> None:
    """Case X08 for any length: gaps have nothing of the first token's wait."""
    found = streamed([[50 + 0.25 * k for k in range(num_tokens)]])
    assert found.itl.count == num_tokens - 1
    assert found.itl.mean == pytest.approx(0.25 if num_tokens > 1 else 0.0)


def test_one_token_has_no_tpot() -> None:
    """Case X09: requests of one token are left out of TPOT and counted; the mean is 0.1 s."""
    found = streamed([[1.0], [1.2], [1.0, 1.1, 1.2, 1.3, 1.4]])
    figures = summarise(found.columns(), found.itl, 3.0)
    assert figures["mean_tpot_ms"] == pytest.approx(100.0)
    assert figures["median_tpot_ms"] == pytest.approx(100.0)
    assert figures["num_without_tpot"] == 2
    assert figures["completed"] == 3


def test_only_single_tokens_give_zeros_and_no_negative() -> None:
    """Case X09 where no request has a TPOT at all."""
    found = streamed([[1.0], [0.0]])
    figures = summarise(found.columns(), found.itl, 3.0)
    assert figures["mean_tpot_ms"] == figures["p99_tpot_ms"] == figures["mean_itl_ms"] == 0.0
    assert figures["num_without_tpot"] == 2


def test_nobody_counts() -> None:
    found = MetricsAccumulator(Workload.of("one", [0.0], [1], [1]))
    found.add(0, Status.ABORTED, None, NONE)
    with pytest.raises(InputError, match="no request"):
        summarise(found.columns(), found.itl, 1.0)
