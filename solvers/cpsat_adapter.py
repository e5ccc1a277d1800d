"""The one place that knows OR-Tools: an integer model to CP-SAT and back."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from slob_opt.errors import InputError, SolverUnavailable
from solvers.backend import BackendAnswer, BackendLimits, Ending, Listener
from solvers.integer_model import IntegerModel

LAST_VERSION_WITH_INT_SUM = (9, 15)
"""Up to this release presolve adds Boolean coefficients in 32 bits and may then certify a wrong optimum.

google/or-tools issue 5293, 2026-08; ``presolve_inclusion_work_limit = 0`` keeps that rule from running.
"""


def _load() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError as error:
        raise SolverUnavailable("CP-SAT needs OR-Tools: pip install 'slob[exact]'") from error
    except ImportError as error:
        raise SolverUnavailable(f"OR-Tools is installed but can't be loaded: {error}") from error
    return cp_model


def version() -> str:
    """Return OR-Tools' version; raises SolverUnavailable when it isn't installed."""
    _load()
    return importlib.metadata.version("ortools")


def build(model: IntegerModel) -> tuple[Any, list[Any]]:
    """Return the CP-SAT model and its variables in the order of ours.

    Raises
    ------
    InputError
        When a variable or coefficient isn't whole, or a row can pass 2^53.
    SolverUnavailable
        When OR-Tools is missing.
    """
    cp_model = _load()
    model.check_magnitudes("coarser ticks, a power of two times 2^-30 s")
    cp = cp_model.CpModel()
    variables = []
    for variable in model.variables:
        if not variable.is_integer:
            raise InputError(f"variable {variable.name} is real, CP-SAT takes whole numbers only")
        variables.append(cp.new_int_var(int(variable.lower), int(variable.upper), variable.name))
    for row in model.rows:
        if any(int(c) != c for _, c in row.terms):
            raise InputError(f"row {row.name} has a coefficient that isn't whole, CP-SAT takes whole numbers only")
        total = cp_model.LinearExpr.weighted_sum([variables[v] for v, _ in row.terms], [int(c) for _, c in row.terms])
        low = cp_model.INT_MIN if row.lower is None else int(row.lower)
        high = cp_model.INT_MAX if row.upper is None else int(row.upper)
        added = cp.add_linear_constraint(total, low, high)
        if row.only_if:
            added.only_enforce_if([variables[v] for v in row.only_if])
    for arcs in model.circuits:
        cp.add_circuit(
            [(a.tail, a.head, variables[a.variable].negated() if a.is_negated else variables[a.variable]) for a in arcs]
        )
    for q in model.quotients:
        cp.add_division_equality(variables[q.quotient], q.scale * variables[q.numerator], variables[q.denominator])
    for extreme in model.extremes:
        of = [variables[v] for v in extreme.of]
        if extreme.is_largest:
            cp.add_max_equality(variables[extreme.target], of)
        else:
            cp.add_min_equality(variables[extreme.target], of)
    objective = sorted(model.objective.items())
    cp.minimize(cp_model.LinearExpr.weighted_sum([variables[v] for v, _ in objective], [int(c) for _, c in objective]))
    for v, value in sorted(model.hint.items()):
        cp.add_hint(variables[v], int(value))
    return cp, variables


def solve(model: IntegerModel, limits: BackendLimits, listener: Listener) -> BackendAnswer:
    """Return CP-SAT's last word; equal calls without a wall-clock stop give equal answers.

    Raises
    ------
    InputError
        When the model doesn't suit CP-SAT.
    SolverUnavailable
        When OR-Tools is missing.
    """
    cp_model = _load()
    release = tuple(int(part) for part in version().split(".")[:2])
    cp, variables = build(model)
    callback: Any = cp_model.CpSolverSolutionCallback

    class Progress(callback):  # type: ignore[misc]  # OR-Tools is untyped
        def on_solution_callback(self) -> None:
            listener.on_solution({i: float(self.value(v)) for i, v in enumerate(variables)})

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = limits.workers
    parameters.random_seed = limits.seed
    parameters.cp_model_presolve = limits.has_presolve
    # One thread takes turns among all strategies, repeatably; a single strategy met seeds it never recovered from
    # (a 4-device throughput instance open after 30 s with seed 0, closed in 2 s with seed 1).
    parameters.interleave_search = limits.workers == 1
    if limits.time_s is not None:
        parameters.max_time_in_seconds = max(0.0, limits.time_s)
    if limits.deterministic_s is not None:
        parameters.max_deterministic_time = limits.deterministic_s
    if release <= LAST_VERSION_WITH_INT_SUM:
        parameters.presolve_inclusion_work_limit = 0
    solver.best_bound_callback = listener.on_bound
    status = solver.solve(cp, Progress())
    name = solver.status_name(status)
    ending = {
        cp_model.OPTIMAL: Ending.FINISHED,
        cp_model.INFEASIBLE: Ending.INFEASIBLE,
        cp_model.FEASIBLE: Ending.LIMIT,
        cp_model.UNKNOWN: Ending.LIMIT,
    }.get(status, Ending.FAILED)
    values: Mapping[int, float] | None = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = {i: float(solver.value(v)) for i, v in enumerate(variables)}
    has_bound = status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN)
    bound = float(solver.best_objective_bound) if has_bound else None
    if status == cp_model.UNKNOWN and bound == 0.0 and min(model.activity(model.objective.items())) < 0.0:
        bound = None  # an empty response says 0, which would not be a bound
    return BackendAnswer(ending, values, bound, str(name))
