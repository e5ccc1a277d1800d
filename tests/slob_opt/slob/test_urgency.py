"""What a delay costs: the formulas against sums and numeric derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.slob.urgency import Reading, loss_rate, lost, stream_loss, waiting_loss


@given(st.floats(1, 3000))
def test_total_weight_is_the_sum(tokens: float) -> None:
    reading = Reading()
    count = round(tokens)
    weights = [10.0] + [max(0.5, 0.98 ** (k - 1)) for k in range(2, count + 1)]
    assert float(reading.total_weight(np.array(float(count)))) == pytest.approx(sum(weights), rel=2e-3)


@given(st.floats(0.01, 200), st.floats(1, 20))
def test_rate_is_the_derivative(late: float, scale: float) -> None:
    step = 1e-5 * max(1.0, late)
    slope = (lost(np.array(late + step), scale) - lost(np.array(late - step), scale)) / (2 * step)
    assert float(loss_rate(np.array(late), scale)) == pytest.approx(float(slope), rel=1e-3)


@given(st.floats(0.1, 60))
def test_stream_loss_is_about_the_sum_over_late_tokens(late: float) -> None:
    # Tokens become 0.1 s less late each: the sum of (1 - phi) over them, up to the step of the sum.
    sizes = late - 0.1 * np.arange(int(late / 0.1) + 1)
    assert float(stream_loss(np.array(late), 5.0, 0.1)) == pytest.approx(float(lost(sizes, 5.0).sum()), abs=1.0)


def test_nothing_is_lost_before_a_token_is_due() -> None:
    early = np.array([-10.0, -0.1, 0.0])
    assert lost(early, 5.0).tolist() == [0.0, 0.0, 0.0]
    assert stream_loss(early, 5.0, 0.1).tolist() == [0.0, 0.0, 0.0]
    assert waiting_loss(early, Reading(), 0.1).tolist() == [0.0, 0.0, 0.0]
    assert loss_rate(np.array([-1.0]), 5.0).tolist() == [0.0]


@given(st.floats(0, 100), st.floats(0, 100))
def test_losses_grow_with_lateness(a: float, b: float) -> None:
    low, high = np.array(min(a, b)), np.array(max(a, b))
    assert waiting_loss(low, Reading(), 0.1) <= waiting_loss(high, Reading(), 0.1) + 1e-12
