"""The one place that knows PuLP: an integer model to HiGHS or CBC and back, with PuLP 3.3 and 4.

PuLP 3 says "Optimal" when a time limit stopped a solve, so no status of PuLP is trusted: HiGHS is asked directly, and
for CBC only ``sol_status`` (3) or ``has_solution`` (4) counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from slob_opt.errors import InputError, SolverUnavailable
from solvers.backend import BackendAnswer, BackendLimits, Ending, Listener
from solvers.integer_model import IntegerModel, Row

FEASIBILITY_TOLERANCE = 1e-9
"""Of HiGHS, in the model's units, where its defaults are 1e-6 and 1e-7. Chosen: far below ``OPTIMALITY_TOLERANCE``."""


def load() -> Any:
    """Return the module ``pulp``; raises SolverUnavailable when it isn't installed."""
    try:
        import pulp
    except ModuleNotFoundError as error:
        raise SolverUnavailable("the ILP needs PuLP: pip install 'slob[exact]'") from error
    except ImportError as error:
        raise SolverUnavailable(f"PuLP is installed but can't be loaded: {error}") from error
    return pulp


def version() -> str:
    """Return PuLP's version."""
    return str(load().__version__)


def build(model: IntegerModel) -> tuple[Any, list[Any]]:
    """Return the PuLP problem and its variables in the order of ours.

    Rows with a condition become big-M rows, with M the exact worst case within the variables' bounds.

    Raises
    ------
    InputError
        When the model has circuits, quotients or extremes.
    """
    if model.circuits or model.quotients or model.extremes:
        raise InputError(f"model {model.name} has circuits, quotients or extremes, an ILP takes rows only")
    model.check_magnitudes("a larger unit of time")
    pulp = load()
    problem = pulp.LpProblem("slob", pulp.LpMinimize)
    variables = [
        problem.add_variable(f"v{i}", v.lower, v.upper, cat=pulp.LpInteger if v.is_integer else pulp.LpContinuous)
        for i, v in enumerate(model.variables)
    ]
    objective = sorted(model.objective.items())
    problem.setObjective(pulp.lpDot([c for _, c in objective], [variables[v] for v, _ in objective]))
    for row in model.rows:
        low, high = model.activity(row.terms)
        total = pulp.lpDot([c for _, c in row.terms], [variables[v] for v, _ in row.terms])
        if row.lower is not None and row.lower == row.upper and not row.only_if:
            problem.addConstraint(total == row.lower)
            continue
        if row.upper is not None and (high > row.upper or _is_broken(row)):
            relax = pulp.lpSum((high - row.upper) * (1 - variables[v]) for v in row.only_if)
            problem.addConstraint(total <= row.upper + relax)
        if row.lower is not None and (low < row.lower or _is_broken(row)):
            relax = pulp.lpSum((low - row.lower) * (1 - variables[v]) for v in row.only_if)
            problem.addConstraint(total >= row.lower + relax)
    return problem, variables


def _complete(model: IntegerModel, values: Mapping[int, float]) -> Mapping[int, float]:
    """Values of all variables; PuLP drops those that are in no row, so any value within bounds will do for them."""
    return {i: values.get(i, v.lower) for i, v in enumerate(model.variables)}


def _is_broken(row: Row) -> bool:
    """Whether a row has no terms but a limit that zero breaks."""
    return not row.terms and ((row.upper or 0) < 0 or (row.lower or 0) > 0)


def solve(model: IntegerModel, limits: BackendLimits, listener: Listener, *, backend: str = "highs") -> BackendAnswer:
    """Return the last word of HiGHS or CBC.

    Raises
    ------
    InputError
        When the model doesn't suit an ILP, or `backend` is neither "highs" nor "cbc".
    SolverUnavailable
        When PuLP or the back end is missing.
    """
    if backend == "highs":
        return _solve_highs(model, limits, listener)
    if backend == "cbc":
        return _solve_cbc(model, limits)
    raise InputError(f"back end {backend!r} of the ILP, expected 'highs' or 'cbc'")


def _solve_highs(model: IntegerModel, limits: BackendLimits, listener: Listener) -> BackendAnswer:
    pulp = load()
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise SolverUnavailable("the ILP's back end needs highspy: pip install 'slob[exact]'") from error
    except ImportError as error:
        raise SolverUnavailable(f"highspy is installed but can't be loaded: {error}") from error
    problem, variables = build(model)
    number = {variable.name: i for i, variable in enumerate(variables)}
    column_ids: list[int] = []
    base: Any = pulp.HiGHS
    kinds = highspy.cb.HighsCallbackType

    def named(columns: Iterable[float]) -> Mapping[int, float]:
        return _complete(model, dict(zip(column_ids, map(float, columns), strict=True)))

    def hear(kind: Any, _message: str, out: Any, _into: Any, _user: Any) -> None:
        if kind == kinds.kCallbackMipImprovingSolution:
            listener.on_solution(named(out.mip_solution))
        listener.on_bound(float(out.mip_dual_bound))

    class WarmHighs(base):  # type: ignore[misc]  # PuLP is untyped
        """HiGHS with a start; PuLP 3 has no way to pass one."""

        def callSolver(self, lp: Any) -> None:
            ordered = lp.exported_variables() if hasattr(lp, "exported_variables") else lp.variables()
            column_ids.extend(number[v.name] for v in ordered)
            start = [(j, model.hint[i]) for j, i in enumerate(column_ids) if i in model.hint]
            if start:
                lp.solverModel.setSolution(len(start), [j for j, _ in start], [value for _, value in start])
            lp.solverModel.run()

    solver = WarmHighs(
        msg=False,
        timeLimit=limits.time_s,
        threads=limits.workers,
        gapRel=0.0,
        gapAbs=0.0,
        callbackTuple=(hear, None),
        callbacksToActivate=[kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipLogging],
        random_seed=limits.seed,
        presolve="choose" if limits.has_presolve else "off",
        mip_feasibility_tolerance=FEASIBILITY_TOLERANCE,
        primal_feasibility_tolerance=FEASIBILITY_TOLERANCE,
        dual_feasibility_tolerance=FEASIBILITY_TOLERANCE,
    )
    problem.solve(solver)
    highs = problem.solverModel
    status, info = highs.getModelStatus(), highs.getInfo()
    has_values = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    codes = highspy.HighsModelStatus
    ending = {
        codes.kOptimal: Ending.FINISHED,
        codes.kInfeasible: Ending.INFEASIBLE,
        codes.kTimeLimit: Ending.LIMIT,
        codes.kIterationLimit: Ending.LIMIT,
        codes.kSolutionLimit: Ending.LIMIT,
        codes.kInterrupt: Ending.LIMIT,
        codes.kMemoryLimit: Ending.LIMIT,
    }.get(status, Ending.FAILED)
    values: Mapping[int, float] | None = None
    if has_values and ending is not Ending.INFEASIBLE:
        values = named(highs.getSolution().col_value)
    bound = float(info.mip_dual_bound) if ending in (Ending.FINISHED, Ending.LIMIT) else None
    if bound is not None and abs(bound) >= highspy.kHighsInf:
        bound = None
    return BackendAnswer(ending, values, bound, str(status).rsplit(".", maxsplit=1)[-1])


def _solve_cbc(model: IntegerModel, limits: BackendLimits) -> BackendAnswer:
    """CBC as PuLP runs it; it tells no bound while or after a solve, only a proof at the end."""
    pulp = load()
    solver = _find_cbc(pulp, limits)
    if solver is None:
        raise SolverUnavailable("CBC was not found: pip install 'pulp[cbc]', or use the back end 'highs'")
    problem, variables = build(model)
    stats = problem.solve(solver)
    if hasattr(stats, "has_solution"):  # PuLP 4
        has_values = bool(stats.has_solution)
        is_done, is_infeasible = stats.status == 1 and has_values, stats.status == -1
        word = str(stats.status_str)
    else:
        has_values = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        is_done = problem.sol_status == pulp.LpSolutionOptimal
        is_infeasible = problem.sol_status == pulp.LpSolutionInfeasible and problem.status == pulp.LpStatusInfeasible
        word = str(pulp.LpStatus[problem.status])
    values: Mapping[int, float] | None = None
    if has_values:
        values = _complete(model, {i: float(v.value()) for i, v in enumerate(variables) if v.value() is not None})
    ending = Ending.FINISHED if is_done else Ending.INFEASIBLE if is_infeasible else Ending.LIMIT
    bound = None
    if is_done and values is not None:
        bound = sum(c * values[v] for v, c in model.objective.items())
    return BackendAnswer(ending, values, bound, word)


def has_cbc() -> bool:
    """Whether this PuLP finds a CBC."""
    return _find_cbc(load(), BackendLimits(None)) is not None


def _find_cbc(pulp: Any, limits: BackendLimits) -> Any:
    """The CBC that PuLP brings along (3), or one on the machine; ``None`` without any."""
    found = (_cbc_of(pulp, name, limits) for name in ("COIN_CMD", "PULP_CBC_CMD"))
    return next((solver for solver in found if solver is not None), None)


def _cbc_of(pulp: Any, name: str, limits: BackendLimits) -> Any:
    """A CBC solver of PuLP by name, or ``None`` when this PuLP or machine hasn't got it."""
    if not hasattr(pulp, name):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 3 announces that 4 has no PULP_CBC_CMD
        solver = getattr(pulp, name)(
            msg=False,
            timeLimit=limits.time_s,
            threads=limits.workers if limits.workers > 1 else None,
            gapRel=0.0,
            gapAbs=0.0,
            presolve=limits.has_presolve,
            options=[f"randomCbcSeed {limits.seed}"],
            warmStart=False,
        )
    return solver if solver.available() else None
