"""The exact planners keep the planner contract on every named instance, and hit the hand-solved values."""

from __future__ import annotations

import pytest
from slob_builders import SOLVED, Solved
from slob_contract import HAND, PlannerContract, find_planner

from slob_opt.planning.result import Status

pytestmark = pytest.mark.slow  # one process start a solve
pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")

PATHS = ["solvers.planners:IlpPlanner", "solvers.planners:CpSatPlanner"]


class TestIlp(PlannerContract):
    path = PATHS[0]


class TestCpSat(PlannerContract):
    path = PATHS[1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
def test_hand_solved_values_are_proven(path: str, build: object) -> None:
    solved: Solved = build()  # type: ignore[operator]  # one of SOLVED
    result = find_planner(path).solve(solved.instance)
    if solved.objective is None:
        assert result.status is Status.INFEASIBLE
    else:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(solved.objective, rel=HAND)
