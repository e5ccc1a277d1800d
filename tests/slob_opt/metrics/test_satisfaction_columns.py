"""Satisfaction of a whole record against the meter that takes one request, and idle time against a played reader."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.satisfaction import Decay, SatisfactionMeter, SatisfactionSpec
from slob_opt.metrics.satisfaction_columns import idle_column, satisfaction_column
from slob_opt.problem.workload import Workload

S = 1_000_000_000


def random_record(seed: int, *, has_targets: bool) -> Outcomes:
    rng = np.random.default_rng(seed)
    size = 40
    w = Workload.of(
        "random",
        np.sort(rng.uniform(0, 9, size)),
        [5] * size,
        rng.integers(2, 60, size),
        ttft_s=3.0 if has_targets else None,
        tpot_s=0.1 if has_targets else None,
    )
    found = []
    for request in range(size):
        num = int(w.output_tokens[request]) if request % 2 else int(rng.integers(0, w.output_tokens[request]))
        times = int(w.arrival_ns[request]) + np.cumsum(rng.integers(0, S, num))
        status = Status.FINISHED if request % 2 else Status.UNFINISHED
        found.append(Outcome(request, status, 0, int(w.arrival_ns[request]), times))
    return Outcomes.of(w, found, 100 * S)


@pytest.mark.parametrize(("decay", "has_targets"), list(itertools.product(Decay, (False, True))))
def test_is_what_the_meter_says(decay: Decay, has_targets: bool) -> None:
    spec = SatisfactionSpec(decay=decay, scale_s=2.0, first_weight=4.0)
    kept = random_record(len(decay), has_targets=has_targets)
    meter, w = SatisfactionMeter(spec), kept.workload
    expected = [
        meter.of(
            int(w.arrival_ns[request]),
            kept.tokens_of(request),
            int(w.output_tokens[request]),
            None if w.ttft_s is None else float(w.ttft_s[request]),
            None if w.tpot_s is None else float(w.tpot_s[request]),
        )
        for request in range(w.num_requests)
    ]
    np.testing.assert_allclose(satisfaction_column(kept, spec), expected, atol=1e-12)
    np.testing.assert_allclose(kept.accumulate(spec).columns().satisfaction, expected, atol=1e-12)


def one(status: Status, token_s: list[float], length: int, end_s: float) -> Outcomes:
    times = np.array([round(t * S) for t in token_s], np.int64)
    entry = Outcome(0, status, None if status is Status.REJECTED else 0, 0 if times.size else None, times)
    return Outcomes.of(Workload.of("one", [0.0], [1], [length]), [entry], round(end_s * S))


def test_failed_ones_are_worth_nothing_whatever_came() -> None:
    assert satisfaction_column(one(Status.FAILED, [0.5, 0.6], 3, 9.0), SatisfactionSpec())[0] == 0.0
    assert satisfaction_column(one(Status.UNFINISHED, [0.5, 0.6], 3, 9.0), SatisfactionSpec())[0] > 0.5
    assert satisfaction_column(one(Status.REJECTED, [], 3, 9.0), SatisfactionSpec())[0] == 0.0


@given(st.lists(st.floats(0, 3), min_size=1, max_size=30))
def test_idle_time_is_that_of_a_reader_played_token_by_token(gaps: list[float]) -> None:
    spec = SatisfactionSpec()
    token_s = np.cumsum(gaps)
    ready, idle = spec.ttft_s, 0.0  # when the reader wants the next token, and how long it has waited in all
    for time in token_s:
        idle += max(0.0, time - ready)
        ready = max(ready, time) + 1 / spec.tokens_per_s
    found = idle_column(one(Status.FINISHED, token_s.tolist(), len(gaps), 1000.0), spec)
    assert found[0] == pytest.approx(idle, abs=1e-6)


def test_a_reader_who_was_cut_off_still_waits_at_the_end() -> None:
    spec = SatisfactionSpec(tokens_per_s=5.0)
    # The second token was due at 1.2 s and the record ends at 10 s.
    assert idle_column(one(Status.UNFINISHED, [0.5], 3, 10.0), spec)[0] == pytest.approx(8.8)
    assert idle_column(one(Status.UNFINISHED, [], 3, 10.0), spec)[0] == pytest.approx(9.0)
    assert idle_column(one(Status.ABORTED, [0.5], 3, 10.0), spec)[0] == 0.0
    assert idle_column(one(Status.REJECTED, [], 3, 10.0), spec)[0] == 0.0
    assert idle_column(one(Status.FINISHED, [3.0], 1, 10.0), spec)[0] == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(3))
def test_idle_time_of_the_accumulator_is_the_same(seed: int) -> None:
    kept = random_record(seed, has_targets=bool(seed % 2))
    np.testing.assert_allclose(kept.accumulate().columns().idle_s, idle_column(kept, SatisfactionSpec()), atol=1e-6)
