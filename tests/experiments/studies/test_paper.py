"""The paper study on a small file, and its claims from rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study_files import write_study
from study_rows import row

from experiments.run_record import CLAIM_METRICS
from experiments.studies.paper import study_of
from experiments.studies.paper_claims import frontier_rows, largest_ratio, paper_claims, paper_figures
from experiments.studies.serving_file import StudyFile
from experiments.studies.serving_points import points_of
from experiments.studies.serving_stats import ratios_of, samples_of
from experiments.study_contract import StudyOptions


def options(folder: Path, *, is_quick: bool = False) -> StudyOptions:
    return StudyOptions(folder, is_quick, 0, 1, lambda _: None)


def test_a_small_study_runs_and_resumes(tmp_path: Path) -> None:
    file = StudyFile(write_study(tmp_path), "paper")
    told: list[str] = []
    first = study_of(file, options(tmp_path / "out"))
    again = study_of(file, StudyOptions(tmp_path / "out", False, 0, 1, told.append))
    json.dumps(first.as_json(), allow_nan=False)
    assert {c.id for c in first.claims} == {name for name in CLAIM_METRICS if name.startswith("paper.")}
    assert [c.value for c in again.claims] == [c.value for c in first.claims]
    assert any("6 of 6 instances taken over" in text for text in told)
    points = [r for r in first.rows if r["kind"] == "point"]
    assert len(points) == 2 * 2 * 4 + 2 * 2  # loads, seeds, policies; and the frontier
    slob, rtc = (
        [r["mean_satisfaction"] for r in points if r["policy"] == policy and r["load"] == 1 and r["role"] == "claims"]
        for policy in ("slob", "rtc")
    )
    assert min(slob) > max(rtc)
    assert len(first.records) == 5
    [used] = [r for r in first.rows if r["kind"] == "file"]
    assert used["sha256"] == file.fingerprint


def test_quick_runs_what_the_file_says(tmp_path: Path) -> None:
    file = StudyFile(write_study(tmp_path), "paper")
    [point] = points_of(file, is_quick=True)
    assert (point.sweep, point.seed, point.duration_s, point.load) == ("chat", 0, 60.0, 1)
    assert len(points_of(file, is_quick=False, first_seed=5)) == 6


def test_claims_are_over_points_that_count() -> None:
    rows = [
        row("slob", 1, 1.0), row("orca", 1, 1.0), row("rtc", 1, 0.5), row("orca-paged", 1, 1.0),
        row("slob", 8, 0.8), row("orca", 8, 0.2), row("rtc", 8, 0.02), row("orca-paged", 8, 0.4),
        row("slob", 16, 0.3), row("orca", 16, 0.01), row("rtc", 16, 0.001), row("orca-paged", 16, 0.01),
    ]  # fmt: skip
    claims = {c.id: c for c in paper_claims(rows)}
    assert claims["paper.max_ratio_rtc"].value == pytest.approx(40.0)
    assert claims["paper.max_ratio_rtc"].holds
    assert claims["paper.max_ratio_orca"].value == pytest.approx(4.0)
    assert claims["paper.max_ratio_orca_paged"].value == pytest.approx(2.0)
    assert claims["paper.worst_vs_orca_pct"].value == pytest.approx(0.0)
    assert claims["paper.capacity_ratio_orca"].value > 1
    figures = {f["name"]: f for f in paper_figures(rows) if f["kind"] == "figure"}
    assert figures["gain.paging"]["value"] == pytest.approx(2.0)
    assert figures["gain.slob_beyond_paging"]["value"] == pytest.approx(2.0)
    best = largest_ratio(ratios_of(samples_of(rows), "orca"))
    assert best is not None
    assert best.point.load == 8


def test_below_orca_by_more_than_one_per_cent_fails() -> None:
    rows = [row("slob", 1, 0.95), row("orca", 1, 1.0)]
    claims = {c.id: c for c in paper_claims(rows)}
    assert claims["paper.worst_vs_orca_pct"].value == pytest.approx(5.0)
    assert claims["paper.worst_vs_orca_pct"].holds is False
    assert claims["paper.max_ratio_rtc"].holds is None


def test_the_first_token_is_compared_where_orca_is_stable() -> None:
    rows = [
        row("slob", 1, 1.0, ttft_p99_s=1.2), row("orca", 1, 1.0, ttft_p99_s=1.0),
        row("slob", 8, 1.0, ttft_p99_s=9.0), row("orca", 8, 1.0, ttft_p99_s=1.0, num_unfinished=3),
    ]  # fmt: skip
    figures = {f["name"]: f for f in paper_figures(rows) if f["kind"] == "figure"}
    assert figures["ttft_p99_vs_orca_pct"]["value"] == pytest.approx(20.0)


def test_the_frontier_is_over_beta() -> None:
    rows = [
        row("slob", 9, 0.9, role="frontier"),
        row("slob-beta-0", 9, 0.8, role="frontier", params='{"oldest_share": 0.0}'),
        row("orca", 9, 0.5, role="frontier"),
    ]
    assert [r["beta"] for r in frontier_rows(rows)] == [0.25, 0.0, None]
