"""Service of clients in weighted tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.errors import InputError
from slob_opt.metrics.fairness import (
    ServiceWeights,
    jain_index,
    service_by_client,
    service_difference,
    service_over_time,
)
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.problem.workload import Workload

S = 1_000_000_000
CLIENT = np.array([0, 1, 0])


def record() -> Outcomes:
    """Client 0: 10 prompt and 2 output tokens, and a request that never started. Client 1: 4 and 3 of 5."""
    w = Workload.of("three", [0.0, 0.0, 0.0], [10, 4, 7], [2, 5, 1])
    return Outcomes.of(
        w,
        [
            Outcome(0, Status.FINISHED, 0, S, np.array([2 * S, 3 * S])),
            Outcome(1, Status.UNFINISHED, 0, 2 * S, np.array([3 * S, 4 * S, 5 * S])),
            Outcome(2, Status.UNFINISHED, 0, None, np.zeros(0, np.int64)),
        ],
        10 * S,
    )


def test_service_counts_prompts_that_started_and_tokens_that_came() -> None:
    columns = record().accumulate().columns()
    assert service_by_client(columns, CLIENT).tolist() == [10 + 2 * 2, 4 + 2 * 3]
    assert service_by_client(columns, CLIENT, ServiceWeights(0.5, 1.0)).tolist() == [7, 5]
    assert service_by_client(columns, CLIENT, share=np.array([2.0, 1.0])).tolist() == [7, 10]
    assert service_difference(service_by_client(columns, CLIENT)) == 4


def test_service_over_time_ends_at_the_whole() -> None:
    kept = record()
    found = service_over_time(kept, CLIENT, np.array([0, 1, 2, 3, 9]) * S)
    # At 2 s: client 0 has its prompt and a token, client 1 has its prompt.
    assert found.tolist() == [[0, 0], [10, 0], [12, 4], [14, 6], [14, 10]]
    assert found[-1].tolist() == service_by_client(kept.accumulate().columns(), CLIENT).tolist()
    assert service_difference(found) == 10  # at 1 s, not at the end


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0.1, 100))
def test_jain_index_is_within_its_bounds_and_knows_no_scale(service: list[float], scale: float) -> None:
    values = np.array(service)
    if 0 < values.max() < 1e-100:
        return  # squares vanish
    found = jain_index(values)
    assert 1 / values.size - 1e-9 <= found <= 1 + 1e-9
    assert jain_index(values * scale) == pytest.approx(found)


def test_nothing_served_is_even() -> None:
    assert jain_index(np.zeros(3)) == 1.0


def test_wrong_input() -> None:
    columns = record().accumulate().columns()
    with pytest.raises(InputError, match="client needs 3 numbers from 0"):
        service_by_client(columns, np.array([0, 1]))
    with pytest.raises(InputError, match="client needs 3 numbers from 0"):
        service_by_client(columns, np.array([0, 1, -1]))
    with pytest.raises(InputError, match="share needs 2 numbers"):
        service_by_client(columns, CLIENT, share=np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="weight of output tokens is 0"):
        ServiceWeights(output=0.0)
