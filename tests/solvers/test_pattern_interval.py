"""The search over layer programs: same shortest interval as the dynamic program, ends of the range always valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from solver_instances import random_instance

from slob_opt.planning.interval_program import best_interval
from slob_opt.planning.pattern_rates import PatternProblem, pattern_problem
from solvers import pulp_adapter
from solvers.backend import BackendAnswer, BackendLimits, Ending
from solvers.integer_model import IntegerModel
from solvers.pattern_interval import IntervalModels

pytest.importorskip("pulp", reason="PuLP is not installed: pip install 'slob[exact]'")
pytest.importorskip("highspy", reason="highspy is not installed: pip install 'slob[exact]'")


class Silent:
    """Listens to nothing."""

    def on_solution(self, values: object) -> None:
        """Ignore it."""

    def on_bound(self, bound: float) -> None:
        """Ignore it."""


def answer(model: IntegerModel) -> BackendAnswer:
    return pulp_adapter.solve(model, BackendLimits(20.0), Silent())


def source_of(problem: PatternProblem, known: float = np.inf) -> IntervalModels:
    groups = problem.groups
    return IntervalModels(
        problem.costs[0], groups.available, groups.usage, groups.pool_cards, problem.num_layers, known
    )


def several(problem: PatternProblem) -> float:
    """Shortest interval of pipelines of several devices, ticks, by the dynamic program."""
    from slob_opt.planning.interval_program import IntervalProgram, interval_upper

    program = IntervalProgram(problem.costs[0], problem.groups.available.astype(float), problem.num_layers)
    return program.best(interval_upper(problem.costs[0], problem.num_layers))


def searched(source: IntervalModels) -> list[BackendAnswer]:
    answers: list[BackendAnswer] = []
    while (model := source.next_model(answers)) is not None:
        answers.append(answer(model))
        assert len(answers) < 60, "the search does not end"
    return answers


@pytest.mark.parametrize("seed", range(6))
def test_without_any_pipeline_the_first_program_says_so(seed: int) -> None:
    """Cards of one layer each and more layers than cards."""
    instance = random_instance(seed, 3, 6, objective="interval", is_uniform=True, is_identical=True)
    table = instance.table
    one_layer = table.workspace_bytes.max() + table.weight_bytes.max() + 8 * table.kv_bytes.max()
    short = replace(table, capacity_bytes=np.full(table.num_classes, one_layer, np.int64))
    problem = pattern_problem(replace(instance, table=short))
    source = source_of(problem)
    answers = searched(source)
    assert not np.isfinite(several(problem))
    assert [a.ending for a in answers] == [Ending.INFEASIBLE]
    assert (source.state(answers).interval, source.state(answers).found) == (None, None)


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_the_shortest_interval(seed: int) -> None:
    instance = random_instance(
        seed, 3 + seed % 8, 4 + seed % 9, objective="interval", is_uniform=True, is_identical=True
    )
    problem = pattern_problem(instance)
    source = source_of(problem)
    answers = searched(source)
    exact, state = several(problem), source.state(answers)
    assert state.interval is None
    assert np.isfinite(exact)
    assert state.high == exact
    assert exact * (1 - 1e-8) - 1 <= state.low <= exact
    for end in range(len(answers)):  # what is known half-way never excludes the answer
        half = source.state(answers[:end])
        assert half.low <= exact <= half.high


def test_a_known_pipeline_that_is_better_ends_the_search() -> None:
    instance = random_instance(3, 6, 8, objective="interval", is_uniform=True, is_identical=True)
    problem = pattern_problem(instance)
    exact = several(problem)
    source = source_of(problem, known=exact)
    state = source.state(searched(source))
    assert state.found is None
    assert state.high == exact
    assert state.low >= exact * (1 - 1e-8) - 1


def test_a_limit_keeps_what_was_known() -> None:
    instance = random_instance(4, 6, 8, objective="interval", is_uniform=True, is_identical=True)
    problem = pattern_problem(instance)
    exact, source = several(problem), source_of(problem)
    first = source.next_model(())
    assert first is not None
    stopped: Sequence[BackendAnswer] = (answer(first), BackendAnswer(Ending.LIMIT, None, None, "time limit"))
    state = source.state(stopped)
    assert state.interval is None
    assert state.low <= exact <= state.high
    assert source.next_model(stopped) is None


def test_names_are_those_of_the_formulation() -> None:
    instance = random_instance(5, 6, 8, objective="interval", is_uniform=True, is_identical=True)
    model = source_of(pattern_problem(instance)).next_model(())
    assert model is not None
    assert {v.name.split("[")[0] for v in model.variables} == {"n", "l", "f", "lf", "g", "lg"}
    names = {row.name.split("[")[0] for row in model.rows}
    assert names == {"cap", "one", "available", "pool", "first", "last", "layers"}


def test_one_device_is_not_the_search_s_business() -> None:
    """``best_interval`` also knows pipelines of one device; the search compares with them through `known`."""
    instance = random_instance(7, 4, 6, objective="interval", is_uniform=True, is_identical=True)
    problem = pattern_problem(instance)
    best, _ = best_interval(problem.costs[0], problem.groups.available.astype(float), problem.num_layers)
    source = source_of(problem, known=best)
    assert source.state(searched(source)).high == best
