"""Plans and the log of decisions."""

from __future__ import annotations

import numpy as np

from slob_opt.scheduling.batch_plan import NO_SLOTS, BatchPlan, Decision, DecisionLog, is_ones, ones, trues


def test_decode_plans() -> None:
    plan = BatchPlan.decode(np.array([4, 7]), max_repeats=9)
    assert plan.tokens.tolist() == [1, 1]
    assert (plan.max_repeats, plan.idle_rows, plan.preempt.size) == (9, 0, 0)


def test_shared_constants_are_read_only_and_long_enough() -> None:
    for size in (0, 3, 5000):
        assert ones(size).tolist() == [1] * size
        assert trues(size).tolist() == [True] * size
    assert not any(array.flags.writeable for array in (NO_SLOTS, ones(3), trues(3)))
    assert is_ones(ones(3))
    assert is_ones(np.array([1, 1]))
    assert not is_ones(np.array([1, 2]))


def test_log_counts_equal_iterations_of_a_lane() -> None:
    log = DecisionLog()
    a, b, one, two = np.array([1]), np.array([1, 2]), np.array([1]), np.array([1, 1])
    log.enter(0, 0, a, one)
    log.enter(0, 1, b, two)
    log.enter(0, 0, a, one)
    log.repeat(0, 0, 3)
    log.enter(0, 0, a, one, np.array([2]))
    log.enter(0, 0, a, one)
    assert list(log) == [
        Decision(0, 0, (1,), (1,), (), 5),
        Decision(0, 1, (1, 2), (1, 1), (), 1),
        Decision(0, 0, (1,), (1,), (2,), 2),
    ]
    assert len(log) == 3


def test_a_log_that_is_not_kept() -> None:
    log = DecisionLog(is_kept=False)
    log.enter(0, 0, np.array([1]), np.array([1]))
    log.repeat(0, 0, 5)
    assert list(log) == []
