"""What every planner has to keep; a planner's tests derive a class from :class:`PlannerContract`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache

import pytest
from slob_builders import SOLVED, Solved, relabelled

from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.exhaustive import ExhaustivePlanner
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, Planner, SolveResult, Status

RELATIVE = 1e-9
"""Allowance for the order of float operations; table times themselves are exact."""

HAND = 1e-5
"""Allowance for hand-solved values, whose times are not rounded to ticks."""


def find_planner(path: str) -> Planner:
    """Return a planner by ``module:Class``; skips loudly when it doesn't exist here."""
    module, name = path.split(":")
    try:
        found: Planner = getattr(importlib.import_module(module), name)()
    except ModuleNotFoundError as error:
        pytest.skip(f"{path} is not installed: {error}")
    return found


@cache
def oracle(build: object) -> SolveResult:
    """Return the enumerated optimum of a named instance."""
    return ExhaustivePlanner().solve(build().instance)  # type: ignore[operator]  # one of SOLVED


def _plain(result: SolveResult) -> SolveResult:
    """The result without what a clock wrote; details in seconds end in ``_s``."""
    details = tuple(item for item in result.details if not item[0].endswith("_s"))
    return replace(result, elapsed_s=0.0, history=(), details=details)


@pytest.mark.parametrize("build", SOLVED, ids=lambda b: b.__name__)
class PlannerContract:
    """The guarantees of :class:`slob_opt.planning.result.Planner`, on every named instance.

    A planner with the class attribute ``is_baseline`` follows its own rule: it ignores the incumbent instead of never
    being worse than it, and never claims that no plan exists.
    """

    path: str
    """``module:Class`` of the planner."""

    @pytest.fixture
    def planner(self) -> Planner:
        return find_planner(self.path)

    @pytest.fixture
    def solved(self, build: object) -> Solved:
        return build()  # type: ignore[operator, no-any-return]  # one of SOLVED

    def test_plan_is_allowed_and_worth_what_it_says(self, planner: Planner, solved: Solved) -> None:
        result = planner.solve(solved.instance)
        assert result.planner == planner.name
        assert (result.placement is None) == (result.objective is None)
        if result.placement is None:
            assert result.status in (Status.UNKNOWN, Status.INFEASIBLE)
        else:
            found = evaluate(solved.instance, result.placement)
            assert found.violations == ()
            assert result.objective == pytest.approx(found.objective, rel=RELATIVE)

    def test_does_not_change_its_input_and_repeats_itself(self, planner: Planner, solved: Solved) -> None:
        before = solved.instance.fingerprint
        first, second = planner.solve(solved.instance), planner.solve(solved.instance)
        assert solved.instance.fingerprint == before
        assert _plain(first) == _plain(second)

    def test_neither_plan_nor_bound_crosses_the_optimum(self, planner: Planner, solved: Solved, build: object) -> None:
        result, optimum = planner.solve(solved.instance), oracle(build).objective
        if optimum is None:
            assert result.placement is None
            return
        slack = RELATIVE * abs(optimum)
        if result.objective is not None:
            assert result.objective >= optimum - slack
        if result.bound is not None:
            assert result.bound <= optimum + slack

    def test_status_means_what_it_says(self, planner: Planner, solved: Solved, build: object) -> None:
        result, optimum = planner.solve(solved.instance), oracle(build).objective
        if result.status is Status.OPTIMAL:
            assert result.gap is not None
            assert result.gap <= OPTIMALITY_TOLERANCE
        if result.status is Status.INFEASIBLE:
            assert optimum is None
            assert result.message
        if getattr(planner, "is_baseline", False):
            assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
            if result.status is Status.UNKNOWN:
                assert result.message.startswith("failed: ")

    def test_incumbent(self, planner: Planner, solved: Solved, build: object) -> None:
        incumbent = oracle(build)
        with_it = planner.solve(solved.instance, incumbent=incumbent.placement)
        if getattr(planner, "is_baseline", False):
            assert _plain(with_it) == _plain(planner.solve(solved.instance))
        elif incumbent.objective is not None:
            assert with_it.objective is not None
            assert with_it.objective <= incumbent.objective + RELATIVE * abs(incumbent.objective)

    def test_relabelling_devices_does_not_change_a_proven_value(self, planner: Planner, solved: Solved) -> None:
        first = planner.solve(solved.instance)
        count = solved.instance.table.num_devices
        for order in (tuple(reversed(range(count))), (*range(1, count), 0)):
            other = planner.solve(relabelled(solved.instance, order))
            if Status.OPTIMAL in (first.status, other.status) and first.status == other.status:
                assert other.objective == pytest.approx(first.objective, rel=RELATIVE)
            assert (first.status is Status.INFEASIBLE) == (other.status is Status.INFEASIBLE)
