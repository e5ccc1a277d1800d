"""The record of all tokens: what it refuses, and that it gives the figures of requests entered one by one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.metrics.accumulator import MetricsAccumulator
from slob_opt.metrics.outcomes import Outcome, Outcomes
from slob_opt.metrics.request_columns import Status
from slob_opt.problem.workload import Workload

S = 1_000_000_000
NONE = np.zeros(0, np.int64)


def workload() -> Workload:
    return Workload.of("four", [0.0, 1.0, 2.0, 3.0], [10, 20, 30, 40], [3, 5, 7, 2])


def entries() -> list[Outcome]:
    """One finished, one cut short, one rejected, one aborted while it waited."""
    return [
        Outcome(0, Status.FINISHED, 1, S // 2, np.array([S, 2 * S, 4 * S])),
        Outcome(1, Status.UNFINISHED, 0, 2 * S, np.array([3 * S])),
        Outcome(2, Status.REJECTED, None, None, NONE),
        Outcome(3, Status.ABORTED, 0, None, NONE),
    ]


def record() -> Outcomes:
    return Outcomes.of(workload(), entries(), 10 * S)


def test_columns_by_hand() -> None:
    found = Outcomes.of(workload(), entries()[::-1], 10 * S)
    assert found.num_tokens.tolist() == [3, 1, 0, 0]
    assert found.token_start.tolist() == [0, 3, 4, 4, 4]
    assert found.tokens_of(1).tolist() == [3 * S]
    assert found.is_placed.tolist() == [True, True, False, True]
    assert found.is_started.tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="read-only"):
        found.token_ns[0] = 0


def random_record(seed: int, size: int = 60) -> Outcomes:
    """Requests that end in every way but by failing, with stalls and tokens at one time."""
    rng = np.random.default_rng(seed)
    w = Workload.of(
        "random",
        np.sort(rng.uniform(0, 60, size)),
        rng.integers(1, 500, size),
        rng.integers(1, 90, size),
        ttft_s=2.0 if seed % 2 else None,
        tpot_s=0.3 if seed % 3 else None,
    )
    found = []
    for request in range(size):
        length, arrival = int(w.output_tokens[request]), int(w.arrival_ns[request])
        status = Status(int(rng.choice([0, 0, 0, 1, 2, 3])))
        num = {Status.FINISHED: length, Status.REJECTED: 0}.get(status, int(rng.integers(0, length)))
        started = arrival + int(rng.integers(0, 5 * S))
        gaps = rng.choice([0, S // 50, S // 5, 3 * S], num, p=[0.1, 0.6, 0.2, 0.1])
        is_started = num > 0 or (status is not Status.REJECTED and rng.random() < 0.5)
        place = None if status is Status.REJECTED else int(rng.integers(3))
        found.append(Outcome(request, status, place, started if is_started else None, started + np.cumsum(gaps)))
    return Outcomes.of(w, found, 2000 * S)


@pytest.mark.parametrize("seed", range(6))
def test_gives_the_figures_of_requests_entered_as_they_end(seed: int) -> None:
    """Bit by bit the same, whatever the order in which requests end."""
    kept = random_record(seed)
    direct = MetricsAccumulator(kept.workload, end_ns=kept.end_ns)
    for request in np.random.default_rng(seed).permutation(kept.workload.num_requests).tolist():
        started = int(kept.started_ns[request]) if kept.is_started[request] else None
        direct.add(request, Status(int(kept.status[request])), started, kept.tokens_of(request).copy())
    replayed = kept.accumulate()
    for item in fields(replayed.columns()):
        if item.name != "workload":
            np.testing.assert_array_equal(getattr(replayed.columns(), item.name), getattr(direct.columns(), item.name))
    assert replayed.itl.count == direct.itl.count
    assert replayed.itl.quantile(0.99) == direct.itl.quantile(0.99)


def test_some_requests_have_the_figures_they_had_among_all() -> None:
    kept = random_record(3)
    index = np.arange(5, 50, 3)
    some, whole = kept.take(index).accumulate().columns(), kept.accumulate().columns()
    np.testing.assert_array_equal(some.satisfaction, whole.satisfaction[index])
    np.testing.assert_array_equal(some.e2e_s, whole.e2e_s[index])


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (0, {"status": Status.UNSEEN}, "request 0 has a status that tells no end"),
        (0, {"status": Status.UNFINISHED}, "request 0 is unfinished with all of its tokens"),
        (1, {"status": Status.FINISHED}, "request 1 is finished without all of its tokens"),
        (1, {"status": Status.REJECTED}, "request 1 is rejected and was computed"),
        (1, {"started_ns": None}, "request 1 has tokens and never started"),
        (1, {"pipeline": None}, "request 1 started on no pipeline"),
        (1, {"pipeline": -1}, "request 1 is placed on a pipeline below 0"),
        (1, {"started_ns": S // 2}, "request 1 started before it arrived"),
        (1, {"started_ns": 4 * S}, "request 1 has a token from before it started"),
        (1, {"token_ns": np.full(6, 3 * S)}, "request 1 has more tokens delivered"),
        (0, {"token_ns": np.array([S, 4 * S, 2 * S])}, "request 0 has a token from before the one that precedes it"),
        (0, {"token_ns": np.array([S, 2 * S, 11 * S])}, "request 0 has a token from after the end"),
        (3, {"started_ns": 11 * S}, "request 3 started after the end of the observation"),
    ],
)
def test_contradictions_are_told_with_the_request(number: int, change: dict[str, Any], message: str) -> None:
    wrong = entries()
    wrong[number] = replace(wrong[number], **change)
    with pytest.raises(InputError, match=message):
        Outcomes.of(workload(), wrong, 10 * S)


def test_each_request_is_there_once() -> None:
    with pytest.raises(InputError, match="3 outcomes don't name each of 4 requests once"):
        Outcomes.of(workload(), entries()[:3], 10 * S)
    with pytest.raises(InputError, match="don't name each"):
        Outcomes.of(workload(), [*entries()[:3], entries()[0]], 10 * S)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("status", np.zeros(3, np.int8), "status has shape"),
        ("token_start", np.array([0, 3, 4, 4]), "token_start has shape"),
        ("token_start", np.array([0, 4, 3, 4, 4]), "token_start doesn't rise"),
        ("token_start", np.array([0, 3, 4, 4, 5]), "token_start doesn't rise"),
    ],
)
def test_columns_that_do_not_fit(name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(record(), **{name: value})
