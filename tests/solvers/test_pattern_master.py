"""The integer master: model, domination, exact check of what a back end says, bounds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from model_jobs import run_here

from solvers import pattern_master
from solvers.backend import BackendAnswer, BackendLimits, Ending
from solvers.child_process import ChildReport
from solvers.pattern_master import (
    OneModel,
    PackingProgram,
    column_copies,
    linear_prices,
    solve_packing,
    undominated,
)

pytest.importorskip("pulp", reason="PuLP is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")
LIMITS = BackendLimits(20.0)


def program(usage: np.ndarray, worth: np.ndarray, limits: np.ndarray) -> PackingProgram:
    return PackingProgram(
        usage.T, limits, worth, column_copies(usage, limits),
        tuple(f"pool[{k}]" for k in range(limits.size)), tuple(f"x[{p}]" for p in range(worth.size)),
    )  # fmt: skip


def knapsack(seed: int) -> PackingProgram:
    rng = np.random.default_rng(seed)
    usage = rng.integers(0, 4, (6, 2))
    usage[:, 0] += usage.sum(axis=1) == 0
    return program(usage.astype(np.int64), rng.uniform(1, 9, 6), np.array([5, 4]))


def enumerated(packing: PackingProgram) -> float:
    """Worth of the best of all whole numbers of columns."""
    choices = itertools.product(*(range(int(m) + 1) for m in packing.most))
    return max(float(packing.worth @ np.array(x)) for x in choices if packing.holds(np.array(x, np.int64)))


def test_domination_keeps_the_first_of_equals_and_what_nothing_replaces() -> None:
    usage = np.array([[1, 0], [1, 0], [1, 1], [0, 1], [2, 0]])
    worth = np.array([3.0, 3.0, 2.0, 1.0, 4.0])
    # 1 repeats 0; 2 uses more than 0 and is worth less; 3 uses another pool; 4 is worth more than 0
    assert undominated(usage, worth).tolist() == [0, 3, 4]


def test_domination_of_many_columns_only_drops_repeated_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_master, "MAX_COMPARED", 3)
    usage = np.array([[1, 0], [1, 0], [1, 1], [0, 1]])
    assert undominated(usage, np.array([2.0, 3.0, 2.0, 1.0])).tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", range(6))
def test_domination_does_not_change_the_optimum(seed: int) -> None:
    packing = knapsack(seed)
    kept = undominated(packing.rows.T, packing.worth)
    smaller = program(packing.rows.T[kept], packing.worth[kept], packing.limits)
    assert enumerated(smaller) == pytest.approx(enumerated(packing), rel=1e-12)


def test_model_has_the_names_of_the_formulation() -> None:
    model = program(np.array([[1, 0], [2, 1]]), np.array([1.0, 4.0]), np.array([4, 1])).model(np.array([2, 1]))
    assert [v.name for v in model.variables] == ["x[0]", "x[1]"]
    assert [(v.lower, v.upper) for v in model.variables] == [(0, 4), (0, 1)]
    assert [(row.name, row.terms, row.upper) for row in model.rows] == [
        ("pool[0]", ((0, 1), (1, 2)), 4),
        ("pool[1]", ((1, 1),), 1),
    ]
    assert model.objective == {0: pytest.approx(-250.0), 1: pytest.approx(-1000.0)}
    assert model.hint == {0: 2.0, 1: 1.0}
    assert OneModel(model).next_model(()) is model
    assert OneModel(model).next_model((BackendAnswer(Ending.LIMIT, None, None, ""),)) is None


@pytest.mark.parametrize("seed", range(6))
def test_optimum_and_bound_match_the_enumeration(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_master, "run_in_child", run_here_with_memory)
    packing = knapsack(seed)
    answer = solve_packing(packing, LIMITS)
    best = enumerated(packing)
    assert answer.chosen is not None
    assert answer.bound is not None
    assert packing.holds(answer.chosen)
    assert packing.worth @ answer.chosen == pytest.approx(best, rel=1e-12)
    assert best <= answer.bound <= best * (1 + 1e-8)
    prices = linear_prices(packing)
    assert np.all(packing.worth <= packing.rows.T @ prices * (1 + 1e-9))
    assert prices @ packing.limits >= best * (1 - 1e-9)


def run_here_with_memory(job: object) -> ChildReport:
    return run_here(job)  # type: ignore[arg-type]  # a ModelJob


def test_the_process_of_its_own_says_the_same() -> None:
    packing = knapsack(0)
    answer = solve_packing(packing, LIMITS, start=np.zeros(6, np.int64))
    assert answer.ending is Ending.FINISHED
    assert answer.chosen is not None
    assert packing.worth @ answer.chosen == pytest.approx(enumerated(packing), rel=1e-12)
    assert answer.report.built is not None
    assert answer.report.built.num_rows == 2


def _report(values: Mapping[int, float], bound: float) -> ChildReport:
    report = ChildReport(answers=[BackendAnswer(Ending.LIMIT, values, bound, "time limit")])
    report.values.append((0.1, {0: 0.9999999}))
    return report


def test_solutions_that_break_a_row_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end that calls three of two cards feasible is not believed; what it streamed before is."""
    packing = program(np.array([[1]]), np.array([5.0]), np.array([2]))
    monkeypatch.setattr(pattern_master, "run_in_child", lambda job: _report({0: 3.0}, -4000.0))
    answer = solve_packing(packing, LIMITS)
    assert answer.chosen is not None
    assert answer.chosen.tolist() == [1]
    assert answer.bound == pytest.approx(20.0)
    assert answer.ending is Ending.FAILED  # no last word came


def test_nothing_found_is_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_master, "run_in_child", lambda job: ChildReport(was_killed=True))
    answer = solve_packing(knapsack(1), LIMITS)
    assert (answer.chosen, answer.bound, answer.ending) == (None, None, Ending.LIMIT)
