"""The integer master over columns: most worth of columns that fit limited rows; FORMULATION.md, section 4.2.

Three routes share it: patterns over pools of cards, subsets over cards, block patterns over cuts of nodes. It is solved
in a process of its own, like every model here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from slob_opt.cost.table import FloatArray, IntArray
from solvers.backend import BackendAnswer, BackendLimits, Ending
from solvers.child_process import ChildReport, run_in_child
from solvers.integer_model import IntegerModel
from solvers.messages import Backend, ModelJob

BOUND_MARGIN = 1e-9
"""Relative amount added to a back end's bound; row tolerances are 1e-9 and rows have whole coefficients. Chosen."""

WORTH_SCALE = 1000.0
"""Largest worth of a column in the model's units. Chosen: absolute tolerances of 1e-9 are then 1e-12 of it."""

MAX_COMPARED = 12_000
"""Most columns that are compared pair by pair."""


@dataclass(frozen=True, slots=True)
class PackingProgram:
    """Maximise ``worth @ x`` with ``rows @ x <= limits`` and whole ``0 <= x <= most``.

    Attributes
    ----------
    rows
        (R, N) int64.
    limits
        (R,) int64.
    worth
        (N,) float64, tokens/s.
    most
        (N,) int64.
    row_names, column_names
        As in FORMULATION.md, with indices.
    """

    rows: IntArray
    limits: IntArray
    worth: FloatArray
    most: IntArray
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]

    def model(self, start: IntArray | None = None) -> IntegerModel:
        """Return the integer model (minimised, worth scaled by :attr:`scale`), with a start as hint."""
        model = IntegerModel("pattern-master")
        for name, most in zip(self.column_names, self.most, strict=True):
            model.add_int(name, 0, int(most))
        for name, row, limit in zip(self.row_names, self.rows, self.limits, strict=True):
            model.add_row(name, {int(j): int(row[j]) for j in np.flatnonzero(row)}, upper=int(limit))
        model.objective.update({int(j): -float(self.worth[j]) / self.scale for j in np.flatnonzero(self.worth)})
        if start is not None:
            model.hint.update({j: float(n) for j, n in enumerate(start.tolist())})
        return model

    @property
    def scale(self) -> float:
        """Tokens/s of one unit of the model's objective."""
        return float(np.max(self.worth, initial=1e-9)) / WORTH_SCALE

    def holds(self, x: IntArray) -> bool:
        """Whether whole numbers `x` (N,) break no row and no limit."""
        return bool(np.all(x >= 0) and np.all(x <= self.most) and np.all(self.rows @ x <= self.limits))


@dataclass(frozen=True, slots=True)
class OneModel:
    """The source of a single model; see :class:`solvers.messages.ModelSource`."""

    model: IntegerModel

    def next_model(self, answers: Sequence[BackendAnswer]) -> IntegerModel | None:
        """Return the model, then nothing."""
        return None if answers else self.model


@dataclass(frozen=True, slots=True)
class PackingAnswer:
    """What a back end found.

    Attributes
    ----------
    chosen
        (N,) int64 of the best solution; ``None`` without one.
    bound
        Tokens/s that no solution exceeds; ``None`` when none is known.
    ending
        How the back end stopped.
    report
        Of its process.
    """

    chosen: IntArray | None
    bound: float | None
    ending: Ending
    report: ChildReport


def solve_packing(
    program: PackingProgram, limits: BackendLimits, memory_bytes: int | None = None, start: IntArray | None = None
) -> PackingAnswer:
    """Return the best packing that HiGHS finds through PuLP, checked in whole numbers, and its bound.

    Raises
    ------
    SolverUnavailable
        When PuLP or HiGHS isn't installed.
    """
    report = run_in_child(ModelJob(OneModel(program.model(start)), Backend.HIGHS, limits, memory_bytes))
    candidates = [values for _, values in report.values]
    candidates += [answer.values for answer in report.answers if answer.values is not None]
    best, chosen = 0.0, np.zeros(program.worth.size, np.int64)
    for values in candidates:
        x = np.array([round(values.get(j, 0.0)) for j in range(program.worth.size)], np.int64)
        if program.holds(x) and float(program.worth @ x) > best:
            best, chosen = float(program.worth @ x), x
    bounds = [bound for _, bound in report.bounds]
    bounds.extend(answer.bound for answer in report.answers if answer.bound is not None)
    bound = -max(bounds) * program.scale * (1 + BOUND_MARGIN) if bounds else None
    return PackingAnswer(chosen if best > 0 else None, bound, report.ending, report)


def linear_prices(program: PackingProgram) -> FloatArray:
    """Return (R,) prices of the rows in the linear relaxation, at least zero.

    Columns' upper limits `most` are left out: rows imply them, and prices then tell reduced costs alone.
    """
    solved = linprog(-program.worth, A_ub=program.rows, b_ub=program.limits, method="highs")
    return np.asarray(np.maximum(0.0, -np.asarray(solved.ineqlin.marginals, dtype=np.float64)))


def undominated(usage: IntArray, worth: FloatArray) -> IntArray:
    """Return indices (ascending) of columns that no other column replaces with less or equal use and no less worth.

    Parameters
    ----------
    usage
        (P, R) int64.
    worth
        (P,) float64.
    """
    order = np.lexsort((np.arange(worth.size), usage.sum(axis=1), -worth))
    if worth.size > MAX_COMPARED:
        _, first = np.unique(usage[order], axis=0, return_index=True)
        return np.sort(order[first])
    kept: list[int] = []
    for index in order.tolist():
        if not kept or not np.any(np.all(usage[kept] <= usage[index], axis=1)):
            kept.append(index)
    return np.sort(np.array(kept, np.int64))


def column_copies(usage: IntArray, limits: IntArray) -> IntArray:
    """Return (P,) how often each column fits the rows alone; every column uses some row."""
    with np.errstate(divide="ignore"):
        copies = np.where(usage > 0, limits // np.maximum(usage, 1), np.iinfo(np.int64).max)
    return np.asarray(copies.min(axis=1))
