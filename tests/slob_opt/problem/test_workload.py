"""Workloads: columns that are checked once and can't be written."""

from __future__ import annotations

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.workload import Workload


def test_columns_in_order_and_read_only() -> None:
    workload = Workload.of("w", [0.5, 0.5, 2.0], [1, 2, 3], [4, 5, 6], max_new_tokens=5, ttft_s=2.0)
    assert workload.arrival_ns.tolist() == [500_000_000, 500_000_000, 2_000_000_000]
    assert workload.max_new_tokens.tolist() == [5, 5, 6]
    assert workload.priority.tolist() == [1.0] * 3
    assert workload.ttft_s is not None
    assert workload.ttft_s.tolist() == [2.0] * 3
    assert workload.tpot_s is None
    with pytest.raises(ValueError, match="read-only"):
        workload.prompt_tokens[0] = 9


@pytest.mark.parametrize(
    ("arrival", "prompt", "output", "more", "message"),
    [
        ([], [], [], {}, "has no request"),
        ([1.0, 0.5], [1, 1], [1, 1], {}, "request 1 arrives before request 0"),
        ([-1.0], [1], [1], {}, "request 0 arrives at -1.0 s"),
        ([float("nan")], [1], [1], {}, "not finite"),
        ([0.0], [0], [1], {}, "request 0 has 0 prompt_tokens"),
        ([0.0, 1.0], [1, 1], [1, 0], {}, "request 1 has 0 output_tokens"),
        ([0.0], [1], [9], {"max_new_tokens": [5]}, "puts out 9 tokens, more than its max_new_tokens of 5"),
        ([0.0], [1], [1], {"priority": [0.0]}, "request 0 has priority 0.0"),
        ([0.0], [1], [1], {"tpot_s": -0.5}, "request 0 has tpot_s -0.5"),
        ([0.0, 1.0], [1], [1, 1], {}, r"prompt_tokens has shape \(1,\), expected \(2,\)"),
    ],
)
def test_wrong_columns_are_told(
    arrival: list[float], prompt: list[int], output: list[int], more: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Workload.of("w", arrival, prompt, output, **more)  # type: ignore[arg-type]


def test_fingerprint_is_of_the_columns() -> None:
    first, second = Workload.of("a", [0.0], [1], [2]), Workload.of("b", [0.0], [1], [2])
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint != Workload.of("a", [0.0], [1], [2], ttft_s=1.0).fingerprint


def test_taking_and_the_planners_view() -> None:
    workload = Workload.of("w", [0.0, 1.0, 2.0], [10, 20, 30], [1, 2, 6], session=np.array([4, 4, 5]))
    part = workload.take(np.array([0, 2]))
    assert part.prompt_tokens.tolist() == [10, 30]
    assert part.session is not None
    assert part.session.tolist() == [4, 5]
    assert (workload.profile().prompt_tokens, workload.profile().output_tokens) == (20, 3)
