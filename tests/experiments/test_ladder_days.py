"""Days of unequal hours."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.ladder_days import Day
from slob_opt.errors import InputError


def test_each_hour_has_its_own_load() -> None:
    day = Day("office_chat", (1.0, 8.0, 1.0), 1800.0)
    workload = day.sample(4.0, 3)
    counts = np.bincount((workload.arrival_s // 1800).astype(int), minlength=3)
    # 0.25 and 2 requests/s over half an hour; conversations make it lumpy.
    assert counts == pytest.approx([450, 3600, 450], rel=0.3)
    assert workload.fingerprint == day.sample(4.0, 3).fingerprint
    assert workload.fingerprint != day.sample(4.0, 4).fingerprint
    assert workload.ttft_s is not None


def test_wrong_days_are_refused() -> None:
    with pytest.raises(InputError, match="offered concurrency above 0"):
        Day("office_chat", (1.0, 0.0))
    with pytest.raises(InputError, match="did you mean office_chat"):
        Day("office_chats", (1.0,))
