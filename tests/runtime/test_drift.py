from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.drift import DriftMonitor, DriftOptions
from slob_opt.errors import InputError

SMALL = DriftOptions(window=5, band=1.25, patience=8)
ratios = st.floats(0.01, 100.0)


def fed(values: list[float], options: DriftOptions = SMALL, stage: str = "s") -> DriftMonitor:
    monitor = DriftMonitor(options)
    for value in values:
        monitor.add(stage, 2.0, 2.0 * value)
    return monitor


def test_a_true_model_never_drifts() -> None:
    (state,) = fed([1.0, 1.1, 0.9, 1.2, 0.85] * 50).state()
    assert not state.is_drifting
    assert state.sentence == ""
    assert state.ratio == pytest.approx(1.0)


def test_single_slow_steps_dont_count() -> None:
    """Two of any five steps take thirty times as long: the middle one doesn't."""
    assert not fed([1.0, 30.0, 1.0, 30.0, 1.0] * 40).state()[0].is_drifting


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_lasting_change_is_told_with_its_size_and_is_over_when_it_ends(factor: float) -> None:
    """Window 5: the middle changes with the third slow step, and eight such steps make it drift: the tenth."""
    monitor = fed([1.0] * 20)
    told = [monitor.add("s", 1.0, factor).is_drifting for _ in range(12)]
    assert told.index(True) == 9
    (state,) = monitor.state()
    assert state.ratio == pytest.approx(factor)
    assert state.since_step == 23
    assert f"{factor:.2f} times" in state.sentence
    over = [monitor.add("s", 1.0, 1.0).is_drifting for _ in range(12)]
    assert over.index(False) == 9
    assert monitor.state()[0].since_step is None


def test_nothing_is_said_before_a_window_is_full() -> None:
    monitor = fed([9.0] * 4, DriftOptions(window=5, patience=1))
    assert not monitor.state()[0].is_drifting
    assert monitor.add("s", 1.0, 9.0).is_drifting


def test_stages_are_apart_and_can_be_forgotten() -> None:
    monitor = DriftMonitor(SMALL)
    for _ in range(40):
        monitor.add("slow", 1.0, 3.0)
        monitor.add("fine", 1.0, 1.0)
    assert [(s.stage, s.is_drifting) for s in monitor.state()] == [("slow", True), ("fine", False)]
    monitor.forget("slow")
    assert [s.stage for s in monitor.state()] == ["fine"]
    assert monitor.add("slow", 1.0, 3.0).num_steps == 1


@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf), (-1.0, 1.0)])
def test_impossible_times_are_left_out(pair: tuple[float, float]) -> None:
    state = DriftMonitor(SMALL).add("s", *pair)
    assert (state.num_steps, state.ratio, state.is_drifting) == (1, None, False)


@given(st.lists(ratios, min_size=1, max_size=80))
def test_the_same_steps_give_the_same_answer_and_slow_mirrors_fast(values: list[float]) -> None:
    one, again, mirrored = fed(values), fed(values), fed([1 / value for value in values])
    assert one.state() == again.state()
    (a,), (b,) = one.state(), mirrored.state()
    assert a.is_drifting == b.is_drifting
    assert a.ratio is not None
    assert b.ratio is not None
    assert a.ratio * b.ratio == pytest.approx(1.0)


@given(st.lists(st.floats(1 / 1.24, 1.24), max_size=80))
def test_inside_the_band_is_never_drift(values: list[float]) -> None:
    assert not any(state.is_drifting for state in fed(values, DriftOptions(window=1, patience=1)).state())


@pytest.mark.parametrize("wrong", [{"window": 0}, {"patience": 0}, {"band": 1.0}])
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        DriftOptions(**wrong)  # type: ignore[arg-type]
