"""What people see, as text."""

from __future__ import annotations

import pytest

from experiments.cli.screen import legend, percent, print_comparison, printer
from experiments.compare_output import layer_maps
from experiments.comparison import compare
from experiments.problem_setup import ProblemOptions, set_up
from slob_opt.planning.result import SolveLimits


def test_a_gap_is_never_rounded_to_optimal() -> None:
    """1e-6 is the tolerance of OPTIMAL; a larger gap must not read as 0.00 %."""
    assert percent(None) == "–"
    assert percent(0.0) == percent(1e-6) == "0.00 %"
    assert percent(2e-6) == percent(4.9e-5) == "<0.01 %"
    assert percent(5e-5) == "0.01 %"
    assert percent(0.1326) == "13.26 %"


def test_the_same_plan_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    setup = set_up(ProblemOptions("nvlink-pairs-2", "llama-2-7b", objective="latency"))
    comparison = compare(setup, ("slob", "parametric", "even"), SolveLimits(20.0))
    print_comparison(printer(), comparison)
    text = capsys.readouterr().out
    assert "same plan as slob" in text
    assert [names for names, _ in layer_maps(comparison)] == ["slob, parametric", "even"]


def test_groups_whose_cards_work_in_other_groups_are_not_in_the_legend() -> None:
    """One pair works, so its two single cards are not idle; the other pair's single cards are."""
    setup = set_up(ProblemOptions("nvlink-pairs-2", "qwen2.5-14b", objective="latency", tp="2"))
    (outcome,) = compare(setup, ("slob",), SolveLimits(20.0)).outcomes
    assert outcome.layers is not None
    assert legend(outcome.layers).plain.split() == ["rtx-3090", "x2", "1/2"]
    both = set_up(ProblemOptions("nvlink-pairs-2", "qwen2.5-14b"))
    (whole,) = compare(both, ("slob",), SolveLimits(20.0)).outcomes
    assert whole.layers is not None
    assert whole.layers.left_out == ()
    assert set(legend(whole.layers).plain.split()) <= {"rtx-3090", "x2", "2/2", "4/4"}
