"""Incumbent and bound over time, as data for the plot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from slob_opt.planning.result import SolveResult

FIRST_MOMENT_S = 1e-3
"""Left end of the logarithmic time axis, seconds; what came earlier is drawn there."""


@dataclass(frozen=True, slots=True)
class GapCurve:
    """One method's progress in natural scale (seconds, or tokens/s).

    Attributes
    ----------
    method
        Name.
    incumbent, bound
        (elapsed seconds, value), each kept only where it changes and at the end.
    """

    method: str
    incumbent: tuple[tuple[float, float], ...]
    bound: tuple[tuple[float, float], ...]


def natural(value: float, is_throughput: bool) -> float:
    """Return a minimised value in natural scale: tokens/s for throughput, seconds otherwise."""
    return -value if is_throughput else value


def _steps(points: Iterable[tuple[float, float | None]], end_s: float) -> tuple[tuple[float, float], ...]:
    """Points where the value changes, extended to the end of the solve."""
    steps: list[tuple[float, float]] = []
    for at, value in sorted((max(at, FIRST_MOMENT_S), value) for at, value in points if value is not None):
        if math.isfinite(value) and (not steps or steps[-1][1] != value):
            steps.append((at, value))
    if steps and steps[-1][0] < end_s:
        steps.append((end_s, steps[-1][1]))
    return tuple(steps)


def gap_curve(result: SolveResult, is_throughput: bool) -> GapCurve:
    """Return a solve's progress; a method without history gives its final values at its end."""
    end_s = max(result.elapsed_s, FIRST_MOMENT_S)
    history = [(p.elapsed_s, p.objective, p.bound) for p in result.history]
    history.append((end_s, result.objective, result.bound))

    def scaled(value: float | None) -> float | None:
        return None if value is None else natural(value, is_throughput)

    return GapCurve(
        method=result.planner,
        incumbent=_steps(((at, scaled(objective)) for at, objective, _ in history), end_s),
        bound=_steps(((at, scaled(bound)) for at, _, bound in history), end_s),
    )


def gap_curves(results: Iterable[SolveResult], is_throughput: bool) -> tuple[GapCurve, ...]:
    """Return the curves of all methods that found a plan or a bound."""
    curves = (gap_curve(result, is_throughput) for result in results)
    return tuple(curve for curve in curves if curve.incumbent or curve.bound)
