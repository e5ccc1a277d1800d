"""Study: parameters of the policies, chosen among as many candidates each on samples that no other study sees.

What it chooses is written into the study file by hand, so that the file fixes it before the policies study runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from experiments.provenance import collect
from experiments.serving_output import params_text
from experiments.serving_run import PolicyChoice
from experiments.studies.claims import figure
from experiments.studies.jobs import Row, run_jobs
from experiments.studies.paper import failures_figure, file_row
from experiments.studies.serving_file import StudyFile, TuningSchema, study_file
from experiments.studies.serving_points import Point, point_jobs, points_of
from experiments.study_contract import StudyOptions, StudySummary
from slob_opt.errors import InputError

MARK = "#"
"""Between a policy's label and the number of a candidate."""


def run(options: StudyOptions) -> StudySummary:
    """Return the candidates and the best of each policy; it has no claims. Resumes as the others do."""
    return study_of(study_file("policies", options.file), options)


def study_of(file: StudyFile, options: StudyOptions) -> StudySummary:
    """Return the summary for a study file with a section ``tuning``."""
    tuning = file.schema.tuning
    if tuning is None:
        raise InputError(
            "the section is missing; it holds seeds, duration and grids", file=str(file.path), key="tuning"
        )
    provenance = collect()
    options.progress("planning and measuring requests alone")
    points = tuning_points(file, tuning, is_quick=options.is_quick, first_seed=options.seed)
    rows, _ = run_jobs(point_jobs(points), options.out, workers=options.workers, progress=options.progress)
    return StudySummary("tuning", (), (file_row(file), failures_figure(rows), *chosen_rows(rows), *rows), provenance)


def candidates(file: StudyFile, tuning: TuningSchema) -> list[PolicyChoice]:
    """Return every candidate as a choice of its own.

    Raises
    ------
    InputError
        When a label is unknown, a policy has more candidates than others, or a parameter is wrong.
    """
    budget = max((len(grid) for grid in tuning.grids.values()), default=0)
    found = []
    for label, grid in tuning.grids.items():
        key = f"tuning.grids.{label}"
        if label not in file.choices:
            raise InputError(
                f"no policy of this label; known are {', '.join(file.choices)}", file=str(file.path), key=key
            )
        if len(grid) != budget:
            raise InputError(f"{len(grid)} candidates, others have {budget}", file=str(file.path), key=key)
        for index, params in enumerate(grid):
            choice = replace(file.choices[label], label=f"{label}{MARK}{index}", params=params)
            try:
                choice.policies(1)
            except InputError as error:
                raise InputError(error.message, file=str(file.path), key=f"{key}[{index}]") from error
            found.append(choice)
    return found


def tuning_points(file: StudyFile, tuning: TuningSchema, *, is_quick: bool, first_seed: int) -> list[Point]:
    """Return the points on which candidates are tried: sweeps of role ``tuning``, with seeds of their own."""
    names = [sweep.name for sweep in file.schema.sweeps if sweep.role == "tuning"]
    chosen = tuple(candidates(file, tuning))
    seeds = tuning.seeds[:1] if is_quick else tuning.seeds
    found: dict[tuple[str, float], Point] = {}
    for point in points_of(file, is_quick=False, first_seed=first_seed, only=names):
        found.setdefault((point.sweep, point.load), point)
    duration_s = float(tuning.duration)
    return [
        replace(point, seed=first_seed + seed, choices=chosen, duration_s=duration_s / 4 if is_quick else duration_s)
        for point in found.values()
        for seed in seeds
    ]


def chosen_rows(rows: list[Row]) -> list[Row]:
    """Return a row per candidate with its mean satisfaction over all points, and a figure for each policy's best."""
    means: dict[str, list[float]] = {}
    params: dict[str, str] = {}
    for row in rows:
        if row["kind"] == "point":
            means.setdefault(row["policy"], []).append(row["mean_satisfaction"])
            params[row["policy"]] = row["params"]
    table: list[Row] = [
        {
            "kind": "candidate",
            "policy": label.partition(MARK)[0],
            "params": params[label],
            "num_points": len(values),
            "mean_satisfaction": float(np.mean(values)),
        }
        for label, values in means.items()
    ]
    best: dict[str, Row] = {}
    for row in table:
        if row["policy"] not in best or row["mean_satisfaction"] > best[row["policy"]]["mean_satisfaction"]:
            best[row["policy"]] = row
    figures = [figure(f"best.{label}", row["mean_satisfaction"], "", row["params"]) for label, row in best.items()]
    return [*figures, *table]


def is_in_grid(params: dict[str, object], grid: list[dict[str, object]]) -> bool:
    """Return whether parameters are among the candidates of a grid."""
    return params_text(params) in {params_text(candidate) for candidate in grid}
