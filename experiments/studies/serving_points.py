"""The points of a serving study: one system, preset, load and seed, under every policy of its sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from experiments.serving_load import service_s
from experiments.serving_output import params_text, point_row, run_summary
from experiments.serving_run import PolicyChoice, RunOptions, serve, served_alone
from experiments.serving_setup import ServingSystem
from experiments.studies.jobs import Job, Row, key_of, source_digest
from experiments.studies.serving_file import StudyFile, SweepSchema
from slob_opt.metrics.satisfaction import SatisfactionSpec
from slob_opt.problem.sweep import rate_at, sweep_preset
from slob_opt.problem.workload import NS_PER_S
from slob_opt.simulation.options import EngineOptions

SOURCES = ("slob_opt", "experiments")
"""Packages whose change makes finished points worthless."""

REQUESTS_PER_S = 500.0
"""Rough speed of a simulation, for the estimate of time left only."""

EngineName = Literal["ragged", "padded"]


@dataclass(frozen=True, slots=True)
class Point:
    """What is simulated in one job.

    Attributes
    ----------
    study, sweep, role
        Names, and what the sweep is for.
    system
        What serves.
    preset, variant
        Workload.
    service_s
        E[S] of the preset on the system, seconds.
    load
        Offered concurrency.
    seed
        Of the sample.
    engines, choices
        Run one after the other on the same sample.
    spec, family
        Of satisfaction, and other ways to measure it.
    duration_s, grace_s
        Length of the arrivals, and how long after it answers still count, seconds.
    """

    study: str
    sweep: str
    role: str
    system: ServingSystem
    preset: str
    variant: str | None
    service_s: float
    load: float
    seed: int
    engines: tuple[EngineName, ...]
    choices: tuple[PolicyChoice, ...]
    spec: SatisfactionSpec
    family: tuple[tuple[str, SatisfactionSpec], ...]
    duration_s: float
    grace_s: float

    @property
    def rate_per_s(self) -> float:
        """Mean rate, requests/s."""
        return rate_at(self.load, self.service_s)


def run_point(point: Point) -> list[Row]:
    """Return a row per engine and policy of a point, and one more for each other specification."""
    found = next(
        sweep_preset(
            point.preset,
            point.service_s,
            levels=(point.load,),
            seeds=(point.seed,),
            duration_s=point.duration_s,
            variant=point.variant,
        )
    )
    workload = found.workload
    alone = served_alone(workload, point.system, point.spec)
    horizon_ns = round((point.duration_s + point.grace_s) * NS_PER_S)
    rows: list[Row] = []
    for engine in point.engines:
        options = RunOptions(
            EngineOptions(is_padded=engine == "padded"),
            horizon_ns,
            point.spec,
            point.family,
            has_qoe=False,
            seed=point.seed,
        )
        for choice in point.choices:
            run = serve(workload, point.system, choice, options)
            what: Row = {
                "study": point.study,
                "sweep": point.sweep,
                "role": point.role,
                "cluster": point.system.name,
                "preset": point.preset,
                "engine": engine,
                "policy": choice.label,
                "params": params_text(dict(choice.params)),
                "load": point.load,
                "rate_per_s": point.rate_per_s,
                "seed": point.seed,
            }
            summary = run_summary(run, alone, point.spec, has_qoe=False)
            rows.append({"kind": "point", **what, **point_row(run, summary)})
            rows += [{"kind": "family", **what, "spec": name, **_spread(values)} for name, values in run.family.items()]
    return rows


def _spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, float]:
    return {"mean_satisfaction": float(values.mean()), "p10_satisfaction": float(np.percentile(values, 10))}


def points_of(
    file: StudyFile, *, is_quick: bool, first_seed: int = 0, only: Sequence[str] | None = None
) -> list[Point]:
    """Return the points of a study file, sweep by sweep.

    Parameters
    ----------
    file
        The file.
    is_quick
        Whether what it says of ``quick`` holds.
    first_seed
        Added to every seed.
    only
        Names of sweeps to take; ``None`` takes all.

    Raises
    ------
    InputError
        When a system can't be built, or holds no request of a preset.
    """
    schema, points = file.schema, []
    services: dict[tuple[str, str, str | None], float] = {}
    for sweep in schema.sweeps:
        if (is_quick and sweep.name not in schema.quick.sweeps) or (only is not None and sweep.name not in only):
            continue
        system = file.system(sweep.system)
        key = (sweep.system, sweep.preset, sweep.variant)
        if key not in services:
            services[key] = service_s(sweep.preset, system, sweep.variant)
        seeds = schema.quick.seeds if is_quick else sweep.seeds or schema.seeds
        loads = _thinned(sweep, schema.quick.max_loads) if is_quick else sweep.loads
        points += [
            Point(
                schema.study,
                sweep.name,
                sweep.role,
                system,
                sweep.preset,
                sweep.variant,
                services[key],
                load,
                first_seed + seed,
                tuple(sweep.engines),
                tuple(file.choices[label] for label in sweep.policies),
                file.spec,
                file.family,
                float(schema.quick.duration if is_quick else schema.duration),
                float(schema.grace),
            )
            for load in loads
            for seed in seeds
        ]
    return points


def _thinned(sweep: SweepSchema, most: int) -> list[float]:
    """Loads of a sweep, at most so many, the last one kept."""
    loads = sweep.loads
    if len(loads) <= most:
        return loads
    return [loads[round(i * (len(loads) - 1) / max(1, most - 1))] for i in range(most)]


def point_jobs(points: Sequence[Point]) -> list[Job]:
    """Return a job a point, the longest first, so that the last ones to end are short."""
    digest = source_digest(*SOURCES)
    jobs = []
    for point in points:
        runs = len(point.engines) * len(point.choices)
        expected_s = point.rate_per_s * point.duration_s * runs / REQUESTS_PER_S
        key = key_of(
            point.study, point.sweep, point.role, point.system.effective(),
            point.preset, point.variant, point.load, point.seed,
            point.engines, [choice.effective() for choice in point.choices], point.spec, point.family,
            point.duration_s, point.grace_s, point.service_s, digest,
        )  # fmt: skip
        label = f"{point.sweep} load {point.load:g} seed {point.seed}"
        jobs.append(Job(key, label, expected_s, partial(run_point, point)))
    return sorted(jobs, key=lambda job: -job.expected_s)
