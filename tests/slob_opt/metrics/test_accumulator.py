"""Figures of requests as they end, the histogram, and latency by vLLM's names."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import BUFFER, MetricsAccumulator
from slob_opt.metrics.histogram import LogHistogram
from slob_opt.metrics.latency import latency_figures
from slob_opt.metrics.qoe import qoe
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import SatisfactionMeter, SatisfactionSpec
from slob_opt.metrics.summary import summarise
from slob_opt.metrics.window import Window
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


def test_only_gaps_of_finished_requests_are_times_between_tokens() -> None:
    workload = Workload.of("two", [0.0, 0.0], [1, 1], [3, 3])
    found = MetricsAccumulator(workload)
    found.add(0, Status.FINISHED, 0, np.array([S, 2 * S, 4 * S]))
    found.add(1, Status.ABORTED, 0, np.array([S, 9 * S]))
    assert (found.itl.count, found.itl.mean) == (2, 1.5)


def cut_off(end_ns: int | None, num_delivered: int = 50) -> MetricsAccumulator:
    """100 tokens of which the first come quickly and the rest never."""
    found = MetricsAccumulator(Workload.of("one", [0.0], [1], [100]), end_ns=end_ns)
    found.add(0, Status.UNFINISHED, 0, S // 2 + np.arange(num_delivered) * (S // 10))
    return found


def test_a_stall_that_never_ended_lasts_until_the_end() -> None:
    # The last of 50 tokens comes at 5.4 s; the record ends at 60 s.
    columns = cut_off(60 * S).columns()
    assert columns.longest_stall_s[0] == pytest.approx(54.6)
    assert columns.idle_s[0] == pytest.approx(60 - (1 + 50 / 5.3))
    assert cut_off(None).columns().longest_stall_s[0] == pytest.approx(0.1)
    assert cut_off(60 * S, num_delivered=1).columns().longest_stall_s[0] == pytest.approx(59.5)
    assert np.isnan(cut_off(60 * S, num_delivered=0).columns().longest_stall_s[0])
    assert cut_off(60 * S, num_delivered=0).columns().idle_s[0] == pytest.approx(59.0)


def test_quality_of_what_was_cut_off_counts_tokens_that_never_came() -> None:
    """Half an answer on time and then nothing isn't a perfect answer; one token isn't either."""
    assert cut_off(60 * S).columns().qoe[0] < 0.6
    assert cut_off(60 * S, num_delivered=1).columns().qoe[0] < 0.02
    assert cut_off(10**6 * S).columns().qoe[0] == pytest.approx(0.5, abs=1e-3)


def test_failed_requests_are_worth_nothing_whatever_came() -> None:
    found = MetricsAccumulator(Workload.of("one", [0.0], [1], [3]))
    found.add(0, Status.FAILED, 0, np.array([S // 2, S // 2 + 1]))
    columns = found.columns()
    assert (columns.satisfaction[0], columns.qoe[0], columns.delivered[0]) == (0.0, 0.0, 2)


@pytest.mark.parametrize(
    ("token_ns", "message"),
    [(np.array([S, 3 * S]), "from before it arrived"), (np.array([3 * S, 2 * S]), "from before the one that precedes")],
)
def test_tokens_out_of_order(token_ns: np.ndarray, message: str) -> None:
    found = MetricsAccumulator(Workload.of("one", [2.0], [1], [3]))
    with pytest.raises(InputError, match=f"request 0 has a token {message}"):
        found.add(0, Status.FINISHED, 2 * S, token_ns)
    assert found.columns().status[0] == Status.UNSEEN


@pytest.mark.parametrize(
    ("request_id", "status", "started_ns", "token_ns", "message"),
    [
        (0, Status.REJECTED, None, [3 * S], "request 0 is rejected with 1 of its 3 tokens"),
        (0, Status.FINISHED, 2 * S, [3 * S], "request 0 is finished with 1 of its 3 tokens"),
        (0, Status.FINISHED, S, [3 * S, 3 * S, 3 * S], "request 0 started before it arrived"),
        (0, Status.UNSEEN, None, [], "request 0 is entered as unseen"),
        (-1, Status.UNFINISHED, None, [], "request -1 isn't one of the 1 of the workload"),
        (1, Status.UNFINISHED, None, [], "request 1 isn't one of the 1 of the workload"),
    ],
)
def test_what_contradicts_itself_is_refused_and_leaves_no_trace(
    request_id: int, status: Status, started_ns: int | None, token_ns: list[int], message: str
) -> None:
    """A rejected request with a token was worth 0.84, and -1 was the last request."""
    found = MetricsAccumulator(Workload.of("one", [2.0], [1], [3]))
    with pytest.raises(InputError, match=message):
        found.add(request_id, status, started_ns, np.array(token_ns, np.int64))
    columns = found.columns()
    assert (columns.status[0], columns.delivered[0], columns.satisfaction[0]) == (Status.UNSEEN, 0, 0.0)


@pytest.mark.parametrize("times", [[1.0, 2.0], [0.5, 0.5, 0.1], [3.0], [0.0, 0.0, 1.0], [1e-9, 1e4]])
def test_quantiles_of_few_times_are_numpys(times: list[float]) -> None:
    found = LogHistogram()
    found.add(np.array(times))
    for share in (0.0, 0.25, 0.5, 0.9, 1.0):
        assert found.quantile(share) == pytest.approx(float(np.quantile(times, share)), rel=0.005, abs=2e-9)


def test_a_long_array_is_entered_at_once() -> None:
    found = LogHistogram()
    found.add_ns(np.arange(3, dtype=np.int64))
    found.add_ns(np.full(100_000, S))
    assert found.count == 100_003
    assert found.quantile(0.5) == pytest.approx(1.0, rel=0.005)


def test_without_qoe_there_is_none_to_report() -> None:
    found = MetricsAccumulator(Workload.of("one", [0.0], [1], [2]), has_qoe=False)
    found.add(0, Status.FINISHED, 0, np.array([S, 2 * S]))
    assert found.columns().qoe is None
    assert "mean_qoe" not in summarise(found.columns(), found.itl, 3.0)
    assert found.columns().satisfaction[0] > 0.9


def test_who_was_never_handed_over_is_counted_apart() -> None:
    found = MetricsAccumulator(Workload.of("two", [0.0, 0.0], [1, 1], [1, 1]))
    found.add(0, Status.FINISHED, 0, np.array([S]))
    figures = summarise(found.columns(), found.itl, 3.0)
    assert (figures["num_finished"], figures["num_unseen"], figures["num_requests"]) == (1, 1, 2)
    assert figures["mean_satisfaction"] == 0.5  # what never came is worth nothing


def test_times_between_tokens_of_a_window() -> None:
    """Gaps of 1 s before the window and 3 s in it."""
    workload = Workload.of("two", [0.0, 10.0], [1, 1], [3, 3])
    found = MetricsAccumulator(workload, window=Window(5 * S, 11 * S))
    found.add(0, Status.FINISHED, 0, np.array([S, 2 * S, 3 * S]))
    found.add(1, Status.FINISHED, 10 * S, np.array([11 * S, 14 * S, 17 * S]))
    assert (found.itl.count, found.itl.mean) == (2, 3.0)
    assert np.isfinite(found.columns().ttft_s).all()


@pytest.mark.parametrize("seed", range(3))
def test_working_on_many_answers_at_once_is_the_same_as_on_each(seed: int) -> None:
    """Answers from one token to more than the buffer holds, against the formulas for one request."""
    rng = np.random.default_rng(seed)
    length = np.concatenate([rng.integers(1, 400, 80), [1, 2 * BUFFER]])
    workload = Workload.of("many", np.arange(82) * 3.0, [5] * 82, length)
    spec = SatisfactionSpec()
    found, meter = MetricsAccumulator(workload, spec, end_ns=10**14), SatisfactionMeter(spec)
    expected = []
    for request, size in enumerate(length.tolist()):
        size = size if request % 3 else max(0, size - 7)  # noqa: PLW2901 - some are cut off
        status = Status.FINISHED if size == length[request] else Status.UNFINISHED
        arrival = int(workload.arrival_ns[request])
        first = rng.integers(0, 4 * S)
        token_ns = arrival + first + np.cumsum(rng.integers(0, S // (2 + request % 9), size))
        found.add(request, status, arrival, token_ns)
        end = 10**14 if status is Status.UNFINISHED else int(token_ns[-1])
        since = (token_ns - arrival) / S
        quality = qoe(since, int(length[request]), spec.ttft_s, spec.tokens_per_s, (end - arrival) / S)
        expected.append((meter.of(arrival, token_ns, int(length[request])), quality))
        token_ns[:] = 0  # the accumulator keeps nothing of the caller's
    columns = found.columns()
    assert columns.qoe is not None
    assert columns.satisfaction == pytest.approx(np.array([s for s, _ in expected]), rel=1e-9)
    assert columns.qoe == pytest.approx(np.array([q for _, q in expected]), rel=1e-6, abs=1e-9)
