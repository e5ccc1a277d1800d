"""What counts as a disagreement and what as a false certificate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slob_builders import laptops, one_gigabyte_short

from experiments.studies.judging import judge
from experiments.studies.solving import Trial, try_method, try_methods
from slob_opt.planning.certify import certify
from slob_opt.planning.result import SolveLimits, SolveResult, Status

INSTANCE = laptops().instance
METHODS = ("slob", "parametric", "exhaustive")


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    return {t.method: t for t in try_methods(METHODS, INSTANCE, SolveLimits())}


def changed(trial: Trial, result: SolveResult) -> Trial:
    return replace(trial, result=result, certificate=certify(result, INSTANCE))


def test_honest_methods_agree(trials: dict[str, Trial]) -> None:
    judgement = judge(list(trials.values()))
    assert judgement.disagreements == ()
    assert judgement.violations == ()
    assert judgement.optimum == pytest.approx(laptops().objective, rel=1e-5)
    assert judgement.reference == judgement.optimum
    assert not judgement.is_infeasible


def test_a_claimed_bound_that_a_plan_beats_is_a_disagreement(trials: dict[str, Trial]) -> None:
    honest = trials["parametric"].result
    assert honest.objective is not None
    claim = replace(
        honest, planner="ilp", placement=None, objective=None, status=Status.UNKNOWN, witness=None,
        bound=honest.objective * 1.01,
    )  # fmt: skip
    judgement = judge(
        [trials["slob"], trials["parametric"], replace(changed(trials["exhaustive"], claim), method="ilp")]
    )
    assert any("better than the claimed bound" in sentence for sentence in judgement.disagreements)
    within = replace(claim, bound=honest.objective * (1 + 5e-5))
    judgement = judge([trials["parametric"], replace(changed(trials["exhaustive"], within), method="ilp")])
    assert judgement.disagreements == ()


def test_a_false_objective_is_a_violation(trials: dict[str, Trial]) -> None:
    honest = trials["parametric"].result
    assert honest.objective is not None
    lie = changed(trials["parametric"], replace(honest, objective=honest.objective * 0.9))
    judgement = judge([trials["slob"], lie])
    assert len(judgement.violations) == 1
    assert "parametric" in judgement.violations[0]


def test_infeasible_against_a_plan_is_a_disagreement(trials: dict[str, Trial]) -> None:
    claim = SolveResult("cpsat", Status.INFEASIBLE, None, None, None, 0.0)
    judgement = judge([trials["slob"], replace(changed(trials["exhaustive"], claim), method="cpsat")])
    assert "cpsat says INFEASIBLE, slob has a plan" in judgement.disagreements


def test_a_method_that_breaks_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "parametric"

        def solve(self, *_: object, **__: object) -> SolveResult:
            raise ArithmeticError("out of numbers")

    monkeypatch.setattr("experiments.studies.solving.make_planner", lambda name: Broken())
    trial = try_method("parametric", INSTANCE, SolveLimits())
    assert trial.trace is not None
    assert judge([trial]).disagreements == ("parametric broke: ArithmeticError: out of numbers",)


def test_proven_infeasible_is_no_disagreement() -> None:
    instance = one_gigabyte_short().instance
    judgement = judge(try_methods(METHODS, instance, SolveLimits()))
    assert judgement.is_infeasible
    assert judgement.optimum is None
    assert judgement.disagreements == ()
