"""Which steps are late, and who has to answer for it."""

from __future__ import annotations

from runtime.step_watch import StepWatch


def test_a_step_that_ends_in_time_is_not_late() -> None:
    watch = StepWatch(10.0)
    assert watch.next_at() is None
    watch.begin(0, 1, 100.0)
    assert watch.next_at() == 110.0
    assert watch.late(109.0) == []
    assert watch.end(0, 1)
    assert not watch.end(0, 1)
    assert watch.late(200.0) == []


def test_a_late_step_is_told_once_and_again_after_as_long() -> None:
    watch = StepWatch(10.0)
    watch.begin(0, 1, 100.0)
    watch.begin(0, 2, 105.0)
    watch.begin(3, 3, 100.0)
    assert watch.late(110.0) == [(0, False), (3, False)]
    assert watch.late(119.0) == [(0, False)]  # its second step
    assert watch.end(3, 3)
    assert watch.late(120.0) == [(0, True)]
    watch.forget(0)
    assert watch.next_at() is None


def test_a_worker_is_asked_once_and_hangs_when_it_does_not_answer() -> None:
    watch = StepWatch(10.0)
    assert watch.ask("a", "a step is late", 100.0)
    assert not watch.ask("a", "another step is late", 101.0)
    assert watch.ask("b", "a step is late", 100.0)
    assert watch.is_asked("a")
    watch.answered("b")
    assert watch.next_at() == 102.5  # a quarter of the deadline
    assert watch.hung(102.0) == []
    assert watch.hung(102.5) == [("a", "a step is late")]
    watch.answered("a")
    assert watch.hung(200.0) == []
    assert StepWatch(1.0).ask("a", "", 0.0)
