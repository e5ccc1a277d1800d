"""Sweep by offered concurrency: rates, samples that repeat, and any source of workloads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slob_opt.errors import InputError
from slob_opt.problem.replay import at_rate, mean_rate
from slob_opt.problem.sweep import SEMI_SPARSE, offered_levels, rate_at, sweep, sweep_preset
from slob_opt.problem.workload import Workload


def test_levels_go_from_nearly_idle_into_overload() -> None:
    levels = offered_levels(20.0)
    assert (levels[0], levels[: len(SEMI_SPARSE)]) == (0.05, SEMI_SPARSE)
    assert levels[-2] < 20.0 <= levels[-1]
    assert list(levels) == sorted(levels)
    assert max(b / a for a, b in itertools.pairwise(levels)) <= 2.0
    assert offered_levels(1.0) == SEMI_SPARSE


def test_rate_times_service_time_is_what_was_asked_for() -> None:
    for point in sweep_preset("shop_floor_qa", 4.0, levels=(0.5, 3.0), duration_s=20_000.0):
        assert point.rate_per_s * 4.0 == pytest.approx(point.offered)
        assert point.workload.num_requests / 20_000 * 4.0 == pytest.approx(point.offered, rel=0.1)


def test_a_point_depends_on_its_level_and_seed_only() -> None:
    whole = {(p.offered, p.seed): p.workload.fingerprint for p in sweep_preset("office_chat", 9.0, seeds=(0, 1))}
    part = list(sweep_preset("office_chat", 9.0, levels=(2.0, 0.5), seeds=(1,)))
    assert [whole[p.offered, p.seed] for p in part] == [p.workload.fingerprint for p in part]
    assert len(set(whole.values())) == 2 * len(SEMI_SPARSE)


def test_a_trace_can_be_swept_by_thinning() -> None:
    trace = Workload.of("t", np.arange(4000) * 0.5, [10] * 4000, [5] * 4000)
    points = list(sweep(3.0, lambda rate, rng: at_rate(trace, rate, seed=rng), levels=(0.3, 1.5)))
    assert [mean_rate(p.workload) * 3.0 for p in points] == pytest.approx([0.3, 1.5], rel=0.15)
    assert [p.workload.fingerprint for p in points] == [
        p.workload.fingerprint for p in sweep(3.0, lambda rate, rng: at_rate(trace, rate, seed=rng), levels=(0.3, 1.5))
    ]


def test_wrong_numbers_are_told() -> None:
    with pytest.raises(InputError, match="service_s"):
        rate_at(1.0, 0.0)
    with pytest.raises(InputError, match="offered"):
        rate_at(-1.0, 2.0)
    with pytest.raises(InputError, match="no preset 'office-chats'; did you mean office_chat"):
        next(sweep_preset("office-chats", 2.0))
    with pytest.raises(InputError, match="seed is -1"):
        next(sweep_preset("office_chat", 2.0, seeds=(-1,)))
