"""The policies study on a small file, its claims from rows, and the tuning before it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_files import write_study
from study_rows import row

from experiments.studies import policies, tuning
from experiments.studies.policies_claims import ablation_figures, contests_of, policies_claims
from experiments.studies.serving_file import StudyFile
from experiments.study_contract import StudyOptions
from slob_opt.errors import InputError

TUNING = """
tuning:
  seeds: [77]
  duration: 1min
  grids:
    slob: [{oldest_share: 0.1}, {oldest_share: 0.5}]
"""


def test_only_contested_points_count() -> None:
    """Load 1: all within 2 %. Load 2: slob 3 % below the best. Load 3: slob best but for srpt, which knows more."""
    rows = [
        row("slob", 1, 0.99), row("a", 1, 1.0), row("b", 1, 0.985),
        row("slob", 2, 0.97), row("a", 2, 1.0), row("b", 2, 0.5),
        row("slob", 3, 0.8), row("a", 3, 0.7), row("srpt", 3, 0.9),
    ]  # fmt: skip
    claims = {c.id: c.value for c in policies_claims(rows, frozenset({"srpt"}))}
    assert claims["policies.contested_points"] == 2
    assert claims["policies.best_or_tied_pct"] == pytest.approx(50.0)
    assert claims["policies.worst_gap_pct"] == pytest.approx(3.0)
    assert [c.best_rival for c in contests_of(rows, frozenset({"srpt"}))] == ["a", "a", "a"]


def test_without_contested_points_nothing_is_claimed() -> None:
    claims = {c.id: c for c in policies_claims([row("slob", 1, 1.0), row("a", 1, 1.0)])}
    assert claims["policies.best_or_tied_pct"].holds is None
    assert claims["policies.contested_points"].holds is False


def test_a_part_brings_the_mean_of_paired_differences() -> None:
    rows = [
        row(policy, load, mean, seed=seed, role="ablation")
        for load, seed, slob, without in ((1, 0, 0.9, 0.8), (1, 1, 0.7, 0.5), (2, 0, 0.6, 0.6))
        for policy, mean in (("slob", slob), ("no-chunks", without))
    ]
    figures = {f["name"]: f["value"] for f in ablation_figures(rows)}
    assert figures["ablation.no-chunks.mean_satisfaction"] == pytest.approx(0.1)


def test_a_small_study_runs(tmp_path: Path) -> None:
    change = ("loads: [1, 12]", "loads: [12]")
    file = StudyFile(write_study(tmp_path, change, ("seeds: [0, 1]", "seeds: [0]"), study="policies"), "policies")
    summary = policies.study_of(file, StudyOptions(tmp_path / "out", False, 0, 1, lambda _: None))
    json.dumps(summary.as_json(), allow_nan=False)
    assert [c.id for c in summary.claims] == [
        "policies.contested_points", "policies.best_or_tied_pct", "policies.worst_gap_pct",
    ]  # fmt: skip
    assert any(r["kind"] == "contest" for r in summary.rows)


def test_tuning_tries_each_candidate_on_seeds_of_its_own(tmp_path: Path) -> None:
    path = write_study(tmp_path, ("role: frontier", "role: tuning"), study="policies")
    path.write_text(path.read_text(encoding="utf-8") + TUNING, encoding="utf-8")
    file = StudyFile(path, "policies")
    summary = tuning.study_of(file, StudyOptions(tmp_path / "out", False, 0, 1, lambda _: None))
    tried = [r for r in summary.rows if r["kind"] == "candidate"]
    assert sorted(r["params"] for r in tried) == ['{"oldest_share": 0.1}', '{"oldest_share": 0.5}']
    assert {r["seed"] for r in summary.rows if r["kind"] == "point"} == {77}
    [best] = [r for r in summary.rows if r["kind"] == "figure" and r["name"] == "best.slob"]
    assert best["value"] == max(r["mean_satisfaction"] for r in tried)
    assert summary.claims == ()


def test_an_unequal_budget_is_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path, study="policies")
    path.write_text(path.read_text(encoding="utf-8") + TUNING + "    orca: [{}]\n", encoding="utf-8")
    file = StudyFile(path, "policies")
    assert file.schema.tuning is not None
    with pytest.raises(InputError, match="1 candidates, others have 2"):
        tuning.candidates(file, file.schema.tuning)


def test_a_file_without_tuning_is_told(tmp_path: Path) -> None:
    file = StudyFile(write_study(tmp_path, study="policies"), "policies")
    options = StudyOptions(tmp_path / "out", True, 0, 1, lambda _: None)
    with pytest.raises(InputError, match="tuning: the section is missing"):
        tuning.study_of(file, replace(options))
