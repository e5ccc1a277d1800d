"""Study: the paper's two maxima, measured again by rules that are fixed in the study file."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.provenance import collect
from experiments.serving_records import curve_records
from experiments.studies.claims import figure
from experiments.studies.jobs import Row, run_jobs
from experiments.studies.paper_claims import paper_claims, paper_figures
from experiments.studies.serving_example import write_example
from experiments.studies.serving_file import StudyFile, study_file
from experiments.studies.serving_points import point_jobs, points_of
from experiments.study_contract import StudyOptions, StudySummary


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the paper study; resumes where an earlier call with the same folder ended."""
    return study_of(study_file("paper", options.file), options)


def study_of(file: StudyFile, options: StudyOptions) -> StudySummary:
    """Return the summary of the study of a file."""
    provenance = collect()
    options.progress("planning and measuring requests alone")
    points = points_of(file, is_quick=options.is_quick, first_seed=options.seed)
    rows, _ = run_jobs(point_jobs(points), options.out, workers=options.workers, progress=options.progress)
    write_example(options.out, points)
    return StudySummary(
        "paper",
        paper_claims(rows),
        (file_row(file), failures_figure(rows), *paper_figures(rows), *rows),
        provenance,
        curve_records("paper", rows),
    )


def failures_figure(rows: Sequence[Row]) -> Row:
    """Return how many points broke, as a sample without a request does; their rows say why."""
    return figure("failures", sum(row["kind"] == "failure" for row in rows), "points")


def file_row(file: StudyFile) -> Row:
    """Return a row of kind ``"file"``: which study file was used, and what its systems are."""
    names = dict.fromkeys(sweep.system for sweep in file.schema.sweeps)
    return {
        "kind": "file",
        "file": file.path.name,
        "sha256": file.fingerprint,
        "about": file.schema.about,
        "systems": [file.system(name).effective() for name in names],
    }
