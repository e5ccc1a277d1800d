"""Study: slob against policies that were tuned with the same budget, where policies differ at all; and its parts."""

from __future__ import annotations

from experiments.provenance import collect
from experiments.serving_records import curve_records
from experiments.studies.jobs import run_jobs
from experiments.studies.paper import failures_figure, file_row
from experiments.studies.policies_claims import policies_claims, policies_figures
from experiments.studies.serving_example import write_example
from experiments.studies.serving_file import StudyFile, study_file
from experiments.studies.serving_points import point_jobs, points_of
from experiments.study_contract import StudyOptions, StudySummary


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the policies study; resumes where an earlier call with the same folder ended."""
    return study_of(study_file("policies", options.file), options)


def study_of(file: StudyFile, options: StudyOptions) -> StudySummary:
    """Return the summary of the study of a file; sweeps of role ``tuning`` are left to the study of that name."""
    provenance = collect()
    options.progress("planning and measuring requests alone")
    names = [sweep.name for sweep in file.schema.sweeps if sweep.role != "tuning"]
    points = points_of(file, is_quick=options.is_quick, first_seed=options.seed, only=names)
    rows, _ = run_jobs(point_jobs(points), options.out, workers=options.workers, progress=options.progress)
    write_example(options.out, points)
    return StudySummary(
        "policies",
        policies_claims(rows, file.clairvoyant),
        (file_row(file), failures_figure(rows), *policies_figures(rows, file.clairvoyant), *rows),
        provenance,
        curve_records("policies", rows),
    )
