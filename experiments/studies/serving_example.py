"""A short example run beside a study, for the Gantt chart of its report."""

from __future__ import annotations

from pathlib import Path

from experiments.serving_run import RunOptions
from experiments.serving_trace import record_run
from experiments.studies.serving_points import Point
from slob_opt.problem.sweep import sweep_preset
from slob_opt.problem.workload import NS_PER_S
from slob_opt.simulation.options import EngineOptions

NAME = "example.trace.jsonl"
"""Name by which the report finds it."""

NUM_REQUESTS = 60
"""Requests to expect in it. Chosen: enough to overlap, few enough to draw."""


def write_example(folder: Path, points: list[Point]) -> Path | None:
    """Write the trace of the first policy at the middle load of the first sweep; ``None`` without a point.

    It has the metric of its point, and no part in claims.
    """
    if not points:
        return None
    same = [point for point in points if point.sweep == points[0].sweep]
    loads = sorted({point.load for point in same})
    point = next(p for p in same if p.load == loads[len(loads) // 2])
    workload = next(
        sweep_preset(
            point.preset, point.service_s, levels=(point.load,), seeds=(point.seed,),
            duration_s=NUM_REQUESTS / point.rate_per_s, variant=point.variant,
        )
    ).workload  # fmt: skip
    options = RunOptions(
        EngineOptions(is_padded=point.engines[0] == "padded"),
        int(workload.arrival_ns[-1]) + round(point.grace_s * NS_PER_S),
        point.spec,
        seed=point.seed,
    )
    path = folder / NAME
    record_run(path, workload, point.system, point.choices[0], options)
    return path
