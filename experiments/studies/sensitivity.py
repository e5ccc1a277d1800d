"""Study: whether the ranking of policies survives other weights, decays and scales of satisfaction.

Every specification is measured on the same simulated token times, so that nothing but the measure differs. Policies
that aim at satisfaction keep aiming at the default.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import kendalltau, spearmanr

from experiments.provenance import collect
from experiments.serving_records import curve_records
from experiments.studies.claims import claim, figure
from experiments.studies.jobs import Row, run_jobs
from experiments.studies.paper import failures_figure, file_row
from experiments.studies.serving_example import write_example
from experiments.studies.serving_file import StudyFile, study_file
from experiments.studies.serving_points import point_jobs, points_of
from experiments.studies.serving_stats import curve_rows, samples_of
from experiments.study_contract import Claim, StudyOptions, StudySummary

LEAST_CORRELATION = 0.9
"""Least rank correlation of any specification with the default. Chosen: one swap of neighbours among eight policies
is 0.976, two are 0.95."""


def run(options: StudyOptions) -> StudySummary:
    """Return the summary of the sensitivity study; resumes where an earlier call with the same folder ended."""
    return study_of(study_file("sensitivity", options.file), options)


def study_of(file: StudyFile, options: StudyOptions) -> StudySummary:
    """Return the summary of the study of a file."""
    provenance = collect()
    options.progress("planning and measuring requests alone")
    points = points_of(file, is_quick=options.is_quick, first_seed=options.seed)
    rows, _ = run_jobs(point_jobs(points), options.out, workers=options.workers, progress=options.progress)
    rankings = ranking_rows(rows)
    write_example(options.out, points)
    return StudySummary(
        "sensitivity",
        sensitivity_claims(rankings),
        (
            file_row(file),
            failures_figure(rows),
            *sensitivity_figures(rankings),
            *rankings,
            *curve_rows(samples_of(rows)),
            *rows,
        ),
        provenance,
        curve_records("sensitivity", rows),
    )


def policy_means(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of mean satisfactions over points and seeds, by policy."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row["mean_satisfaction"])
    return {policy: float(np.mean(values)) for policy, values in found.items()}


def ranking_rows(rows: Sequence[Row]) -> list[Row]:
    """Return a row of kind ``"ranking"`` per specification: policies from best to worst, agreement with default.

    ``spearman`` and ``kendall`` are rank correlations of the policies' means over all points with those under the
    default; ``point_spearman`` is the mean of such correlations point by point; null with fewer than two policies.
    """
    default = [row for row in rows if row["kind"] == "point"]
    base = policy_means(default)
    specs = dict.fromkeys(row["spec"] for row in rows if row["kind"] == "family")
    found = [_ranking("default", base, base, 1.0)]
    for spec in specs:
        other = [row for row in rows if row["kind"] == "family" and row["spec"] == spec]
        found.append(_ranking(spec, policy_means(other), base, _by_point(default, other)))
    return found


def _ranking(spec: str, means: dict[str, float], base: dict[str, float], by_point: float | None) -> Row:
    labels = list(base)
    mine, default = [means[label] for label in labels], [base[label] for label in labels]
    is_ranked = len(labels) > 1
    ranking = sorted(labels, key=lambda label: -means[label])
    return {
        "kind": "ranking",
        "spec": spec,
        "ranking": ranking,
        "means": [means[label] for label in ranking],
        "spearman": float(spearmanr(mine, default).statistic) if is_ranked else None,
        "kendall": float(kendalltau(mine, default).statistic) if is_ranked else None,
        "point_spearman": by_point,
        "is_first_kept": ranking[0] == max(labels, key=lambda label: base[label]) if labels else None,
    }


def _by_point(default: Sequence[Row], other: Sequence[Row]) -> float | None:
    """Mean rank correlation over points and seeds; points where all policies are equal have none."""
    sides: list[dict[tuple[object, ...], dict[str, float]]] = []
    for rows in (default, other):
        side: dict[tuple[object, ...], dict[str, float]] = {}
        for row in rows:
            key = tuple(row[name] for name in ("cluster", "preset", "engine", "load", "seed"))
            side.setdefault(key, {})[row["policy"]] = row["mean_satisfaction"]
        sides.append(side)
    found = []
    for key, means in sides[0].items():
        pairs = [(means[label], sides[1][key][label]) for label in means]
        if len(pairs) > 1 and len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
            found.append(float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic))
    return float(np.mean(found)) if found else None


def sensitivity_claims(rankings: Sequence[Row]) -> tuple[Claim, ...]:
    """Return the claim: the least rank correlation of any other specification with the default."""
    values = [row["spearman"] for row in rankings if row["spec"] != "default" and row["spearman"] is not None]
    return (claim("sensitivity.rank_correlation", min(values, default=None), "", ">=", LEAST_CORRELATION),)


def sensitivity_figures(rankings: Sequence[Row]) -> list[Row]:
    """Return what is reported without a target."""
    others = [row for row in rankings if row["spec"] != "default"]
    found = [figure("specifications", len(others), "", "beside the default")]
    for name in ("spearman", "kendall", "point_spearman"):
        values = [(row[name], row["spec"]) for row in others if row[name] is not None]
        if values:
            worst, spec = min(values)
            found.append(figure(f"least_{name}", worst, "", f"under {spec}"))
    lost = [row["spec"] for row in others if row["is_first_kept"] is False]
    found.append(figure("first_lost", len(lost), "specifications", ", ".join(lost)))
    return found
