"""Running methods on one instance of a study: solve, measure, certify, and what is kept of it as a flat row."""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.gap_curves import natural
from experiments.registry import make_planner, planner_entry
from slob_opt.errors import SolverUnavailable
from slob_opt.planning.certify import Certificate, certify
from slob_opt.planning.evaluate import evaluate
from slob_opt.planning.instance import PlacementInstance
from slob_opt.planning.objectives import IntervalObjective
from slob_opt.planning.result import SolveLimits, SolveResult, Status
from slob_opt.problem.placement import Placement

NUM_SLOB_CALLS = 3
"""Calls of `slob` per instance, of which the median time counts: one call takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One method on one instance.

    Attributes
    ----------
    method
        Name.
    result
        What the planner returned; an UNKNOWN result without plan when it could not run.
    certificate
        Its re-check.
    wall_s
        Wall-clock seconds of the whole call, with any solver process's start.
    certify_s
        Wall-clock seconds of the re-check.
    was_available
        Whether the method is installed here.
    trace
        Traceback of a method that broke; ``None`` when it didn't.
    """

    method: str
    result: SolveResult
    certificate: Certificate
    wall_s: float
    certify_s: float = 0.0
    was_available: bool = True
    trace: str | None = None

    @property
    def is_baseline(self) -> bool:
        """Whether the method is a baseline, whose natural plan may break memory and says so."""
        return planner_entry(self.method).kind == "baseline"

    @property
    def is_exact(self) -> bool:
        """Whether the method promises an optimum or a bound."""
        return planner_entry(self.method).kind == "exact"

    @property
    def worth(self) -> float | None:
        """Exact worth of a plan that breaks nothing, minimised scale; ``None`` otherwise."""
        return None if self.certificate.violations else self.certificate.objective

    @property
    def solve_s(self) -> float | None:
        """Seconds of building and solving without a solver process's start; ``None`` for methods in this process."""
        details = dict(self.result.details)
        build_s, solve_s = details.get("build_s"), details.get("solve_s")
        if isinstance(build_s, int | float) and isinstance(solve_s, int | float):
            return float(build_s) + float(solve_s)
        return None


def try_method(
    method: str, instance: PlacementInstance, limits: SolveLimits, *, incumbent: Placement | None = None
) -> Trial:
    """Return what a method makes of an instance, certified; a method that breaks is told, not raised."""
    began = time.perf_counter()
    trace, available = None, True
    try:
        planner = make_planner(method)
        walls = []
        for _ in range(NUM_SLOB_CALLS if planner_entry(method).kind == "heuristic" else 1):
            began = time.perf_counter()
            result = planner.solve(instance, incumbent=incumbent, limits=limits)
            walls.append(time.perf_counter() - began)
        wall_s = statistics.median(walls)
    except SolverUnavailable as error:
        result, wall_s, available = _nothing(method, limits, str(error)), time.perf_counter() - began, False
    except Exception as error:  # noqa: BLE001 - the edge between one method and a study of hundreds; told and kept
        result = _nothing(method, limits, f"broke: {type(error).__name__}: {error}")
        wall_s, trace = time.perf_counter() - began, traceback.format_exc()
    began = time.perf_counter()
    certificate = certify(result, instance)
    return Trial(method, result, certificate, wall_s, time.perf_counter() - began, available, trace)


def try_methods(methods: Sequence[str], instance: PlacementInstance, limits: SolveLimits) -> tuple[Trial, ...]:
    """Return trials of several methods; nobody is given another's plan, so that agreement means something."""
    return tuple(try_method(method, instance, limits) for method in methods)


def instance_columns(instance: PlacementInstance) -> dict[str, Any]:
    """Return the columns that all rows of an instance share."""
    table, objective = instance.table, instance.objective
    return {
        "instance": instance.name,
        "fingerprint": instance.fingerprint,
        "objective": "throughput" if instance.is_throughput else "interval",
        "in_flight": objective.in_flight if isinstance(objective, IntervalObjective) else None,
        "unit": "output tokens/s" if instance.is_throughput else "s",
        "links": "uniform" if table.has_uniform_links else "general",
        "num_devices": table.num_devices,
        "num_types": table.num_classes,
        "num_layers": table.num_layers,
    }


def trial_row(trial: Trial, instance: PlacementInstance, optimum: float | None) -> dict[str, Any]:
    """Return a trial as a flat row of plain JSON values.

    Parameters
    ----------
    trial, instance
        The method and what it was run on.
    optimum
        Proven optimum or best verified bound, minimised scale; ``None`` when there is none.
    """
    result, certificate = trial.result, trial.certificate
    scale = instance.is_throughput
    own = trial.worth
    used = {c for p in result.placement.pipelines for s in p.stages for c in s.cards} if result.placement else set()
    headroom = None
    if result.placement is not None and own is not None:
        reports = evaluate(instance, result.placement).pipelines
        headroom = min(stage.headroom_bytes for report in reports for stage in report.stages)
    return {
        "kind": "result",
        **instance_columns(instance),
        "method": trial.method,
        "seed": result.limits.seed,
        "status": str(result.status),
        "certified_status": str(certificate.status),
        "value": finite(natural(own, scale) if own is not None else None),
        "bound": finite(natural(result.bound, scale) if result.bound is not None else None),
        "gap_pct": finite(None if result.bound is None or own is None else relative_gap(own, result.bound) * 100),
        "optimum_gap_pct": finite(None if optimum is None or own is None else relative_gap(own, optimum) * 100),
        "bound_status": certificate.bound_status,
        "certificate_valid": certificate.is_valid,
        "wall_s": trial.wall_s,
        "solve_s": trial.solve_s,
        "certify_s": trial.certify_s,
        "time_limit_s": result.limits.time_s,
        "num_pipelines": len(result.placement.pipelines) if result.placement else None,
        "num_cards_used": len(used) if result.placement else None,
        "headroom_bytes": headroom,
        "available": trial.was_available,
        "broke": trial.trace is not None,
        "message": result.message,
    }


def relative_gap(worth: float, bound: float) -> float:
    """Return how far a plan is above a bound, relative to the plan's own worth, at least 0 (minimised scale)."""
    return max(0.0, worth - bound) / abs(worth)


def finite(value: float | None) -> float | None:
    """Return the value, ``None`` when it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None


def seeded(limits: SolveLimits, seed: int) -> SolveLimits:
    """Return the limits with another seed."""
    return replace(limits, seed=seed)


def _nothing(method: str, limits: SolveLimits, message: str) -> SolveResult:
    return SolveResult(method, Status.UNKNOWN, None, None, None, 0.0, limits=limits, message=message)
