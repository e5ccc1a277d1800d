"""The exact planners keep the planner contract on every named instance, and hit the hand-solved values."""

from __future__ import annotations

from functools import cache

import pytest
from slob_builders import SOLVED, Solved
from slob_contract import HAND, PlannerContract, find_planner

from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.result import Planner, SolveLimits, SolveResult, Status
from slob_opt.problem.placement import Placement

pytestmark = pytest.mark.slow  # one process start a solve
pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")

PATHS = ["solvers.planners:IlpPlanner", "solvers.planners:CpSatPlanner"]


class Remembering:
    """A planner that answers a question it was asked before from memory: the contract asks the same ones often."""

    def __init__(self, planner: Planner) -> None:
        self.fresh = planner
        self._known: dict[tuple[str, Placement | None], SolveResult] = {}

    @property
    def name(self) -> str:
        """Name of the planner."""
        return self.fresh.name

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the planner's answer; `limits` are not used by the contract."""
        assert limits is None
        key = (instance.fingerprint, incumbent)
        if key not in self._known:
            self._known[key] = self.fresh.solve(instance, incumbent=incumbent)
        return self._known[key]


@cache
def remembering(path: str) -> Remembering:
    return Remembering(find_planner(path))


class TwoFaced(Remembering):
    """Remembers the first answer and solves anew ever after, so that repeating is put to the test."""

    def __init__(self, first: Remembering) -> None:
        super().__init__(first.fresh)
        self._first: Remembering | None = first

    def solve(
        self, instance: PlacementInstance, *, incumbent: Placement | None = None, limits: SolveLimits | None = None
    ) -> SolveResult:
        """Return the remembered answer once, then fresh ones."""
        source: Planner = self._first or self.fresh
        self._first = None
        return source.solve(instance, incumbent=incumbent, limits=limits)


class ExactContract(PlannerContract):
    """The contract with fewer process starts."""

    @pytest.fixture
    def planner(self, request: pytest.FixtureRequest) -> Planner:
        known = remembering(self.path)
        return TwoFaced(known) if "repeats" in request.node.name else known


class TestIlp(ExactContract):
    path = PATHS[0]


class TestCpSat(ExactContract):
    path = PATHS[1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
def test_hand_solved_values_are_proven(path: str, build: object) -> None:
    solved: Solved = build()  # type: ignore[operator]  # one of SOLVED
    result = remembering(path).solve(solved.instance)
    if solved.objective is None:
        assert result.status is Status.INFEASIBLE
    else:
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(solved.objective, rel=HAND)
