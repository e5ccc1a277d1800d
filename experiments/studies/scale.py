"""Study: proofs on fixed clusters of 24 and 42 devices, and `slob` alone on up to 1,024 devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from experiments.provenance import Provenance, collect
from experiments.studies.gap import SOURCES
from experiments.studies.jobs import Job, Row, key_of, run_jobs, source_digest
from experiments.studies.judging import judge
from experiments.studies.records import result_records
from experiments.studies.scale_cases import ScaleCase, scale_cases
from experiments.studies.scale_claims import scale_claims, scale_figures
from experiments.studies.solving import trial_row, try_method
from experiments.study_contract import StudyOptions, StudySummary


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the scale study; resumes as the gap study does."""
    provenance = collect()
    options.progress("building problems")
    return study_of(scale_cases(options.seed, is_quick=options.is_quick), options, provenance=provenance)


def study_of(
    cases: Sequence[ScaleCase], options: StudyOptions, *, provenance: Provenance | None = None
) -> StudySummary:
    """Return the summary of the study over given cases.

    Cases without bounds are timed alone, after the others, since two processes on two cores disturb each other.
    """
    digest = source_digest(*SOURCES)
    long = [case_job(case, digest) for case in cases if case.bound_methods]
    short = [case_job(case, digest) for case in cases if not case.bound_methods]
    rows, _ = run_jobs(long, options.out, workers=options.workers, progress=options.progress)
    rows += run_jobs(short, options.out, workers=1, progress=options.progress)[0]
    return StudySummary(
        "scale",
        scale_claims(rows),
        (*scale_figures(rows), *rows),
        provenance or collect(),
        result_records("scale", rows),
    )


def case_job(case: ScaleCase, digest: str) -> Job:
    """Return the job of a case."""
    key = key_of(case.group, case.problem.instance().fingerprint, case.bound_methods, case.limits, digest)
    return Job(key, case.problem.name, case.expected_s, partial(run_case, case))


def run_case(case: ScaleCase) -> list[Row]:
    """Return the rows of a case: `slob` from nothing, then each exact method from its plan."""
    instance = case.problem.instance()
    first = try_method("slob", instance, replace(case.limits, time_s=None))
    trials = [first]
    for method in case.bound_methods:
        trials.append(try_method(method, instance, case.limits, incumbent=first.result.placement))
    judgement = judge(trials)
    rows = [{**trial_row(trial, instance, judgement.reference), "group": case.group} for trial in trials]
    rows.append(
        {
            "kind": "judgement",
            "instance": instance.name,
            "fingerprint": instance.fingerprint,
            "group": case.group,
            "is_proven": judgement.optimum is not None,
            "has_bound": judgement.reference is not None,
            "num_disagreements": len(judgement.disagreements),
            "num_violations": len(judgement.violations),
            "message": "; ".join((*judgement.disagreements, *judgement.violations)),
        }
    )
    return rows
