from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.calibration_links import SIZES, Transfer, fit_link
from slob_opt.errors import InputError


def transfers(latency_s: float, bytes_per_s: float, noise: float = 0.0) -> list[Transfer]:
    rng = np.random.default_rng(0)
    return [
        Transfer(size, (latency_s + size / bytes_per_s) * float(np.exp(noise * rng.standard_normal())))
        for size in SIZES
    ]


@given(st.floats(1e-6, 1e-2), st.floats(1e8, 1e11))
def test_exact_times_give_the_link_back(latency_s: float, bytes_per_s: float) -> None:
    fit = fit_link(transfers(latency_s, bytes_per_s))
    assert fit.link.latency_s == pytest.approx(latency_s, rel=1e-3)
    told = fit.link.latency_s + SIZES[-1] / fit.link.bytes_per_s
    assert told == pytest.approx(latency_s + SIZES[-1] / bytes_per_s, rel=1e-3)
    assert fit.worst_error < 1e-2


def test_noise_is_told() -> None:
    fit = fit_link(transfers(3e-5, 2e9, noise=0.2))
    assert 0.02 < fit.median_error < 0.3
    assert fit.link.latency_s == pytest.approx(3e-5, rel=0.3)


def test_a_link_without_a_limit_has_a_large_one() -> None:
    assert fit_link([Transfer(size, 1e-3) for size in SIZES]).link.bytes_per_s == 1e12


def test_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="1 sizes of messages"):
        fit_link([Transfer(64, 1e-5)])
    with pytest.raises(InputError, match="above zero"):
        fit_link([Transfer(64, 1e-5), Transfer(128, 0.0)])
