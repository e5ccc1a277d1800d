"""Windows, thinning and stretching, and what they do to rate and bursts."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import gamma, poisson
from slob_opt.problem.replay import at_rate, mean_rate, stretched, thinned, window, with_arrivals
from slob_opt.problem.workload import Workload
from slob_opt.problem.workload_stats import workload_stats


def bursty(seed: int = 0) -> Workload:
    times = gamma(1.0, 4.0, 40_000.0, np.random.default_rng(seed)) / 1e9
    return Workload.of("bursty", times, np.arange(times.size) + 1, np.full(times.size, 5))


def test_a_window_starts_at_zero() -> None:
    workload = Workload.of("w", [0.0, 5.0, 7.5, 9.0, 12.0], [1, 2, 3, 4, 5], [1] * 5)
    part = window(workload, 5.0, 9.0)
    assert part.arrival_s.tolist() == [0.0, 2.5]
    assert part.prompt_tokens.tolist() == [2, 3]
    with pytest.raises(InputError, match="no request from 20"):
        window(workload, 20.0, 30.0)


def test_thinning_weakens_bursts_and_stretching_keeps_them() -> None:
    workload = bursty()
    thin, wide = thinned(workload, 0.1, seed=1), stretched(workload, 10.0)
    assert thin.num_requests == pytest.approx(workload.num_requests / 10, rel=0.05)
    assert wide.num_requests == workload.num_requests
    assert mean_rate(thin) == pytest.approx(mean_rate(wide), rel=0.1)
    before, after, kept = (workload_stats(w).gap_cv for w in (workload, thin, wide))
    assert before is not None
    assert after is not None
    assert kept == pytest.approx(before)
    assert after < 0.6 * before
    # Who is kept keeps lengths and time.
    assert set(zip(thin.arrival_ns.tolist(), thin.prompt_tokens.tolist(), strict=True)) <= set(
        zip(workload.arrival_ns.tolist(), workload.prompt_tokens.tolist(), strict=True)
    )


def test_thinning_repeats_with_its_seed() -> None:
    workload = bursty()
    assert thinned(workload, 0.3, 5).fingerprint == thinned(workload, 0.3, 5).fingerprint
    assert thinned(workload, 0.3, 5).fingerprint != thinned(workload, 0.3, 6).fingerprint


def test_at_a_rate() -> None:
    workload = bursty()
    assert mean_rate(at_rate(workload, 0.25)) == pytest.approx(0.25)
    assert mean_rate(at_rate(workload, 0.25, seed=3)) == pytest.approx(0.25, rel=0.05)
    with pytest.raises(InputError, match="thinning can't raise the rate"):
        at_rate(workload, 5.0, seed=3)


def test_thinning_does_to_dispersion_what_it_should() -> None:
    """A share p of a process with index of dispersion D has 1 + p (D - 1)."""
    workload = bursty()
    whole, tenth = (workload_stats(w, span_s=40_000.0).dispersion_60 for w in (workload, thinned(workload, 0.3, 8)))
    assert whole is not None
    assert tenth == pytest.approx(1 + 0.3 * (whole - 1), rel=0.15)


def test_a_stretch_beyond_all_clocks_is_refused() -> None:
    with pytest.raises(InputError, match="would last longer than"):
        stretched(bursty(), 1e9)


def test_other_arrivals_keep_the_lengths() -> None:
    workload = Workload.of("w", [0.0, 1.0], [5, 6], [7, 8], session=np.array([3, 3]))
    moved = with_arrivals(workload, np.array([4, 9]))
    assert (moved.arrival_ns.tolist(), moved.prompt_tokens.tolist(), moved.session) == ([4, 9], [5, 6], None)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_shares_out_of_range(share: float) -> None:
    with pytest.raises(InputError, match=f"share is {share}"):
        thinned(bursty(), share, 0)


def test_stats_of_a_poisson_process() -> None:
    times = poisson(0.5, 200_000.0, np.random.default_rng(2)) / 1e9
    workload = Workload.of("poisson", times, np.full(times.size, 100), np.arange(times.size) % 50 + 1)
    stats = workload_stats(workload)
    assert stats.rate == pytest.approx(0.5, rel=0.02)
    assert stats.gap_cv == pytest.approx(1.0, abs=0.03)
    assert stats.dispersion_60 == pytest.approx(1.0, abs=0.1)
    assert stats.dispersion_600 == pytest.approx(1.0, abs=0.25)
    assert stats.peak_rate == pytest.approx(0.53, abs=0.03)
    assert stats.prompt_quantiles == (100.0,) * 4
    assert stats.output_mean == pytest.approx(25.5, rel=0.01)


def test_stats_of_one_request() -> None:
    stats = workload_stats(Workload.of("one", [3.0], [5], [2]))
    assert (stats.rate, stats.gap_cv, stats.dispersion_60, stats.peak_rate) == (None, None, None, None)


def test_stats_over_a_stated_span() -> None:
    """Arrivals at 10, 70, 71 s of 240 s: 3/240 requests/s, counts of the minutes 1, 2, 0, 0 with mean 3/4."""
    workload = Workload.of("w", [10.0, 70.0, 71.0], [1, 2, 9], [1, 1, 4])
    stats = workload_stats(workload, span_s=240.0)
    assert (stats.rate, stats.span_s, stats.num_sessions) == (3 / 240, 240.0, None)
    assert stats.dispersion_60 == pytest.approx(0.6875 / 0.75)
    assert (stats.prompt_max, stats.output_max) == (9, 4)
    with pytest.raises(InputError, match=r"the last request comes at 71.0 s"):
        workload_stats(workload, span_s=71.0)


def test_stats_of_conversations() -> None:
    workload = Workload.of("w", [0.0, 1.0, 2.0], [1, 1, 1], [1, 1, 1], session=np.array([5, 8, 5]))
    stats = workload_stats(workload)
    assert (stats.num_sessions, stats.turns_mean, stats.turns_max) == (2, 1.5, 2)
