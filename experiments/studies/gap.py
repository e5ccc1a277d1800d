"""Study of all methods on hundreds of small instances.

Do exact methods agree, do planners keep their properties, and how far is `slob` from the optimum?
"""

from __future__ import annotations

from functools import partial

from experiments.provenance import Provenance, collect
from experiments.studies.gap_cases import GapCase, gap_cases
from experiments.studies.gap_claims import gap_claims, gap_figures
from experiments.studies.jobs import Job, Row, key_of, run_jobs, source_digest
from experiments.studies.judging import judge
from experiments.studies.properties import check_properties
from experiments.studies.records import result_records
from experiments.studies.solving import Trial, finite, instance_columns, trial_row, try_methods
from experiments.study_contract import StudyOptions, StudySummary
from slob_opt.planning.instance import PlacementInstance

SOURCES = ("slob_opt", "solvers", "experiments/studies")
"""Packages whose code the rows depend on."""


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the gap study.

    Writes finished instances into the output folder as it goes and takes them from there when it is called again, as
    long as code and instances are the same.
    """
    provenance = collect()
    options.progress("drawing instances")
    return study_of(gap_cases(options.seed, is_quick=options.is_quick), options, provenance=provenance)


def study_of(
    cases: tuple[GapCase, ...], options: StudyOptions, *, provenance: Provenance | None = None
) -> StudySummary:
    """Return the summary of the study over given cases."""
    digest = source_digest(*SOURCES)
    jobs = [case_job(case, digest) for case in cases]
    rows, num_resumed = run_jobs(jobs, options.out, workers=options.workers, progress=options.progress)
    figures = gap_figures(rows)
    figures.append({"kind": "figure", "name": "resumed", "value": float(num_resumed), "unit": "instances", "note": ""})
    return StudySummary(
        "gap",
        gap_claims(rows, len(cases)),
        (*figures, *rows),
        provenance or collect(),
        result_records("gap", rows),
    )


def case_job(case: GapCase, digest: str) -> Job:
    """Return the job of a case."""
    fingerprint = case.problem.instance().fingerprint
    key = key_of(fingerprint, case.methods, case.property_methods, case.limits, digest)
    return Job(key, case.problem.name, case.expected_s, partial(run_case, case))


def run_case(case: GapCase) -> list[Row]:
    """Return all rows of a case: results, judgements of original and variants, properties."""
    instance = case.problem.instance()
    trials = try_methods(case.methods, instance, case.limits)
    judgement = judge(trials)
    rows = [trial_row(trial, instance, judgement.reference) for trial in trials]
    rows.append(judgement_row(instance, trials, is_original=True))
    by_method = {trial.method: trial for trial in trials}
    properties, variants = check_properties(
        case.problem, by_method, case.property_methods, case.limits, case.limits.seed
    )
    rows += properties
    rows += [judgement_row(changed, tuple(found), is_original=False) for changed, found in variants]
    return rows


def judgement_row(instance: PlacementInstance, trials: tuple[Trial, ...], *, is_original: bool) -> Row:
    """Return what the methods of one instance say together, as a row."""
    judgement = judge(trials)
    optimum = judgement.optimum
    return {
        "kind": "judgement",
        **instance_columns(instance),
        "is_original": is_original,
        "optimum": None if optimum is None else finite(-optimum if instance.is_throughput else optimum),
        "is_infeasible": judgement.is_infeasible,
        "num_methods": len(trials),
        "is_complete": all(trial.was_available and trial.trace is None for trial in trials),
        "num_disagreements": len(judgement.disagreements),
        "num_violations": len(judgement.violations),
        "message": "; ".join((*judgement.disagreements, *judgement.violations)),
    }
